"""One trial goes on from another's weights, optimiser and history, with settings of its own: population-based training.

trials/<id>/perturbed.json   what was changed since the trial started: each time the epoch, whose weights, and the settings
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray_atr.experiment import Experiment
from ray_atr.override import override
from ray_atr.run_folder import BEST, LAST, TrialFolder, read_json, write_json
from ray_atr.storage import is_there, write_text
from ray_atr.training.checkpoint import load_checkpoint, save_checkpoint
from ray_atr.training.loop import deciding_settings

PERTURBED_FILE = "perturbed.json"
NAME_FILE = "trial"


def perturbations(trial: TrialFolder) -> list[dict[str, Any]]:
    """Each time that a trial went on with another's weights: after which `epoch`, `from` which trial, with which `settings`."""
    path = trial.folder / PERTURBED_FILE
    return list(read_json(path)) if is_there(path) else []


def perturbed_settings(trial: TrialFolder) -> dict[str, Any]:
    """The settings that a trial has now in place of those it started with."""
    changes = perturbations(trial)
    return dict(changes[-1]["settings"]) if changes else {}


def save_for_others(trial: TrialFolder, target: Path, *, with_weights: bool) -> None:
    """Copy what another trial needs to go on from here: the last checkpoint and the best retriever so far."""
    target.mkdir(parents=True, exist_ok=True)
    (target / NAME_FILE).write_text(trial.trial_id)
    if with_weights:
        for name in (LAST, BEST):
            if (_here(trial) / name).is_dir():
                shutil.copytree(_here(trial) / name, target / name)


def saved_by(source: Path) -> str:
    """The id of the trial whose checkpoint `save_for_others` left in a folder."""
    return (source / NAME_FILE).read_text()


def inherit(trial: TrialFolder, source: Path, settings: Mapping[str, Any], donor: str, experiment: Experiment) -> None:
    """Make what `save_for_others` left in `source` the trial's own, to go on with the given settings.

    The trial's recorded epochs become the donor's: they are those of the weights that it now has.
    """
    state = load_checkpoint(source / LAST)
    before = json.loads(state["experiment"])
    changed = override(experiment, settings)
    _rescale(state, before, changed)
    state["experiment"] = deciding_settings(changed)
    history = state["progress"]["history"]
    if (source / BEST).is_dir():
        shutil.rmtree(_here(trial) / BEST, ignore_errors=True)
        shutil.copytree(source / BEST, _here(trial) / BEST)
    earlier = perturbations(trial)
    rows = [{**row, "time": time.time()} for row in history]
    write_text(trial.folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    change = {"epoch": state["progress"]["epoch"], "from": donor, "settings": dict(settings)}
    write_json(trial.folder / PERTURBED_FILE, [*earlier, change])
    # Last: until it is there the trial goes on from its own weights.
    save_checkpoint(_here(trial) / LAST, state)


def _here(trial: TrialFolder) -> Path:
    assert isinstance(trial.folder, Path), "checked before the sweep started"
    return trial.folder


def _rescale(state: dict[str, Any], before: Mapping[str, Any], after: Experiment) -> None:
    """Optimiser and schedule as they would be with the new rate and decay; each group keeps its own factor."""
    rate = after.train.learning_rate / before["train.learning_rate"]
    decay = after.train.weight_decay / before["train.weight_decay"] if before["train.weight_decay"] else 1.0
    for group in state["optimizer"]["param_groups"]:
        group["lr"] *= rate
        group["initial_lr"] *= rate
        group["weight_decay"] *= decay
    schedule = state["scheduler"]
    schedule["base_lrs"] = [rate * value for value in schedule["base_lrs"]]
    schedule["_last_lr"] = [rate * value for value in schedule["_last_lr"]]
