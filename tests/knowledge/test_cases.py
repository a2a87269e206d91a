"""Named queries' neighbours, phi, R and multipliers, by loops over the paper's formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ray_atr.objectives.knowledge import Ask
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.drift import explain
from ray_atr.training.knowledge_base.building import build
from ray_atr.training.knowledge_base.snapshot import Entries

N, D = 30, 8


@pytest.mark.parametrize(("languages", "asked"), [(1, 0), (2, 0), (2, 1)])
def test_a_case_is_what_the_formulas_say_of_its_neighbours(languages: int, asked: int):
    random = np.random.default_rng(0)
    ids = [f"clip{i}" for i in range(N)]
    entries = Entries(random.normal(size=(N, D)), random.normal(size=(languages, N, D)), ids)
    snapshot = build(entries, SnapshotSettings(prototypes=0))
    generator = torch.Generator().manual_seed(1)
    audio, text = (normalize(torch.randn(3, D, generator=generator), dim=-1) for _ in range(2))
    knowledge = Ask(neighbours=4, coarse=False, lambda_fine=0.3)
    cases = explain(snapshot, knowledge, ["a", "b", "c"], audio, text, ["clip0", "clip1", "elsewhere"], asked)
    a, t = snapshot.audio, snapshot.text[asked]
    for i, case in enumerate(cases):
        others = [n for n in range(N) if ids[n] != ["clip0", "clip1", "elsewhere"][i]]
        near_text = sorted(others, key=lambda n: -float(t[n] @ text[i].numpy()))[:4]
        near_audio = sorted(others, key=lambda n: -float(a[n] @ audio[i].numpy()))[:4]
        consistency = [np.mean([float(a[j] @ a[m]) for m in near_audio]) for j in near_text]
        weights = np.exp(consistency) / np.exp(consistency).sum()
        phi = sum(w * math.exp(float(a[j] @ text[i].numpy())) for w, j in zip(weights, near_text, strict=True))
        assert [one.clip_id for one in case.neighbours] == [ids[n] for n in near_text]
        assert [one.similarity for one in case.neighbours] == pytest.approx(
            [float(a[n] @ text[i].numpy()) for n in near_text], abs=1e-5
        )
        assert case.potential["fine"] == pytest.approx(phi, rel=1e-5)
        assert case.reliability["fine"] == pytest.approx(-math.log(phi), abs=1e-5)
        assert case.multiplier == pytest.approx(1 - 0.3 * math.log(phi), rel=1e-5)
    assert [case.query for case in cases] == ["a", "b", "c"]
