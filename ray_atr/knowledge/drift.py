"""What tells whether knowledge from outside the batch matters, is fresh, and is of use.

Shapes: N base entries, P prototypes, Q queries, D embedding width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ray_atr.knowledge.searcher import Searcher
from ray_atr.knowledge.snapshot import Snapshot
from ray_atr.objectives import Embeddings, Objective
from ray_atr.objectives.knowledge.ask import Ask, multiplier, potentials, reliability
from ray_atr.objectives.knowledge.knowledge import Granularity, Neighbours, Queued, Retrieved, Sides
from ray_atr.objectives.learned import NOTHING_LEARNED, Learned
from ray_atr.objectives.pairs.pair_loss import Comparison

QUERIES_AT_A_TIME = 64
"""So that a base of a million entries needs 2 GiB, in float64, and not 16."""


def out_of_batch_influence(
    objective: Objective,
    embeddings: Embeddings,
    retrieved: Retrieved | Queued | None,
    *,
    learned: Learned = NOTHING_LEARNED,
    draw: Tensor | None = None,
) -> float:
    """Norm of the loss's gradient with respect to what was retrieved (Fu et al. 2025, Eq. 2); 0 if nothing is used.

    A multiplier counts only where its gradient is not detached.
    """
    leaves: list[Tensor] = []
    with torch.enable_grad():
        leafed = _with_leaves(retrieved, leaves)
        similarity = None if embeddings.similarity is None else embeddings.similarity.detach()
        batch = dataclasses.replace(
            embeddings, audio=embeddings.audio.detach(), text=embeddings.text.detach(), similarity=similarity
        )
        terms = objective(batch, learned=learned, draw=draw, retrieved=leafed)
        if not leaves or not terms.loss.requires_grad:
            return 0.0
        gradients = torch.autograd.grad(terms.loss, leaves, allow_unused=True)
    squares = [gradient.double().square().sum() for gradient in gradients if gradient is not None]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def _with_leaves(value: Any, leaves: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return value
        leaf = value.detach().clone().requires_grad_()
        leaves.append(leaf)
        return leaf
    if isinstance(value, Retrieved | Granularity | Neighbours | Queued):
        changed = {field.name: _with_leaves(getattr(value, field.name), leaves) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **changed)
    return value


def representation_drift_mismatch(queries: Tensor, current: Tensor, stale: Tensor, temperature: float = 0.07) -> float:
    """Mean KL(ideal || actual) in nats of the queries' neighbourhoods in the whole base (Fu et al. 2025, Eq. 4).

    queries [Q, D] are embedded by today's encoders; current and stale [N, D] are the base's entries by today's encoders and
    as the snapshot holds them. ideal_i(j) is the softmax over all entries j of <q_i, current_j>/temperature, actual_i(j)
    that of <q_i, stale_j>/temperature. 0 right after a refresh, never infinite. The temperature is ours: the paper's
    formula is partly lost in the text that we have, and over thousands of entries a plain softmax would be flat.
    """
    if len(stale) != len(current) or not len(stale) or not len(queries):
        raise ValueError(
            f"base: got {len(queries)} queries, {len(current)} current and {len(stale)} stale entries; "
            "allowed 1 or more queries, and equal numbers of entries, 1 or more"
        )
    queries, current, stale = (
        torch.nn.functional.normalize(rows.double(), dim=-1) for rows in (queries, current, stale)
    )
    total = queries.new_zeros(())
    for some in queries.split(QUERIES_AT_A_TIME):
        ideal = (some @ current.T).div(temperature).log_softmax(dim=1)
        actual = (some @ stale.T).div(temperature).log_softmax(dim=1)
        total += (ideal.exp() * (ideal - actual)).sum()
    return float(total.clamp(min=0) / len(queries))


def prototype_collapse(prototypes: Tensor) -> float:
    """Mean pairwise cosine of prototypes [P, D]: 1 if all are the same, near 0 if they spread; 0 for one alone."""
    P = len(prototypes)
    if P < 2:
        return 0.0
    rows = torch.nn.functional.normalize(prototypes.double(), dim=-1)
    return float((rows.sum(dim=0).square().sum() - P) / (P * (P - 1)))


def neighbour_label_share(
    positions: Tensor, query_labels: Sequence[Sequence[str]], entry_labels: Sequence[Sequence[str]]
) -> float:
    """Share of neighbours that have a label in common with their query; NaN if no pair of labelled ones was found.

    positions [B, ..., Kn] int64 into the base's entries, -1 if there is none. Entries without labels are not counted.
    """
    shared, counted = 0, 0
    for labels, found in zip(query_labels, positions.reshape(len(positions), -1).tolist(), strict=True):
        wanted = set(labels)
        for position in found:
            if position >= 0 and wanted and entry_labels[position]:
                counted += 1
                shared += bool(wanted & set(entry_labels[position]))
    return shared / counted if counted else float("nan")


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
    """What ASK's reliability makes of queries (Fu et al. 2025, Table 6).

    A case for each query text, embedded as text [n, D], whose clip is audio [n, D] with the id clip_ids[n].
    """
    searcher = Searcher(snapshot, knowledge.search_spec)
    positions = searcher.search(audio, text[:, None], None, clip_ids)
    retrieved = searcher.look_up(positions)
    comparison = Comparison(audio, text, v_language=torch.zeros(len(text), dtype=torch.int64))
    phi = {
        name: potentials(comparison, Sides.of(comparison, granularity))[1]
        for name, granularity in (("fine", retrieved.fine), ("coarse", retrieved.coarse))
        if granularity is not None
    }
    R = {name: reliability(values) for name, values in phi.items()}
    weights = multiplier(R.get("fine"), R.get("coarse"), knowledge.lambda_fine, knowledge.lambda_coarse)
    found: list[tuple[Neighbour, ...]] = [()] * len(text)
    if retrieved.fine is not None:
        similarity = torch.einsum("nd,nkd->nk", text, retrieved.fine.by_text.audio[:, 0])
        places = positions.fine_text[:, 0].tolist()
        found = [
            tuple(Neighbour(str(snapshot.ids[at]), value) for at, value in zip(*pairs, strict=True) if at >= 0)
            for pairs in zip(places, similarity.tolist(), strict=True)
        ]
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
