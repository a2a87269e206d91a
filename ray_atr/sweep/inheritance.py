"""One trial takes over another's weights, optimiser and history, with settings of its own: population-based training.

trials/<id>/perturbed.json   what was changed since the trial started: each time the epoch, whose weights, and the settings
trials/<id>/takeover/        a take-over that is decided but not yet done: files that are to replace the trial's own

The files of a take-over belong together. They are written aside, and from the moment that their folder has its name the
take-over will be done, now or by the next start of the trial.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray_atr import storage
from ray_atr.experiment import Experiment, resolved, stored_experiment
from ray_atr.override import override
from ray_atr.run_folder import BEST, LAST, METRICS_FILE, RunFolder, TrialFolder
from ray_atr.training.checkpoint import deciding_settings, load_checkpoint, save_checkpoint

PERTURBED_FILE = "perturbed.json"
TAKEOVER = "takeover"
NAME_FILE = "trial"


def perturbations(trial: TrialFolder) -> list[dict[str, Any]]:
    """Each time that a trial continued with another's weights: after which `epoch`, `from` which trial, with which `settings`."""
    path = trial.folder / PERTURBED_FILE
    return list(storage.read_json(path)["changes"]) if storage.is_there(path) else []


def perturbed_settings(trial: TrialFolder) -> dict[str, Any]:
    """The settings that a trial has now in place of those it started with."""
    changes = perturbations(trial)
    return dict(changes[-1]["settings"]) if changes else {}


def experiment_of(folder: RunFolder, trial: TrialFolder) -> Experiment:
    """A trial's experiment: the run's, with what the trial varies, and what was changed since it started."""
    return resolved(override(folder.experiment, {**trial.describe()["overrides"], **perturbed_settings(trial)}))


def save_for_others(trial: TrialFolder, target: Path, *, with_weights: bool) -> None:
    """Copy what another trial needs to continue from here: the last checkpoint and the best retriever so far."""
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
    """Make what `save_for_others` left in `source` the trial's own, to be trained with the given settings. The trial's
    recorded epochs become the donor's: they are those of the weights that it now has. A kill leaves the trial as it
    was, or as the heir.
    """
    state = load_checkpoint(source / LAST)
    before = json.loads(state["experiment"])
    changed = override(experiment, settings)
    _rescale(state, before, changed)
    state["experiment"] = deciding_settings(changed)
    now = time.time()
    change = {"epoch": state["progress"]["epoch"], "from": donor, "settings": dict(settings)}
    with storage.whole_folder(_here(trial) / TAKEOVER, is_synced=True) as aside:
        save_checkpoint(aside / LAST, state)
        if (source / BEST).is_dir():
            shutil.copytree(source / BEST, aside / BEST)
        storage.write_lines(aside / METRICS_FILE, [{**row, "time": now} for row in state["progress"]["history"]])
        storage.write_json(aside / PERTURBED_FILE, {"changes": [*perturbations(trial), change]})
    complete_take_over(trial)


def complete_take_over(trial: TrialFolder) -> None:
    """Put the files of a decided take-over in the place of the trial's own; does nothing if there is none."""
    if not storage.is_local(trial.folder) or not (trial.folder / TAKEOVER).is_dir():
        return
    for found in sorted((trial.folder / TAKEOVER).iterdir()):
        own = trial.folder / found.name
        if own.is_dir():
            storage.remove_folder(own)
        os.replace(found, own)
    storage.sync_folder(trial.folder)
    storage.remove_folder(trial.folder / TAKEOVER)


def _here(trial: TrialFolder) -> Path:
    assert storage.is_local(trial.folder), "checked before the sweep started"
    return trial.folder


def _rescale(state: dict[str, Any], before: Mapping[str, Any], after: Experiment) -> None:
    """Optimiser and schedule as they would be with the new rate and decay; each group keeps its own factor."""
    rate = after.learning_rate / stored_experiment(before).learning_rate
    decay = after.train.weight_decay / before["train.weight_decay"] if before["train.weight_decay"] else 1.0
    for group in state["optimizer"]["param_groups"]:
        group["lr"] *= rate
        group["initial_lr"] *= rate
        group["weight_decay"] *= decay
    schedule = state["scheduler"]
    for part in (schedule, *schedule.get("_schedulers", ())):
        for name in part.keys() & {"base_lrs", "_last_lr"}:
            part[name] = [rate * value for value in part[name]]
