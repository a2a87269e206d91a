"""The reality check: which points it has, which trial is whose, and what its table says of runs that are known."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from ray_atr.cli.tuned_methods import CorrespondenceSweep, space_of, tuning_folder
from ray_atr.common.override import override
from ray_atr.common.storage import read_json
from ray_atr.evaluation.report.style import DPI
from ray_atr.evaluation.report.write import write_report
from ray_atr.metrics.bootstrap import over_clips_and_seeds
from ray_atr.papers.methods import METHODS, method_of
from ray_atr.papers.reality_check import (
    DETECTOR,
    MethodTrials,
    difference,
    draw_detector,
    drawn_clips,
    hits_of,
    page_table,
    read_trials,
    share_of_the_way,
    table,
    title_of,
)
from ray_atr.sweep.space import Space
from ray_atr.training.experiment import Experiment
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import RunFolder, TrialFolder
from tests.support.fake_runs import write_run
from tests.support.spies import spied
from tests.support.tiny import make_data, prepared_for, tiny


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_is_an_objective_that_can_be_tuned_and_found_again(name: str) -> None:
    experiment = override(Experiment(), {**METHODS[name], "data.noise.ratio": 0.5})
    space = Space.parse([f"{path}={text}" for path, text in space_of(name).items()], experiment)
    assert len(space.dimensions) >= 2
    # The length of a warm-up is tuned wherever there is one.
    has_warmup = hasattr(experiment.objective.correspondence, "warmup_epochs")
    assert ("objective.correspondence.warmup_epochs" in space_of(name)) == has_warmup
    assert method_of({**METHODS[name], "train.learning_rate": 0.1, "data.noise.ratio": 0.4}) == name


def test_the_oracle_has_no_point_without_noise_and_no_kind_differs_there() -> None:
    options = CorrespondenceSweep(methods=("contrastive", "oracle"), noise=(0.0, 0.4), kinds=("pair", "shift"))
    found = [(p["objective.correspondence"], p["data.noise.kind"], p["data.noise.ratio"]) for p in options.points()]
    assert found == [
        ("none", "pair", 0.0),
        ("none", "pair", 0.4),
        ("none", "shift", 0.4),
        ("oracle", "pair", 0.4),
        ("oracle", "shift", 0.4),
    ]
    with pytest.raises(ValueError, match=r"--methods: got 'smal_loss'; .*did you mean small_loss"):
        CorrespondenceSweep(methods=("smal_loss",)).points()
    with pytest.raises(ValueError, match=r"--methods: got 'smal_loss'; .*did you mean small_loss"):
        CorrespondenceSweep(methods=("smal_loss",), tune=2).before({})
    with pytest.raises(ValueError, match=r"--tune-noise: got 0.4; allowed a ratio that is not reported"):
        CorrespondenceSweep(tune=2, tune_noise=0.4).before({})


def test_a_resumed_sweep_takes_the_settings_that_were_tuned_for_it(tmp_path: Path) -> None:
    options = CorrespondenceSweep(methods=("small_loss",), noise=(0.4,), tune=8, resume=f"{tmp_path}/run/")
    with pytest.raises(
        ValueError, match=r"--tune: got 8; allowed with --resume only if .*run-tuning/tuned.json exists"
    ):
        options.before({})
    (tmp_path / "run-tuning").mkdir()
    (tmp_path / "run-tuning" / "tuned.json").write_text('{"small_loss": {"train.learning_rate": 0.003}}')
    (point,) = options.before({}).points()
    assert point["train.learning_rate"] == 0.003
    assert str(tuning_folder("s3://bucket/run")) == "s3://bucket/run-tuning"


def test_tuned_settings_are_on_top_of_each_methods_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tuned.json").write_text('{"small_loss": {"train.learning_rate": 0.003}}')
    options = CorrespondenceSweep(
        methods=("contrastive", "small_loss"), noise=(0.4,), tuned=str(tmp_path / "tuned.json")
    )
    rates = [point.get("train.learning_rate") for point in options.points()]
    assert rates == [None, 0.003]
    assert options.before({}) is options
    assert capsys.readouterr().out == f"not tuned in {tmp_path / 'tuned.json'}: contrastive\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "--tuned: got .*; allowed the tuned.json of an earlier --tune: settings by method"),
        ('{"contrastive": 3}', "allowed the tuned.json of an earlier --tune"),
        ('{"contrastve": {}}', r"--tuned: .*: got 'contrastve'.*did you mean contrastive"),
    ],
)
def test_what_no_tuning_left_is_refused(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "tuned.json"
    if content:
        file.write_text(content)
    with pytest.raises(ValueError, match=said):
        CorrespondenceSweep(tuned=str(file)).points()
    with pytest.raises(ValueError, match="--tune: got -1; allowed 0 or more trials"):
        CorrespondenceSweep(tune=-1).before({})


def cell(hits: np.ndarray, first_seed: int = 0) -> MethodTrials:
    seeds = tuple(range(first_seed, first_seed + len(hits)))
    return MethodTrials(hits, np.arange(hits.shape[1]), seeds, last=0.0, seconds=0.0)


def test_the_interval_is_over_queries_and_seeds() -> None:
    generator = np.random.default_rng(0)
    first = (generator.random((3, 400)) < 0.5).astype(float)
    better = np.maximum(first, generator.random((3, 400)) < 0.2)
    value, low, high = difference(cell(first), cell(better))
    assert value == pytest.approx(better.mean() - first.mean())
    assert 0 < low < value < high
    value, low, high = difference(cell(first), cell(first[[1, 2, 0]]))
    assert value == pytest.approx(0)
    assert low <= 0 <= high
    # Seeds that differ widen it beyond what the queries alone say.
    apart = np.stack([np.ones(400), np.zeros(400)])
    value, low, high = difference(cell(first), cell(apart))
    assert high - low > 0.5


def test_a_seed_is_compared_with_itself_whatever_else_a_method_has() -> None:
    # Seeds lie far apart, and in each of them the second method finds one query in ten more.
    first = np.stack([np.zeros(400), np.arange(400) % 2, np.arange(400) % 10 > 0]).astype(float)
    second = np.maximum(first, np.arange(400) % 10 == 0)
    _, low, high = difference(cell(first), cell(second))
    assert low > 0
    assert high - low < 0.15
    # The seeds 1 and 2 alone are shared; the order in which trials finished does not matter.
    other = MethodTrials(second[[2, 1]], np.arange(400), (2, 1), last=0.0, seconds=0.0)
    assert difference(cell(first), other)[0] == pytest.approx((second - first)[1:].mean())
    # Where no seed is both's, nothing is compared.
    of_methods = {"contrastive": cell(first), "small_loss": other, "neighbours": cell(second, first_seed=7)}
    found = table({(name, "pair", 0.4): trials for name, trials in of_methods.items()})
    rows = found.set_index("method")
    assert rows["seeds"].tolist() == [3, 2, 3]
    assert rows["shared seeds"].dropna().to_dict() == {"small_loss": 2, "neighbours": 0}
    assert list(rows["against the floor"].dropna()) == [pytest.approx((second - first)[1:].mean())]
    shown = page_table(found, "R@1", 400)
    assert [row[3].text for row in shown.rows] == ["", "2", "0"]
    assert "compared over those that both have. Careful: 2 seeds" in shown.note
    apart = table({("contrastive", "pair", 0.4): cell(first), ("neighbours", "pair", 0.4): cell(second, first_seed=7)})
    assert [row[3].text for row in page_table(apart, "R@1", 400).rows] == ["", "0"]
    alike = table({(name, "pair", 0.4): cell(first) for name in of_methods})
    assert "shared seeds" not in alike


def test_the_captions_of_a_clip_are_drawn_together() -> None:
    of_clips = np.tile(np.random.default_rng(0).random(100) < 0.3, (2, 1))
    first, second = np.zeros((2, 500)), np.repeat(of_clips, 5, axis=1).astype(float)
    alone = difference(cell(first), cell(second))
    clips = np.repeat(np.arange(100), 5)
    first_of_clips, second_of_clips = (
        MethodTrials(hits, clips, (0, 1), last=0.0, seconds=0.0) for hits in (first, second)
    )
    together = difference(first_of_clips, second_of_clips)
    assert together[0] == pytest.approx(alone[0])
    # Five equal captions say no more than one: the interval is that of the 100 clips.
    one_caption = difference(cell(np.zeros((2, 100))), cell(of_clips.astype(float)))
    assert together == pytest.approx(one_caption)
    assert together[2] - together[1] > 1.5 * (alone[2] - alone[1])


def test_the_share_of_the_way_has_no_ends_if_the_ceiling_is_no_higher_in_the_shared_seeds() -> None:
    luck = np.random.default_rng(0).random((8, 400))
    floor, half, ceiling = ((luck < chance).astype(float) for chance in (0.4, 0.5, 0.6))
    ceiling[0] = luck[0] < 0.38
    assert difference(cell(floor), cell(ceiling))[1] > 0
    assert share_of_the_way(cell(floor), cell(half[:1]), cell(ceiling))[1:] == (-np.inf, np.inf)


def test_the_share_of_the_way_has_an_interval_of_its_own() -> None:
    generator = np.random.default_rng(0)
    luck = generator.random((3, 400))
    floor, half, ceiling = ((luck < chance).astype(float) for chance in (0.4, 0.5, 0.6))
    share, low, high = share_of_the_way(cell(floor), cell(half), cell(ceiling))
    assert share == pytest.approx((half - floor).mean() / (ceiling - floor).mean())
    assert 0.3 < low < share < high < 0.7
    # The ends are where the difference from that share of the ceiling can just be told from 0.
    at_low = over_clips_and_seeds(
        (half - floor - low * (ceiling - floor)).mean(axis=1),
        drawn_clips(half - floor - low * (ceiling - floor), np.arange(400)),
    )
    assert at_low.low == pytest.approx(0, abs=1e-3)
    # No share of what is not there.
    assert share_of_the_way(cell(floor), cell(half), cell(floor[[1, 2, 0]]))[1:] == (-np.inf, np.inf)
    # One more hit is not told from the floor.
    untold = cell(np.where(np.arange(1200).reshape(3, 400) == floor.argmin(), 1.0, floor))
    of_methods = {"contrastive": cell(floor), "small_loss": cell(half), "oracle": untold}
    shown = page_table(table({(name, "pair", 0.4): one for name, one in of_methods.items()}), "R@1", 400)
    (of_share,) = (one for row in shown.rows for one in row if "∞" in one.detail)
    assert of_share.detail == "(-∞, +∞)"
    assert "without an end (∞)" in shown.note


def test_the_names_of_all_detectors_are_in_the_picture_and_no_two_look_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    spied(monkeypatch, Figure, "savefig", lambda _, figure, *arguments, **options: figures.append(figure))
    # Equal in every epoch, as of `leave_one_out`, which estimates once.
    curves = {name: np.array([0.9, 0.9]) for name in DETECTOR}
    one = MethodTrials(np.ones((1, 4)), np.arange(4), (0,), 0.5, 1.0, curves)
    path = draw_detector({(name, "pair", 0.6): one for name in METHODS}, tmp_path / "detector.png")
    assert path is not None
    (figure,) = figures
    (legend,) = figure.legends
    detecting = {name for name, settings in METHODS.items() if settings["objective.correspondence"] != "none"}
    assert {text.get_text() for text in legend.get_texts()} == detecting - {"oracle"}
    looks = [(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines]
    assert len(set(looks)) == len(looks)
    # As wide as its picture at most, and below the panels.
    box, pixels = legend.get_window_extent(), plt.imread(path).shape[1]
    assert box.width * DPI / figure.dpi <= pixels
    assert box.y1 <= min(axes.xaxis.label.get_window_extent().y0 for axes in figure.axes if axes.get_xlabel())


def test_a_mistranslated_clip_is_not_called_a_wrong_pair() -> None:
    assert title_of("pair", 0.4) == "40% of the pairs wrong"
    assert title_of("near", 0.4) == "40% of the pairs wrong (near)"
    # Of a clip's pairs in eight languages, one is wrong.
    assert title_of("language", 0.4) == "40% of the clips wrong (language)"


def train_methods(run: RunFolder, names: Sequence[str], seeds: Sequence[int], *, noise: float, home: Path) -> None:
    """Add a trial of each method and seed to the run, and train it."""
    for name, seed in itertools.product(names, seeds):
        trial = run.add_trial({**METHODS[name], "data.noise.kind": "pair", "data.noise.ratio": noise, "seed": seed})
        experiment = override(run.experiment, trial.describe()["overrides"])

        def report(metrics: dict[str, Any], trial: Any = trial) -> None:
            (trial.finish if metrics.get("is_final") else trial.add_epoch)(metrics)

        prepared = prepared_for(experiment, home)
        train_trial(experiment, prepared, Path(str(trial.folder)), report, use_ray_data=False)


@pytest.mark.slow
def test_a_run_folders_table_and_picture(tmp_path: Path) -> None:
    data = make_data(tmp_path / "tones")
    base = tiny(data, train__epochs=2, evaluation__select_by="audio_to_text/eng/recall_at_1", data__test_split="test")
    run = RunFolder.create(str(tmp_path / "run"), base, {"name": "sweep_correspondence"})
    train_methods(run, ("contrastive", "oracle", "small_loss"), (0, 1), noise=0.4, home=tmp_path / "home")
    written = write_report(run.path)
    folder = Path(str(written.page)).parent
    table = pd.read_csv(folder / "reality_check.csv", index_col="method")
    for name in ("contrastive", "oracle", "small_loss"):
        tests = [trial_result["test"]["audio_to_text/eng/recall_at_1"] for trial_result in results_of(run, name)]
        assert table.loc[name, "test"] == pytest.approx(np.mean(tests), abs=1e-6)
        assert table.loc[name, "seeds"] == 2
    trial = next(iter(run.trials()))
    experiment = override(base, trial.describe()["overrides"])
    for select_by in ("text_to_audio/trained/recall_at_1", "audio_to_text/mean/recall_at_1"):
        found = hits_of(trial, override(experiment, {"evaluation.select_by": select_by, "data.languages": "eng,fra"}))
        assert found is not None
        by_language = read_json(trial.folder / "result.json")["test"]
        task = select_by.split("/")[0]
        assert found.values.mean() == pytest.approx(by_language[f"{task}/mean/recall_at_1"], abs=1e-6)
    assert table.loc["oracle", "detector_auc"] == 1
    assert np.isnan(table.loc["contrastive", "detector_auc"]), "a method that believes every pair is no detector"
    gained = table.loc["small_loss", "test"] - table.loc["contrastive", "test"]
    assert table.loc["small_loss", "against the floor"] == pytest.approx(gained)
    assert {path.name for path in folder.iterdir()} >= {
        *(f"reality_check.{kind}" for kind in ("csv", "md", "png")),
        "detector.png",
    }
    by_epoch = [
        np.mean([trial.epochs()[epoch]["train/detector_auc"] for trial in trials_of(run, "small_loss")])
        for epoch in (0, 1)
    ]
    assert read_trials(run).methods["small_loss", "pair", 0.4].curves["detector_auc"].tolist() == pytest.approx(
        by_epoch
    )
    page = Path(str(written.page)).read_text()
    assert "Careful: 2 seeds are too few" in page
    assert page.index("Reality check") < page.index("</table>")
    queries = len(hits_of(trial, experiment).values)
    assert f"R@1, audio to text, eng, in percent of {queries} queries ({100 / queries:.1f} points each)" in page
    shown = (folder / "reality_check.md").read_text()
    (of_oracle,) = (line.split("|") for line in shown.splitlines() if "oracle" in line and "|" in line)
    assert of_oracle[4].strip(" *") == f"{100 * table.loc['oracle', 'test']:.1f}", "on the scale of the other tables"
    assert "clean pairs lost" in shown
    assert "0 is the floor, 1 the ceiling" in shown
    low, high = table.loc["small_loss", ["low", "high"]]
    assert f"({100 * low:+z.1f}, {100 * high:+z.1f})" in page
    assert f"({100 * low:+z.1f}, {100 * high:+z.1f})" in written.summary, "in the terminal too"
    assert [figure.name for figure in written.figures][:2] == ["reality_check.png", "detector.png"]


@pytest.mark.slow
def test_run_folders_of_several_noises_are_one_table(tmp_path: Path) -> None:
    data = make_data(tmp_path / "tones")
    base = tiny(data, train__epochs=1, evaluation__select_by="audio_to_text/eng/recall_at_1", data__test_split="test")
    folders = []
    for number, (noise, rate) in enumerate(((0.4, 1e-3), (0.6, 1e-3), (0.8, 2e-3))):
        settings = override(base, {"train.learning_rate": rate})
        run = RunFolder.create(str(tmp_path / f"run{number}"), settings, {"name": "sweep_correspondence"})
        folders.append(run.path)
        methods = ("contrastive", "oracle") if rate == 1e-3 else ("contrastive",)
        train_methods(run, methods, (0,), noise=noise, home=tmp_path / "home")
    written = write_report(*folders, folders[0], out=tmp_path / "report", figures=False)
    found = pd.read_csv(Path(str(written.page)).parent / "reality_check.csv")
    assert list(zip(found["noise"], found["method"], strict=True)) == [
        (noise, name) for noise in (0.4, 0.6) for name in ("contrastive", "oracle")
    ], "trials with another learning rate are not compared with these"
    assert set(found["seeds"]) == {1}
    said = f"{folders[2]}: train.learning_rate 0.002, not 0.001"
    assert f"not in the joint table:\n  {said}" in written.summary
    assert f"Left out: {said}." in (Path(str(written.page)).parent / "reality_check.md").read_text()


def test_what_the_table_leaves_out_is_named_with_the_reason(tmp_path: Path) -> None:
    data = make_data(tmp_path / "tones")
    base = tiny(data, train__epochs=1, evaluation__select_by="audio_to_text/eng/recall_at_1", data__test_split="test")
    other = override(base, {"tracking.mlflow": not base.tracking.mlflow})
    first, second = (
        RunFolder.create(str(tmp_path / name), settings, {"name": "sweep_correspondence"})
        for name, settings in (("first", base), ("second", other))
    )
    tuning = RunFolder.create(str(tmp_path / "tuning"), base, {"name": "tuning"})
    train_methods(first, ("contrastive",), (0,), noise=0.4, home=tmp_path / "home")
    assert read_trials(first, second).left_out == [], "what decides no weight is no reason"
    removed = {"objective.pair": "contrastive", "objective.correspondence": "neighbour_votes", "seed": 0}
    first.add_trial({**removed, "data.noise.kind": "pair", "data.noise.ratio": 0.4})
    second.add_trial({**METHODS["oracle"], "seed": 0, "data.noise.kind": "pair", "data.noise.ratio": 0.4})
    changed = RunFolder.create(str(tmp_path / "changed"), base, {"name": "sweep_correspondence"})
    for run, digest in ((first, "1"), (changed, "2")):
        run.update_info(data={"name": "tones", "hash": digest})
    found = read_trials(first, second, tuning, changed)
    assert set(found.methods) == {("contrastive", "pair", 0.4)}
    assert found.left_out == [
        f"{first.path}: 1 trial of no method that is compared (contrastive, neighbour_votes)",
        f"{second.path}: 1 trial not finished",
        f"{tuning.path}: a run of tuning, not of sweep_correspondence",
        f"{changed.path}: on another version of the data set",
    ]


def results_of(run: RunFolder, method: str) -> list[dict[str, Any]]:
    return [read_json(trial.folder / "result.json") for trial in trials_of(run, method)]


def trials_of(run: RunFolder, method: str) -> list[TrialFolder]:
    return [trial for trial in run.trials() if method_of(trial.describe()["overrides"]) == method]


def test_a_report_of_a_data_set_without_a_test_split_has_all_but_this_table(tmp_path: Path) -> None:
    space = {**{path: [value] for path, value in METHODS["contrastive"].items()}, "data.noise.kind": ["pair"]}
    folder = write_run(
        tmp_path / "run", {**space, "data.noise.ratio": [0.4], "seed": [0]}, name="sweep_correspondence", has_test=False
    )
    report = write_report(folder, figures=False)
    assert "validation split after the last epoch" in report.summary
    assert "Reality check" not in report.page.read_text()
    assert f"{folder}: 1 trial without the scores that the table is made of" in report.summary
