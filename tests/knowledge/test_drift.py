"""Out-of-batch influence, drift, collapse and label share: their zeros, signs and loops."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ray_atr.objectives import PRESETS, Embeddings, Objective
from ray_atr.objectives.knowledge import Ask, NoKnowledge
from ray_atr.objectives.knowledge.knowledge import Granularity, Neighbours, Retrieved, SnapshotSettings
from ray_atr.objectives.schemes import Kcl
from ray_atr.training.drift import (
    drift_of_part,
    drift_of_parts,
    neighbour_label_share,
    out_of_batch_influence,
    prototype_collapse,
)
from ray_atr.training.knowledge_base.building import build
from ray_atr.training.knowledge_base.queue import Identity, Queue
from ray_atr.training.knowledge_base.searcher import Searcher
from ray_atr.training.knowledge_base.snapshot import Entries

B, D = 6, 8


def unit(*shape, seed=0):
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def drift(queries, current, stale, temperature=0.07):
    return drift_of_parts([drift_of_part(queries, current, stale, temperature)])


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


@pytest.mark.parametrize("languages", [1, 2])
@pytest.mark.parametrize("coarse", [False, True])
def test_influence_is_eq_2_each_entry_outside_the_batch_once(languages: int, coarse: bool):
    """Moves the base's own entries, one number at a time: an entry that several queries found moves for all of them."""
    knowledge = Ask(transport=False, reliability=False, coarse=coarse, neighbours=3, prototypes=2)
    objective = Objective(scheme=Kcl(), knowledge=knowledge)
    batch = Embeddings(audio=unit(4, 3, seed=1).double(), text=unit(4, 2, 3, seed=2).double())
    random = np.random.default_rng(3)
    ids = [f"clip{number}" for number in range(7)]
    entries = Entries(random.normal(size=(7, 3)), random.normal(size=(languages, 7, 3)), ids)
    snapshot = build(entries, SnapshotSettings(prototypes=2))
    searcher = Searcher(snapshot, knowledge.search_spec)
    found = searcher.search(batch.audio, batch.text, None, ids[:4])
    audio, texts = torch.tensor(snapshot.audio).double(), torch.tensor(snapshot.text).double()

    def retrieved() -> Retrieved:
        by_audio, by_text = found.fine_audio, found.fine_text
        of_text = [texts[k if languages > 1 else 0][by_text[:, k]] for k in range(2)]
        of_audio = torch.stack([texts[k][by_audio[:, 0]] for k in range(languages)], dim=1)
        fine = Granularity(
            Neighbours(audio[by_audio], of_audio, by_audio >= 0, entry=by_audio),
            Neighbours(audio[by_text], torch.stack(of_text, dim=1), by_text >= 0, entry=by_text),
        )
        return Retrieved(fine=fine, coarse=searcher.look_up(found).coarse)

    total, everywhere, step = 0.0, 0.0, 1e-5
    for table in (audio, *texts):
        for entry in range(7):
            for place in range(3):
                value, losses = float(table[entry, place]), []
                for sign in (1, -1):
                    table[entry, place] = value + sign * step
                    losses.append(float(objective(batch, retrieved=retrieved()).loss))
                table[entry, place] = value
                square = ((losses[0] - losses[1]) / (2 * step)) ** 2
                everywhere += square
                total += square if entry >= 4 else 0.0
    in_batch = torch.arange(7) < 4
    assert out_of_batch_influence(objective, batch, retrieved(), in_batch=in_batch) == pytest.approx(math.sqrt(total))
    # Entries of the batch were found too, and would count without the mask.
    assert everywhere > 1.05 * total
    assert out_of_batch_influence(objective, batch, retrieved()) == pytest.approx(math.sqrt(everywhere))
    prototypes = out_of_batch_influence(objective, batch, retrieved(), granularity="coarse")
    assert (prototypes > 0) == coarse


def test_influence_of_a_queue_is_that_of_the_keys_of_other_clips():
    objective = PRESETS["moco"]
    batch = Embeddings(audio=unit(3, D, seed=1), text=unit(3, 1, D, seed=2))
    queue = Queue(8, D, 1)
    whose = Identity(torch.arange(5), torch.arange(5))
    queue.push(whose, unit(5, D, seed=3), unit(5, 1, D, seed=4))
    here = Identity(torch.tensor([1, 8, 9]), torch.tensor([1, 8, 9]))
    keys = queue.keys(here, batch.audio, batch.text)
    in_batch = queue.is_of(here)
    assert in_batch.tolist() == [False, True, False, False, False]
    audio, text = (rows.clone().requires_grad_() for rows in (keys.queue_audio, keys.queue_text))
    leafed = dataclasses.replace(keys, queue_audio=audio, queue_text=text)
    objective(batch, retrieved=leafed).loss.backward()
    assert audio.grad is not None
    assert text.grad is not None
    loop = sum(float(rows[entry].square().sum()) for rows in (audio.grad, text.grad) for entry in (0, 2, 3, 4))
    assert out_of_batch_influence(objective, batch, keys, in_batch=in_batch) == pytest.approx(math.sqrt(loop), rel=1e-5)


def test_drift_is_zero_for_the_same_entries_and_rises_with_noise_and_with_a_rotation():
    queries, current = unit(4, D, seed=9), unit(30, D)
    assert drift(queries, current, current) == 0
    little, much = current + 0.05 * unit(30, D, seed=4), current + 0.5 * unit(30, D, seed=4)
    small, large = (drift(queries, current, stale) for stale in (little, much))
    assert 0 < small < large
    # A query of today among entries that were all turned by the same rotation finds others than it should.
    generator = torch.Generator().manual_seed(3)
    rotation = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64)).Q
    assert drift(queries, current, current.double() @ rotation) > large


def test_drift_by_loops_over_the_whole_base_ideal_against_actual():
    queries, current, stale, tau = unit(3, D, seed=5), unit(7, D), unit(7, D, seed=1), 0.5
    total = 0.0
    for query in queries:
        ideal, actual = (
            np.array([math.exp(float(query @ rows[j]) / tau) for j in range(7)]) for rows in (current, stale)
        )
        ideal, actual = ideal / ideal.sum(), actual / actual.sum()
        total += sum(a * math.log(a / b) for a, b in zip(ideal, actual, strict=True)) / 3
    assert drift(queries, current, stale, tau) == pytest.approx(total, rel=1e-5)
    assert drift(queries, stale, current, tau) != pytest.approx(total, rel=1e-2)


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
