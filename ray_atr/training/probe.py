"""What one epoch says about a run's knowledge: does it matter, is it fresh, is it of use?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_atr.data.sampling import permutation
from ray_atr.knowledge.drift import (
    neighbour_label_share,
    prototype_collapse,
    representation_drift_mismatch,
)
from ray_atr.knowledge.memory import SnapshotMemory
from ray_atr.knowledge.searcher import as_tensor
from ray_atr.knowledge.snapshot import Snapshot
from ray_atr.models.retriever import Retriever
from ray_atr.training.group import WorkerGroup
from ray_atr.training.knowledge import BLOCK, BaseSource


class BaseProbe:
    """How far the base in use is from today's encoders, its prototypes' collapse, and whether neighbours share a label.

    Drift asks for every entry of the base by today's encoders: all workers encode a share of the source, which costs what a
    refresh costs. The queries are a fixed sample of the source's clips.
    """

    def __init__(self, source: BaseSource, seed: int, num_clips: int) -> None:
        self.source = source
        ids = source.features.clip_ids
        self.rows = np.sort(permutation(ids, seed, "probe", 0)[:num_clips])
        self._labels_of: dict[str, list[str]] = dict(zip(ids, source.features.labels, strict=True))

    def measure(
        self, memory: SnapshotMemory, retriever: Retriever, labels: Sequence[Sequence[str]], group: WorkerGroup
    ) -> dict[str, float]:
        """The snapshot in use against the retriever as it is. `labels` [B] are those of the last global batch's clips.

        Every worker calls it, and gets the same.
        """
        snapshot = memory.snapshot
        assert snapshot is not None, "measured after a step"
        measured = self._drift(snapshot, retriever, group)
        if snapshot.num_prototypes:
            measured["prototype_cosine_audio"] = prototype_collapse(as_tensor(snapshot.coarse_audio))
            measured["prototype_cosine_text"] = prototype_collapse(as_tensor(snapshot.coarse_text[0]))
        if memory.found is not None:
            found = torch.cat([memory.found.fine_audio, memory.found.fine_text], dim=1)
            of_entries = [self._labels_of[name] for name in snapshot.ids.tolist()]
            measured["neighbour_label_share"] = neighbour_label_share(found, labels, of_entries)
        return {name: value for name, value in measured.items() if not math.isnan(value)}

    def _drift(self, snapshot: Snapshot, retriever: Retriever, group: WorkerGroup) -> dict[str, float]:
        """RDM of both modalities; nothing if none of the source's clips is in the snapshot yet."""
        place_of = {name: place for place, name in enumerate(snapshot.ids.tolist())}
        ids = self.source.features.clip_ids
        rows = np.array([row for row, name in enumerate(ids) if name in place_of], np.int64)
        is_query = np.isin(rows, self.rows)
        if not is_query.any():
            return {}
        mine = np.array_split(rows, group.size)[group.rank]
        audio, text = (
            torch.cat([torch.from_numpy(part) for part in group.gather_objects(share)])
            for share in self._encode(mine, retriever)
        )
        places = np.array([place_of[ids[row]] for row in rows], np.int64)
        queries = torch.from_numpy(is_query)
        return {
            "drift_audio": representation_drift_mismatch(audio[queries], audio, _rows(snapshot.audio, places)),
            "drift_text": representation_drift_mismatch(text[queries], text, _rows(snapshot.text[0], places)),
        }

    def _encode(self, rows: NDArray[np.int64], retriever: Retriever) -> tuple[NDArray[Any], NDArray[Any]]:
        """Audio and first-language text [n, D] of the source's rows by today's encoders."""
        blocks = [self.source.encode(retriever, some) for some in np.array_split(rows, max(1, -(-len(rows) // BLOCK)))]
        return np.concatenate([block.audio for block in blocks]), np.concatenate([block.text[0] for block in blocks])


def _rows(array: NDArray[Any], places: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(array[places].astype(np.float32))
