"""Differences in the report: between the same queries, of the seeds' mean, and only where trials kept their scores."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_atr.evaluation.report import read_runs, write_report
from ray_atr.evaluation.report.aggregate import aggregate, point_names
from ray_atr.evaluation.report.tables import paired_table
from ray_atr.metrics.bootstrap import warning_of_seeds
from ray_atr.metrics.samples import Sample, to_arrays
from ray_atr.training.run_folder import TEST_SCORES, make_trial_id
from tests.support.fake_runs import write, write_run, write_trial

CLIPS = 60
SPACE: dict[str, list[Any]] = {
    "objective": ["triplet", "contrastive", "m_ltm"],
    "data.noise.ratio": [0.0, 0.4],
    "seed": [0, 1],
}


def write_scores(run: Path, point: dict[str, Any], seed: int, share: float, clips: int = CLIPS) -> None:
    """A share of the clips, the same ones at every seed but for one clip, is found first."""
    found = (np.arange(clips) < share * clips).astype(float)
    found[-1] = seed
    sample = Sample(np.arange(clips), np.arange(clips), {"recall_at_1": found}, {})
    kept = {
        f"{direction}/{language}": sample for direction in ("text_to_audio", "audio_to_text") for language in ("eng",)
    }
    trial = run / "trials" / make_trial_id({**point, "seed": seed})
    (trial / TEST_SCORES).parent.mkdir()
    np.savez_compressed(trial / TEST_SCORES, **to_arrays(kept))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "run", SPACE)
    shares = {"triplet": 0.5, "contrastive": 0.5, "m_ltm": 0.8}
    for objective, share in shares.items():
        for noise in (0.0, 0.4):
            for seed in (0, 1):
                point = {"objective": objective, "data.noise.ratio": noise}
                write_scores(folder, point, seed, share if noise == 0 else 0.5)
    return folder


def test_the_difference_is_that_of_the_same_queries(run: Path) -> None:
    table = paired_table(read_runs([run]))
    assert table is not None
    rows = {tuple(cell.text for cell in row[:2]): row[2:] for row in table.rows}
    assert list(rows) == [("0", "triplet"), ("0", "m_ltm"), ("0.4", "triplet"), ("0.4", "m_ltm")]
    for cell in rows["0", "m_ltm"]:
        assert cell.text.startswith("+30.0 (+1")
        assert cell.text.endswith(" †")
    # Not a clip differs, so no draw does: without pairing there would be an interval around 0.
    for point in (("0", "triplet"), ("0.4", "triplet"), ("0.4", "m_ltm")):
        assert [cell.text for cell in rows[point]] == ["+0.0 (+0.0, +0.0)"] * 2
        assert not any("†" in cell.text for cell in rows[point])


def test_the_page_and_the_terminal_show_the_differences(run: Path) -> None:
    assert "+30.0 (" in write_report(run, figures=False).summary
    assert "R@1 minus that of contrastive" in write_report(run, figures=False).page.read_text()


def test_few_seeds_are_warned_of(run: Path) -> None:
    table = paired_table(read_runs([run]))
    assert table is not None
    assert "Careful: 2 seeds are too few to estimate how seeds differ" in table.note
    assert "does not include how seeds differ" in warning_of_seeds(1)
    assert [warning_of_seeds(seeds) for seeds in (3, 4)] == ["", ""]


def test_points_are_compared_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    space: dict[str, list[Any]] = {"objective": ["contrastive", "kcl", "m_ltm", "triplet"], "seed": [0, 1, 2]}
    # Without seed 0 of the first, seed 2 of the second, and all but seed 0 of the last.
    run = write_run(tmp_path / "run", space, failed=(0, 5, 10, 11))
    for objective in space["objective"]:
        for seed, share in enumerate((0.2, 0.4, 0.6)):
            write_scores(run, {"objective": objective}, seed, share + 0.1 * (objective != "contrastive"))
    table = paired_table(read_runs([run]))
    assert table is not None
    # Equal numbers of seeds, of which one is both's: paired in their order, the difference would be -9.2.
    assert {row[0].text: row[1].text.split()[0] for row in table.rows} == {"kcl": "+10.0", "m_ltm": "+10.0"}
    assert "Seeds without a result: triplet: 1, 2; contrastive: 0; kcl: 2." in table.note
    assert "an interval of 1 seed" in table.note


def test_a_point_with_a_trial_that_kept_no_scores_is_left_out(run: Path) -> None:
    (run / "trials" / make_trial_id({"objective": "m_ltm", "data.noise.ratio": 0.4, "seed": 1}) / TEST_SCORES).unlink()
    table = paired_table(read_runs([run]))
    assert table is not None
    assert [tuple(cell.text for cell in row[:2]) for row in table.rows] == [
        ("0", "triplet"),
        ("0", "m_ltm"),
        ("0.4", "triplet"),
    ]
    assert "other queries" not in table.note


def test_folders_of_one_name_are_told_apart(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other" / "run", {**SPACE, "objective": ["ask"]})
    for noise in (0.0, 0.4):
        for seed in (0, 1):
            write_scores(other, {"objective": "ask", "data.noise.ratio": noise}, seed, 0.9)
    runs = read_runs([run, other])
    assert runs.names == [str(run), str(other)]
    table = paired_table(runs)
    assert table is not None
    assert {tuple(cell.text for cell in row[:2]) for row in table.rows} == {
        (noise, objective) for noise in ("0", "0.4") for objective in ("triplet", "m_ltm", "ask")
    }


def test_trials_of_other_queries_are_left_out_and_named(run: Path, tmp_path: Path) -> None:
    """Of other data as many queries have the same numbers."""
    space = {**SPACE, "objective": ["kcl"]}
    for name, data, clips in (
        ("smaller", "3f6c9b1d", CLIPS // 2),
        ("other", "another", CLIPS),
        ("same", "3f6c9b1d", CLIPS),
    ):
        folder = write_run(tmp_path / name, space)
        write(
            folder / "sweep.json",
            {**json.loads((folder / "sweep.json").read_text()), "data": {"name": "x", "hash": data}},
        )
        for noise in (0.0, 0.4):
            for seed in (0, 1):
                write_scores(folder, {"objective": "kcl", "data.noise.ratio": noise}, seed, 0.9, clips)
        table = paired_table(read_runs([run, folder]))
        assert table is not None
        is_same = name == "same"
        assert any(cell.text == "kcl" for row in table.rows for cell in row) is is_same
        assert ("Measured on other queries, and not compared: kcl" in table.note) is not is_same


def test_there_is_no_table_without_kept_scores_or_over_several_baselines(tmp_path: Path) -> None:
    assert paired_table(read_runs([write_run(tmp_path / "old", SPACE)])) is None
    rates: dict[str, list[Any]] = {"objective": ["contrastive", "m_ltm"], "train.learning_rate": [0.001, 0.01]}
    other = write_run(tmp_path / "other", {**rates, "seed": [0]})
    for objective in rates["objective"]:
        for rate in rates["train.learning_rate"]:
            write_scores(other, {"objective": objective, "train.learning_rate": rate}, 0, 0.5)
    assert paired_table(read_runs([other])) is None


def test_points_that_vary_other_settings_are_compared_with_the_only_baseline(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"objective": ["contrastive"], "seed": [0, 1, 2]})
    points: list[dict[str, Any]] = [{"objective": "ask", "objective.knowledge.neighbours": count} for count in (1, 5)]
    for number, point in enumerate([{"objective": "contrastive"}, *points]):
        for seed in (0, 1, 2):
            write_trial(run, {**point, "seed": seed})
            write_scores(run, point, seed, 0.3 + 0.2 * number)
    table = paired_table(runs := read_runs([run]))
    assert table is not None
    assert table.columns[:2] == ["objective", "neighbours"]
    assert [[cell.text for cell in row[:2]] for row in table.rows] == [["ask", "1"], ["ask", "5"]]
    assert [row[2].text.split()[0] for row in table.rows] == ["+20.0", "+40.0"]
    assert point_names(aggregate(runs), runs) == ["contrastive", "ask neighbours=1", "ask neighbours=5"]
    assert "R@1 minus that of contrastive" in write_report(run, figures=False).page.read_text()


def test_damaged_scores_are_named(run: Path) -> None:
    file = next(run.glob(f"trials/*/{TEST_SCORES}"))
    single = io.BytesIO()
    np.save(single, np.arange(3))
    for content in (file.read_bytes()[:100], single.getvalue()):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{file}: damaged, .* restore it from a copy, or delete it"):
            paired_table(read_runs([run]))


def test_a_trial_that_lost_its_result_is_not_finished(run: Path) -> None:
    results = sorted(run.glob("trials/*/result.json"))
    for result in results[1:]:
        result.unlink()
    runs = read_runs([run])
    assert len(runs.finished) == 1
    assert set(runs.trials["status"]) == {"finished", "pending"}
    write_report(run, figures=False)
