"""What ASK's reliability makes of named queries: their neighbours, phi, R and the loss's multiplier (Fu et al. 2025, Table 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ray_atr.knowledge.searcher import Searcher
from ray_atr.knowledge.snapshot import Snapshot
from ray_atr.objectives.knowledge.ask import Ask
from ray_atr.objectives.knowledge.reliability import multiplier, reliability
from ray_atr.objectives.knowledge.retrieved import Granularity, Sides
from ray_atr.objectives.pairs.pair_loss import Comparison


@dataclass(frozen=True)
class Neighbour:
    """An entry that a text query found, and the inner product of its audio with the query."""

    clip_id: str
    similarity: float


@dataclass(frozen=True)
class Case:
    """One text query: what it found among single clips, and how far that is relied on.

    `potential` is phi (Eq. 13) of each granularity, `reliability` R = -log phi (Eq. 17), `multiplier` what the sample's loss
    is multiplied with (Eq. 18).
    """

    query: str
    neighbours: tuple[Neighbour, ...]
    potential: dict[str, float]
    reliability: dict[str, float]
    multiplier: float


@torch.no_grad()
def explain(
    snapshot: Snapshot, knowledge: Ask, queries: Sequence[str], audio: Tensor, text: Tensor, clip_ids: Sequence[str]
) -> list[Case]:
    """A case for each query text, embedded as text [n, D], whose clip is audio [n, D] with the id clip_ids[n]."""
    searcher = Searcher(snapshot, knowledge.search_spec)
    positions = searcher.search(audio, text[:, None], None, clip_ids)
    retrieved = searcher.look_up(positions)
    comparison = Comparison(audio, text, v_language=torch.zeros(len(text), dtype=torch.int64))
    phi = {
        name: Sides.of(comparison, granularity).potentials(comparison)[1]
        for name, granularity in (("fine", retrieved.fine), ("coarse", retrieved.coarse))
        if granularity is not None
    }
    R = {name: reliability(values) for name, values in phi.items()}
    weights = multiplier(R.get("fine"), R.get("coarse"), knowledge.lambda_fine, knowledge.lambda_coarse)
    found = _neighbours(snapshot, positions.fine_text[:, 0], retrieved.fine, text)
    return [
        Case(
            query=query,
            neighbours=found[n],
            potential={name: float(values[n]) for name, values in phi.items()},
            reliability={name: float(values[n]) for name, values in R.items()},
            multiplier=1.0 if weights is None else float(weights[n]),
        )
        for n, query in enumerate(queries)
    ]


def _neighbours(
    snapshot: Snapshot, positions: Tensor, fine: Granularity | None, text: Tensor
) -> list[tuple[Neighbour, ...]]:
    if fine is None:
        return [()] * len(text)
    similarity = torch.einsum("nd,nkd->nk", text, fine.by_text.audio[:, 0])
    return [
        tuple(
            Neighbour(str(snapshot.ids[place]), float(value))
            for place, value in zip(places, values, strict=True)
            if place >= 0
        )
        for places, values in zip(positions.tolist(), similarity.tolist(), strict=True)
    ]
