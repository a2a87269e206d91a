"""The README's commands for real data, typed in another folder with relative paths, on Ray."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ray_atr.cli.parse import settings_from
from ray_atr.common.override import override
from ray_atr.training.recipes import RECIPES
from ray_atr.training.run_folder import FINISHED, RunFolder
from tests.support.clips_on_disk import make_esc50
from tests.support.scripts import run_pipeline
from tests.support.tiny import prepared_for

SMALL = (
    *("--data.languages", "eng", "--train.epochs", "1", "--train.batch_size", "8"),
    *("--model.text.vocab_size", "300", "--tracking.mlflow", "false"),
)


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a script prints that is run in an empty folder. It has no RAY_ATR_HOME, as on a fresh clone.

    The session's Ray was started elsewhere, and its workers have working folders of their own, as in a process of its own.
    """
    monkeypatch.delenv("RAY_ATR_HOME", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(script: str, *words: str) -> str:
        assert run_pipeline(monkeypatch, script, *words) == 0
        return capsys.readouterr().out

    return run


def the_run(folder: Path, name: str) -> RunFolder:
    return RunFolder.open(next((folder / "runs").glob(f"{name}*")))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_the_commands_for_real_data_take_relative_paths(tmp_path: Path, typed: Callable[..., str]) -> None:
    make_esc50(tmp_path / "ESC-50-master", folds=(1, 2, 3, 4))
    typed("prepare_data", "esc50", "--source", "ESC-50-master", "--out", "data/esc50", "--ray", "always")
    typed("prepare_data", "check", "data/esc50")

    one = ("--objectives", "contrastive", "--noise", "0.2", "--seeds", "0")
    kept = ("--train.keep_trajectory", "true", *SMALL)
    assert "1 trial finished, 0 failed" in typed(
        "sweep_noise", "--no-figures", "--data.source", "data/esc50", *one, *kept
    )
    swept = the_run(tmp_path, "sweep_noise")
    assert json.loads((swept.path / "experiment.json").read_text())["data.source"] == str(tmp_path / "data" / "esc50")
    again = typed(
        "sweep_noise", "--resume", f"runs/{swept.path.name}", "--no-figures", *one, "--data.source", "./data/esc50"
    )
    assert "1 of 1 trials are in" in again

    other = next(iter(swept.trials())).folder.relative_to(tmp_path)
    typed(
        "train",
        "--no-figures",
        *("--data.source", "data/esc50", "--out", "runs/one", "--train.distance_to", str(other), *SMALL, *ONE_PROCESS),
    )
    (trial,) = the_run(tmp_path, "one").trials()
    assert "train/weight_distance" in trial.epochs()[0]

    # Without a path, and made here, once: on Ray their features would take three processes that import torch.
    soundscapes = settings_from(["--data.source", "soundscapes", *SMALL, *SMALL_SOUNDSCAPES])
    prepared_for(override(RECIPES["from_scratch"](), soundscapes), tmp_path)
    points = "data.source=grid(data/esc50,soundscapes)"
    both = ("--out", "runs/both", "--no-figures", "--concurrency", "1")
    typed("sweep", "--recipe", "from_scratch", "--space", points, *both, *SMALL, *SMALL_SOUNDSCAPES, *ONE_PROCESS)
    trials = [trial.describe() for trial in the_run(tmp_path, "both").trials()]
    sources = {trial["overrides"]["data.source"]: trial["status"] for trial in trials}
    assert sources == {str(tmp_path / "data" / "esc50"): FINISHED, "soundscapes": FINISHED}


ONE_PROCESS = ("--scaling.workers", "0", "--scaling.ray_data", "false")
"""Of a trial, which is another than the one that the command is typed in."""
SMALL_SOUNDSCAPES = tuple(
    word for split in ("train", "val", "test") for word in (f"--data.soundscapes.num_{split}", "8")
)
