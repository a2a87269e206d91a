"""Measures of knowledge from outside the batch: its influence on the loss, its drift, and the quality of neighbours.

Shapes: N base entries, P prototypes, Q queries, D embedding width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ray_atr.objectives import Embeddings, Objective
from ray_atr.objectives.knowledge.ask import Ask, multiplier, potentials, reliability
from ray_atr.objectives.knowledge.knowledge import Granularity, Knowledge, Queued, Retrieved, Sides
from ray_atr.objectives.pairs.learned import NOTHING_LEARNED, Learned
from ray_atr.objectives.pairs.pair_loss import Comparison
from ray_atr.training.knowledge_base.searcher import Searcher
from ray_atr.training.knowledge_base.snapshot import Snapshot, load_version, versions_in

QUERIES_AT_A_TIME = 64
"""Queries at a time: a base of a million entries then needs 2 GiB, in float64, instead of 16."""


def out_of_batch_influence(
    objective: Objective,
    embeddings: Embeddings,
    retrieved: Retrieved | Queued | None,
    *,
    learned: Learned = NOTHING_LEARNED,
    draw: Tensor | None = None,
    in_batch: Tensor | None = None,
    granularity: Literal["fine", "coarse"] = "fine",
) -> float:
    """Norm of the loss's gradient with respect to the embeddings of samples outside the batch (Fu et al. 2025, Eq. 2).

    The gradients of an entry that several queries found are added before the norm is taken. Entries of the batch's own clips,
    `in_batch` [N] bool over the base or queue, do not count. This is the norm of one batch; the paper takes the expectation.
    0 if nothing is retrieved. With granularity `coarse` it is the norm over the prototypes, which are not in Eq. 2. A
    multiplier counts only if its gradient is not detached.
    """
    leaves: list[Tensor] = []
    with torch.enable_grad():
        leafed = _with_leaves(retrieved, leaves, granularity)
        similarity = None if embeddings.similarity is None else embeddings.similarity.detach()
        batch = dataclasses.replace(
            embeddings, audio=embeddings.audio.detach(), text=embeddings.text.detach(), similarity=similarity
        )
        terms = objective(batch, learned=learned, draw=draw, retrieved=leafed)
        if not leaves or not terms.loss.requires_grad:
            return 0.0
        raw = torch.autograd.grad(terms.loss, leaves, allow_unused=True)
    pairs = zip(leaves, raw, strict=True)
    gradients = [(torch.zeros_like(leaf) if gradient is None else gradient).double() for leaf, gradient in pairs]
    if isinstance(retrieved, Queued):
        counts = slice(None) if in_batch is None else ~in_batch
        return float(torch.stack([gradient[counts].square().sum() for gradient in gradients]).sum().sqrt())
    assert isinstance(retrieved, Retrieved), "only what was retrieved has leaves"
    return _norm_over_entries(getattr(retrieved, granularity), gradients, in_batch)


def _with_leaves(retrieved: Any, leaves: list[Tensor], granularity: str) -> Any:
    """`retrieved` with its embeddings replaced by leaves: audio and text of the queue or of the neighbours."""

    def leafed(value: Any, names: Sequence[str]) -> Any:
        for name in names:
            leaves.append(getattr(value, name).detach().clone().requires_grad_())
            value = dataclasses.replace(value, **{name: leaves[-1]})
        return value

    if isinstance(retrieved, Queued):
        return leafed(retrieved, ("queue_audio", "queue_text"))
    if not isinstance(retrieved, Retrieved) or (vectors := getattr(retrieved, granularity)) is None:
        return retrieved
    by_audio, by_text = (leafed(side, ("audio", "text")) for side in (vectors.by_audio, vectors.by_text))
    return dataclasses.replace(retrieved, **{granularity: Granularity(by_audio, by_text)})


def _norm_over_entries(sides: Granularity, gradients: Sequence[Tensor], in_batch: Tensor | None) -> float:
    """The norm of gradients [B, Q, Kn, D], after those of the same entry, modality and language have been added."""
    keys, rows = [], []
    num_languages = sides.by_audio.text.shape[1]
    for side, (of_audio, of_text) in zip((sides.by_audio, sides.by_text), (gradients[:2], gradients[2:]), strict=True):
        for gradient, is_text in ((of_audio, False), (of_text, True)):
            assert side.entry is not None, "neighbours of a base or queue have entry numbers"
            entry = side.entry.expand(gradient.shape[:3])
            counts = side.valid.expand(gradient.shape[:3])
            if in_batch is not None:
                counts = counts & ~in_batch.to(entry.device)[entry.clamp(min=0)]
            # 0 for audio, 1 and up for texts: a base in one language answers to queries in every language.
            kind = torch.zeros(gradient.shape[1], dtype=torch.int64, device=entry.device)
            if is_text:
                kind = kind + 1 if num_languages == 1 else 1 + torch.arange(len(kind), device=entry.device)
            keys.append((entry * (1 + num_languages) + kind[:, None])[counts])
            rows.append(gradient[counts])
    every_row = torch.cat(rows)
    unique, number = torch.cat(keys).unique(return_inverse=True)
    return float(every_row.new_zeros(len(unique), every_row.shape[1]).index_add(0, number, every_row).norm())


def drift_of_part(queries: Tensor, current: Tensor, stale: Tensor, temperature: float = 0.07) -> Tensor:
    """The contribution of some of the base's entries, current and stale [n, D], to the drift of queries [Q, D]: [3, Q] float64.

    The drift (RDM) is the mean KL(ideal || actual) in nats of the queries' neighbourhoods in the base (Fu et al. 2025, Eq. 4).
    queries and current are embedded by the current encoders; stale are the same entries in the snapshot. ideal_i(j) is the
    softmax over all entries j of <q_i, current_j>/temperature, actual_i(j) that of <q_i, stale_j>/temperature. The drift is 0
    right after a refresh, and never infinite. The temperature is ours: the paper's formula is partly lost in the text that we
    have, and a plain softmax over thousands of entries would be flat.

    Returns log sum_j exp(<q_i, current_j>/temperature), log sum_j exp(<q_i, stale_j>/temperature), and the mean difference of
    the two exponents under the softmax of the first, each over the part's entries.
    """
    queries, current, stale = (
        torch.nn.functional.normalize(rows.double(), dim=-1) for rows in (queries, current, stale)
    )
    of_queries = []
    for part in queries.split(QUERIES_AT_A_TIME):
        ideal, actual = (part @ current.T).div(temperature), (part @ stale.T).div(temperature)
        sums = ideal.logsumexp(dim=1), actual.logsumexp(dim=1)
        of_queries.append(torch.stack([*sums, (ideal.softmax(dim=1) * (ideal - actual)).sum(dim=1)]))
    return torch.cat(of_queries, dim=1)


def drift_of_parts(parts: Sequence[Tensor]) -> float:
    """The drift of a base, from the `drift_of_part` of each of its parts."""
    ideal, actual, difference = torch.stack(list(parts)).unbind(dim=1)
    current, stale = ideal.logsumexp(dim=0), actual.logsumexp(dim=0)
    divergence = ((ideal - current).exp() * difference).sum(dim=0) - current + stale
    return float(divergence.sum().clamp(min=0) / len(divergence))


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
    for labels, neighbours in zip(query_labels, positions.reshape(len(positions), -1).tolist(), strict=True):
        wanted = set(labels)
        for position in neighbours:
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
    """One text query: its neighbours among single clips, and their reliability.

    `potential` is phi (Eq. 13) of each granularity, `reliability` is R = -log phi (Eq. 17), and `multiplier` the factor of the
    sample's loss (Eq. 18).
    """

    query: str
    neighbours: tuple[Neighbour, ...]
    potential: dict[str, float]
    reliability: dict[str, float]
    multiplier: float


def last_base(trial: Path, knowledge: Knowledge) -> tuple[Snapshot, Ask] | None:
    """The last version of a trial's base and its settings; None unless the trial used ASK and its folder has a base."""
    base = trial / "knowledge"
    if not isinstance(knowledge, Ask) or not (versions := versions_in(base)):
        return None
    return load_version(base, versions[-1]), knowledge


@torch.no_grad()
def explain(
    snapshot: Snapshot,
    knowledge: Ask,
    queries: Sequence[str],
    audio: Tensor,
    text: Tensor,
    clip_ids: Sequence[str],
    language: int = 0,
) -> list[Case]:
    """ASK's neighbours and reliability of each query (Fu et al. 2025, Table 6).

    queries [n] are embedded as text [n, D]; their clips are audio [n, D], with the ids clip_ids [n]. They are in one language:
    `language` is its number among those of the base's texts.
    """
    searcher = Searcher(snapshot, knowledge.search_spec)
    asked = torch.arange(len(snapshot.text)) == language
    of_languages = torch.where(asked[:, None], text[:, None], 0.0)
    positions = searcher.search(audio, of_languages, asked.expand(len(text), -1), clip_ids)
    retrieved = searcher.look_up(positions)
    comparison = Comparison(audio, text, v_language=torch.full((len(text),), language))
    phi = {
        name: potentials(comparison, Sides.from_comparison(comparison, granularity))[1]
        for name, granularity in (("fine", retrieved.fine), ("coarse", retrieved.coarse))
        if granularity is not None
    }
    R = {name: reliability(values) for name, values in phi.items()}
    weights = multiplier(R.get("fine"), R.get("coarse"), knowledge.lambda_fine, knowledge.lambda_coarse)
    neighbours: list[tuple[Neighbour, ...]] = [()] * len(text)
    if retrieved.fine is not None:
        similarity = torch.einsum("nd,nkd->nk", text, retrieved.fine.by_text.audio[:, language])
        entries = positions.fine_text[:, language].tolist()
        neighbours = [
            tuple(Neighbour(snapshot.ids[row].decode(), value) for row, value in zip(*pairs, strict=True) if row >= 0)
            for pairs in zip(entries, similarity.tolist(), strict=True)
        ]
    return [
        Case(
            query=query,
            neighbours=neighbours[n],
            potential={name: float(values[n]) for name, values in phi.items()},
            reliability={name: float(values[n]) for name, values in R.items()},
            multiplier=1.0 if weights is None else float(weights[n]),
        )
        for n, query in enumerate(queries)
    ]
