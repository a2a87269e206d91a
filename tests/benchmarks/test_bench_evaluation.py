"""The benchmark of metrics: a goal is judged by its row, and peers are compared with our values."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest


def test_a_peer_that_is_as_fast_is_a_missed_goal_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bench_evaluation

    for peer in ("by_torchmetrics", "by_scikit_learn", "by_ranx"):
        monkeypatch.setattr(bench_evaluation, peer, bench_evaluation.ours)
    rows = tmp_path / "rows.jsonl"
    monkeypatch.setenv("RAY_ATR_BENCHMARK_ROWS", str(rows))
    sizes = {"captions": 200, "clips": 40, "width": 16, "seed": 0, "rounds": 3, "peer_captions": 200}
    bench_evaluation.compare(argparse.Namespace(**sizes))
    (row,) = [json.loads(line) for line in rows.read_text().splitlines()]
    assert row["unit"] == "s"
    assert row["ratio"] == row["ours"] / row["peer"] > row["goal"] == 1 / 3
