"""The picture of where an epoch's time goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ray_atr.evaluation.report import write_report
from ray_atr.evaluation.report.figures import draw_time_shares
from ray_atr.evaluation.report.read import read_runs
from ray_atr.metrics.epoch_report import TIMED_PARTS
from tests.support.fake_runs import write_run


def timed(run: Path, seconds: dict[str, float]) -> None:
    """Give every epoch of a fake run times of its parts."""
    for file in run.glob("trials/*/metrics.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row |= {f"seconds/{part}": value for part, value in seconds.items()}
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_shares_are_of_the_mean_epoch(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"objective": ["contrastive", "m_ltm"]})
    timed(run, {"forward": 1.0, "backward": 2.0, "validation": 1.0})
    runs = read_runs([run])
    assert list(runs.finished["cost/backward_seconds"]) == pytest.approx([2.0, 2.0])
    assert "cost/gather_seconds" not in runs.finished
    path = draw_time_shares(runs, tmp_path / "shares.png")
    assert path is not None
    assert path.stat().st_size > 5000


def test_it_is_not_the_picture_above_the_results(tmp_path: Path) -> None:
    """Of one trial in one language nothing else is drawn; it stood there without a title, as the first thing of a page."""
    run = write_run(tmp_path / "run", {"objective": ["contrastive"]}, languages=["eng"])
    timed(run, {"forward": 1.0, "backward": 2.0})
    page = write_report(run).page.read_text()
    results, rest = page.split("<h2>Results</h2>")[1].split("</section>", 1)
    assert "<img" not in results
    assert "<h3>Where an epoch&#39;s time goes</h3>" in rest


def test_nothing_is_drawn_of_runs_that_timed_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"objective": ["contrastive"]})
    assert draw_time_shares(read_runs([run]), tmp_path / "shares.png") is None
    timed(run, dict.fromkeys(TIMED_PARTS, 0.0))
    assert draw_time_shares(read_runs([run]), tmp_path / "shares.png") is None
    assert not (tmp_path / "shares.png").exists()


def test_of_more_points_than_fit_each_objective_has_its_share(tmp_path: Path, drawn: list[Figure]) -> None:
    """Sixteen of 35 points were shown without a word, and of some objectives none."""
    rates = [round(0.001 * number, 3) for number in range(1, 13)]
    run = write_run(tmp_path / "run", {"objective": ["contrastive", "m_ltm"], "train.learning_rate": rates})
    timed(run, {"forward": 1.0, "backward": 2.0})
    draw_time_shares(read_runs([run]), tmp_path / "shares.png")
    (axes,) = drawn[0].axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert len(names) == 16
    assert sum(name.startswith("m_ltm") for name in names) == 8
    assert axes.get_title(loc="left") == "16 of 24 points, as many of each objective"


def test_the_legend_of_a_single_trial_leaves_the_axis_alone(tmp_path: Path, drawn: list[Figure]) -> None:
    run = write_run(tmp_path / "run", {"objective": ["contrastive"]})
    timed(run, dict.fromkeys(TIMED_PARTS, 1.0))
    draw_time_shares(read_runs([run]), tmp_path / "shares.png")
    drawn[0].draw_without_rendering()
    (axes,) = drawn[0].axes
    legend = axes.get_legend()
    assert legend is not None
    # Not by a pixel: a colour beside the last tick's number would be read with it.
    assert max(label.get_window_extent().x1 for label in axes.get_xticklabels()) < legend.get_window_extent().x0
