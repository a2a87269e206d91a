"""A file that grows by lines: read from both ends alike whatever a kill left of its last line, parsed no further than asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ray_atr.common import digests
from ray_atr.common.digests import DamagedFileError
from ray_atr.common.storage import append_line, newest_lines, read_appended
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import RunFolder
from tests.support.spies import spied

ROWS = [{"epoch": number, "text": "é" * (number * 7 % 40)} for number in range(30)]


def test_both_ends_give_the_same_lines(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    assert read_appended(file) == list(newest_lines(file)) == []
    for number, row in enumerate(ROWS, start=1):
        append_line(file, row)
        if number in (1, 2, 30):
            assert read_appended(file) == list(newest_lines(file))[::-1] == ROWS[:number]


def test_a_line_that_a_kill_cut_off_is_not_read_and_gives_its_place_to_the_next(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    for row in ROWS[:2]:
        append_line(file, row)
    whole = file.read_bytes()
    begin = whole.index(b"\n") + 1
    for end in range(begin, len(whole)):
        file.write_bytes(whole[:end])
        assert read_appended(file) == list(newest_lines(file)) == ROWS[:1], end
        append_line(file, ROWS[2])
        assert read_appended(file) == [ROWS[0], ROWS[2]], end
    file.write_bytes(whole[:-1] + b"x")
    with pytest.raises(DamagedFileError):
        read_appended(file)


@pytest.mark.parametrize("read", [read_appended, lambda file: list(newest_lines(file))])
def test_a_changed_line_is_named(tmp_path: Path, read: Callable[[Path], list[dict[str, Any]]]) -> None:
    file = tmp_path / "rows"
    for row in ROWS[:4]:
        append_line(file, row)
    file.write_bytes(file.read_bytes().replace(b'"epoch": 2', b'"epoch": 7'))
    with pytest.raises(DamagedFileError, match=r"rows, line 3: damaged"):
        read(file)


def test_an_epoch_costs_the_same_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = RunFolder.create(tmp_path / "run", Experiment(), {"name": "test"}).add_trial({"seed": 1})
    parsed: list[int] = []
    spied(monkeypatch, digests, "row_of", lambda _, text, where: parsed.append(len(text)))
    written = []
    for epoch in range(1, 101):
        del parsed[:]
        assert trial.add_epoch({"epoch": epoch, "train/loss": 0.5})
        written.append(sum(parsed))
    assert written[-1] < 1.2 * written[1]
    assert not trial.add_epoch({"epoch": 40, "train/loss": 0.25})
    assert [row.epoch for row in trial.epochs_after(97)] == [98, 99, 100]
    assert [row.epoch for row in trial.epochs()] == list(range(1, 101))
