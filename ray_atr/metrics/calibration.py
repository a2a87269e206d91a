"""Calibration of a retriever by language: the probability that a clip matches a text at a score, and the score to cut at.

Shapes: M texts, N clips, P pairs.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import TypeAdapter

from ray_atr.common.settings import counted, nearest, refuse
from ray_atr.common.storage import Location, file_exists, locate, read_json, write_json
from ray_atr.metrics.nothing import COUNTS, FALSE_SHARE, LanguageScores, Levels, Rule, fit_levels, fit_rules
from ray_atr.metrics.relevance import Relevance

CALIBRATION_FILE = "calibration.json"
FORMAT = 1
FEW_CLIPS = 100
"""Below this many clips a calibration is rough: the error of its best answers is .08 with 100 clips, .14 with 25 (ESC-50)."""
ANY_LANGUAGE = "any"
"""The calibration over the pairs of all languages, for a text of unknown language."""
LEVELS = np.concatenate([np.linspace(0, 0.99, 100), 1 - np.geomspace(0.01, 1e-5, 31)[1:], [1.0]])
"""Shares of pairs below a stored score; dense where random pairs score as high as matching ones."""
MOST_PAIRS = 2_000_000
"""Most pairs that do not match; of more, this many are drawn."""
DRAWS = 200
"""Draws of answers in `error_by_chance`."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LanguageCalibration:
    """Calibration for texts of one language. Scores are `Retriever.similarity`'s: cosine, or minus the distance."""

    scores: tuple[float, ...]
    """Ascending."""
    probabilities: tuple[float, ...]
    """Probability of a match at each of `scores`, never falling; linear between them, constant outside."""
    matching: tuple[float, ...]
    """Quantiles of the scores of matching pairs at `LEVELS`."""
    random: tuple[float, ...]
    """Quantiles of the scores of pairs that do not match at `LEVELS`."""
    prior: float
    """Share of matching pairs that `probabilities` assume."""
    pairs: int
    """Matching pairs that it was fitted on."""
    best_scores: tuple[float, ...]
    """Ascending scores of answers: each clip's best text among those of the split."""
    best_probabilities: tuple[float, ...]
    """Share of answers at each of `best_scores` that match, never falling."""
    best_among: int
    """Number of texts that an answer was the best of."""
    nothing_of: int
    """Number of best answers whose mean score decides whether an archive holds what a text asks for."""
    nothing_below: float
    """The archive holds nothing if that mean minus the text's level (`Calibration.says_nothing`) is below this."""

    def probability(self, scores: ArrayLike) -> Floats:
        """Probability in [0, 1] that a pair with such a score matches, of the scores' shape."""
        return np.interp(np.asarray(scores, np.float64), self.scores, self.probabilities)

    def probability_of_best(self, scores: ArrayLike) -> Floats:
        """Probability in [0, 1], of the scores' shape, that a clip's best text matches: the one with the highest score among
        about as many texts as the split had.
        """
        return np.interp(np.asarray(scores, np.float64), self.best_scores, self.best_probabilities)

    def knows_best_of(self, texts: int) -> bool:
        """Whether `probability_of_best` holds for a choice among this many texts: half to twice as many as it was fitted on."""
        return self.best_among / 2 <= texts <= 2 * self.best_among

    def cut(self, coverage: float = 0.9) -> float:
        """The score that a share `coverage` of matching pairs reaches. ValueError unless it is above 0 and below 1."""
        if not 0 < coverage < 1:
            raise refuse("coverage", coverage, "a share above 0 and below 1")
        return float(np.interp(1 - coverage, LEVELS, self.matching))

    def random_share(self, scores: ArrayLike) -> Floats:
        """Share of pairs that do not match whose score is at least this, of the scores' shape."""
        # From above: of pairs that have one score, all count.
        falling = -np.asarray(self.random)[::-1]
        return np.interp(-np.asarray(scores, np.float64), falling, 1 - LEVELS[::-1], left=0.0, right=1.0)


@dataclass(frozen=True)
class Calibration:
    """A retriever's calibration by language, and over all of them (`any`): the content of its `calibration.json`."""

    by_language: dict[str, LanguageCalibration]
    fitted_on: dict[str, str] = dataclasses.field(default_factory=dict)
    """The data set, split and digest whose pairs it was fitted on; and the fingerprint of the `model` that scored them."""
    levels: Levels | None = None
    """Levels that the best scores of texts are compared with in `says_nothing`; None: 0."""
    clips: int | None = None
    """Number of clips that it was fitted on; None: not known."""

    @property
    def warning(self) -> str:
        """What to know of its probabilities if it was fitted on few clips; else empty."""
        if self.clips is None or self.clips >= FEW_CLIPS:
            return ""
        return f"the calibration was fitted on {counted(self.clips, 'clip')}, fewer than {FEW_CLIPS}: it is rough"

    @classmethod
    def read(cls, folder: str | Location, model: str = "") -> Calibration | None:
        """The calibration in a retriever's folder; None if it has none. ValueError for a file that is none, or that was fitted on
        the scores of another model than that with the fingerprint `model`.
        """
        file = locate(folder) / CALIBRATION_FILE
        if not file_exists(file):
            return None
        content = read_json(file)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise refuse(
                "calibration", str(file), f"a calibration of format {FORMAT}; make it with evaluate --calibrate"
            )
        try:
            by_language = TypeAdapter(dict[str, LanguageCalibration]).validate_python(content["by_language"])
            clips = TypeAdapter(int | None).validate_python(content.get("clips"))
            calibration = cls(by_language, dict(content["fitted_on"]), _levels(content.get("levels")), clips)
        except (KeyError, TypeError, AttributeError, ValueError):
            raise refuse("calibration", str(file), "what evaluate --calibrate writes") from None
        if model and calibration.fitted_on.get("model", model) != model:
            allowed = "one of this retriever: it was fitted on the scores of another; make it with evaluate --calibrate"
            raise refuse("calibration", str(file), allowed)
        return calibration

    def write(self, folder: str | Location) -> None:
        """Write `calibration.json` with its digest into a retriever's folder; the file appears complete."""
        by_language = {code: dataclasses.asdict(calibration) for code, calibration in self.by_language.items()}
        content = {"format": FORMAT, "by_language": by_language, "fitted_on": self.fitted_on, "clips": self.clips}
        if self.levels is not None:
            vectors = self.levels.vectors.astype("<f2")
            content["levels"] = {
                "vectors": base64.b64encode(vectors.tobytes()).decode("ascii"),
                "width": vectors.shape[1],
                "levels": self.levels.levels.tolist(),
            }
        write_json(locate(folder) / CALIBRATION_FILE, content)

    def for_language(self, language: str | None) -> LanguageCalibration:
        """The calibration of a language (ISO 639-3); None: over all. ValueError for a language that it was not fitted on."""
        code = language or ANY_LANGUAGE
        if code not in self.by_language:
            allowed = "languages that were calibrated: " + ", ".join(self.by_language)
            raise refuse("language", code, allowed, nearest(code, self.by_language))
        return self.by_language[code]

    def says_nothing(self, scores: ArrayLike, language: str | None = None, vector: ArrayLike | None = None) -> bool:
        """Whether an archive holds no clip for a text, by the scores of its answers, best first.

        `vector` [r] is the text's own, which gives it the level of the texts near to it; None: the mean level.
        """
        calibration = self.for_language(language)
        best = np.asarray(scores, np.float64)[: calibration.nothing_of]
        level = 0.0
        if self.levels is not None:
            text = np.zeros(self.levels.vectors.shape[1]) if vector is None else np.asarray(vector)
            level = self.levels.expected(text[None])[COUNTS.index(calibration.nothing_of), 0]
        return not len(best) or bool(best.mean() - level < calibration.nothing_below)

    def probability(self, scores: ArrayLike, language: str | None = None) -> Floats:
        """Probability in [0, 1] that a text of this language and a clip match at these scores, of the scores' shape."""
        return self.for_language(language).probability(scores)

    def cut(self, language: str | None = None, coverage: float = 0.9) -> float:
        """The score that a share `coverage` of a language's matching pairs reaches."""
        return self.for_language(language).cut(coverage)

    def random_share(self, scores: ArrayLike, language: str | None = None) -> Floats:
        """Share of a language's pairs that do not match whose score is at least this."""
        return self.for_language(language).random_share(scores)


def _levels(content: Mapping[str, Any] | None) -> Levels | None:
    if content is None:
        return None
    vectors = np.frombuffer(base64.b64decode(content["vectors"]), "<f2").reshape(-1, int(content["width"]))
    levels = np.array(content["levels"], np.float64)
    if levels.shape != (len(COUNTS), len(vectors)):
        raise ValueError(f"levels {levels.shape} of {len(vectors)} texts")
    return Levels(vectors.astype(np.float32), levels)


def fit_calibration(
    scores: Mapping[str, ArrayLike],
    relevance: Mapping[str, Relevance],
    *,
    vectors: Mapping[str, ArrayLike] | None = None,
    prior: float | None = None,
    false_nothing: float = FALSE_SHARE,
    fitted_on: Mapping[str, str] | None = None,
) -> Calibration:
    """The calibration from scores [M, N] of each language's texts and clips, and which of them match.

    vectors        [M, r]: the texts' own, for the levels by which `says_nothing` decides; None: levels of 0.
    prior          share of matching pairs where the retriever will be used; None: the share among these.
    false_nothing  share of texts for which `says_nothing` is wrongly true.

    Isotonic regression (Zadrozny and Elkan 2002) with the pairs weighted to the prior. ValueError for scores that are not finite.
    """
    if not scores:
        raise refuse("scores", "no language", "one language or more")
    if prior is not None and not 0 < prior < 1:
        raise refuse("prior", prior, "a share above 0 and below 1")
    if not 0 < false_nothing < 1:
        raise refuse("false_nothing", false_nothing, "a share above 0 and below 1")
    random, matrices = np.random.default_rng(0), {code: np.asarray(given) for code, given in scores.items()}
    parts = {code: _split(code, matrix, relevance[code], random) for code, matrix in matrices.items()}
    answers = {code: best_answers(matrix, relevance[code]) for code, matrix in matrices.items()}
    matching, others = (np.concatenate([part[side] for part in parts.values()]) for side in (0, 1))
    best, is_right = (np.concatenate([pair[side] for pair in answers.values()]) for side in (0, 1))
    shares = {code: relevance[code].text.numel() / matrix.size for code, matrix in matrices.items()}
    texts = {code: pairs.num_texts for code, pairs in relevance.items()}
    own_vectors = {code: None if vectors is None else np.asarray(vectors[code]) for code in matrices}
    languages = {
        code: LanguageScores(matrix, relevance[code].matrix, own_vectors[code]) for code, matrix in matrices.items()
    }
    levels = fit_levels(languages)
    rules, rule = fit_rules(languages, levels, false_nothing)
    fitted = {
        code: _fit(*part, *answers[code], prior or shares[code], texts[code], rules[code])
        for code, part in parts.items()
    }
    of_all = prior or float(np.mean(list(shares.values()))), round(np.mean(list(texts.values())))
    fitted[ANY_LANGUAGE] = _fit(matching, others, best, is_right, *of_all, rule)
    return Calibration(fitted, dict(fitted_on or {}), levels, next(iter(relevance.values())).num_clips)


def _split(code: str, scores: NDArray[Any], relevance: Relevance, random: np.random.Generator) -> tuple[Floats, Floats]:
    """(scores of the matching pairs, scores of the others or of a draw of them)."""
    if scores.shape != (relevance.num_texts, relevance.num_clips):
        raise refuse(f"scores[{code}].shape", scores.shape, f"{relevance.num_texts, relevance.num_clips}")
    if not np.isfinite(scores).all():
        raise refuse(f"scores[{code}]", "values that are not finite", "finite scores")
    match = relevance.matrix
    if not (match.any(axis=1) & ~match.all(axis=1)).any():
        raise refuse(f"relevance[{code}]", "none", "a text with clips that match and clips that do not")
    others = scores[~match].astype(np.float64)
    if len(others) > MOST_PAIRS:
        others = random.choice(others, MOST_PAIRS, replace=False)
    return scores[match].astype(np.float64), others


def best_answers(scores: NDArray[Any], relevance: Relevance) -> tuple[Floats, Floats]:
    """The highest score [N] of each clip's texts, and whether that text matches (0 or 1), from scores [M, N]."""
    best, clips = scores.argmax(axis=0), np.arange(scores.shape[1])
    return scores[best, clips].astype(np.float64), relevance.matrix[best, clips].astype(np.float64)


def _fit(
    matching: Floats,
    others: Floats,
    best: Floats,
    is_right: Floats,
    prior: float,
    texts: int,
    nothing: Rule,
) -> LanguageCalibration:
    # Imported here because it takes a second, and reading a calibration does not need it.
    from sklearn.isotonic import IsotonicRegression

    scores = np.concatenate([matching, others])
    is_match = np.concatenate([np.ones(len(matching)), np.zeros(len(others))])
    weight = np.where(is_match > 0, prior / len(matching), (1 - prior) / len(others))
    isotonic = IsotonicRegression(y_min=0, y_max=1).fit(scores, is_match, sample_weight=weight / weight.max())
    # Answers are selected by their score, so a score has another probability than for any pair.
    answers = IsotonicRegression(y_min=0, y_max=1).fit(best, is_right)
    # scikit-learn's thresholds hold only the ends of each constant range.
    return LanguageCalibration(
        scores=tuple(isotonic.X_thresholds_.tolist()),
        probabilities=tuple(isotonic.y_thresholds_.tolist()),
        # Position (n + 1) q of n ordered scores: a new one lies below it with probability q.
        matching=tuple(np.quantile(matching, LEVELS, method="weibull").tolist()),
        random=tuple(np.quantile(others, LEVELS, method="weibull").tolist()),
        prior=float(prior),
        pairs=len(matching),
        best_scores=tuple(answers.X_thresholds_.tolist()),
        best_probabilities=tuple(answers.y_thresholds_.tolist()),
        best_among=texts,
        nothing_of=nothing.count,
        nothing_below=nothing.below,
    )


def expected_calibration_error(
    probability: ArrayLike, is_match: ArrayLike, weight: ArrayLike | None = None, bins: int = 15
) -> float:
    """Mean of |mean probability - share of matches| over bins of equal width in probability, weighted by the pairs in them.

    Guo et al. 2017 (arXiv 1706.04599), Eq. 3. probability [P] of a match, is_match [P], weight [P] of each pair (None: 1).
    """
    p, y = np.asarray(probability, np.float64).ravel(), np.asarray(is_match, np.float64).ravel()
    w = np.ones_like(p) if weight is None else np.asarray(weight, np.float64).ravel()
    place = np.minimum((p * bins).astype(np.int64), bins - 1)
    gap = np.bincount(place, w * (p - y), minlength=bins)
    return float(np.abs(gap).sum() / w.sum())


def error_by_chance(probability: ArrayLike) -> float:
    """The mean expected calibration error of probabilities [P] that are right, from answers drawn with them.

    It is not 0 for a few hundred answers, so report a measured error together with it.
    """
    p, random = np.asarray(probability, np.float64).ravel(), np.random.default_rng(0)
    return float(np.mean([expected_calibration_error(p, random.random(len(p)) < p) for _ in range(DRAWS)]))
