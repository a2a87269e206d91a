"""Checkpoints and retrievers written by the first version (`former/`, by its own code) go on and are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import make_data, prepared_for
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ray_atr.experiment import Experiment, stored_experiment
from ray_atr.models.retriever import Retriever
from ray_atr.objectives import LearnedSettings
from ray_atr.run_folder import LAST
from ray_atr.training.checkpoint import STATE_FILE
from ray_atr.training.loop import train_trial

FORMER = Path(__file__).parent / "former"
NAMES = ("metric", "moco")
"""A learned metric and temperature; and a momentum encoder, whose checkpoints were made within epochs too."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    make_data(folder / "tones", num_train=16, num_val=4, num_test=4)
    return folder


def stopped(name: str, data: Path, folder: Path) -> tuple[dict[str, Any], Experiment]:
    """The former run, stopped after two of three epochs, put into `folder` as if on this data: (its state as it was written, its
    experiment as a run folder of then is read).
    """
    state: dict[str, Any] = torch.load(FORMER / name / STATE_FILE, weights_only=True)
    settings = {**json.loads(state["experiment"]), "data.source": str(data)}
    (folder / LAST).mkdir(parents=True)
    torch.save({**state, "experiment": json.dumps(settings, sort_keys=True)}, folder / LAST / STATE_FILE)
    shutil.copytree(FORMER / "metric" / "best", folder / "best")
    return state, stored_experiment(settings)


@pytest.mark.parametrize("name", NAMES)
def test_a_former_run_goes_on_from_its_weights_and_moments(home: Path, tmp_path: Path, name: str) -> None:
    state, experiment = stopped(name, home / "tones", tmp_path)
    first: list[tuple[list[torch.Tensor], dict[int, torch.Tensor], float]] = []

    def look(optimizer: torch.optim.Optimizer, inputs: Any, options: Any) -> None:
        if not first:
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            moments = {
                place: optimizer.state[weight] for place, weight in enumerate(weights) if optimizer.state[weight]
            }
            moments = {place: moment["exp_avg_sq"].clone() for place, moment in moments.items()}
            first.append(([weight.detach().clone() for weight in weights], moments, optimizer.param_groups[0]["lr"]))

    handle = register_optimizer_step_pre_hook(look)
    reports: list[dict[str, Any]] = []
    try:
        train_trial(experiment, prepared_for(experiment, home), tmp_path, reports.append, use_ray_data=False)
    finally:
        handle.remove()
    weights, moments, rate = first[0]
    assert reports[:2] == state["progress"]["history"]
    assert [report["epoch"] for report in reports] == [1, 2, 3, 3]
    # A weight's place in the optimiser's groups tells which it is, in the file and here.
    former = {place: moment["exp_avg_sq"] for place, moment in state["optimizer"]["state"].items()}
    assert moments.keys() == former.keys()
    assert all(torch.equal(moments[place], former[place]) for place in former)
    before = [value for value in state["model"].values() if value.is_floating_point()]
    assert sorted(float(value.double().sum()) for value in weights) == sorted(
        float(value.double().sum()) for value in before
    )
    assert 0 < rate < experiment.learning_rate


def test_a_former_retriever_is_read_with_what_it_learned() -> None:
    folder = FORMER / "metric" / "best"
    retriever = Retriever.from_pretrained(folder)
    written = load_file(folder / "model.safetensors")
    assert retriever.learned.settings == LearnedSettings(
        metric="mahalanobis", project_every=2, learn_temperature=True, temperature=0.07
    )
    learned = retriever.learned.values()
    assert learned.metric is not None
    assert learned.temperature is not None
    assert torch.equal(learned.metric, written["metric"])
    assert float(learned.temperature.detach()) == pytest.approx(float(written["log_temperature"].exp()))
    assert int(retriever.learned.num_steps) == int(written["num_steps"])
