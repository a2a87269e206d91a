"""Reports of sweeps: numbers against plain arithmetic, partial sweeps, and a page that needs nothing beside it."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import re
import shutil
import statistics
import warnings
from html.parser import HTMLParser

import pandas as pd
import pytest

from ray_atr.common.storage import read_json
from ray_atr.evaluation.report import read_runs, write_report
from ray_atr.evaluation.report.aggregate import aggregate, point_names
from ray_atr.evaluation.report.curves import curves_of
from ray_atr.evaluation.report.style import spread
from ray_atr.evaluation.report.sweep_page import best_points
from ray_atr.evaluation.report.tables import point_table, recall_columns, recall_table
from ray_atr.evaluation.report.write import main_tables
from ray_atr.metrics.measures import pareto_front
from ray_atr.papers.layouts import paper_layouts
from tests.support.browser import CHROMIUM, opened
from tests.support.fake_runs import metrics, write, write_run

NOISE_SPACE = {
    "objective": ["contrastive", "m_ltm", "m_ltm_pot"],
    "data.noise.ratio": [0.0, 0.4],
    "seed": [0, 1, 2],
}
RECALL = "text_to_audio/fra/recall_at_1"


@pytest.fixture(scope="module")
def noise_run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "run", NOISE_SPACE, name="sweep_noise", failed=[4], running=[8])


@pytest.fixture(scope="module")
def noise_report(noise_run):
    return write_report(noise_run)


class Page(HTMLParser):
    """Collects the addresses a page would load, and its text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if name in ("src", "href") and value]

    def handle_data(self, data):
        self.words.append(data)


def test_hundreds_of_metrics_are_aggregated_without_a_warning(noise_run):
    runs = read_runs([noise_run])
    many = pd.concat([runs.trials, *(pd.Series(1.0, runs.trials.index, name=f"x/eng/{n}") for n in range(200))], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.PerformanceWarning)
        found = aggregate(dataclasses.replace(runs, trials=many))
    assert found["x/eng/199"].eq(1).all()


def test_mean_deviation_and_seeds_are_those_of_the_finished_trials(noise_run):
    table = aggregate(read_runs([noise_run])).set_index(["objective", "data.noise.ratio"])
    for objective, noise, seeds in (
        ("m_ltm_pot", 0.4, (0, 1, 2)),
        ("contrastive", 0.4, (0, 2)),
        ("m_ltm", 0.0, (0, 1)),
    ):
        row = table.loc[(objective, noise)]
        values = [
            metrics({"objective": objective, "data.noise.ratio": noise, "seed": seed}, 3)[RECALL] - 0.01
            for seed in seeds
        ]
        assert row["num_seeds"] == len(seeds)
        assert row[RECALL] == pytest.approx(statistics.mean(values))
        assert row[f"{RECALL} (sd)"] == pytest.approx(statistics.stdev(values))


def test_tables_are_in_the_papers_order_and_mark_the_best(noise_run):
    english, mean = main_tables(read_runs([noise_run]))
    assert [[row[1].text for row in block] for block in english.blocks] == [["contrastive", "m_ltm", "m_ltm_pot"]] * 2
    assert [row[0].text for row in english.blocks[1]] == ["0.4"] * 3
    for block in english.blocks:
        assert [row[2].is_best for row in block] == [False, False, True]
    assert "English (trained)" in english.title
    # Trained on English alone: the others come after, under a heading that says so, and no column repeats it.
    assert "mean of 3 languages not trained on" in mean.title
    assert all(row[2].is_number for block in mean.blocks for row in block)
    markdown = english.to_markdown().splitlines()
    rows = [line for line in markdown if line.startswith("|")]
    assert len({len(line) for line in rows}) == 1
    assert len(rows) == 2 + 6
    assert "**" in rows[-1]


def test_a_column_of_ranks_is_no_percentage_and_marks_the_smallest(noise_run):
    runs = read_runs([noise_run])
    table = point_table(runs, "ranks", recall_columns("eng", ("recall_at_1", "mean_rank_variance")))
    assert table.note.startswith("Percent except MRV, ")
    recall, variance = ([row[column] for row in table.blocks[0]] for column in (2, 3))
    points = aggregate(runs).set_index(["objective", "data.noise.ratio"])
    means = points["text_to_audio/eng/mean_rank_variance"].loc[["contrastive", "m_ltm", "m_ltm_pot"], 0.0]
    assert [cell.text.split()[0] for cell in variance] == [f"{mean:.2f}" for mean in means]
    # In the fake runs, the variance falls as recall grows.
    assert [cell.is_best for cell in variance] == [cell.is_best for cell in recall] == [False, False, True]


@pytest.mark.slow
def test_the_terminal_table_fits_and_says_what_is_left_out(noise_report):
    text = noise_report.summary
    assert max(len(line) for line in text.splitlines()) <= 115
    assert text.endswith(("left out: 1 failed, 1 running", "left out: 1 running, 1 failed"))


@pytest.mark.slow
def test_the_page_is_self_contained_and_complete(noise_report):
    paths = noise_report
    source = paths.page.read_text()
    page = Page(source)
    assert page.addresses
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert not re.search(r"url\(|@import|<script", source)
    text = " ".join(" ".join(page.words).split())
    assert "16 of 18 trials finished; 1 failed; 1 running" in text
    assert "loss is nan (worker 0)" in text
    assert "In the papers' layouts" in text
    assert "47.12" not in text  # the paper's, on other data
    assert "{{" not in source
    assert paths.figures[0].name == "noise.png"
    for path in paths.figures:
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_on_a_phone_a_figure_scrolls_in_its_box_and_the_page_does_not(noise_report):
    async def look(width):
        async with opened(noise_report.page.as_uri()) as page:
            await page.size(width, 800)
            whole = await page.run("document.documentElement.scrollWidth")
            sizes = "[document.querySelector('figure img').clientWidth, document.querySelector('figure').clientWidth]"
            return whole, *await page.run(sizes)

    whole, picture, box = asyncio.run(look(390))
    assert whole <= 390
    assert box < 390
    assert picture >= 600
    whole, picture, box = asyncio.run(look(1280))
    assert picture <= box < whole <= 1280


def test_csv_reads_back(noise_run, noise_report):
    runs = read_runs([noise_run])
    back = pd.read_csv(noise_report.table_csv)
    assert len(back) == 6
    assert back[f"test/{RECALL}"].to_list() == pytest.approx(aggregate(runs)[RECALL].to_list())


def test_the_best_point_is_chosen_on_validation_at_each_noise_ratio(noise_run):
    best = best_points(read_runs([noise_run]))
    assert [(point.noise_ratio, point.name, point.num_seeds) for point in best] == [
        (0.0, "m_ltm_pot", 3),
        (0.4, "m_ltm_pot", 3),
    ]
    values = [
        metrics({"objective": "m_ltm_pot", "seed": seed}, 3)["text_to_audio/mean/recall_at_1"] for seed in (0, 1, 2)
    ]
    assert best[0].mean == pytest.approx(statistics.mean(values))
    assert best[0].command.startswith(f"uv run python pipelines/train.py --config {noise_run}/experiment.json ")
    assert "--objective m_ltm_pot" in best[0].command
    assert f"--seed {values.index(max(values))}" in best[0].command


def test_a_sweep_without_test_split_reports_validation(tmp_path):
    runs = read_runs([write_run(tmp_path / "run", {"objective": ["m_ltm"]}, has_test=False)])
    assert runs.measured_on == ["validation"]
    assert runs.trials[RECALL][0] == pytest.approx(metrics({"objective": "m_ltm"}, 3)[RECALL])
    assert "validation split" in main_tables(runs)[0].note


def test_a_sweep_in_which_nothing_has_finished_has_a_report(tmp_path):
    folder = write_run(tmp_path / "run", {"objective": ["m_ltm", "triplet"]}, running=[0], failed=[1])
    assert "no trial has finished" in write_report(folder, figures=False).summary
    text = " ".join(Page(write_report(folder, figures=False).page.read_text()).words)
    assert "No trial has finished yet" in text
    assert "loss is nan" in text


def test_folders_whose_experiments_differ_are_not_averaged(tmp_path):
    first = write_run(tmp_path / "first", {"objective": ["m_ltm"]})
    second = write_run(tmp_path / "second", {"objective": ["m_ltm"]})

    base = json.loads((second / "experiment.json").read_text())
    write(second / "experiment.json", {**base, "data.source": "esc50"})
    runs = read_runs([first, second])
    assert "data.source" in runs.varied
    assert list(aggregate(runs)["num_seeds"]) == [1, 1]


SETTINGS = [
    ("objective.pair.epsilon", 0.03, 0.05, {"objective": ["m_ltm"]}),
    ("objective.pair.metric", "euclidean", "diagonal", {"objective": ["m_ltm"]}),
    ("objective.pair.temperature", 0.07, 0.1, {"objective": ["contrastive"]}),
    ("objective.scheme", "english", "kcl", {"seed": [0]}),
    ("objective.pair", "contrastive", "learning_to_match", {"seed": [0]}),
    ("objective.knowledge.neighbours", 3, 5, {"objective": ["ask"]}),
    ("objective.knowledge", "none", "ask", {"seed": [0]}),
    ("train.learning_rate", 0.001, 0.002, {"objective": ["contrastive"]}),
    ("train.epochs", 3, 5, {"objective": ["contrastive"]}),
    ("data.noise.kind", "pair", "language", {"objective": ["contrastive"]}),
    ("data.noise.ratio", 0.2, 0.4, {"objective": ["contrastive"]}),
    ("data.languages", ["eng", "fra"], ["eng"], {"objective": ["contrastive"]}),
    ("model.embedding_width", 64, 128, {"objective": ["contrastive"]}),
    ("model.audio.channels", 32, 48, {"objective": ["contrastive"]}),
    ("evaluation.ranking", "learned", "cosine", {"objective": ["contrastive"]}),
]


@pytest.mark.parametrize(("path", "first", "second", "space"), SETTINGS, ids=[one[0] for one in SETTINGS])
def test_trials_that_differ_in_any_setting_but_the_seed_are_rows_of_their_own(tmp_path, path, first, second, space):
    """Whether the folders' experiments differ in it, or the trials of one sweep do."""
    both = {"languages": ("eng", "fra")}
    folders = [write_run(tmp_path / name, {**space, "seed": [0, 1]}, **both) for name in ("first", "second")]
    for folder, value in zip(folders, (first, second), strict=True):
        base = json.loads((folder / "experiment.json").read_text())
        if path.startswith("objective.") and "objective" in space:
            # What is set on top of a preset is in the trial, not in the base that the preset replaces.
            for trial in folder.glob("trials/*/trial.json"):
                content = json.loads(trial.read_text())
                write(trial, {**content, "overrides": {**content["overrides"], path: value}})
        else:
            write(folder / "experiment.json", {**base, path: value})
    runs = read_runs(folders)
    assert list(aggregate(runs)["num_seeds"]) == [2, 2]
    rows = recall_table(runs, "trained").blocks
    names = [" ".join(cell.text for cell in row if not cell.is_number) for block in rows for row in block]
    assert len(set(names)) == 2, "what differs stands in the row's name"
    one_sweep = write_run(tmp_path / "sweep", {**space, path: [first, second], "seed": [0, 1]}, **both)
    assert list(aggregate(read_runs([one_sweep]))["num_seeds"]) == [2, 2]


def test_what_decides_nothing_and_a_copy_of_a_trial_make_no_row_and_no_seed(tmp_path):
    folders = [write_run(tmp_path / name, {"objective": ["m_ltm"], "seed": [0, 1]}) for name in ("first", "second")]
    base = json.loads((folders[1] / "experiment.json").read_text())
    write(folders[1] / "experiment.json", {**base, "scaling.workers": 2, "tracking.experiment_name": "other"})
    assert list(aggregate(read_runs(folders))["num_seeds"]) == [2]


def test_a_data_set_that_was_made_again_is_another(tmp_path):
    folders = [write_run(tmp_path / name, {"objective": ["m_ltm"]}) for name in ("first", "second")]
    info = json.loads((folders[1] / "sweep.json").read_text())
    write(folders[1] / "sweep.json", {**info, "data": {"name": "soundscapes", "hash": "another"}})
    assert list(aggregate(read_runs(folders))["num_seeds"]) == [1, 1]
    page = write_report(*folders, figures=False).page.read_text()
    assert "<dd>soundscapes (manifest 3f6c9b1d); soundscapes (manifest another)</dd>" in page


ANOTHER, OF_FAKE_RUNS = "a77b1c9d", "soundscapes 3f6c9b1d"


def test_each_data_set_has_a_best_point_of_its_own(tmp_path):
    space = {"objective": ["contrastive", "m_ltm_pot"]}
    folders = [write_run(tmp_path / name, space) for name in ("first", "second")]
    info = json.loads((folders[1] / "sweep.json").read_text())
    for name, called in (
        ("esc50", ["esc50", "soundscapes"]),
        ("soundscapes", [f"soundscapes {ANOTHER}", OF_FAKE_RUNS]),
    ):
        write(folders[1] / "sweep.json", {**info, "data": {"name": name, "hash": ANOTHER}})
        runs = read_runs(folders)
        for block in main_tables(runs)[0].blocks:
            assert [row[2].is_best for row in block] == [False, True]
        assert sorted(point.name for point in best_points(runs)) == [
            f"m_ltm_pot data={data}" for data in sorted(called)
        ]


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (["a", "b"], ""),
        (["a"], ""),
        (["soundscapes"], '"warning">Trained and measured on synthetic soundscapes: '),
        (["a", "soundscapes"], '"warning">Some trials were trained and measured on synthetic soundscapes: '),
    ],
)
def test_a_report_says_which_of_its_trials_are_synthetic(tmp_path, sources, said):
    """The base experiment has the recipe's data set, on which nothing is trained."""
    run = write_run(tmp_path / "run", {"data.source": sources})
    page = write_report(run, figures=False).page.read_text()
    assert ("synthetic soundscapes" in page) == bool(said)
    assert said in page


def test_a_data_set_that_was_moved_is_the_same(tmp_path):
    folders = [write_run(tmp_path / name, {"objective": ["m_ltm"], "seed": [seed]}) for seed, name in enumerate("ab")]
    info = json.loads((folders[1] / "sweep.json").read_text())
    write(folders[1] / "sweep.json", {**info, "data": {**info["data"], "name": "renamed"}})
    assert list(aggregate(read_runs(folders))["num_seeds"]) == [2]


def test_the_first_table_is_of_the_languages_that_every_trial_was_trained_on(tmp_path):
    run = write_run(tmp_path / "run", {"objective": ["contrastive", "kcl"]})
    runs = read_runs([run])
    assert (runs.trained, len(runs.others), runs.is_unseen) == (["eng"], 3, False)
    first, second = main_tables(runs)
    assert "English (trained)" in first.title
    assert "3 languages that not all trials were trained on" in second.title
    assert [[cell.text for cell in row[:2]] for row in second.blocks[0]] == [
        ["contrastive", "none"],
        ["kcl", "all"],
    ]
    assert "languages not trained on" not in write_report(run, figures=False).summary
    everywhere = read_runs([write_run(tmp_path / "all", {"objective": ["ml_clap", "kcl"]})])
    (table,) = main_tables(everywhere)
    assert "mean of 4 trained languages" in table.title
    values = [
        metrics({"objective": "kcl"}, 3)[f"text_to_audio/{code}/recall_at_1"] - 0.01 for code in everywhere.trained
    ]
    found = aggregate(everywhere).set_index("objective").loc["kcl", "text_to_audio/trained/recall_at_1"]
    assert found == pytest.approx(statistics.mean(values))


def test_runs_in_languages_that_no_other_run_has_show_each_language(tmp_path):
    runs = read_runs(
        [write_run(tmp_path / code, {"objective": ["contrastive"]}, languages=[code]) for code in ("eng", "fra")]
    )
    (english, french) = main_tables(runs)
    assert [english.title.split(", ")[-1], french.title.split(", ")[-1]] == ["English", "fra"]
    for table, lacking in ((english, 1), (french, 0)):
        assert [cell.text == "–" for cell in table.rows[lacking][1:-1]] == [True] * 6
        assert "–" not in {cell.text for cell in table.rows[1 - lacking]}
    write_report(*runs.folders)


def test_a_point_that_learnt_nothing_says_so(tmp_path):
    run = write_run(tmp_path / "run", {"objective": ["contrastive", "triplet"], "seed": [0, 1]})
    for path in run.glob("trials/*/result.json"):
        result = json.loads(path.read_text())
        for direction in ("text_to_audio", "audio_to_text"):
            for code in ("eng", "fra"):
                result["test"][f"{direction}/{code}/queries"] = 300.0
                result["test"][f"{direction}/{code}/chance_at_1"] = 1 / 300
                if "triplet" in str(path):
                    result["test"][f"{direction}/{code}/recall_at_1"] = 0.006
        write(path, result)
    said = write_report(run, figures=False).summary
    assert "learned nothing (R@1 not distinguishable from chance): triplet\n" in said + "\n"
    first = main_tables(read_runs([run]))[0]
    assert [row[1].text.endswith("°") for row in first.blocks[0]] == [True, False]
    assert "Learned nothing: the R@1 of triplet" in write_report(run, figures=False).page.read_text()
    # Of 300 queries this is at chance, of those of two seeds it is not.
    for path in run.glob("trials/*triplet*/result.json"):
        result = json.loads(path.read_text())
        result["test"] |= {name: 0.009 for name in result["test"] if name.endswith("/recall_at_1")}
        write(path, result)
    assert "learned nothing" not in write_report(run, figures=False).summary
    # Nothing is the best of a block in which nothing was learned.
    for path in run.glob("trials/*/result.json"):
        result = json.loads(path.read_text())
        result["test"]["text_to_audio/eng/recall_at_1"] = 0.006 if "triplet" in str(path) else 0.007
        write(path, result)
    first = main_tables(read_runs([run]))[0]
    assert [(row[1].text.endswith("°"), row[1].is_best) for row in first.blocks[0]] == [(True, False)] * 2
    assert any(cell.is_best for row in first.blocks[0] for cell in row)
    clean = write_run(tmp_path / "clean", {"objective": ["contrastive"]})
    assert "learned nothing" not in write_report(clean, figures=False).summary


def test_test_and_validation_numbers_are_never_averaged(tmp_path):
    folders = [
        write_run(tmp_path / name, {"objective": ["m_ltm"], "seed": [seed]}, has_test=has_test)
        for name, seed, has_test in (("first", 0, True), ("second", 1, False))
    ]
    table = aggregate(read_runs(folders))
    assert list(table["num_seeds"]) == [1, 1]
    assert set(table["measured on"]) == {"test", "validation"}


def test_every_numeric_setting_that_varies_has_a_curve(tmp_path):
    space = {
        "objective": ["m_ltm_pot"],
        "objective.pair.transport_mass": [0.6, 0.8, 1.0],
        "data.noise.ratio": [0.0, 0.4],
    }
    runs = read_runs([write_run(tmp_path / "run", space)])
    assert [curve.file for curve in curves_of(runs)] == ["noise", "transport_mass"]


def test_settings_that_end_alike_are_told_apart(tmp_path):
    space = {"model.audio.dropout": [0.0, 0.1], "model.text.dropout": [0.0, 0.5], "data.noise.ratio": [0.0, 0.4]}
    runs = read_runs([write_run(tmp_path / "run", space)])
    assert [curve.file for curve in curves_of(runs)] == ["noise", "audio.dropout", "text.dropout"]
    table = main_tables(runs)[0]
    assert list(table.columns[:3]) == ["noise", "audio.dropout", "text.dropout"]
    assert table.title.startswith("Recall by noise, audio.dropout and text.dropout, ")
    assert point_names(aggregate(runs), runs)[-1] == "contrastive noise=0.4 audio.dropout=0.1 text.dropout=0.5"


def test_a_report_without_figures_has_everything_else(noise_run, noise_report, tmp_path):
    bare = write_report(noise_run, out=tmp_path, figures=False)
    assert bare.figures == ()
    assert noise_report.figures
    assert "<img" not in bare.page.read_text()
    assert bare.table_markdown.read_text() == noise_report.table_markdown.read_text()


def test_points_that_were_proposed_once_each_are_no_curve_over_noise(tmp_path):
    space = {"objective": ["m_ltm_pot"], "objective.pair.transport_mass": [0.6, 0.8], "data.noise.ratio": [0.2, 0.4]}
    folder = write_run(tmp_path / "run", space)
    # As a search leaves it: mass .6 at one noise ratio alone, and .8 at the other.
    for trial in read_runs([folder]).trials.to_dict("records"):
        if (trial["objective.pair.transport_mass"] == 0.6) != (trial["data.noise.ratio"] == 0.2):
            shutil.rmtree(folder / "trials" / trial["trial_id"])
    assert curves_of(read_runs([folder])) == []


def test_no_run_folder_and_no_trials_are_clear_mistakes(tmp_path):
    with pytest.raises(ValueError, match="not a run folder"):
        write_report(tmp_path)
    empty = write_run(tmp_path / "run", {"objective": []})
    (empty / "trials").mkdir()
    with pytest.raises(ValueError, match="no trials yet"):
        write_report(empty)
    run = write_run(tmp_path / "without", {"objective": ["contrastive"]})
    (run / "experiment.json").unlink()
    with pytest.raises(ValueError, match=r"without: not a run folder \(experiment.json is missing\)"):
        read_runs([run])


@pytest.mark.parametrize("heights", [[1.0, 1.1, 1.2], [0.0, 5.0, 5.0, 5.1], [3.0], [2.0, 1.0, 1.5, 9.0]])
def test_labels_are_apart_in_order_and_not_moved_for_nothing(heights):
    placed = spread(heights, gap=1.0)
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    ordered = [placed[index] for index in order]
    assert all(later - earlier >= 1.0 - 1e-9 for earlier, later in itertools.pairwise(ordered))
    assert sum(placed) == pytest.approx(sum(heights))
    apart = [abs(a - b) >= 1.0 for i, a in enumerate(heights) for b in heights[:i]]
    if all(apart):
        assert placed == pytest.approx(heights)


def test_labels_stay_within_their_panel_and_apart():
    placed = spread([-1.0, -0.4, 0.2, 0.8], low=0.5, high=9.0, gap=1.0)
    assert placed == [0.5, 1.5, 2.5, 3.5]
    assert spread([2.0, 5.0], low=0.5, high=9.0, gap=1.0) == [2.0, 5.0]
    top = spread([8.0, 9.4, 9.8], low=0.5, high=9.0, gap=1.0)
    assert top == [7.0, 8.0, 9.0]


def test_the_front_holds_exactly_the_points_nothing_beats():
    costs, gains = [1.0, 2.0, 2.0, 3.0, 4.0, 5.0], [0.1, 0.4, 0.3, 0.4, 0.9, 0.2]
    beaten = {
        i
        for i in range(6)
        for j in range(6)
        if costs[j] <= costs[i] and gains[j] >= gains[i] and (costs[j] < costs[i] or gains[j] > gains[i])
    }
    by_gain = [(-cost, gain) for cost, gain in zip(costs, gains, strict=True)]
    assert pareto_front(by_gain) == [i for i in range(6) if i not in beaten]


def test_the_papers_layouts_hold_our_numbers_and_name_the_printed_ones(tmp_path):
    run = write_run(tmp_path / "run", NOISE_SPACE, data="audiocaps")
    (table,) = (table for table in paper_layouts(read_runs([run])) if "Table 5" in table.title)
    assert table.columns == ["noise", "objective", *("R@1", "R@5", "R@10") * 2, "seeds"]
    printed = {(row[0].text, row[1].text): [cell.text for cell in row[2:]] for row in table.references}
    row = printed["0.4", "m_ltm_pot (paper, ResNet38 + BERT)"]
    assert row == ["33.64", "69.23", "82.27", "42.63", "73.35", "86.1", "–"]
    assert not any("(paper" in cell.text for block in table.blocks for row in block for cell in row)
    assert "Luong et al. 2024 (m-LTM), Table 5: audiocaps, test split, ResNet38 + BERT" in table.reference_note
    assert "47.12" in write_report(run, figures=False).page.read_text()


def test_the_numbers_of_a_sweep_over_splits_are_of_each_of_them(tmp_path):
    """So that printed numbers of one split are not beside those of another."""
    runs = read_runs([write_run(tmp_path / "run", {"data.test_split": ["test", "val"]}, data="audiocaps")])
    assert runs.measured_sets == [("audiocaps", "test"), ("audiocaps", "val")]
    runs = read_runs([write_run(tmp_path / "one", {"seed": [0, 1]}, data="audiocaps")])
    assert runs.measured_sets == [("audiocaps", "test")]


def test_cost_is_a_ratio_to_the_baseline_of_the_same_runs(tmp_path):
    space = {"objective": ["ml_clap", "cacl", "kcl"], "seed": [0, 1]}
    run = write_run(tmp_path / "run", space, data="audiocaps")
    layouts = {table.title: table for table in paper_layouts(read_runs([run]))}
    (cost,) = (table for title, table in layouts.items() if "costs" in title)
    rows = {row[0].text: [cell.text for cell in row] for block in cost.blocks for row in block}
    assert [rows[name][3] for name in ("ml_clap", "cacl", "kcl")] == ["1.00", "1.30", "3.00"]
    assert [row[0].text.split()[0] for row in cost.references] == ["ml_clap", "cacl", "kcl"]
    (consistency,) = (table for title, table in layouts.items() if "Consistency" in title)
    best = [row[0].text for block in consistency.blocks for row in block if row[-2].is_best]
    assert best == ["kcl"]
    assert consistency.references[2][-2].text == "7.52"


def test_what_changes_no_weight_keeps_no_seeds_apart(tmp_path):
    folder = write_run(tmp_path / "run", {"objective": ["m_ltm"], "seed": [0, 1]})
    trial = next(path for path in (folder / "trials").iterdir() if read_json(path / "trial.json")["overrides"]["seed"])
    content = read_json(trial / "trial.json")
    content["overrides"] |= {"train.keep_trajectory": True, "scaling.workers": 0}
    write(trial / "trial.json", content)
    (row,) = aggregate(read_runs([folder])).to_dict("records")
    assert row["num_seeds"] == 2


def test_the_page_names_the_settings_of_its_trials_where_they_differ_from_the_run(tmp_path):
    folder = write_run(tmp_path / "run", {"objective": ["kcl"], "data.noise.ratio": [0.4], "seed": [1, 3]})
    text = " ".join(" ".join(Page(write_report(folder, figures=False).page.read_text()).words).split())
    assert "Noise ratio 0.4 Measured on" in text
    shared = text.partition("settings that the trials share")[2]
    assert "data.noise.ratio 0.4 " in shared
    assert "objective.scheme kcl " in shared
    assert " seed " not in shared
