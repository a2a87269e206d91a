"""Encoders through Ray Data, and trials of one sweep that each have a base of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import make_data, tiny

from ray_atr.knowledge.base import load
from ray_atr.models.retriever import build_retriever
from ray_atr.run_folder import RunFolder
from ray_atr.sweep import sweep
from ray_atr.training.knowledge import SourceEncoder
from ray_atr.training.prepare import prepare

pytestmark = pytest.mark.ray

ASK = {
    "objective.knowledge": "ask",
    "objective.knowledge.prototypes": 4,
    "objective.knowledge.neighbours": 2,
    "objective.knowledge.refresh_lag": 2,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    make_data(folder / "tones")
    return folder


@pytest.mark.usefixtures("ray_session")
def test_several_encoders_give_the_entries_of_one_bit_for_bit(home: Path) -> None:
    from ray_atr.training.encoders import ParallelEncoder

    experiment = tiny(home / "tones", **ASK, **{"objective.knowledge.text_entries": "each"})
    prepared = prepare(experiment, home, use_ray=False, say=lambda message: None)
    weights = build_retriever(experiment.model, tokenizer=prepared.load_tokenizer(), seed=3).state_dict()
    one = SourceEncoder(experiment, prepared, block=10)
    assert one.num_blocks == 3
    several = ParallelEncoder(one, encoders=2, cpus=0.0, gpus=0.0)(weights)
    alone = one(weights)
    assert np.array_equal(several.audio, alone.audio)
    assert np.array_equal(several.text, alone.text)
    assert several.ids.tolist() == alone.ids.tolist() == [f"train-{index:03d}" for index in range(24)]
    assert np.array_equal(several.text_mask, alone.text_mask)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_trials_at_once_have_a_base_each_and_share_the_features(home: Path) -> None:
    from ray.util import list_named_actors

    experiment = tiny(home / "tones", **ASK, scaling__workers=0, train__epochs=2)
    run = RunFolder.create(home / "runs" / "two", experiment, {"name": "test", "varied": ["seed"], "seeds": [0, 1]})
    points: list[dict[str, Any]] = [{"seed": 0}, {"seed": 1}]
    result = sweep(run, points, home, concurrency=2, say=lambda message: None)
    assert len(result.finished) == 2
    bases = [load(trial.folder / "knowledge" / "v000002") for trial in run.trials()]
    assert not np.allclose(bases[0].audio, bases[1].audio)
    for trial in run.trials():
        assert [row["knowledge/version"] for row in trial.epochs()] == [1, 2]
    caches = [folder for folder in (home / "data" / "features").iterdir() if folder.is_dir()]
    assert len(caches) == 1
    left = [actor["name"] for actor in list_named_actors(all_namespaces=True) if actor["name"].startswith("knowledge-")]
    assert left == []
