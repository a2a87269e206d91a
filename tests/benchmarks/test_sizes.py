"""Sizes that a benchmark cannot have are refused before anything is measured."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from tests.support.scripts import load_script


class NotMeasuredError(Exception):
    """Raised instead of a measurement."""


def start(script: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", *words])
    script.main()


def test_a_base_in_parts_is_always_compared_with_one_base(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import bench_shards

    asked: list[list[int]] = []

    def processes(work: object, given: tuple[Path, Namespace], **_: object) -> NoReturn:
        asked.append(given[1].parts)
        raise NotMeasuredError

    monkeypatch.setattr(bench_shards.multiprocessing, "start_processes", processes)
    with pytest.raises(NotMeasuredError):
        start(bench_shards, monkeypatch, "--parts", "2", "4")
    assert asked == [[1, 2, 4]]
    with pytest.raises(SystemExit):
        start(bench_shards, monkeypatch, "--parts", "2", "4", "--workers", "3")
    assert "--parts: got 4; allowed at most one for each of the 3 --workers" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["few_clips", "noise_rate"])
def test_more_clips_than_there_are_cannot_be_drawn(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair_sets = load_script("benchmarks/pair_sets.py")
    rows = [[clip, clip, f"sound {clip}", "eng", "train", f"clip {clip}", ""] for clip in range(4)]
    pair_sets.write_set(rows, tmp_path / "pairs.csv")
    for file in ("audio", "text"):
        np.save(tmp_path / f"{file}.npy", np.eye(4))
    with pytest.raises(SystemExit):
        start(load_script(f"benchmarks/{name}.py"), monkeypatch, "--vectors", str(tmp_path), "--clips", "5")
    assert f"--clips: got 5; allowed at most 4, the clips of {tmp_path}" in capsys.readouterr().err
