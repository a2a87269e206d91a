"""Out-of-batch influence, drift, collapse and label share: their zeros, signs and loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ray_atr.knowledge.drift import (
    neighbour_label_share,
    out_of_batch_influence,
    prototype_collapse,
    representation_drift_mismatch,
)
from ray_atr.knowledge.searcher import Searcher
from ray_atr.knowledge.snapshot import Entries, SnapshotSettings, build
from ray_atr.objectives import Embeddings, Objective
from ray_atr.objectives.knowledge import Ask, NoKnowledge

B, D = 6, 8


def unit(*shape, seed=0):
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def found_for(knowledge, batch):
    random = np.random.default_rng(0)
    entries = Entries(random.normal(size=(40, D)), random.normal(size=(40, D)), [str(i) for i in range(40)])
    snapshot = build(entries, SnapshotSettings(prototypes=7))
    searcher = Searcher(snapshot, knowledge.search_spec)
    return searcher.look_up(searcher.search(batch.audio, batch.text))


def test_influence_is_positive_with_injection_and_zero_without():
    batch = Embeddings(audio=unit(B, D, seed=1), text=unit(B, 1, D, seed=2))
    off = {"transport": False, "reliability": False}
    influence = {}
    for name, knowledge in {
        "injected": Ask(**off),
        "more": Ask(**off, injection_ratio=0.4),
        "ratio0": Ask(**off, injection_ratio=0.0),
        "off": Ask(**off, injection=False),
    }.items():
        found = found_for(knowledge, batch)
        influence[name] = out_of_batch_influence(Objective(knowledge=knowledge), batch, found)
    assert influence["more"] > influence["injected"] > 0
    assert influence["off"] == influence["ratio0"] == 0
    assert out_of_batch_influence(Objective(knowledge=NoKnowledge()), batch, None) == 0


def test_influence_is_the_norm_of_finite_differences():
    batch = Embeddings(audio=unit(B, D, seed=1).double(), text=unit(B, 1, D, seed=2).double())
    knowledge = Ask(transport=False, reliability=False, coarse=False, neighbours=2)
    objective = Objective(knowledge=knowledge)
    found = found_for(knowledge, batch)
    tensors = [found.fine.by_audio.audio, found.fine.by_text.text]
    total, step = 0.0, 1e-3
    for tensor in tensors:
        flat = tensor.view(-1)
        for position in range(len(flat)):
            value, losses = float(flat[position]), []
            for sign in (1, -1):
                flat[position] = value + sign * step
                losses.append(float(objective(batch, retrieved=found).loss))
            flat[position] = value
            total += ((losses[0] - losses[1]) / (2 * step)) ** 2
    assert out_of_batch_influence(objective, batch, found) == pytest.approx(math.sqrt(total), rel=2e-3)


def test_drift_is_zero_for_the_same_entries_and_rises_with_noise_and_with_a_rotation():
    queries, current = unit(4, D, seed=9), unit(30, D)
    assert representation_drift_mismatch(queries, current, current) == 0
    little, much = current + 0.05 * unit(30, D, seed=4), current + 0.5 * unit(30, D, seed=4)
    small, large = (representation_drift_mismatch(queries, current, stale) for stale in (little, much))
    assert 0 < small < large
    # A query of today among entries that were all turned by the same rotation finds others than it should.
    generator = torch.Generator().manual_seed(3)
    rotation = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64)).Q
    assert representation_drift_mismatch(queries, current, current.double() @ rotation) > large


def test_drift_by_loops_over_the_whole_base_ideal_against_actual():
    queries, current, stale, tau = unit(3, D, seed=5), unit(7, D), unit(7, D, seed=1), 0.5
    total = 0.0
    for query in queries:
        ideal, actual = (
            np.array([math.exp(float(query @ rows[j]) / tau) for j in range(7)]) for rows in (current, stale)
        )
        ideal, actual = ideal / ideal.sum(), actual / actual.sum()
        total += sum(a * math.log(a / b) for a, b in zip(ideal, actual, strict=True)) / 3
    assert representation_drift_mismatch(queries, current, stale, tau) == pytest.approx(total, rel=1e-5)
    assert representation_drift_mismatch(queries, stale, current, tau) != pytest.approx(total, rel=1e-2)
    with pytest.raises(ValueError, match="base"):
        representation_drift_mismatch(queries, current[:2], stale)


def test_collapse_is_the_mean_pairwise_cosine():
    rows = unit(6, D)
    loop = [float(rows[i] @ rows[j]) for i in range(6) for j in range(6) if i != j]
    assert prototype_collapse(rows) == pytest.approx(np.mean(loop), abs=1e-6)
    assert prototype_collapse(torch.ones(4, D)) == pytest.approx(1)
    assert prototype_collapse(torch.ones(1, D)) == 0


def test_label_share_counts_labelled_neighbours_alone():
    positions = torch.tensor([[[0, 1, -1]], [[2, 3, 1]]])
    entries = [["dog"], ["rain"], [], ["rain", "wind"]]
    assert neighbour_label_share(positions, [["dog"], ["wind"]], entries) == pytest.approx(2 / 4)
    assert math.isnan(neighbour_label_share(positions, [[], []], entries))
