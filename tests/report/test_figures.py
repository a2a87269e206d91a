"""What is written in a figure can be read: no two labels of an axis overlap, whatever the numbers are."""

from __future__ import annotations

import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text

from ray_atr.common.language_codes import DEFAULT_LANGUAGES
from ray_atr.evaluation.report import read_runs, write_report
from ray_atr.evaluation.report.curves import curves_of, draw_curve
from ray_atr.evaluation.report.figures import draw_languages, draw_pareto
from tests.support import fake_runs
from tests.support.fake_runs import write

write_run = partial(fake_runs.write_run, languages=DEFAULT_LANGUAGES)
SPACE = {"objective": ["contrastive", "cacl", "kcl"]}


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """The neighbouring tick labels of each x axis that touch."""
    figure.draw_without_rendering()
    found = []
    for axes in figure.axes:
        low, high = axes.get_xlim()
        labels = [label for label in axes.get_xticklabels() if label.get_text() and label.get_visible()]
        shown = [label for label in labels if low <= label.get_position()[0] <= high]
        found += [
            (one.get_text(), other.get_text())
            for one, other in itertools.pairwise(shown)
            if one.get_window_extent().x1 + 2 > other.get_window_extent().x0
        ]
    return found


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text)]


@pytest.mark.parametrize(
    ("scale", "memory", "seconds"),
    [
        (0.001, "peak device memory (MiB)", "training time of a trial (seconds)"),
        (1.0, "peak device memory (GiB)", "training time of a trial (minutes)"),
        (1234.5, "peak device memory (GiB)", "training time of a trial (hours)"),
    ],
)
def test_the_ticks_of_recall_against_cost_can_be_read(
    tmp_path: Path, drawn: list[Figure], scale: float, memory: str, seconds: str
) -> None:
    run = write_run(tmp_path / "run", SPACE)
    for file in run.glob("trials/*/metrics.jsonl"):
        rows: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row["memory/peak_allocated_bytes"] *= 3 * scale
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for file in run.glob("trials/*/result.json"):
        result = json.loads(file.read_text())
        write(file, {**result, "train_seconds": result["train_seconds"] * 3 * scale})
    assert draw_pareto(read_runs([run]), tmp_path / "pareto.png")
    (figure,) = drawn
    assert [axes.get_xlabel() for axes in figure.axes] == [memory, seconds]
    assert overlapping(figure) == []


def test_a_cost_of_points_without_recall_is_not_drawn(tmp_path: Path, drawn: list[Figure]) -> None:
    run = write_run(tmp_path / "run", {"objective": ["contrastive", "kcl", "m_ltm", "triplet"]})
    for number, trial in enumerate(sorted((run / "trials").iterdir())):
        result, rows = json.loads((trial / "result.json").read_text()), (trial / "metrics.jsonl").read_text()
        if number < 2:
            write(trial / "result.json", {**result, "test": {"text_to_audio/fra/recall_at_1": 0.5}})
        else:
            (trial / "metrics.jsonl").write_text(rows.replace("memory/peak_allocated_bytes", "memory/other"))
    assert draw_pareto(read_runs([run]), tmp_path / "pareto.png")
    (figure,) = drawn
    assert [axes.get_xlabel() for axes in figure.axes] == ["training time of a trial (seconds)"]


@pytest.mark.slow
def test_points_of_one_objective_are_told_apart_by_name_and_look(tmp_path: Path, drawn: list[Figure]) -> None:
    methods = ["leave_one_out", "neighbours", "none", "rematch", "small_loss", "transport", "self_refining"]
    space = {"objective": ["contrastive", "m_ltm"], "objective.correspondence": methods}
    runs = read_runs([write_run(tmp_path / "run", {**space, "data.noise.ratio": [0.0, 0.4]})])
    draw_languages(runs, tmp_path / "languages.png")
    draw_pareto(runs, tmp_path / "pareto.png")
    draw_curve(runs, curves_of(runs)[0], tmp_path / "noise.png")
    names = {f"{objective} correspondence={method}" for objective in space["objective"] for method in methods}
    for figure in drawn:
        assert names <= set(words(figure))
    languages, pareto, _ = drawn
    bars = {(bars[0].get_facecolor(), bars[0].get_hatch()) for bars in languages.axes[0].containers if len(bars) == 8}
    assert len(bars) == len(names)
    points = [line for line in pareto.axes[-1].lines if line.get_label() in names]
    assert len({(line.get_color(), line.get_marker()) for line in points}) == len(points) == len(names)


@pytest.mark.slow
def test_a_name_with_dollar_signs_is_no_formula(tmp_path: Path, drawn: list[Figure]) -> None:
    folders = ["/data/$_$", "/data/$5 or $6"]
    runs = read_runs([write_run(tmp_path / "run", {"data.source": folders, "data.noise.ratio": [0.0, 0.4]})])
    draw_curve(runs, curves_of(runs)[0], tmp_path / "noise.png")
    draw_languages(runs, tmp_path / "languages.png")
    for figure in drawn:
        figure.draw_without_rendering()
        named = [text for text in figure.findobj(Text) if "$" in text.get_text()]
        assert len(named) >= len(folders)
        assert not any(text.get_parse_math() for text in named)


def test_a_figure_says_which_points_it_names_where_there_are_too_many(tmp_path: Path, drawn: list[Figure]) -> None:
    space = {"objective": ["contrastive", "m_ltm"], "train.batch_size": list(range(8, 19))}
    runs = read_runs([write_run(tmp_path / "run", space)])
    draw_languages(runs, tmp_path / "languages.png")
    draw_pareto(runs, tmp_path / "pareto.png")
    languages, pareto = drawn
    assert "text→audio, 2 of 22 points, the best of each objective" in words(languages)
    assert "named: 2 of 22 points, the best of each objective" in words(pareto)
    assert {"contrastive", "m_ltm"} <= set(words(pareto))


def test_points_of_two_data_sets_have_fronts_marks_and_lines_of_their_own(tmp_path: Path, drawn: list[Figure]) -> None:
    """Recall on one data set is no better or worse than on another."""
    rates = [0.001 * step for step in range(1, 27)]
    space: dict[str, list[Any]] = {"objective": ["contrastive", "m_ltm"], "train.learning_rate": rates}
    folders = [write_run(tmp_path / data, space, data=data) for data in ("esc50", "clotho")]
    info = json.loads((folders[1] / "sweep.json").read_text())
    write(folders[1] / "sweep.json", {**info, "data": {"name": "clotho", "hash": "a77b1c9d"}})
    runs = read_runs(folders)
    draw_languages(runs, tmp_path / "languages.png")
    draw_pareto(runs, tmp_path / "pareto.png")
    draw_curve(runs, curves_of(runs)[0], tmp_path / "learning_rate.png")
    languages, pareto, curve = drawn
    names = {f"{objective} data={data}" for objective in space["objective"] for data in ("esc50", "clotho")}
    for figure in drawn:
        assert names <= set(words(figure))
    assert "text→audio, 4 of 104 points, the best of each objective on each data set" in words(languages)
    fronts = [line for line in pareto.axes[0].lines if line.get_drawstyle() == "steps-post"]
    lines = [each.lines[0] for each in curve.axes[0].containers if isinstance(each, ErrorbarContainer)]
    assert (len(fronts), [len(line.get_xdata()) for line in lines]) == (2, [26] * 4)


def test_a_figure_of_languages_says_that_not_even_the_best_points_fit(tmp_path: Path, drawn: list[Figure]) -> None:
    sources = [f"data/{number}" for number in range(21)]
    draw_languages(read_runs([write_run(tmp_path / "run", {"data.source": sources})]), tmp_path / "languages.png")
    (figure,) = drawn
    assert "text→audio, 16 of 21 points, some of the best of each objective on each data set" in words(figure)


def test_a_noise_ratio_has_all_of_its_digits(tmp_path: Path, drawn: list[Figure]) -> None:
    space: dict[str, list[Any]] = {"objective": ["contrastive", "m_ltm"], "data.noise.ratio": [0.005, 0.125]}
    runs = read_runs([write_run(tmp_path / "run", space)])
    draw_languages(runs, tmp_path / "languages.png")
    draw_curve(runs, curves_of(runs)[0], tmp_path / "noise.png")
    assert "text→audio, noise 0.5%" in words(drawn[0])
    assert {"0.5%", "12.5%"} <= set(words(drawn[1]))
    page = write_report(tmp_path / "run", figures=False).page.read_text()
    assert "<h3>Noise 12.5%: " in page


def test_a_point_that_lacks_the_first_language_has_its_deviations(tmp_path: Path, drawn: list[Figure]) -> None:
    space: dict[str, list[Any]] = {"objective": ["kcl"], "seed": [0, 1]}
    runs = [write_run(tmp_path / codes[0], space, languages=codes) for codes in (["eng", "fra"], ["deu", "nld"])]
    assert draw_languages(read_runs(runs), tmp_path / "languages.png")
    (figure,) = drawn
    deviations = [each.lines[2][0] for each in figure.axes[0].containers if isinstance(each, ErrorbarContainer)]
    assert [sum(len(ends) > 0 for ends in lines.get_segments()) for lines in deviations] == [2, 2]


def test_languages_without_captions_in_training_are_marked_and_the_mark_is_explained(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    run = write_run(tmp_path / "run", {"objective": ["contrastive", "m_ltm"]})
    assert draw_languages(read_runs([run]), tmp_path / "languages.png")
    (figure,) = drawn
    assert [label.get_text() for label in figure.axes[-1].get_xticklabels()][:2] == ["eng", "fra*"]
    assert "* no trial was trained on its captions" in words(figure)
    assert overlapping(figure) == []


def test_the_codes_of_33_languages_do_not_touch(tmp_path: Path, drawn: list[Figure]) -> None:
    codes = [f"{first}{second}n" for first in "abcdefghmvw" for second in "aou"]
    run = write_run(tmp_path / "run", {"objective": ["contrastive"]}, languages=codes)
    assert draw_languages(read_runs([run]), tmp_path / "languages.png")
    (figure,) = drawn
    assert len(figure.axes[-1].get_xticklabels()) == 33
    assert overlapping(figure) == []
    # Nor does the note on the starred ones, which are written from bottom to top.
    (note,) = (text for text in figure.findobj(Text) if text.get_text().startswith("* "))
    lowest = min(label.get_window_extent().y0 for label in figure.axes[-1].get_xticklabels())
    assert note.get_window_extent().y1 < lowest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "label"),
    [
        ({}, "noise: share of training clips with swapped captions"),
        ({"data.noise.kind": ["language"]}, "noise: share of training clips with swapped captions in one language"),
        ({"data.noise.unit": ["caption"]}, "noise: share of training captions that are swapped"),
        ({"data.noise.unit": ["clip", "caption"]}, "noise ratio (its meaning: data.noise.kind and data.noise.unit)"),
    ],
)
def test_the_axis_of_noise_says_what_the_ratio_is_a_share_of(
    tmp_path: Path, drawn: list[Figure], noise: dict[str, list[Any]], label: str
) -> None:
    space = {"objective": ["contrastive", "kcl"], "data.noise.ratio": [0.0, 0.4], **noise}
    runs = read_runs([write_run(tmp_path / "run", space)])
    draw_curve(runs, curves_of(runs)[0], tmp_path / "noise.png")
    assert label in words(drawn[0])


def test_a_long_title_of_a_panel_ends_before_the_next_one(tmp_path: Path, drawn: list[Figure]) -> None:
    runs = read_runs(
        [write_run(tmp_path / "run", {"objective": ["contrastive", "kcl"], "data.noise.ratio": [0.0, 0.4]})]
    )
    draw_curve(runs, curves_of(runs)[0], tmp_path / "noise.png")
    (figure,) = drawn
    figure.draw_without_rendering()
    assert any("not all trials were\ntrained on" in text for text in words(figure))
    for left, right in zip(figure.axes[::2], figure.axes[1::2], strict=True):
        for axes, end in ((left, right.get_window_extent().x0), (right, figure.bbox.x1)):
            (title,) = (text for text in axes.findobj(Text) if text.get_text() == axes.get_title(loc="left"))
            assert title.get_window_extent().x1 <= end
