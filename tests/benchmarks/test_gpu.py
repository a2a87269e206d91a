"""The script for a GPU runs from end to end on a CPU, and its report begins with what was not run."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.support.whole_product import ONLY_IN_WHOLE

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu() -> ModuleType:
    import gpu

    return gpu


@ONLY_IN_WHOLE
def test_a_dry_run_runs_every_part(gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--dry-run", "--out", str(tmp_path)]) == 0
    lines = (tmp_path / "gpu.md").read_text().splitlines()
    assert lines[0] == "- not run: any measurement of a GPU: this is a dry run on a CPU, whose figures mean nothing"
    assert "- not run" not in "\n".join(lines[1:])
    numbers = json.loads((tmp_path / "gpu.json").read_text())["numbers"]
    assert {name.split("/")[0] for name in numbers} == set(gpu.PARTS)
    assert len([name for name in numbers if name.startswith("losses/")]) == 2 * len(gpu.LOSSES)


def test_what_fails_is_named_first_and_does_not_stop_the_rest(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object) -> None:
        raise RuntimeError("no kernel image")

    monkeypatch.setitem(gpu.PARTS, "losses", fails)
    assert gpu.main(["losses", "log_mel", "--dry-run", "--out", str(tmp_path)]) == 2
    text = (tmp_path / "gpu.md").read_text()
    missing = text.split("\n\n")[0]
    assert "losses: it failed with RuntimeError: no kernel image" in missing
    assert "towers: not asked for" in missing
    assert "Log-mel" in text


def test_a_report_of_a_process_that_was_ended_says_so(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(gpu.PARTS, "search", ends)
    with pytest.raises(KeyboardInterrupt):
        gpu.main(["--dry-run", "--out", str(tmp_path)])
    lines = (tmp_path / "gpu.md").read_text().splitlines()
    assert lines[1:5] == [f"- not run yet: {part}" for part in ("search", "log_mel", "towers", "refresh")]


def test_no_part_begins_when_the_time_is_over(gpu: ModuleType, tmp_path: Path) -> None:
    assert gpu.main(["--dry-run", "--minutes", "0", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "gpu.md").read_text()
    assert all(f"- not run: {part}: the 0 minutes were over" in text for part in gpu.PARTS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_measurement_is_refused_without_a_gpu(gpu: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main([])
    assert "no CUDA device is there" in capsys.readouterr().err
