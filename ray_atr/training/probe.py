"""What one epoch says about a run's knowledge: does it matter, is it fresh, is it of use?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_atr.data.draws import permutation
from ray_atr.knowledge.base import Snapshot
from ray_atr.knowledge.diagnostics import (
    neighbour_label_share,
    out_of_batch_influence,
    prototype_collapse,
    representation_drift_mismatch,
)
from ray_atr.knowledge.recall import BaseRecall
from ray_atr.knowledge.search import as_tensor
from ray_atr.models.retriever import Retriever
from ray_atr.objectives import Embeddings, Objective
from ray_atr.training.knowledge import Source

FEWEST_PROBES = 3


def influence(
    objective: Objective, retriever: Retriever, embeddings: Embeddings, draw: Tensor | None, retrieved: Any
) -> float:
    """Out-of-batch influence of what a global batch retrieved."""
    if embeddings.similarity is not None:
        embeddings = dataclasses.replace(embeddings, similarity=embeddings.similarity.detach())
    return out_of_batch_influence(
        objective, embeddings, retrieved, metric=retriever.metric, temperature=retriever.temperature, draw=draw
    )


class BaseProbe:
    """Drift of a fixed set of the source's clips, the prototypes' collapse, and whether neighbours share a label.

    One worker measures: the probe set is small, and its snapshot and weights are those of all the others.
    """

    def __init__(self, source: Source, seed: int, num_clips: int) -> None:
        self.source = source
        ids = source.features.clip_ids
        self.rows = np.sort(permutation(ids, seed, "probe", 0)[:num_clips])
        self._labels_of: dict[str, list[str]] = dict(zip(ids, source.features.labels, strict=True))

    def measure(self, recall: BaseRecall, retriever: Retriever, labels: Sequence[Sequence[str]]) -> dict[str, float]:
        """The snapshot in use against the retriever as it is. `labels` [B] are those of the last global batch's clips."""
        assert recall.client.searcher is not None, "measured after a step"
        snapshot = recall.client.searcher.snapshot
        measured = self._drift(snapshot, retriever)
        if snapshot.num_prototypes:
            measured["prototype_cosine_audio"] = prototype_collapse(as_tensor(snapshot.coarse_audio))
            measured["prototype_cosine_text"] = prototype_collapse(as_tensor(snapshot.coarse_text[0]))
        if recall.found is not None:
            found = torch.cat([recall.found.fine_audio, recall.found.fine_text], dim=1)
            of_entries = [self._labels_of[name] for name in snapshot.ids.tolist()]
            measured["neighbour_label_share"] = neighbour_label_share(found, labels, of_entries)
        return {name: value for name, value in measured.items() if not math.isnan(value)}

    def _drift(self, snapshot: Snapshot, retriever: Retriever) -> dict[str, float]:
        rows, places = self._probes_in(snapshot)
        if len(rows) < FEWEST_PROBES:
            return {}
        now = self.source.encode(retriever, rows)
        return {
            "drift_audio": representation_drift_mismatch(_rows(snapshot.audio, places), torch.from_numpy(now.audio)),
            "drift_text": representation_drift_mismatch(_rows(snapshot.text[0], places), torch.from_numpy(now.text[0])),
        }

    def _probes_in(self, snapshot: Snapshot) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The probes' rows in the source that the snapshot has, and their places there."""
        place_of = {name: place for place, name in enumerate(snapshot.ids.tolist())}
        ids = self.source.features.clip_ids
        known = [row for row in self.rows.tolist() if ids[row] in place_of]
        return np.array(known, np.int64), np.array([place_of[ids[row]] for row in known], np.int64)


def _rows(array: NDArray[Any], places: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(array[places].astype(np.float32))
