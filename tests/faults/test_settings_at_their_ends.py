"""Every setting that is a number, at its ends: it ends in a training with finite losses, or in one line that names it.

All of them take five minutes; without RAY_ATR_ALL_POINTS=1, those of `train` and the seed alone are tried.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ray_atr.common.override import flatten, override
from ray_atr.training.checks import check_experiment
from ray_atr.training.experiment import Experiment
from ray_atr.training.inputs import prepare
from ray_atr.training.loop import train_trial
from tests.support.crash_points import ALL_POINTS
from tests.support.every_setting import every_setting
from tests.support.tiny import make_data, tiny

ENDS = {
    "int": (0, -1, 10**12, 2**63 - 1, 2**70),
    "float": (0.0, -1.0, 1e-300, 1e-38, 1e10, 1e300, math.inf, -math.inf, math.nan),
}
NEAR = (10**12, 1e-38, 1e10)
"""Ends that others are beyond: tried with RAY_ATR_ALL_POINTS=1."""
SECTIONS = ("data", "model.audio", "model.text", "model", "objective", "train", "scaling", "evaluation", "seed")
CPU_SECONDS, MORE_BYTES = 20, 3 * 2**30
"""What one training may take: a hang ends by the first; a matrix beyond the second is refused, as on a full machine."""
RUNS_LONG = {"train.epochs"}
"""As many as are asked for: `test_ends_of_settings` has a run without an end."""


def cases(base: Experiment, sections: Collection[str]) -> Iterator[tuple[dict[str, str], str, Any]]:
    """(What to choose, the path of a setting, its value), but for what the experiment has already."""
    held = flatten(base)
    for choice, one in every_setting(base):
        names = [name for name in SECTIONS if one.path.startswith(name)]
        words = one.type.replace(",", " ").split()
        kind = "float" if "float" in words else "int" if "int" in words else None
        if kind and names and max(names, key=len) in sections and not one.path.startswith("data.soundscapes."):
            for value in ENDS[kind]:
                is_new = choice or held[one.path] != value
                if is_new and (ALL_POINTS or value not in NEAR) and (one.path not in RUNS_LONG or not value > 1000):
                    yield choice, one.path, value


def outcome(base: Experiment, changes: Mapping[str, Any], folder: Path) -> str:
    """`trained`, or the error, of a training in a fork; a choice that is refused before it needs none."""
    try:
        check_experiment(override(base, changes))
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(trained(base, changes, folder)).encode()[:60_000])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else f"ended by signal {signal.Signals(status).name}"


def trained(base: Experiment, changes: Mapping[str, Any], folder: Path) -> str:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MORE_BYTES,) * 2)
    rows: list[Any] = []
    try:
        experiment = override(base, changes)
        check_experiment(experiment)
        # Whether there is room for workers and encoders is Ray's to say.
        if not list(changes)[-1].startswith("scaling."):
            prepared = prepare(experiment, folder / "home", use_ray=False, echo=lambda message: None)
            with tempfile.TemporaryDirectory(dir=folder) as run:
                train_trial(experiment, prepared, Path(run), rows.append, use_ray_data=False)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    return "trained" if all(map(math.isfinite, losses)) else f"trained with losses {losses}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sections", [(section,) for section in SECTIONS] if ALL_POINTS else [("train", "seed")])
def test_a_setting_at_its_ends_trains_or_is_named(tmp_path: Path, sections: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    base = tiny(make_data(tmp_path / "tones", num_train=16, num_val=4, num_test=0), train__epochs=1)
    # What is imported on the way is imported here, and not by every fork.
    others = ({"objective": "ask"}, {"objective": "m_ltm_pot", "objective.correspondence": "small_loss"})
    for warm in ({}, *(others if ALL_POINTS else ())):
        experiment = override(base, warm)
        prepared = prepare(experiment, tmp_path / "home", use_ray=False, echo=lambda message: None)
        with tempfile.TemporaryDirectory() as run:
            train_trial(experiment, prepared, Path(run), lambda row: None, use_ray_data=False)
    bad, works = [], {"": True}
    for choice, path, value in cases(base, sections):
        # Towers and teachers that need a file which is not here, and vectors, which other data are made of.
        kind = " ".join(choice.values())
        if kind not in works:
            works[kind] = outcome(base, choice, tmp_path) == "trained"
        if works[kind]:
            found = outcome(base, {**choice, path: value}, tmp_path)
            part, _, name = path.rpartition(".")
            if found != "trained" and not (part in found and name in found):
                bad.append(f"{choice} {path}={value}: {found}")
    assert not bad, "\n".join(bad)
