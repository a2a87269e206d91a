"""A source and encoders that fit into a test: embeddings are the clips' own, turned by the published weights."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ray_atr.knowledge.base import Entries

N, D = 60, 8


@dataclass(frozen=True)
class Asked:
    neighbours: int = 3
    refresh_lag: int = 2
    exclude_own: bool = True


def clips(seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(N, D)).astype(np.float32), [f"clip{i}" for i in range(N)]


@dataclass
class Turn:
    """weights: a matrix [D, D]. Fails where they are a string; takes `seconds`; `gate` holds it until the file is there."""

    seconds: float = 0.0
    gate: str | None = None

    def __call__(self, weights):
        time.sleep(self.seconds)
        while self.gate is not None and not Path(self.gate).exists():
            time.sleep(0.02)
        if isinstance(weights, str):
            raise RuntimeError(weights)
        rows, ids = clips()
        return Entries(rows @ weights, rows @ weights[::-1], ids)


def weights(seed):
    return np.random.default_rng(seed).normal(size=(D, D)).astype(np.float32)
