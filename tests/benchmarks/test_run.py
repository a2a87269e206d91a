"""The table of all benchmarks: rows are recorded, judged, and decide the exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run():
    import run

    return run


def fake(run, monkeypatch: pytest.MonkeyPatch, folder: Path, body: str, *options: str) -> None:
    (folder / "bench_fake.py").write_text(f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r})\n{body}\n")
    monkeypatch.setattr(run, "HERE", folder)
    monkeypatch.setattr(run, "COMMANDS", {"fake": ([""], ["quickly"])})
    monkeypatch.setattr(sys, "argv", ["run.py", "fake", "--out", str(folder / "out"), *options])


@pytest.mark.parametrize(("ours", "code", "word"), [(1.0, 0, "met"), (3.0, 1, "missed")])
def test_a_missed_goal_is_the_exit_code(run, monkeypatch, tmp_path: Path, ours: float, code: int, word: str) -> None:
    body = f"from rows import compared; compared('loss', {ours}, 2.0, 'peer', at_most=1.0)"
    fake(run, monkeypatch, tmp_path, body)
    assert run.main() == code
    assert word in (tmp_path / "out" / "benchmarks.md").read_text()
    (row,) = json.loads((tmp_path / "out" / "benchmarks.json").read_text())["rows"]
    assert (row["benchmark"], row["ratio"]) == ("fake", ours / 2)


def test_a_benchmark_that_fails_is_not_passed_over(run, monkeypatch, tmp_path: Path) -> None:
    fake(run, monkeypatch, tmp_path, "raise SystemExit(3)")
    assert run.main() == 2


def test_a_quick_run_is_small_and_judges_nothing(run, monkeypatch, tmp_path: Path) -> None:
    body = "assert sys.argv[1:] == ['quickly']\nfrom rows import compared; compared('loss', 3, 1, 'peer', at_most=1)"
    fake(run, monkeypatch, tmp_path, body, "--quick")
    assert run.main() == 0
    assert "missed" not in (tmp_path / "out" / "benchmarks.md").read_text()


def test_every_benchmark_has_a_command(run) -> None:
    assert {f"bench_{name}.py" for name in run.COMMANDS} == {path.name for path in BENCHMARKS.glob("bench_*.py")}
