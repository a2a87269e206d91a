"""Whether each test query found its own first, kept with the trial: what paired differences between trials are computed from."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ray_atr.metrics.retrieval import Retrieval
from ray_atr.metrics.samples import Sample, retrieval_samples, to_arrays
from ray_atr.run_folder import TEST_SCORES
from ray_atr.storage import write_bytes

MEASURE = "recall_at_1"


def keep_scores(folder: Path, retrievals: Mapping[str, Retrieval]) -> None:
    """Write R@1 of every query in each language, in both directions, to `folder/test/scores.npz`."""
    samples = retrieval_samples(retrievals)
    kept = {
        key: Sample(sample.query, sample.unit, {MEASURE: sample.means[MEASURE]}, {})
        for key, sample in samples.items()
        if MEASURE in sample.means
    }
    if not kept:
        return
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **to_arrays(kept))  # type: ignore[arg-type]
    (folder / TEST_SCORES).parent.mkdir(exist_ok=True)
    write_bytes(folder / TEST_SCORES, buffer.getvalue())
