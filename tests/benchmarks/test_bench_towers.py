"""The benchmark of the towers runs from end to end on any machine, on the training step itself."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.support.whole_product import ONLY_IN_WHOLE


@pytest.fixture
def bench() -> ModuleType:
    import bench_towers_gpu

    return bench_towers_gpu


@ONLY_IN_WHOLE
def test_every_form_is_timed_at_a_tiny_size(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--size", "tiny", "--batch", "2", "--languages", "2", "--repeats", "1"])
    shown = capsys.readouterr().out
    assert "gradients of the forms of kcl agree" in shown
    assert all(form in shown for form in bench.FORMS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_published_sizes_are_refused_without_a_gpu(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main([])
    assert "--size base needs a CUDA device" in capsys.readouterr().err


def test_goals_are_told_where_memory_is_measured(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    monkeypatch.setenv("RAY_ATR_BENCHMARK_ROWS", str(rows))
    costs = {form: bench.Cost(1.0, 2.0, 2.0) for form in bench.FORMS}
    bench.show({**costs, "kcl by language": bench.Cost(0.6, 2.6, 3.0)})
    shown = capsys.readouterr().out
    assert "kcl by language: memory 1.30 of ml_clap's (goal 1.15: missed), time 0.60 of the padded form's" in shown
    assert "(goal 0.65: met)" in shown
    recorded = [json.loads(line) for line in rows.read_text().splitlines()]
    found = {row["what"]: (row["ratio"], row["goal"]) for row in recorded}
    assert found["step, kcl by language"] == (0.6, 0.65)
    assert found["memory of a step, kcl by language"] == (1.3, 1.15)


def test_a_machine_without_a_gpu_is_judged_by_no_goal(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"
    monkeypatch.setenv("RAY_ATR_BENCHMARK_ROWS", str(rows))
    bench.show({form: bench.Cost(1.0) for form in bench.FORMS})
    recorded = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["what"] for row in recorded] == ["step, kcl by 2 languages", "step, kcl by language"]
    assert [row["goal"] for row in recorded] == [None, None]
