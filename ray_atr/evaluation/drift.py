"""A page's picture of drift: the same clips embedded by the weights of a run's epochs (Fu et al. 2025, Figure 6)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ray_atr.encoding.encode import ClipBatch, embed_batches
from ray_atr.evaluation.checkpoints import Checkpoint
from ray_atr.evaluation.encoding import ClipFeatures, EncodingSource
from ray_atr.models.retriever import Retriever
from ray_atr.report.evaluation_pictures import drift_map
from ray_atr.storage import is_local
from ray_atr.training.trajectory import kept_steps, weights_of

CLIPS = 50
EPOCHS = 5
"""As many points on a clip's way, evenly spread over training."""


def drift_pictures(checkpoint: Checkpoint, source: EncodingSource) -> dict[str, Figure]:
    """One picture if the trial kept its trajectory (`train.keep_trajectory`) on this machine, else none."""
    trial = None if checkpoint.trial is None else checkpoint.trial.folder
    if not is_local(trial) or len(steps := kept_steps(trial)) < 2:
        return {}
    chosen = sorted({steps[round(place)] for place in np.linspace(0, len(steps) - 1, EPOCHS)})
    ways = embedded_along(trial, chosen, str(checkpoint.folder), source)
    return {"Drift over training": drift_map(ways, [f"step {step}" for step in chosen])}


def embedded_along(trial: Path, steps: list[int], retriever_folder: str, source: EncodingSource) -> NDArray[np.float32]:
    """The split's first clips by the weights after each of the steps, unit norm [steps, n, D]."""
    retriever = Retriever.from_pretrained(retriever_folder).to(source.device)
    features = ClipFeatures(source, retriever)
    found = []
    for step in steps:
        # A frozen tower whose vectors were read is in no trajectory: it is the retriever's own all along.
        retriever.load_state_dict(weights_of(trial, step), strict=False)
        with retriever.evaluating():
            embedded = embed_batches(retriever, _first(features.batches(0)))
        found.append(embedded[:CLIPS].cpu().numpy())
    return np.stack(found)


def _first(batches: Iterator[ClipBatch]) -> Iterator[ClipBatch]:
    """The batches that hold the first `CLIPS` clips, all of their windows."""
    for batch in batches:
        yield batch
        if int(batch.clips[-1]) >= CLIPS:
            return
