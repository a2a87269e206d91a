"""The score of each clip in one metric of an evaluation, and its packed text in an epoch's report.

Pairs of runs are compared clip by clip (a class text, with many relevant clips, counts as a clip of its own).
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.settings import refuse
from ray_atr.metrics.measures import OF_QUERIES, QueryScores
from ray_atr.metrics.metric import DIRECTIONS, MEAN, Metric, language_means
from ray_atr.metrics.retrieval import Retrieval

MOST_UNITS = 2**24
"""Most clips; a text with more is taken for a damaged one."""
STORED = np.dtype("<f2")
"""Half precision holds 0 and 1 exactly, and a metric of 149 clips to 1e-4."""


def is_mean_over_queries(metric: Metric) -> bool:
    """Whether a metric is a mean over queries, so that each clip has a score in it."""
    measure = OF_QUERIES.get(metric.name)
    return metric.task in DIRECTIONS and measure is not None and measure.average == "mean"


def unit_scores(
    retrievals: Mapping[str, Retrieval], metric: Metric, trained: Collection[str] | None = None
) -> NDArray[np.float64] | None:
    """The values [U] of U clips whose mean is the metric, in the order of the clips; a clip's value includes all its queries.

    For a mean over languages, a clip's value is the mean over these. `trained` are the languages that the model was trained on
    (None: all). None for a metric that is no mean over queries, such as a median rank, or that these retrievals lack.
    """
    measure = OF_QUERIES.get(metric.name)
    if not is_mean_over_queries(metric) or measure is None or measure.values is None:
        return None
    of_languages: dict[str, QueryScores] = {
        name: getattr(retrieval, metric.task) for name, retrieval in retrievals.items()
    }
    units = np.unique(np.concatenate([scores.clip for scores in of_languages.values()] or [np.empty(0, np.int64)]))
    parts = {}
    for language, scores in of_languages.items():
        unit_of, values = np.searchsorted(units, scores.clip), measure.values(scores)
        parts[language] = np.bincount(unit_of, values, minlength=len(units)) * (len(units) / max(len(values), 1))
    return {**(language_means(parts, trained) if parts else {}), **parts}.get(metric.language or MEAN)


def packed_scores(scores: NDArray[np.float64]) -> str:
    """Values [U] as text, of some 1.5 bits for each value that is 0 or 1; `unpacked_scores` is the inverse."""
    return base64.b64encode(zlib.compress(scores.astype(STORED).tobytes(), 9)).decode()


def unpacked_scores(text: str) -> NDArray[np.float64]:
    """The values [U] of a text, in half precision. ValueError for a text that is none of `packed_scores`."""
    try:
        decompressing = zlib.decompressobj()
        content = decompressing.decompress(base64.b64decode(text, validate=True), STORED.itemsize * MOST_UNITS)
        if decompressing.unconsumed_tail or not decompressing.eof:
            raise ValueError("too long, or cut off")
        return np.frombuffer(content, STORED).astype(np.float64)
    except (binascii.Error, zlib.error, ValueError):
        raise refuse("scores", text[:40], "the scores of an epoch's clips as packed_scores writes them") from None
