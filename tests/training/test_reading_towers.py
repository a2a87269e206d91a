"""What a run gives to a correspondence that reads the towers' outputs, and that it trains by what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ray_atr.objectives.correspondence import leave_one_out
from ray_atr.objectives.correspondence.leave_one_out import LeaveOneOutEstimator
from ray_atr.training.batch import TrainingData
from ray_atr.training.correspondence import _readings
from ray_atr.training.group import WorkerGroup
from ray_atr.training.loop import train_trial
from ray_atr.training.setup import first_state
from tests.support.tiny import make_data, prepared_for, tiny


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    make_data(folder / "tones", num_train=24)
    return folder


@pytest.fixture(autouse=True)
def _any_towers_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leave_one_out, "LEAST_FOUND", 0.0)
    monkeypatch.setattr(leave_one_out, "FOUNDED", 0.0)


def experiment(home: Path, **changes: Any) -> Any:
    return tiny(
        home / "tones",
        **{"objective": "kcl", "objective__correspondence": "leave_one_out", "data__noise__ratio": 0.5, **changes},
    )


def test_towers_are_asked_for_every_pair_of_the_trained_languages(home: Path, tmp_path: Path) -> None:
    chosen = experiment(home)
    data = TrainingData(chosen, prepared_for(chosen, home), WorkerGroup())
    state = first_state(data, tmp_path)
    (outputs,) = _readings("towers", state.retriever, data.captions, ("eng", "fra"))
    rows, slots, languages = outputs.places
    pairs = set(zip(rows.tolist(), slots.tolist(), languages.tolist(), strict=True))
    assert pairs == {(row, 0, k) for row in range(24) for k in range(2)}
    batch = data.captions.batch(np.arange(24), 0)
    texts = [batch.texts[i][k] for i, k in zip(rows, languages, strict=True)]
    for a in range(len(texts)):
        for b in range(len(texts)):
            assert (outputs.key[a] == outputs.key[b]) == (texts[a] == texts[b])
    tower, retriever = state.retriever.text_tower.eval(), state.retriever
    for a in (0, 7, 40):
        language = ("eng", "fra")[languages[a]]
        ids = torch.tensor(tower.tokenise([texts[a]], [language]))
        with torch.no_grad():
            own = torch.nn.functional.normalize(tower(ids, torch.ones_like(ids, dtype=torch.bool)).pooled, dim=1)[0]
        torch.testing.assert_close(torch.from_numpy(outputs.text[a]), own, atol=1e-5, rtol=1e-5)
    assert outputs.audio.shape == (24, retriever.audio_tower.width)
    (only,) = _readings("towers", state.retriever, data.captions, ("fra",))
    assert set(only.places[2].tolist()) == {1}


def test_a_run_trains_by_it_and_goes_on_as_if_it_had_not_stopped(home: Path, tmp_path: Path) -> None:
    taken: list[int] = []
    whole = experiment(home, train__epochs=3)
    prepared = prepared_for(whole, home)

    def losses(folder: Path, **more: Any) -> list[float]:
        rows: list[Any] = []
        train_trial(whole, prepared, folder, rows.append, use_ray_data=False, **more)
        return [row["train/loss"] for row in rows if "train/loss" in row]

    take = LeaveOneOutEstimator.take

    def counted(self: LeaveOneOutEstimator, found: Any) -> None:
        taken.append(1)
        take(self, found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LeaveOneOutEstimator, "take", counted)
        expected = losses(tmp_path / "whole")
    assert len(taken) == 1
    assert len(expected) == 3
    stopped: list[int] = []

    def preempted(group: WorkerGroup) -> bool:
        stopped.append(1)
        if len(stopped) == 5:
            raise KeyboardInterrupt
        return len(stopped) == 4

    with pytest.raises(KeyboardInterrupt):
        losses(tmp_path / "stopped", is_preempted=preempted)
    assert losses(tmp_path / "stopped") == expected
