"""A source and encoders that fit into a test: embeddings are the clips' own, turned by the published weights."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_atr.objectives.knowledge.knowledge import SearchSpec
from ray_atr.training.knowledge_base.parts import BasePart
from ray_atr.training.knowledge_base.snapshot import Entries, PartEntries

N, D = 60, 8


SPEC = SearchSpec(3, index="auto", probes=16)


def clips(seed: int = 0, count: int = N) -> tuple[NDArray[np.float32], list[str]]:
    random = np.random.default_rng(seed)
    return random.normal(size=(count, D)).astype(np.float32), [f"clip{i}" for i in range(count)]


@dataclass
class Turn:
    """weights: a matrix [D, D]. Fails where they are a string; takes `seconds`; `gate` holds it until the file is there."""

    seconds: float = 0.0
    gate: str | None = None
    count: int = N

    def __call__(self, weights: Any) -> Entries:
        time.sleep(self.seconds)
        while self.gate is not None and not Path(self.gate).exists():
            time.sleep(0.02)
        if isinstance(weights, str):
            raise RuntimeError(weights)
        rows, ids = clips(count=self.count)
        return Entries(rows @ weights, rows @ weights[::-1], ids)

    def encode_part(self, weights: Any, part: BasePart) -> PartEntries:
        return PartEntries.from_entries(self(weights), part)


def weights(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(D, D)).astype(np.float32)
