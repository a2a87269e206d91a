"""What is kept of a trial's failure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from ray_atr.run_folder import TrialFolder
from ray_atr.sweep.on_tune import TRACEBACK_FILE, _error_of
from ray_atr.training.run import write_error

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nKeyError: 3\n'


def failed_in_tune(folder: Path, text: str) -> SimpleNamespace:
    (folder / "tune_error").write_text(text)
    return SimpleNamespace(error_file=str(folder / "tune_error"))


def test_an_error_that_nobody_foresaw_is_a_line_and_its_traceback_kept(tmp_path: Path) -> None:
    error = _error_of(TrialFolder(tmp_path), failed_in_tune(tmp_path, TRACEBACK))
    assert error == f"KeyError: 3 ({tmp_path / TRACEBACK_FILE})"
    assert (tmp_path / TRACEBACK_FILE).read_text() == TRACEBACK


def test_a_mistake_in_the_settings_is_told_in_its_own_words(tmp_path: Path) -> None:
    write_error(tmp_path, "train.batch_size: got 5")
    assert _error_of(TrialFolder(tmp_path), failed_in_tune(tmp_path, TRACEBACK)) == "train.batch_size: got 5"
    assert not (tmp_path / TRACEBACK_FILE).exists()


def test_a_process_that_died_without_a_word(tmp_path: Path) -> None:
    assert _error_of(TrialFolder(tmp_path), SimpleNamespace(error_file=None)) == "the trial's process died"
    assert _error_of(TrialFolder(tmp_path), failed_in_tune(tmp_path, "\n")) == "the trial's process died"
