"""A part of a base, in the process that searches it: encodes its entries, and builds and stores its part of each version."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Protocol

import torch

from ray_atr.common.atomic import remove_leftovers_below
from ray_atr.common.storage import remove_folder
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.knowledge_base.building import Centroids, PartBuilder
from ray_atr.training.knowledge_base.faiss_library import limit_threads
from ray_atr.training.knowledge_base.parts import WHOLE, BasePart
from ray_atr.training.knowledge_base.snapshot import (
    PartEntries,
    Snapshot,
    load_version,
    save_version,
    version_folder,
    versions_in,
    versions_of_part,
)


class EncodePart(Protocol):
    """Encodes a part of a base with published weights. Picklable; it may open its data at the first call."""

    def encode_part(self, weights: Any, part: BasePart) -> PartEntries: ...


class BaseShard:
    """One part of a base, or all of it, in this process.

    `encode` begins a version, `build` continues it, and its last step writes it. A version that is not written is lost if the
    process ends.
    """

    def __init__(self, encoder: EncodePart, settings: SnapshotSettings, folder: Path, part: BasePart = WHOLE) -> None:
        self.encoder, self.settings, self.folder, self.part = encoder, settings, folder, part
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers_below(folder)
        self._threads = torch.get_num_threads()
        self._begun: dict[int, PartBuilder] = {}
        self._lock = threading.Lock()

    def encode(self, version: int, payload: Any) -> None:
        """Begin a version from weights, or from `PartEntries` that need no encoding."""
        limit_threads(self._threads)
        self._begun = {}
        entries = payload if isinstance(payload, PartEntries) else self.encoder.encode_part(payload, self.part)
        self._begun = {version: PartBuilder(entries, self.settings, self.part)}

    def build(self, version: int, step: str, *arguments: Any) -> Any:
        """Call a step of `PartBuilder` for the version that was begun. A finished part is written."""
        if version not in self._begun:
            raise RuntimeError(f"part {self.part.number} of {self.part.of} was lost while version {version} was built")
        limit_threads(self._threads)
        result = getattr(self._begun[version], step)(*arguments)
        if not isinstance(result, Snapshot):
            return result
        # Read from the file from now on: a copy in memory would double the memory of a part.
        self._begun = {}
        save_version(result, self.folder)
        return None

    def get(self, version: int) -> Snapshot:
        """The part of a version. ValueError if it is not here."""
        return load_version(self.folder, version, self.part)

    def centroids(self, version: int) -> Centroids:
        """The centroids of a version, from which k-means of the next one starts."""
        snapshot = self.get(version)
        return Centroids(snapshot.centroids, snapshot.text_centroids)

    def versions(self) -> list[int]:
        """The versions of which the folder has this part, or all parts, from which it can be assembled; oldest first."""
        return sorted({*versions_in(self.folder), *versions_of_part(self.folder, self.part)})

    def receive(self, snapshot: Snapshot) -> None:
        """Take the part of a version that an earlier base of the run built, in as many parts or in others."""
        with self._lock:
            if snapshot.version not in self.versions():
                save_version(snapshot, self.folder)

    def remove(self, version: int) -> None:
        """Remove the part of a version."""
        remove_folder(version_folder(self.folder, version, self.part))
