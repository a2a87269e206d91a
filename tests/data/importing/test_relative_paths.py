"""The README's commands for real data, typed in another folder with relative paths, on Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from clips_on_disk import make_esc50

from ray_atr.run_folder import FINISHED, RunFolder

PIPELINES = Path(__file__).resolve().parents[3] / "pipelines"
SMALL = (
    *("--data.languages", "eng", "--train.epochs", "1", "--train.batch_size", "8"),
    *("--model.text.vocab_size", "300", "--tracking.mlflow", "false"),
)


def typed(folder: Path, script: str, *words: str) -> str:
    """What a script prints that is run in a folder. It has no RAY_ATR_HOME, as on a fresh clone."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ATR_HOME"}
    command = [sys.executable, str(PIPELINES / f"{script}.py"), *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def the_run(folder: Path, name: str) -> RunFolder:
    return RunFolder.open(next((folder / "runs").glob(f"{name}*")))


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_for_real_data_take_relative_paths(tmp_path: Path) -> None:
    make_esc50(tmp_path / "ESC-50-master", folds=(1, 2, 3, 4, 5))
    typed(tmp_path, "prepare_data", "esc50", "--source", "ESC-50-master", "--out", "data/esc50", "--ray", "always")
    typed(tmp_path, "prepare_data", "check", "data/esc50")

    one = ("--objectives", "contrastive", "--noise", "0.2", "--seeds", "0")
    kept = ("--train.keep_trajectory", "true", *SMALL)
    assert "1 trials finished, 0 failed" in typed(tmp_path, "sweep_noise", "--data.source", "data/esc50", *one, *kept)
    swept = the_run(tmp_path, "sweep_noise")
    assert json.loads((swept.path / "experiment.json").read_text())["data.source"] == str(tmp_path / "data" / "esc50")
    again = typed(tmp_path, "sweep_noise", "--resume", f"runs/{swept.path.name}", *one, "--data.source", "./data/esc50")
    assert "1 of 1 trials are in" in again

    other = next(iter(swept.trials())).folder.relative_to(tmp_path)
    typed(
        tmp_path,
        "train",
        *("--data.source", "data/esc50", "--out", "runs/one", "--train.distance_to", str(other), *SMALL),
    )
    (trial,) = the_run(tmp_path, "one").trials()
    assert "train/weight_distance" in trial.epochs()[0]

    points = "data.source=grid(data/esc50,soundscapes)"
    typed(tmp_path, "sweep", "--space", points, "--out", "runs/both", *SMALL, *SMALL_SOUNDSCAPES)
    both = the_run(tmp_path, "both")
    sources = {trial.describe()["overrides"]["data.source"]: trial.describe()["status"] for trial in both.trials()}
    assert sources == {str(tmp_path / "data" / "esc50"): FINISHED, "soundscapes": FINISHED}


SMALL_SOUNDSCAPES = tuple(
    word for split in ("train", "val", "test") for word in (f"--data.soundscapes.num_{split}", "8")
)
