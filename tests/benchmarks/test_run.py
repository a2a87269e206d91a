"""The table of all benchmarks: rows are recorded, judged, and decide the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run():
    import run

    return run


def code_of(run, folder: Path, body: str, *options: str) -> int:
    """The exit code of a run of one benchmark, which is this program."""
    (folder / "bench_fake.py").write_text(f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r})\n{body}\n")
    return run.main(["fake", "--out", str(folder / "out"), *options], {"fake": ([""], ["quickly"])}, folder)


@pytest.mark.parametrize(("ours", "code", "word"), [(1.0, 0, "met"), (3.0, 1, "missed")])
def test_a_missed_goal_is_the_exit_code(run, tmp_path: Path, ours: float, code: int, word: str) -> None:
    body = f"from rows import compared; compared('loss', {ours}, 2.0, 'peer', at_most=1.0)"
    assert code_of(run, tmp_path, body) == code
    assert word in (tmp_path / "out" / "benchmarks.md").read_text()
    (row,) = json.loads((tmp_path / "out" / "benchmarks.json").read_text())["rows"]
    assert (row["benchmark"], row["ratio"]) == ("fake", ours / 2)


def test_a_benchmark_that_fails_is_not_passed_over(run, tmp_path: Path) -> None:
    assert code_of(run, tmp_path, "raise SystemExit(3)") == 2


def test_a_quick_run_is_small_and_judges_nothing(run, tmp_path: Path) -> None:
    body = "assert sys.argv[1:] == ['quickly']\nfrom rows import compared; compared('loss', 3, 1, 'peer', at_most=1)"
    assert code_of(run, tmp_path, body, "--quick") == 0
    assert "missed" not in (tmp_path / "out" / "benchmarks.md").read_text()


def test_every_benchmark_has_a_command(run) -> None:
    assert {f"bench_{name}.py" for name in run.COMMANDS} == {path.name for path in BENCHMARKS.glob("bench_*.py")}
