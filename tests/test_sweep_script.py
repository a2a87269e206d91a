"""Mistakes on the command line of a sweep: one clear line, exit code 2, nothing written."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tiny import make_data

from ray_atr.cli import run_script
from ray_atr.recipes import quickstart
from ray_atr.run_folder import RunFolder

PIPELINES = Path(__file__).resolve().parents[1] / "pipelines"


def script(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, PIPELINES / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAY_ATR_HOME", str(tmp_path))
    return tmp_path


def error_of(
    name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    with pytest.raises(SystemExit) as exit_:
        run_script(script(name).main)
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--noise", "1.2"], "data.noise.ratio: got 1.2; allowed [0, 1)"),
        (["--objectives", "contrastiv"], "did you mean contrastive?"),
        (
            ["--train.batch_size", "5000"],
            "train.batch_size: got 5000; allowed at most 1200, the number of training clips",
        ),
        (["--train.epoch", "3"], "train.epoch: no such setting; train has epochs"),
        (["--train.epochs", "0"], "train.epochs: got 0; allowed [1, inf)"),
        (["--data.source", "nowhere"], "nowhere: no data set (manifest.json is missing)"),
        (["--data.languages", "fra,eng"], "English (eng) first"),
        (["--data.languages", "eng,fre"], "data.languages: got 'fre'"),
        (["--recipe", "quickstrat"], "did you mean quickstart?"),
        (["--objective.pair.transport_mass", "0.8"], "contrastive"),
        (["--resume", "nowhere"], "nowhere: not a run folder"),
    ],
)
def test_a_mistake_gets_one_line_and_writes_nothing(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    assert words in error_of("sweep_noise", arguments, monkeypatch, capsys)
    assert list(home.iterdir()) == []


def test_an_empty_data_folder_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "empty").mkdir()
    assert "no data set" in error_of("sweep_noise", ["--data.source", str(home / "empty")], monkeypatch, capsys)


def test_a_language_that_the_data_lacks_is_named_with_the_remedy(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_data(home / "tones")
    error = error_of("sweep_noise", ["--data.source", str(home / "tones")], monkeypatch, capsys)
    assert "deu, spa, nld, cat, jpn, zho not in" in error
    assert "--data.languages eng,fra" in error


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_run_folder_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home.chmod(0o500)
    assert "cannot be written" in error_of("sweep_noise", ["--out", str(home / "run")], monkeypatch, capsys)


def test_a_run_folder_below_a_file_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "file").write_text("")
    error = error_of("sweep_noise", ["--out", str(home / "file" / "run")], monkeypatch, capsys)
    assert "the run folder cannot be written" in error


def test_the_run_folder_of_another_experiment_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = {"name": "sweep_noise", "varied": [], "seeds": [0]}
    run = RunFolder.create(home / "run", quickstart(), info)
    before = sorted(path.name for path in run.path.rglob("*"))
    error = error_of("sweep_noise", ["--resume", str(run.path), "--train.epochs", "3"], monkeypatch, capsys)
    assert "the run of another experiment; train.epochs is 7 there and 3 here" in error
    error = error_of("train", ["--resume", str(run.path)], monkeypatch, capsys)
    assert "a run of sweep_noise, not of train" in error
    error = error_of("sweep_noise", ["--out", str(run.path)], monkeypatch, capsys)
    assert f"a run folder already; go on with --resume {run.path}" in error
    assert sorted(path.name for path in run.path.rglob("*")) == before
