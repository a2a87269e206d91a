"""The benchmark of a search: what it prints of its classes, and which training it uses."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from scipy import stats

from tests.support.scripts import load_script


def test_an_interval_over_classes_is_the_binomial_one() -> None:
    shown = load_script("benchmarks/search_esc50.py").shown
    hits = np.arange(50) < 40
    value, low, high = (float(part.strip("(,)")) for part in shown(hits).split())
    assert value == 0.8
    # Steps of one class in 50, and draws.
    assert [low, high] == pytest.approx(stats.binom(50, 0.8).ppf([0.025, 0.975]) / 50, abs=0.021)
    assert shown(np.ones(50)) == "1.000 (1.000, 1.000)"


class NotRunError(Exception):
    """Raised instead of a command."""


def test_a_number_of_epochs_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("benchmarks/search_esc50.py")
    folders: list[Path] = []

    def train(vectors: Path, out: Path, clips: object, epochs: int) -> NoReturn:
        folders.append(out)
        raise NotRunError

    monkeypatch.setattr(script, "read_set", lambda folder: None)
    monkeypatch.setattr(script, "train", train)
    for epochs in ("1", "60", "60"):
        with pytest.raises(NotRunError):
            script.main([str(tmp_path), str(tmp_path), "--epochs", epochs])
    assert folders[0] != folders[1] == folders[2]


def test_a_training_that_was_stopped_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("benchmarks/search_esc50.py")
    commands: list[tuple[object, ...]] = []
    monkeypatch.setattr(script, "command", lambda *words: commands.append(words))
    for name in ("write_splits", "prepare"):
        monkeypatch.setattr(script, name, lambda *given: None)
    run = script.train(tmp_path, tmp_path, None, 1)
    run.mkdir()
    (run / "sweep.json").touch()
    assert script.train(tmp_path, tmp_path, None, 1) == run
    assert [words[-2:] for words in commands] == [("--out", run), ("--resume", run)]


def test_a_second_run_calibrates_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("benchmarks/search_esc50.py")
    earlier = tmp_path / "epochs-60" / "calibrated"
    earlier.mkdir(parents=True)

    def command(*words: object) -> NoReturn:
        assert words[-2:] == ("--out", earlier)
        assert not earlier.exists(), "evaluate refuses a folder with a finished evaluation"
        raise NotRunError

    monkeypatch.setattr(script, "read_set", lambda folder: None)
    monkeypatch.setattr(script, "train", lambda *given: tmp_path / "run")
    monkeypatch.setattr(script, "command", command)
    with pytest.raises(NotRunError):
        script.main([str(tmp_path), str(tmp_path)])
