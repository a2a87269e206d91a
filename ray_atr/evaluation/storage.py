"""Query scores as named arrays, so that two checkpoints evaluated at different times can be compared pair by pair."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ray_atr.evaluation.retrieval import RECALL_AT, QueryScores, Retrieval
from ray_atr.settings import refuse

DIRECTIONS = ("text_to_audio", "audio_to_text")
FIELDS = ("query", "clip", "average_precision", "first_rank", "is_tied")


def to_arrays(retrievals: Mapping[str, Retrieval]) -> dict[str, np.ndarray]:
    """`{"fra/text_to_audio/first_rank": [Q], ...}`, for `numpy.savez`; `from_arrays` is its inverse."""
    result: dict[str, np.ndarray] = {}
    for language, retrieval in retrievals.items():
        for direction in DIRECTIONS:
            scores: QueryScores = getattr(retrieval, direction)
            result |= {f"{language}/{direction}/{field}": getattr(scores, field) for field in FIELDS}
            result |= {f"{language}/{direction}/recall_at_{k}": values for k, values in scores.recall.items()}
    return result


def from_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, Retrieval]:
    """The retrievals of `to_arrays` (or of the file that `numpy.load` opens), languages in their order."""
    languages = dict.fromkeys(name.split("/")[0] for name in arrays)
    wanted = (*FIELDS, *(f"recall_at_{k}" for k in RECALL_AT))
    absent = [
        name
        for language in languages
        for direction in DIRECTIONS
        for field in wanted
        if (name := f"{language}/{direction}/{field}") not in arrays
    ]
    if absent or not languages:
        raise refuse("arrays", f"no {', '.join(absent[:3]) or 'arrays'}", "the arrays that to_arrays makes")
    return {
        language: Retrieval(*(_scores(arrays, f"{language}/{direction}") for direction in DIRECTIONS))
        for language in languages
    }


def _scores(arrays: Mapping[str, np.ndarray], prefix: str) -> QueryScores:
    return QueryScores(
        recall={k: arrays[f"{prefix}/recall_at_{k}"] for k in RECALL_AT},
        **{field: arrays[f"{prefix}/{field}"] for field in FIELDS},
    )
