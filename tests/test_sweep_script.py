"""Mistakes on the command line of a sweep: one clear line, exit code 2, nothing written."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest

from ray_atr.cli import main
from ray_atr.cli.comparisons import NOTHING, TABLES, KnowledgeSweep, NoiseSweep, ask
from ray_atr.cli.experiment_options import SpaceOptions
from ray_atr.cli.parse import parse_with_settings
from ray_atr.cli.running import kept_options, open_run, plan_search, resumed_experiment, start_of
from ray_atr.cli.tuned_methods import CorrespondenceSweep, best_point
from ray_atr.common.override import override
from ray_atr.common.runtime import code_version
from ray_atr.common.storage import write_json
from ray_atr.data.shards import read_manifest
from ray_atr.papers.methods import METHODS
from ray_atr.sweep import FixedPoints, Goal, SweepPlan
from ray_atr.sweep.describe import check_plan, describe_plan
from ray_atr.training.checkpoint import deciding_settings
from ray_atr.training.languages import with_languages
from ray_atr.training.recipes import RECIPES
from ray_atr.training.run_folder import FAILED, RunFolder
from tests.support.commands import replace_work
from tests.support.tiny import make_data

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAY_ATR_HOME", str(tmp_path))
    return tmp_path


def error_of(command: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a command ends."""
    with pytest.raises(SystemExit) as exit_:
        main(*command.split(), arguments=arguments)
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


MASS = "objective.pair.transport_mass=uniform(0.3,1)"
ASK = ("--objective.knowledge", "ask")
MISTAKES: dict[str, list[tuple[list[str], str]]] = {
    "sweep noise": [
        (["--noise", "1.2"], "data.noise.ratio: got 1.2; allowed [0, 1)"),
        (["--objectives", "contrastiv"], "did you mean contrastive?"),
        (["--objectives", "--seeds", "0"], "--objectives: got 'nothing'; allowed one value or more"),
        (["--seeds"], "--seeds: got 'nothing'; allowed one value or more"),
        (["--scheduler", "asha"], "--scheduler: got 'asha'; allowed one of none, race"),
        (["--spend-spared"], "--spend-spared: got 'true'; allowed only with --scheduler race"),
        (["--scheduler", "race", "--seeds", "0"], "--seeds: got '0'; allowed two seeds or more with --scheduler race"),
        (
            ["--search", "optuna"],
            "--noise, and settings (--help-settings) (it is an option of ray-atr sweep --space PATH=DIMENSION ...)",
        ),
        (["--objectivs", "m_ltm"], "--objectivs: no such option here; allowed --recipe, --config, "),
        (["--objectivs", "m_ltm"], "(did you mean --objectives?)"),
        (["--epochs", "3"], "--epochs: no such option here; allowed --recipe, --config, "),
        (["--ratios", "0", "40"], "(did you mean --data.noise.ratio?)"),
        (["--hours", "nan"], "--hours: got nan; allowed a number above 0"),
        (["--hours", "x"], "--hours: got 'x'; allowed a number"),
        (["--seeds", "a"], "--seeds: got 'a'; allowed whole numbers"),
        (["--ray", "nope"], "--ray: got 'nope'; allowed one of auto, always, never"),
        (["--concurrency", "0"], "--concurrency: got 0; allowed at least 1"),
        (
            ["--resume", "nowhere", "--out", "elsewhere"],
            "--out: got 'elsewhere'; allowed nothing but nowhere with --resume",
        ),
        (["--resume", "nowhere", "--out", "./nowhere"], "nowhere: not a run folder"),
        (["--out", "memory://box/run"], "--out: got 'memory://box/run'; allowed a folder or a store: this one is gone"),
        (["--epoch", "3"], "(did you mean --train.epochs?)"),
        (["--ratio", "0.3"], "(did you mean --data.noise.ratio?)"),
        (["--hours", "-1"], "--hours: got -1.0; allowed a number above 0"),
        (
            ["--train.batch_size", "5000"],
            "train.batch_size: got 5000; allowed at most 1200, the number of training clips",
        ),
        (["--train.epoch", "3"], "train.epoch: no such setting; --help-settings lists them (did you mean epochs?)"),
        (["--train.epochs", "0"], "train.epochs: got 0; allowed [1, inf)"),
        (["--data.source", "nowhere"], "nowhere: no data set (manifest.json is missing)"),
        (["--data.languages", "fra,English"], "did you mean eng"),
        (["--data.languages", "eng,frx"], "data.languages: got 'frx'"),
        (["--recipe", "quickstrat"], "did you mean quickstart?"),
        (
            ["--recipe", "m_ltm_pot"],
            "--recipe: got 'm_ltm_pot'; allowed a recipe that --help-settings lists (m_ltm_pot is an ",
        ),
        (["--objectives", "contrastive", "--objective.pair.transport_mass", "0.8"], "contrastive"),
        (["--resume", "nowhere"], "nowhere: not a run folder"),
        (
            ["--objective", "kcl"],
            "objective: got 'kcl'; allowed nothing here: this sweep varies it (triplet, contrastive",
        ),
        (["--data.noise.ratio", "0.3"], "data.noise.ratio: got '0.3'; allowed nothing here: this sweep varies it"),
        (["--seed", "3"], "seed: got '3'; allowed nothing here: this sweep varies it (0, 1, 2)"),
        (["--objective.pair.masses", "0.8"], "objective.pair.masses: no such setting"),
        (["--objective.pair.epsilon", "-1"], "objective.pair.epsilon: got -1.0; allowed (0, inf)"),
        (["--objective.pair", "triplet"], "the same experiment with objective.pair=triplet"),
    ],
    "sweep": [
        ([], "--space: got None; allowed PATH=DIMENSION"),
        (["space"], "--space: got None; allowed PATH=DIMENSION"),
        (["--space", "data.noise.ratio=grid(0,0.2)", "--seeds"], "--seeds: got 'nothing'; allowed one value or more"),
        (["nois"], "ray-atr sweep: got 'nois'; allowed one of space, noise, objectives"),
        (["--space", "data.noise.ratoi=grid(0,0.2)"], "did you mean ratio?"),
        (["--space", "data.noise.ratio=grid()"], "at least one value"),
        (["--space", "data.noise.ratio=uniform(0,0.5)"], "a range needs another search than --search grid"),
        (["--space", MASS, "--search", "random", "--trials", "3"], "objective.pair.transport_mass: no such setting"),
        (["--space", "data.noise.ratio=uniform(0,0.5)", "--search", "random"], "--trials: got None"),
        (["--space", "data.noise.ratio=uniform(0,0.5)", "--search", "random", "--hours", "0"], "--hours: got 0.0"),
        (["--space", "data.noise.ratio=grid(0)", "--search", "optun"], "did you mean optuna?"),
        (["--space", "data.noise.ratio=grid(0)", "--scheduler", "ahsa"], "did you mean asha?"),
        (["--space", "data.noise.ratio=grid(0)", "--seeds=-1"], "seed: got -1; allowed [0, "),
        (["--space", "data.noise.ratio=grid(0,0.2)", "--trials", "0"], "--trials: got 0; allowed at least 1"),
        (["--space", "train.batch_size=grid(64,5000)"], "train.batch_size: got 5000; allowed at most 1200"),
        (["--space", "train.batch_size=randint(8,5000)", "--search", "random", "--trials", "3"], "got 5000; allowed"),
        (
            ["--space", "data.noise.ratio=grid(0,0.2)", "--scheduler", "pbt"],
            "--scheduler: got 'pbt'; allowed one of none, asha, race",
        ),
        (
            ["--space", "data.noise.ratio=grid(0)", "--scheduler", "asha", "--minimize", "a", "--maximize", "b"],
            "none with several goals",
        ),
        (
            ["--space", "data.noise.ratio=grid(0.4,0)", "--data.noise.index", "x.npy"],
            "data.noise.ratio: got 0.4; allowed",
        ),
        (
            ["--space", "data.noise.ratio=grid(0)", "--warm-start", "nowhere"],
            "--warm-start: got 'nowhere'; allowed --search ",
        ),
        (
            ["--space", "data.noise.ratio=grid(0)", "--search", "optuna", "--trials", "1", "--warm-start", "nowhere"],
            "nowhere: not a run folder",
        ),
    ],
    "train": [
        (["--data.noise.index", "x.npy", "--data.noise.ratio", "0.4"], "data.noise.ratio: got 0.4; allowed 0.0 with"),
        (
            ["--data.noise.index", "x.npy", "--data.noise.kind", "near"],
            "data.noise.kind: got 'near'; allowed pair with",
        ),
        (
            ["--data.noise.index", "x.npy", "--data.noise.unit", "caption"],
            "data.noise.unit: got 'caption'; allowed clip",
        ),
    ],
    "sweep transport": [
        (["--masses", "0.8", "much"], "objective.pair.transport_mass: got 'much'; allowed float or auto (0, 1]"),
    ],
    "sweep knowledge": [
        (["--table", "ablaton"], "--table: got 'ablaton'; allowed one of ablation, baselines (did you mean ablation?)"),
        (["--figure", "neighbors"], "did you mean neighbours?"),
        (["--table", "ablation", "--figure", "lag"], "--figure: got 'lag'; allowed only without --table"),
        (["--neighbours", "0"], "objective.knowledge.neighbours: got 0; allowed [1, inf)"),
        (["--injection_ratio", "1.5"], "objective.knowledge.injection_ratio: got 1.5; allowed [0, 1]"),
        (["--lambda_fine", "0.9"], "lambda_fine + lambda_coarse: got 1.1; allowed below 1"),
        ([*ASK, "--objective.knowledge.source", "nowhere", "--table", "ablation"], "nowhere: no data set"),
        ([*ASK, "--objective.knowledge.captions", "nowhere"], "nowhere: no such file"),
        (
            [*ASK, "--objective.knowledge.captions", __file__],
            f"objective.knowledge.captions: got '{__file__}'; allowed a Parquet file (.parquet) or JSON lines",
        ),
    ],
}


@pytest.mark.parametrize(
    ("command", "arguments", "words"), [(command, *case) for command, cases in MISTAKES.items() for case in cases]
)
def test_a_mistake_gets_one_line_and_writes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], command: str, arguments: list[str], words: str
) -> None:
    assert words in error_of(command, arguments, capsys)
    assert list(home.iterdir()) == []


README_SEARCHES = [
    shlex.split(command.replace("\\\n", " "))[4:]
    for command in re.findall(
        r"^    (uv run python pipelines/sweep\.py (?:.*\\\n)*.*)$",
        (DOCS / "sweeps.md").read_text(),
        re.MULTILINE,
    )
    if "--resume" not in command
]


@pytest.mark.parametrize("out", [[], ["--out", "runs/x"]])
@pytest.mark.parametrize("arguments", README_SEARCHES, ids=lambda arguments: " ".join(arguments)[:40])
def test_the_readmes_searches_are_plans(home: Path, arguments: list[str], out: list[str]) -> None:
    options, settings = parse_with_settings(SpaceOptions, [*arguments, *out], "ray-atr sweep")
    experiment = override(start_of(options, settings), settings)
    plan = plan_search(options, experiment)
    check_plan(plan, experiment)
    assert plan.num_points == options.trials


@pytest.mark.parametrize(
    ("space", "search", "trials", "got"),
    [
        (("model.text.width=grid(32,36)", "model.text.num_heads=grid(4,8)"), "grid", None, "8; .*the width, 36"),
        # Both ends can be divided by the four heads.
        (("model.text.width=randint(8,40)",), "random", 3, "4; .*the width, "),
    ],
)
def test_values_that_do_not_go_together_are_refused_before_the_first_trial(
    home: Path, space: tuple[str, ...], search: str, trials: int | None, got: str
) -> None:
    experiment = RECIPES["from_scratch"]()
    plan = plan_search(SpaceOptions(space=space, search=search, trials=trials, seeds=(0,)), experiment)
    with pytest.raises(ValueError, match=f"model.text.num_heads: got {got}"):
        check_plan(plan, experiment)
    if search == "random":
        # What an adaptive search will propose is not known.
        check_plan(plan_search(SpaceOptions(space=space, search="optuna", trials=3), experiment), experiment)


def test_the_readme_has_searches() -> None:
    assert len(README_SEARCHES) >= 3


SEARCH = SpaceOptions(space=(MASS,), search="optuna", trials=5, seeds=(0,), maximize=("text_to_audio/eng/recall_at_1",))


def searched(home: Path) -> RunFolder:
    experiment = override(RECIPES["quickstart"](), {"objective": "m_ltm_pot"})
    info = {"name": "sweep", **describe_plan(plan_search(SEARCH, experiment)), "code": code_version()}
    return RunFolder.create(home / "run", experiment, info)


def test_a_search_goes_on_as_it_began_and_takes_more_trials_and_seeds(home: Path) -> None:
    run = searched(home)
    again = plan_search(SpaceOptions(trials=9, seeds=(1,)), run.experiment, run)
    assert again == replace(plan_search(SEARCH, run.experiment), num_points=9, seeds=(0, 1))
    write_json(run.path / "sweep.json", {**run.info, "seeds": [3]})
    for given, seeds in (([], (3,)), (["--seeds", "0"], (0, 3))):
        options, _ = parse_with_settings(SpaceOptions, ["--resume", str(run.path), *given], "ray-atr sweep")
        assert plan_search(options, run.experiment, run).seeds == seeds


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--search", "random"], "--search: got 'random'; allowed optuna with --resume, as in the run folder"),
        (["--space", "objective.pair.transport_mass=uniform(0.4,1)"], "the one of the run folder"),
        (["--minimize", "seconds/train"], "as in the run folder"),
        (["--scheduler", "asha"], "allowed none with --resume"),
        (["--train.epochs", "9"], "train.epochs is 10 there and 9 here"),
    ],
)
def test_another_search_is_refused_on_resume(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    run = searched(home)
    assert words in error_of("sweep", ["--resume", str(run.path), *arguments], capsys)


def test_a_search_that_is_not_registered_is_named_on_resume(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = searched(home)
    run.update_info(search="bayes")
    assert "--search: got 'bayes'; allowed one of grid, " in error_of("sweep", ["--resume", str(run.path)], capsys)


def test_other_code_is_said_and_can_be_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = searched(home)
    write_json(run.path / "sweep.json", {**run.info, "code": {**run.info["code"], "ray": "2.0.0"}})
    open_run(str(run.path), "sweep")
    assert "ray was 2.0.0, is" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"run by other code \(ray was 2\.0\.0"):
        open_run(str(run.path), "sweep", same_code=True)


def at(objective: str, ratio: float, *seeds: int) -> list[dict[str, object]]:
    return [{"objective": objective, "data.noise.ratio": ratio, "seed": seed} for seed in seeds]


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        ([], []),
        (["--objectives", "m_ltm", "--noise", "0.2"], at("m_ltm", 0.2, 0, 5)),
        # What is not given is the folder's, and not the default.
        (["--objectives", "m_ltm"], at("m_ltm", 0.3, 0, 5)),
        (["--noise", "0", "0.3"], at("kcl", 0.0, 0, 5)),
        (["--objectives", "m_ltm", "--seeds", "4"], at("m_ltm", 0.3, 4)),
        (["--seeds", "0", "4"], at("kcl", 0.3, 4)),
        # The defaults, given.
        (["--seeds", "0", "1", "2"], at("kcl", 0.3, 1, 2)),
        (
            ["--noise", "0", "0.2", "0.4", "0.6"],
            [point for ratio in (0.0, 0.2, 0.4, 0.6) for point in at("kcl", ratio, 0, 5)],
        ),
    ],
)
def test_resume_goes_on_with_the_points_of_the_folder_and_those_that_are_added(
    home: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], added: list[dict[str, object]]
) -> None:
    points = at("kcl", 0.3, 0, 5)
    plan = SweepPlan(FixedPoints(points))
    info = {**describe_plan(plan), **kept_options(NoiseSweep(objectives=("kcl",), noise=(0.3,), seeds=(0, 5)), {})}
    run = RunFolder.create(home / "run", RECIPES["quickstart"](), {"name": "sweep_noise", **info})
    plans = []
    replace_work(monkeypatch, {"cli.running.run_plan": lambda *given, **_: plans.append(given[3])})
    main("sweep", "noise", arguments=["--resume", str(run.path), *arguments])
    assert plans[0](run.experiment, run).search.points == [*points, *added]


def test_a_comparison_continues_with_all_values_that_it_was_given(tmp_path: Path) -> None:
    first = NoiseSweep(objectives=("kcl",), noise=(0.0, 0.4)).added_to({})
    assert first == {"objectives": ["kcl"], "noise": [0.0, 0.4]}
    second = NoiseSweep(objectives=("m_ltm",))
    continued = second.continuing(first)
    assert (continued.objectives, continued.noise) == (("m_ltm",), (0.0, 0.4))
    both = second.added_to(first)
    assert both == {"objectives": ["kcl", "m_ltm"], "noise": [0.0, 0.4]}
    assert NoiseSweep(noise=(0.6,)).continuing(both).objectives == ("kcl", "m_ltm")
    file = str(tmp_path / "tuned.json")
    write_json(Path(file), {"oracle": {}})
    tuned = CorrespondenceSweep(tuned=file).added_to({})
    assert CorrespondenceSweep(methods=("oracle",)).continuing(tuned).tuned == file


def test_a_table_of_a_knowledge_base_is_added_to_a_grid_and_a_grid_to_a_table() -> None:
    grid = KnowledgeSweep(neighbours=(3,), injection_ratio=(0.3,)).added_to({})
    assert KnowledgeSweep(table="ablation").continuing(grid).points() == TABLES["ablation"]
    assert KnowledgeSweep(neighbours=(7,)).continuing(grid).points() == [
        NOTHING,
        ask(neighbours=7, injection_ratio=0.3),
    ]
    # A table or figure in between leaves the grid as it was.
    between = KnowledgeSweep(figure="lag").added_to(grid)
    assert KnowledgeSweep(neighbours=(7,)).continuing(between).points() == [
        NOTHING,
        ask(neighbours=7, injection_ratio=0.3),
    ]
    table = KnowledgeSweep(table="ablation").added_to({})
    assert KnowledgeSweep(neighbours=(7,), injection_ratio=(0.3,)).continuing(table).points() == [
        NOTHING,
        ask(neighbours=7, injection_ratio=0.3),
    ]


COMPARISONS_CUT_SHORT = {
    "noise": ["--objectives", "kcl", "m_ltm", "--noise", "0", "0.4"],
    "objectives": ["--schemes", "kcl", "--pairs", "contrastive", "m_ltm"],
    "transport": ["--masses", "0.9", "auto", "--noise", "0.4"],
    "knowledge": ["--neighbours", "1", "5", "--injection-ratio", "0.2"],
    "correspondence": ["--methods", "contrastive", "small_loss", "--noise", "0", "0.4"],
}


@pytest.mark.parametrize("comparison", COMPARISONS_CUT_SHORT)
def test_a_comparison_interrupted_before_its_first_trial_is_resumed_whole(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], comparison: str
) -> None:
    swept: list[SweepPlan] = []

    def interrupted(run: RunFolder, plan: SweepPlan, *_: object, **__: object) -> None:
        swept.append(plan)
        raise KeyboardInterrupt

    replace_work(monkeypatch, {"cli.running.sweep": interrupted})
    place = str(home / "run")
    told = ["--tracking.mlflow", "false", *COMPARISONS_CUT_SHORT[comparison], "--seeds", "0", "1", "--out", place]
    for arguments in (told, ["--resume", place, "--recipe", "quickstart"]):
        with pytest.raises(SystemExit) as exit_:
            main("sweep", comparison, arguments=arguments)
        assert exit_.value.code == 130
        assert f"--resume {place}" in capsys.readouterr().err
        described = RunFolder.open(place).info
        assert len(described["points"]) >= 4
        assert not list(RunFolder.open(place).trials())
    first, second = swept
    assert first.search.points == second.search.points
    assert first.fixed == second.fixed
    assert described["space"] == describe_plan(first)["space"]
    error = error_of(f"sweep {comparison}", ["--resume", place, "--recipe", "vectors"], capsys)
    assert f"--recipe: got 'vectors'; allowed quickstart with --resume: {place} holds its settings" in error
    assert len(swept) == 2


def test_a_run_folder_without_points_is_refused_and_stays_as_it_is(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder.create(home / "run", RECIPES["quickstart"](), {"name": "sweep_noise", "points": []})
    before = (run.path / "sweep.json").read_bytes()
    assert "sweep.json: points: got []; allowed the points" in error_of(
        "sweep noise", ["--resume", str(run.path)], capsys
    )
    assert (run.path / "sweep.json").read_bytes() == before


def test_an_empty_data_folder_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "empty").mkdir()
    assert "no data set" in error_of("sweep noise", ["--data.source", str(home / "empty")], capsys)


def test_a_language_that_the_data_lacks_is_named_with_the_remedy(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_data(home / "tones")
    wanted = ["--data.source", str(home / "tones"), "--data.languages", "en,fr,deu,kor"]
    error = error_of("sweep noise", wanted, capsys)
    assert "deu, kor not in" in error
    assert "--data.languages eng,fra" in error


def test_a_split_that_the_data_lack_names_the_nearest(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_data(home / "tones")
    error = error_of("train", ["--data.source", str(home / "tones"), "--data.train_split", "trian"], capsys)
    assert "data.train_split: got 'trian'" in error
    assert "(did you mean train?)" in error


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_run_folder_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.chmod(0o500)
    assert "cannot be written" in error_of("sweep noise", ["--out", str(home / "run")], capsys)


def test_a_run_folder_below_a_file_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "file").write_text("")
    error = error_of("sweep noise", ["--out", str(home / "file" / "run")], capsys)
    assert "the run folder cannot be written" in error


def test_the_run_folder_of_another_experiment_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = {"name": "sweep_noise", "varied": [], "seeds": [0], "command": "ray-atr sweep noise --seeds 0"}
    run = RunFolder.create(home / "run", RECIPES["quickstart"](), info)
    before = sorted(path.name for path in run.path.rglob("*"))
    error = error_of("sweep noise", ["--resume", str(run.path), "--train.epochs", "3"], capsys)
    assert "the run of another experiment; train.epochs is 10 there and 3 here" in error
    # A folder of before, which does not say its recipe.
    error = error_of("sweep noise", ["--resume", str(run.path), "--recipe", "quickstart"], capsys)
    assert "--recipe: got 'quickstart'; allowed nothing with --resume" in error
    error = error_of("train", ["--resume", str(run.path)], capsys)
    assert "a run of sweep_noise, not of train; it was begun by ray-atr sweep noise --seeds 0" in error
    error = error_of("sweep noise", ["--out", str(run.path)], capsys)
    assert f"a run folder already; continue it with --resume {run.path}" in error
    assert sorted(path.name for path in run.path.rglob("*")) == before


def test_what_a_comparison_refuses_is_refused_before_its_methods_are_tuned(
    home: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    index = tmp_path_factory.mktemp("elsewhere") / "index.npy"
    np.save(index, np.arange(1200))
    arguments = ["--methods", "small_loss", "--tune", "2", "--noise", "0.4", "--out", str(home / "run")]
    error = error_of("sweep correspondence", [*arguments, "--data.noise.index", str(index)], capsys)
    assert "data.noise.ratio: got 0.4; allowed 0.0 with data.noise.index" in error
    assert "--concurrency: got 0" in error_of("sweep correspondence", [*arguments, "--concurrency", "0"], capsys)
    assert list(home.iterdir()) == []
    RunFolder.create(home / "run", RECIPES["quickstart"](), {"name": "sweep_correspondence"})
    error = error_of("sweep correspondence", arguments, capsys)
    assert "run'; allowed a new folder with --tune; --resume continues this one" in error
    assert not (home / "run-tuning").exists()


def test_tuned_methods_are_not_tuned_again(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "tuned.json", {"small_loss": {"train.learning_rate": 0.001}})
    arguments = ["--methods", "small_loss", "--tune", "2", "--tuned", str(tmp_path / "tuned.json")]
    assert "--tune: got 2; allowed no --tune with --tuned" in error_of("sweep correspondence", arguments, capsys)


def test_an_estimate_tunes_nothing_and_counts_the_tuning(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    estimated = MagicMock()
    replace_work(monkeypatch, {"cli.running.estimate": estimated})
    arguments = ["--methods", "small_loss", "--tune", "3", "--noise", "0.4", "--seeds", "0", "1", "--estimate"]
    main("sweep", "correspondence", arguments=arguments)
    points = estimated.call_args.args[1].search.points
    assert [point["data.noise.ratio"] for point in points] == [0.4, 0.4, 0.5, 0.5, 0.5]
    assert list(home.iterdir()) == []


def test_a_tuning_of_another_experiment_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--methods", "small_loss", "--tune", "2", "--noise", "0.4", "--out", str(home / "run")]
    before = override(RECIPES["quickstart"](), {**METHODS["small_loss"], "data.noise.ratio": 0.5, "train.epochs": 3})
    RunFolder.create(home / "run-tuning" / "small_loss", with_languages(before), {"name": "tuning"})
    error = error_of("sweep correspondence", [*arguments, "--ray", "never"], capsys)
    assert "run-tuning/small_loss: the run of another experiment; " in error
    assert "train.epochs is 3 there and 10 here" in error


def test_a_tuning_in_which_nothing_finished_says_why(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "small_loss", RECIPES["quickstart"](), {"name": "tuning"})
    for seed in (0, 1):
        run.add_trial({"seed": seed}).update(status=FAILED, error="out of memory")
    with pytest.raises(ValueError, match=r"small_loss: no trial of small_loss has finished \(out of memory\)$"):
        best_point(run, Goal("text_to_audio/mean/recall_at_1"), "small_loss")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "sweep noise"])
@pytest.mark.parametrize("source", ["soundscapes", "tones"])
def test_a_noise_index_that_does_not_fit_is_refused_before_anything_starts(
    home: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str], command: str, source: str
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    count = 1200 if source == "soundscapes" else 24
    if source == "tones":
        source = str(make_data(elsewhere / "tones", num_train=count))
    index = elsewhere / "index.npy"
    arguments = ["--data.source", source, "--data.noise.index", str(index), "--train.batch_size", "8"]
    arguments += ["--noise", "0"] if command == "sweep noise" else []
    assert "this one is not there" in error_of(command, arguments, capsys)
    for content, words in (
        (np.arange(count - 1), f"of {count - 1} entries'; allowed {count}"),
        (np.full(count, count), f"row 0: got {count}; allowed a clip's number below"),
        (np.zeros(count), "of float64'; allowed integers"),
    ):
        np.save(index, content)
        assert words in error_of(command, arguments, capsys)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "sweep noise"])
def test_a_run_goes_on_with_ray_or_without_it_as_it_was_last_run(
    home: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    used: list[bool] = []

    def interrupted(*_: object, use_ray: bool, **__: object) -> None:
        used.append(use_ray)
        raise KeyboardInterrupt

    replace_work(monkeypatch, {"cli.running.sweep": interrupted})
    place = str(home / "run")
    for how in (["--out", place, "--ray", "never"], [], ["--ray", "always"], [], ["--ray", "never"], []):
        resumed = [] if "--out" in how else ["--resume", place]
        with pytest.raises(SystemExit):
            main(*command.split(), arguments=["--tracking.mlflow", "false", *resumed, *how])
    assert used == [False, False, True, True, False, False]


def test_a_comparison_that_is_added_to_twice_keeps_what_was_added(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_work(monkeypatch, {"cli.running.sweep": Mock(side_effect=KeyboardInterrupt)})
    place = str(home / "run")
    first = ["--out", place, "--objectives", "kcl", "--noise", "0.4", "--seeds", "3", "--tracking.mlflow", "false"]
    for arguments in (
        first,
        *(["--resume", place, *added] for added in (["--objectives", "m_ltm"], ["--noise", "0.1"])),
    ):
        with pytest.raises(SystemExit):
            main("sweep", "noise", arguments=[*arguments, "--ray", "never"])
    info = RunFolder.open(place).info
    assert info["options"] == {"objectives": ["kcl", "m_ltm"], "noise": [0.4, 0.1]}
    assert info["points"] == [
        point for ratio in (0.4, 0.1) for objective in ("kcl", "m_ltm") for point in at(objective, ratio, 3)
    ]


def test_a_run_goes_on_with_its_data_set_where_that_is_now(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, other = make_data(home / "tones"), make_data(home / "others", num_train=25)
    settings = {"data.source": str(source), "model.text": "vectors", "model.text.data": str(source)}
    experiment = override(RECIPES["quickstart"](), settings)
    run = RunFolder.create(home / "run", experiment, {"name": "train"})
    moved = str(source.rename(home / "elsewhere"))
    # It was stopped before it had read any data.
    with pytest.raises(ValueError, match=rf"data\.source is '{source}' there and '{moved}' here"):
        resumed_experiment(run, {"data.source": moved})
    run.update_info(data={"name": "tones", "hash": read_manifest(moved).hash})
    resumed = resumed_experiment(run, {"data.source": moved, "scaling.workers": "0"})
    assert resumed == override(experiment, {"data.source": moved, "model.text.data": moved, "scaling.workers": "0"})
    assert deciding_settings(resumed) == deciding_settings(experiment)
    assert deciding_settings(resumed) != deciding_settings(override(resumed, {"data.noise.ratio": 0.2}))
    with pytest.raises(ValueError, match=r"the run of another experiment; train\.epochs is"):
        resumed_experiment(run, {"data.source": moved, "train.epochs": "3"})
    error = error_of("train", ["--resume", str(run.path), "--data.source", str(other)], capsys)
    assert (
        f"data.source: got '{other} (hash {read_manifest(other).hash[:16]})'; allowed the data set of {run.path}"
        in error
    )
