"""Fits a retriever's calibration on an evaluation's split, and measures it on clips that it was not fitted on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.common.settings import counted, refuse
from ray_atr.evaluation.run import Evaluated
from ray_atr.metrics.calibration import (
    Calibration,
    best_answers,
    error_by_chance,
    expected_calibration_error,
    fit_calibration,
)
from ray_atr.metrics.nothing import FALSE_SHARE
from ray_atr.metrics.relevance import Relevance
from ray_atr.models.fingerprint import model_fingerprint
from ray_atr.models.retriever import Retriever

COVERAGE = 0.9


@dataclass(frozen=True)
class CalibrationScore:
    """The errors of probabilities and cuts on clips that they were not fitted on."""

    error: float
    """Expected calibration error over all pairs, weighted to the prior."""
    error_of_best: float
    """Expected calibration error of `probability_of_best`, over each clip's best text."""
    chance: float
    """The mean of `error_of_best` if the probabilities were right (`error_by_chance`)."""
    coverage: float
    """Share of matching pairs at or above the cut for `COVERAGE`."""
    prior: float


def calibrate(
    evaluated: Evaluated, *, prior: float | None = None, false_nothing: float = FALSE_SHARE
) -> dict[str, CalibrationScore]:
    """Write `calibration.json` beside the retriever of an evaluation, fitted on its split; returns its errors by language.

    The errors are those of two fits, each on half of the clips and measured on the other half; the file is fitted on all clips.
    `prior` and `false_nothing` are those of `fit_calibration`.
    """
    split, folder = evaluated.eval_split, evaluated.checkpoint.folder
    retriever = Retriever.from_pretrained(str(folder))
    scores, relevance, vectors = {}, {}, {}
    audio = retriever.vectors(torch.as_tensor(evaluated.embedded.audio))
    for language, given in evaluated.embedded.text.items():
        rows = np.flatnonzero(split.captions.present[language])
        text = retriever.vectors(torch.as_tensor(given)[torch.from_numpy(rows)])
        vectors[language] = text.numpy()
        scores[language] = retriever.similarity(text, audio).numpy()
        relevance[language] = split.captions.relevance.of_texts(torch.from_numpy(rows))
    measured = cross_fitted(scores, relevance, prior=prior)
    fitted_on = {"data": split.manifest.name, "split": split.split, "hash": split.manifest.hash}
    fitted_on["model"] = model_fingerprint(retriever)
    fitted = fit_calibration(
        scores, relevance, vectors=vectors, prior=prior, false_nothing=false_nothing, fitted_on=fitted_on
    )
    fitted.write(folder)
    return measured


def cross_fitted(
    scores: Mapping[str, NDArray[np.floating]],
    relevance: Mapping[str, Relevance],
    *,
    prior: float | None = None,
) -> dict[str, CalibrationScore]:
    """The errors of calibrations fitted on half of the clips of scores [M, N] and measured on the other half, by language.
    ValueError for fewer than four clips, and if a half has none with captions in one of the languages.
    """
    num_clips = next(iter(relevance.values())).num_clips
    order = np.random.default_rng(0).permutation(num_clips)
    halves = np.sort(order[: num_clips // 2]), np.sort(order[num_clips // 2 :])
    for language, pairs in relevance.items():
        clips = np.unique(pairs.clip.numpy())
        if len(halves[0]) < 2 or not all(np.isin(half, clips).any() for half in halves):
            few = f"{counted(len(clips), 'clip')} with {language} captions of {counted(num_clips, 'clip')}"
            raise refuse(
                "--calibrate", few, "a split of more: it is fitted on one half of them and measured on the other"
            )
    of_halves: dict[str, list[CalibrationScore]] = {}
    for fitted, held_out in (halves, halves[::-1]):
        calibration = fit_calibration(*_of_clips(scores, relevance, fitted), prior=prior)
        held_scores, held_relevance = _of_clips(scores, relevance, held_out)
        for language, of_pairs in held_scores.items():
            measured = measure(calibration, language, of_pairs, held_relevance[language])
            of_halves.setdefault(language, []).append(measured)
    return {
        language: CalibrationScore(*np.mean([[*vars(score).values()] for score in both], axis=0).tolist())
        for language, both in of_halves.items()
    }


def measure(
    calibration: Calibration, language: str, scores: NDArray[np.floating], relevance: Relevance
) -> CalibrationScore:
    """The errors of a calibration on scores [M, N] of other pairs."""
    match = relevance.matrix
    probability, prior = calibration.probability(scores, language), calibration.for_language(language).prior
    weight = np.where(match, prior / match.sum(), (1 - prior) / (~match).sum())
    best, is_right = best_answers(scores, relevance)
    of_best = calibration.for_language(language).probability_of_best(best)
    return CalibrationScore(
        error=expected_calibration_error(probability, match, weight),
        error_of_best=expected_calibration_error(of_best, is_right),
        chance=error_by_chance(of_best),
        coverage=float((scores >= calibration.cut(language, COVERAGE))[match].mean()),
        prior=prior,
    )


def _of_clips(
    scores: Mapping[str, NDArray[np.floating]], relevance: Mapping[str, Relevance], clips: NDArray[np.int64]
) -> tuple[dict[str, NDArray[np.floating]], dict[str, Relevance]]:
    """(scores, relevant pairs) of some of the clips, ascending, with new numbers from 0."""
    parts = {language: pairs.of_clips(torch.from_numpy(clips)) for language, pairs in relevance.items()}
    return {language: matrix[:, clips] for language, matrix in scores.items()}, parts
