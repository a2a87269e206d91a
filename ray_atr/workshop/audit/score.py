"""Scores of all pairs by regressions that were not fitted to the pair's clip, preferred captions, and shifted blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.progress import CountProgress, silent
from ray_atr.objectives.correspondence.both_ways import BothWays
from ray_atr.objectives.correspondence.cross_fit import Fold, Pairs, cross_fit
from ray_atr.objectives.correspondence.noise_rate import (
    FIRST,
    found_share,
    is_something_found,
    p_values,
    without_right_mispairs,
)
from ray_atr.workshop.audit.options import TELLING, CrossFit
from ray_atr.workshop.audit.posteriors import PairPosteriors, posterior, posteriors_of

CLIPS_AT_ONCE, CAPTIONS_AT_ONCE = 256, 16_384
"""Compared with each other."""
LEAST_MISPAIRS = 1000
"""Drawn of a fold in each language, however few captions are in it."""
OFFSETS = (-2, -1, 1, 2)
LEAST_ROWS = 3
LEAST_EVIDENCE = 6.0
"""Of a shifted block, sum over its rows of log posterior odds, beyond the log of the rows where one may begin: about 400 to 1."""
FLOOR = 0.02
"""No row counts for more than log((1 - FLOOR) / FLOOR)."""


class Shift(NamedTuple):
    """Rows first to last (both included) whose clips fit the captions `offset` rows further on, as after a table lost a line.

    The evidence is in nats.
    """

    first: int
    last: int
    offset: int
    evidence: float


@dataclass(frozen=True)
class Audit:
    """What is estimated of M pairs; `score` [M], `preferred` [M], the caption of its language that fits the clip best."""

    posteriors: PairPosteriors
    score: NDArray[np.float64]
    preferred: NDArray[np.int64]
    shifts: list[Shift] = field(default_factory=list)
    is_something_found: bool = True
    """Whether the regressions say more about the pairs than chance."""

    @property
    def found_share(self) -> float:
        """Share of the right pairs, as estimated, with a p-value of at most 0.05: 0.05 if they tell nothing, 1 at most."""
        return max(FIRST, found_share(self.posteriors.p_value, self.posteriors.wrong_share))

    def flagged(self, rate: float) -> NDArray[np.bool_]:
        """The pairs [M] called wrong at this rate (`PairPosteriors.flagged`); none if nothing is found: all seem wrong then."""
        return self.posteriors.flagged(rate) & self.is_something_found


def audit_pairs(pairs: Pairs, settings: CrossFit, progress: CountProgress = silent) -> Audit:
    """Scores, posteriors and shifts of pairs. Deterministic in the seed. Memory is linear in clips and captions.

    Raises ValueError if there are too few clips for the folds, or if a language has no mispairs.
    """
    random = np.random.default_rng((settings.seed, 1))
    names, language = np.unique(pairs.language, return_inverse=True)
    score = np.full(len(pairs.text), np.nan)
    preferred, is_different = np.arange(len(pairs.text)), _different(pairs, language)
    spoken = int(np.bincount(language).argmax())
    first = _first_captions(pairs, language == spoken)
    shifted = {offset: np.full(len(pairs.audio), np.nan) for offset in (0, *OFFSETS)}
    mispairs: list[list[NDArray[np.float64]]] = [[] for _ in names]
    for fold in cross_fit(pairs, settings.folds, settings.seed, progress, BothWays):
        place = np.full(len(pairs.audio), -1)
        place[fold.clips] = np.arange(len(fold.clips))
        # The regressions of another language may be more or less certain, so their scores have another scale.
        scales = np.ones(len(names))
        for k in np.unique(language[fold.captions]):
            captions = fold.captions[language[fold.captions] == k]
            count = settings.mispairs // settings.folds * len(captions) // len(fold.captions)
            null = fold.score(*fold.mispairs(pairs, max(LEAST_MISPAIRS, count), random, captions))
            scales[k] = (float(null.std()) if len(null) else 0.0) or 1.0
            mispairs[k].append(null / scales[k])
            score[captions] = fold.score(place[pairs.clip[captions]], captions) / scales[k]
        preferred[fold.captions] = _preferred(pairs, fold, place, is_different)
        with_caption = fold.clips[first[fold.clips] >= 0]
        for offset, values in shifted.items():
            neighbour = with_caption + offset
            rows = with_caption[(neighbour >= 0) & (neighbour < len(first))]
            rows = rows[first[rows + offset] >= 0]
            values[rows] = fold.score(place[rows], first[rows + offset]) / scales[spoken]
    posteriors = posteriors_of(_p_values(pairs, language, score, mispairs), pairs.clip, language)
    wrong = {offset: _wrong(values, score, posteriors, language == spoken) for offset, values in shifted.items()}
    is_found = is_something_found(posteriors.p_value, pairs.clip)
    audit = Audit(posteriors, score, preferred, is_something_found=is_found)
    # Regressions without information find any block as likely as another.
    if audit.found_share < TELLING:
        return audit
    return replace(audit, shifts=find_shifts(wrong.pop(0), wrong))


def _p_values(
    pairs: Pairs,
    language: NDArray[np.int64],
    score: NDArray[np.float64],
    mispairs: Sequence[Sequence[NDArray[np.float64]]],
) -> NDArray[np.float64]:
    """The p-value of each pair [M]: the share of the mispairs in its language [M] that score at least as high.

    Compared with mispairs of all languages, wrong pairs of a language with a less certain regression would look right.
    ValueError names a language without mispairs.
    """
    assert np.isfinite(score).all(), "each pair has a score"
    p_value = np.empty(len(score))
    for k, of_folds in enumerate(mispairs):
        of, null = np.flatnonzero(language == k), np.concatenate(of_folds)
        if not len(null):
            reason = f"no caption in {pairs.language[of[0]]} differs from a clip's own"
            raise ValueError(f"{reason}: there is nothing to compare its pairs with")
        against_all = p_values(score[of], null)
        p_value[of] = without_right_mispairs(against_all, _same(pairs.subset(of)), pairs.clip[of])
    return p_value


def _same(pairs: Pairs) -> float:
    """The chance that a caption says what one of another clip's captions says, of pairs in one language."""
    _, key = np.unique(pairs.key, return_inverse=True)
    captioned = np.unique(np.stack([key, pairs.clip]), axis=1)
    clips = np.bincount(captioned[0])
    others = len(np.unique(pairs.clip)) - 1
    return float((clips * (clips - 1)).sum() / max(1, captioned.shape[1] * others))


def _wrong(
    values: NDArray[np.float64], score: NDArray[np.float64], posteriors: PairPosteriors, is_spoken: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The posterior of being wrong at other scores [N] in one language, interpolated between those of its pairs, which come from
    the p-values of all pairs. NaN stays NaN.
    """
    order = np.flatnonzero(is_spoken)[np.argsort(score[is_spoken])]
    wrong = posterior(posteriors.p_value, posteriors.share.middle)[order]
    return np.where(np.isnan(values), np.nan, np.interp(values, score[order], wrong))


def _first_captions(pairs: Pairs, is_spoken: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Of each clip [N] its first caption in the language that most captions are in; -1 if it has none."""
    rows = np.flatnonzero(is_spoken)
    first = np.full(len(pairs.audio), -1)
    clips, where = np.unique(pairs.clip[rows], return_index=True)
    first[clips] = rows[where]
    return first


def _different(pairs: Pairs, language: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which captions [M] are the first of those that say the same in one language and have equal vectors."""
    _, key = np.unique(pairs.key, return_inverse=True)
    _, first, of_same = np.unique(language * (key.max() + 1) + key, return_index=True, return_inverse=True)
    is_first = np.arange(len(key)) == first[of_same]
    return is_first | (pairs.text != pairs.text[first[of_same]]).any(axis=1)


def _preferred(
    pairs: Pairs, fold: Fold, place: NDArray[np.int64], is_candidate: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Of the fold's captions [m] the one of the same language, among the candidates [M], that fits their clip best, [m]."""
    language = fold.language[fold.captions]
    best = fold.captions.copy()
    for k in np.unique(language):
        of_language = language == k
        clips, row = np.unique(place[pairs.clip[fold.captions[of_language]]], return_inverse=True)
        candidates = np.flatnonzero(is_candidate & (fold.language == k))
        best[of_language] = _best(fold.audio[k, clips], fold.text, candidates)[row]
    return best


def _best(
    clips: NDArray[np.float64], captions: NDArray[np.float64], candidates: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Of some of the captions [M, V] the one whose product with each clip [n, V] is the largest, the first if several are, [n].

    The products of all clips and captions are the largest part of a large audit. So they are made in single precision, and
    again in double for captions that may be the best, by the bound of its rounding.
    """
    squares = np.einsum("mv,mv->m", captions, captions)[candidates]
    rounded = np.finfo(np.float32).eps * (clips.shape[1] + 2)
    margin = (2 * rounded * np.sqrt(squares.max()) * np.linalg.norm(clips, axis=1)).astype(np.float32)
    rough_clips = clips.astype(np.float32)
    best, largest = np.empty(len(clips), np.int64), np.full(len(clips), -np.inf)
    rough_largest = np.full(len(clips), -np.inf, np.float32)
    for first in range(0, len(candidates), CAPTIONS_AT_ONCE):
        of_part = candidates[first : first + CAPTIONS_AT_ONCE]
        text = captions[of_part]
        rough_text = text.astype(np.float32)
        for start in range(0, len(clips), CLIPS_AT_ONCE):
            part = slice(start, start + CLIPS_AT_ONCE)
            rough = rough_clips[part] @ rough_text.T
            rough_largest[part] = np.maximum(rough_largest[part], rough.max(axis=1))
            columns = np.flatnonzero((rough >= (rough_largest[part] - margin[part])[:, None]).any(axis=0))
            if len(columns):
                scores = clips[part] @ text[columns].T
                at = scores.argmax(axis=1)
                most = scores[np.arange(len(at)), at]
                rows = start + np.flatnonzero(most > largest[part])
                best[rows], largest[rows] = of_part[columns[at[rows - start]]], most[rows - start]
    return best


def find_shifts(own_wrong: NDArray[np.float64], shifted_wrong: dict[int, NDArray[np.float64]]) -> list[Shift]:
    """The blocks, without overlap, strongest first.

    own_wrong [N]: posterior that row i's own captions are wrong. shifted_wrong: offset -> [N], the posterior that the
    captions of row i + offset are wrong for clip i; NaN if there is no such row.
    """
    candidates = []
    for offset, wrong in shifted_wrong.items():
        shifted, before = (np.log(np.clip(1 - posteriors, FLOOR, 1 - FLOOR)) for posteriors in (wrong, own_wrong))
        segments = _segments(np.nan_to_num(shifted - before, nan=-np.inf))
        candidates += [Shift(first, last, offset, total) for first, last, total in segments]
    shifts: list[Shift] = []
    for shift in sorted(candidates, key=lambda shift: -shift.evidence):
        if all(shift.last < other.first or shift.first > other.last for other in shifts):
            shifts.append(shift)
    return shifts


def _segments(evidence: NDArray[np.float64]) -> list[tuple[int, int, float]]:
    """The maximal segments (first, last, sum) whose evidence is enough: the best one, then left and right of it."""
    segments: list[tuple[int, int, float]] = []
    pending = [(0, len(evidence))]
    while pending:
        start, end = pending.pop()
        best = _best_segment(evidence[start:end])
        if best is None or best[2] < LEAST_EVIDENCE + math.log(len(evidence)):
            continue
        first, last, total = start + best[0], start + best[1], best[2]
        if last - first + 1 >= LEAST_ROWS:
            segments.append((first, last, total))
        pending += [(start, first), (last + 1, end)]
    return segments


def _best_segment(evidence: NDArray[np.float64]) -> tuple[int, int, float] | None:
    """The segment of the largest sum (Kadane's scan), or None if no value is above 0."""
    best: tuple[int, int, float] | None = None
    total, start = 0.0, 0
    for i, value in enumerate(evidence):
        if total <= 0:
            total, start = 0.0, i
        total += float(value)
        if total > (best[2] if best is not None else 0.0):
            best = start, i, total
    return best
