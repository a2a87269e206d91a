"""Whether an archive holds what a text asks for, decided by the mean score of its best answers.

Among many windows a single answer often scores high by chance, but several rarely do. Texts also differ in their level: the best
answers to some score high even if nothing matches. The level of a new text is estimated from similar texts of the fit. How many
answers are averaged, and which excess of their mean over the level is too small, is fitted on texts with and without their
matching clips.

Shapes: M texts, N clips, T texts of the levels, r width of a vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

COUNTS = (1, 3, 5)
FALSE_SHARE = 0.05
"""Default share of texts, among those with matching clips, for which the decision is wrongly "nothing"."""
NEAR = 0.1
"""A text's weight for the level of another is exp((cosine - 1) / NEAR)."""
PRIOR = 3.0
"""Weight of the mean over all texts, where an equal text has weight 1."""
MOST_TEXTS = 1_000
"""Most texts for the levels; of more, this many are drawn."""
Floats = NDArray[np.float64]


class Evidence(NamedTuple):
    """Mean scores of the best 1, 3 and 5 answers [counts, M], with the matching clips in the archive (`present`) and without
    (`absent`); or their excess over the texts' levels.
    """

    present: Floats
    absent: Floats


@dataclass(frozen=True, eq=False)
class Levels:
    """The levels of texts: the middle between their best scores with and without their matching clips."""

    vectors: NDArray[np.float32]
    """[T, r], of unit norm, rounded to 16 bits."""
    levels: Floats
    """[counts, T], of the best 1, 3 and 5 answers."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Levels)
            and np.array_equal(self.vectors, other.vectors)
            and np.array_equal(self.levels, other.levels)
        )

    def expected(self, vectors: ArrayLike) -> Floats:
        """The levels [counts, M] of texts with vectors [M, r]: a mean over the fitted texts, weighted by their cosine."""
        near = np.exp((_unit(np.asarray(vectors)) @ self.vectors.T - 1) / NEAR).astype(np.float64)
        middle = self.levels.mean(axis=1, keepdims=True) if self.levels.size else np.zeros((len(COUNTS), 1))
        return (self.levels @ near.T + PRIOR * middle) / (near.sum(axis=1) + PRIOR)


def evidence(scores: NDArray[np.floating], match: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Evidence]:
    """(the texts of scores [M, N] with both matching and other clips, their evidence)."""
    answerable = np.flatnonzero(match.any(axis=1) & ~match.all(axis=1))
    others = np.where(match, -np.inf, scores)[answerable]
    return answerable, Evidence(means_of_best(scores[answerable]), means_of_best(others))


def means_of_best(scores: NDArray[np.floating]) -> Floats:
    """Means [counts, M] of the best 1, 3 and 5 of scores [M, N], or of all finite ones if there are fewer."""
    best = -np.sort(-scores.astype(np.float64), axis=1)[:, : max(COUNTS)]
    is_finite = np.isfinite(best)
    sums, numbers = np.cumsum(np.where(is_finite, best, 0.0), axis=1), np.cumsum(is_finite, axis=1)
    columns = [min(count, best.shape[1]) - 1 for count in COUNTS]
    return (sums[:, columns] / numbers[:, columns]).T


@dataclass(frozen=True)
class Rule:
    """Number of best answers, and the excess of their mean score over the text's level below which there is nothing."""

    count: int
    below: float


@dataclass(frozen=True)
class LanguageScores:
    """The data of a fit: scores [M, N] of a language's texts and the clips, which of them match [M, N], and the texts' vectors
    [M, r]; without these a text has no level.
    """

    scores: NDArray[np.floating]
    match: NDArray[np.bool_]
    vectors: NDArray[np.floating] | None = None

    def of_clips(self, clips: NDArray[np.int64]) -> LanguageScores:
        """The same data for some of the clips."""
        return LanguageScores(self.scores[:, clips], self.match[:, clips], self.vectors)


def fit_levels(scores: Mapping[str, LanguageScores]) -> Levels | None:
    """The levels of the texts of all languages, or of MOST_TEXTS drawn from them if there are more; None without vectors."""
    vectors, levels = [], []
    for of_language in scores.values():
        if of_language.vectors is None:
            return None
        answerable, best = evidence(of_language.scores, of_language.match)
        vectors.append(_unit(of_language.vectors[answerable]))
        levels.append((best.present + best.absent) / 2)
    rows = np.concatenate(vectors).astype(np.float16).astype(np.float32)
    chosen = np.arange(len(rows))
    if len(rows) > MOST_TEXTS:
        chosen = np.sort(np.random.default_rng(0).choice(len(rows), MOST_TEXTS, replace=False))
    return Levels(rows[chosen], np.concatenate(levels, axis=1)[:, chosen])


def fit_rules(
    scores: Mapping[str, LanguageScores], levels: Levels | None, false_share: float
) -> tuple[dict[str, Rule], Rule]:
    """The rule of each language, and that over all of them: in expectation, at most a share `false_share` of the texts with
    matching clips finds nothing.

    The levels are fitted on the same texts, so that their excess varies less than it will in a new archive. Its spread is
    therefore taken from halves of the clips, each with the levels of the other half; its middle from all clips.
    The number of answers is the one that separates `present` from `absent` best, in units of their spreads: shares of right
    decisions do not differ if a model is nearly perfect on the pairs of the fit.
    """
    N = next(iter(scores.values())).scores.shape[1]
    order = np.random.default_rng(0).permutation(N)
    halves = order[::2], order[1::2]
    deviations: dict[str, list[Floats]] = {code: [] for code in scores}
    for fitted, held_out in (halves, halves[::-1]):
        levels_of_others = fit_levels({code: part.of_clips(fitted) for code, part in scores.items()})
        for code, part in scores.items():
            present = _excess(part.of_clips(held_out), levels_of_others).present
            if present.shape[1]:
                deviations[code].append(present - present.mean(axis=1, keepdims=True))
    excess = {code: _excess(part, levels) for code, part in scores.items()}
    rules = {code: _rule(excess[code], deviations[code], false_share) for code in scores}
    together = Evidence(*(np.concatenate(side, axis=1) for side in zip(*excess.values(), strict=True)))
    return rules, _rule(together, [part for of_halves in deviations.values() for part in of_halves], false_share)


def _excess(scores: LanguageScores, levels: Levels | None) -> Evidence:
    answerable, best = evidence(scores.scores, scores.match)
    expected = 0.0 if levels is None or scores.vectors is None else levels.expected(scores.vectors[answerable])
    return Evidence(best.present - expected, best.absent - expected)


def _rule(excess: Evidence, deviations: list[Floats], false_share: float) -> Rule:
    separation = excess.present.mean(axis=1) - excess.absent.mean(axis=1)
    spread = np.sqrt(excess.present.var(axis=1) + excess.absent.var(axis=1)) + np.finfo(np.float64).tiny
    best = int((separation / spread).argmax())
    middle = excess.present[best].mean()
    around = np.sort(np.concatenate([deviation[best] for deviation in deviations] or [excess.present[best] - middle]))
    # The k-th lowest of n: a new one is below it with probability k / (n + 1).
    lowest = max(0, int(false_share * (len(around) + 1)) - 1)
    return Rule(COUNTS[best], float(middle + around[lowest]))


def _unit(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(norms, np.finfo(np.float32).tiny)).astype(np.float32)
