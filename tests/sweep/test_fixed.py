"""What is set explicitly, or by a recipe, is what runs in every point that has the setting; nothing is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ray_atr.cli import running
from ray_atr.cli.comparisons import KnowledgeSweep, NoiseSweep, ObjectivesSweep, TransportSweep
from ray_atr.cli.experiment_options import ComparisonSweep, SpaceOptions
from ray_atr.cli.running import plan_points, plan_search, resumed_settings, values_of, varied_by, varied_in
from ray_atr.cli.sweep import COMPARISONS
from ray_atr.cli.train import TrainOptions
from ray_atr.common.override import flatten, override
from ray_atr.sweep import FixedPoints, SweepPlan
from ray_atr.sweep.describe import check_plan, conditions_of, describe_plan
from ray_atr.sweep.fixed import set_by_recipe, split_settings
from ray_atr.sweep.trial_queue import TrialQueue, recorded_trials
from ray_atr.training.experiment import Experiment
from ray_atr.training.recipes import RECIPES
from ray_atr.training.run_folder import RunFolder
from tests.support.commands import replace_work

QUICKSTART = RECIPES["quickstart"]()


def planned(
    options: ComparisonSweep, settings: dict[str, str], recipe: Experiment = QUICKSTART
) -> tuple[Experiment, SweepPlan]:
    """The experiment and the checked plan of a comparison with settings, as the command makes them."""
    varied = values_of(options)
    own, explicit = split_settings(settings, varied)
    experiment = override(recipe, own)
    plan = SweepPlan(plan_points(options, None).search, fixed={**set_by_recipe(recipe, varied), **explicit})
    check_plan(plan, experiment, explicit)
    return experiment, plan


def what_runs(
    options: ComparisonSweep, settings: dict[str, str], recipe: Experiment = QUICKSTART
) -> list[dict[str, Any]]:
    """The whole settings of each point."""
    experiment, plan = planned(options, settings, recipe)
    points = plan.search.points
    return [flatten(override(experiment, plan.overrides(experiment, point))) for point in points]


NOISE = NoiseSweep(objectives=("contrastive", "m_ltm", "m_ltm_pot"), noise=(0.2,), seeds=(0,))


@pytest.mark.parametrize(
    ("path", "typed", "held", "having"),
    [
        ("objective.scheme", "kcl", "kcl", [True, True, True]),
        ("objective.knowledge", "ask", "ask", [True, True, True]),
        ("objective.pair.temperature", "0.1", 0.1, [True, False, False]),
        ("objective.pair.epsilon", "0.03", 0.03, [False, True, True]),
        ("objective.pair.metric", "diagonal", "diagonal", [False, True, True]),
        ("objective.pair.transport_mass", "0.5", 0.5, [False, False, True]),
        ("objective.pair.detach_maximum", "true", True, [False, True, True]),
        ("train.epochs", "3", 3, [True, True, True]),
        ("model.embedding_width", "24", 24, [True, True, True]),
        ("train.clip_norm", "2.5", 2.5, [True, True, True]),
    ],
)
def test_a_setting_holds_in_every_point_that_has_it(path: str, typed: str, held: Any, having: list[bool]) -> None:
    before = what_runs(NOISE, {})
    after = what_runs(NOISE, {path: typed})
    assert [one.get(path) == held for one in after] == having
    for old, new in zip(before, after, strict=True):
        assert (path in new) == (path in old)
        if path not in new:
            assert old == new


def test_a_setting_below_a_part_that_is_set_too() -> None:
    settings = {"objective.knowledge.neighbours": "3", "objective.knowledge": "ask", "objective.pair.epsilon": "0.04"}
    for one in what_runs(NOISE, settings):
        assert (one["objective.knowledge"], one["objective.knowledge.neighbours"]) == ("ask", 3)
        assert one.get("objective.pair.epsilon", 0.04) == 0.04


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_comparison_applies_what_is_set(name: str) -> None:
    options = COMPARISONS[name]()
    path = {"knowledge": "objective.knowledge.coarse"}.get(name, "objective.pair.detach_maximum")
    value = {"knowledge": False}.get(name, True)
    plain, changed = what_runs(options, {}), what_runs(options, {path: str(value)})
    assert any(path in one for one in plain)
    assert all(one[path] == value for one in changed if path in one)
    assert {path for one in plain for path in one} == {path for one in changed for path in one}


def test_only_some_points_have_it_is_printed() -> None:
    experiment, plan = planned(NOISE, {"objective.pair.epsilon": "0.03"})
    assert conditions_of(plan, experiment) == [
        "objective.pair.epsilon=0.03 holds for m_ltm, m_ltm_pot; contrastive has no such setting"
    ]
    experiment, plan = planned(NOISE, {"objective.scheme": "kcl"})
    assert conditions_of(plan, experiment) == []


@pytest.mark.parametrize(("workers", "gpus", "has_gpu"), [(0, 0, True), (0, 1, True), ("auto", 0, True), (0, 0, False)])
def test_a_gpu_that_is_not_used_is_told(
    workers: int | str, gpus: int, has_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    experiment = override(QUICKSTART, {"scaling.workers": workers, "scaling.gpus_per_worker": gpus})
    lines = conditions_of(SweepPlan(FixedPoints([{"seed": 0}, {"seed": 1}])), experiment)
    told = "trained on the CPU, though this machine has a GPU: --scaling.gpus_per_worker 1 trains on the GPU"
    assert lines == ([told] if (workers, gpus, has_gpu) == (0, 0, True) else [])


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_gpu_that_is_not_there_is_told(
    has_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    replace_work(monkeypatch, {"cli.running.sweep": stop})
    options = TrainOptions(out=str(tmp_path / "run"), ray="never")
    settings = {"scaling.gpus_per_worker": "1", "tracking.mlflow": "false"}
    with pytest.raises(KeyboardInterrupt):
        running.run_plan("train", options, settings, lambda *_: SweepPlan(FixedPoints([{}])), {}, echo=print)
    told = "trained on the CPU: scaling.gpus_per_worker asks for a GPU, and this machine has none"
    assert (told in capsys.readouterr().out) == (not has_gpu)


def test_languages_that_nothing_trains_on_are_named() -> None:
    def said(*schemes: str) -> list[str]:
        # No data set is read without a test split.
        changes = {"data.source": "data/mine", "data.languages": "eng,deu", "data.test_split": "none"}
        mine = override(QUICKSTART, changes)
        return conditions_of(SweepPlan(FixedPoints([{"objective.scheme": one} for one in schemes])), mine)

    (line,) = said("english")
    assert line.startswith("captions in deu are validated alone: objective.scheme=english trains on eng;")
    assert said("ml_clap") == said("english", "ml_clap") == []


@pytest.mark.parametrize(
    ("options", "settings", "words"),
    [
        (NOISE, {"objective.pair.margin": "0.3"}, "objective.pair.margin: no such setting.*No other point"),
        (NOISE, {"objective": "kcl"}, "objective: got 'kcl'; allowed nothing here: this sweep varies it"),
        (NOISE, {"data.noise.ratio": "0.3"}, "data.noise.ratio: got '0.3'.*varies it"),
        (NOISE, {"seed": "3"}, "seed: got '3'.*varies it"),
        (
            NOISE,
            {"objective.pair": "triplet"},
            "contrastive.*and m_ltm.*: the same experiment with objective.pair=triplet",
        ),
        (TransportSweep(), {"objective.pair.epsilon": "0.1"}, "objective.pair.epsilon: got '0.1'.*varies it"),
        (TransportSweep(), {"objective.pair.temperature": "0.1"}, "objective.pair.temperature: no such setting"),
        (KnowledgeSweep(table="ablation"), {"objective.knowledge": "ask"}, "objective.knowledge: got 'ask'.*varies it"),
    ],
)
def test_what_would_not_be_used_is_refused(options: ComparisonSweep, settings: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        planned(options, settings)


def test_a_recipes_own_settings_are_kept() -> None:
    recipe = override(
        RECIPES["audiocaps_resnet38_bert_m_ltm"](),
        {"objective.pair.metric": "diagonal", "objective.pair.epsilon": 0.02},
    )
    varied = values_of(NOISE)
    fixed = set_by_recipe(recipe, varied)
    assert fixed == {"objective.pair.metric": "diagonal", "objective.pair.epsilon": 0.02}
    tree = override(QUICKSTART, {"objective": "m_ltm"})
    assert SweepPlan(plan_points(NOISE, None).search, fixed=fixed).overrides(tree, {"objective": "contrastive"}) == {
        "objective": "contrastive"
    }
    for name in ("m_ltm", "m_ltm_pot"):
        flat = flatten(
            override(tree, SweepPlan(plan_points(NOISE, None).search, fixed=fixed).overrides(tree, {"objective": name}))
        )
        assert (flat["objective.pair.metric"], flat["objective.pair.epsilon"]) == ("diagonal", 0.02)


def test_recipes_that_are_presets_change_nothing() -> None:
    for name, recipe in RECIPES.items():
        fixed = set_by_recipe(recipe(), values_of(NOISE))
        assert "objective.pair" not in fixed, name
        assert "objective.scheme" not in fixed, name
        assert "objective.pair.metric" not in fixed, name


def test_the_command_line_goes_before_the_recipe() -> None:
    recipe = override(QUICKSTART, {"objective": "m_ltm", "objective.pair.epsilon": 0.02})
    runs = what_runs(NOISE, {"objective.pair.epsilon": "0.08"}, recipe)
    assert [one.get("objective.pair.epsilon") for one in runs] == [None, 0.08, 0.08]


def test_objectives_and_noise_mean_the_same_by_m_ltm() -> None:
    noise = what_runs(NoiseSweep(objectives=("m_ltm", "m_ltm_pot"), noise=(0.0,), seeds=(0,)), {})
    objectives = what_runs(ObjectivesSweep(schemes=("english",), pairs=("m_ltm", "m_ltm_pot")), {})
    assert noise == objectives
    assert [one["objective.pair.metric"] for one in noise] == ["mahalanobis", "mahalanobis"]
    euclidean = what_runs(
        NoiseSweep(objectives=("m_ltm_euclidean", "m_ltm_pot_euclidean"), noise=(0.0,), seeds=(0,)), {}
    )
    assert [one["objective.pair.metric"] for one in euclidean] == ["euclidean", "euclidean"]


@pytest.mark.parametrize("order", [1, -1])
def test_an_objective_and_its_settings_come_in_any_order(order: int) -> None:
    settings = dict([("objective", "triplet"), ("objective.pair.mining", "all")][::order])
    assert flatten(override(QUICKSTART, settings))["objective.pair.mining"] == "all"


SPACE = SpaceOptions(space=("objective=choice(contrastive,m_ltm)", "train.learning_rate=loguniform(1e-4,1e-2)"),
                     search="random", trials=4)  # fmt: skip


def searched(home: Path) -> tuple[RunFolder, SweepPlan]:
    own, explicit = split_settings({"objective.pair.epsilon": "0.03", "train.epochs": "2"}, varied_by(SPACE))
    assert (own, explicit) == ({"train.epochs": "2"}, {"objective.pair.epsilon": "0.03"})
    experiment = override(QUICKSTART, own)
    plan = plan_search(SPACE, experiment)
    plan = SweepPlan(plan.search, plan.seeds, plan.num_points, fixed=explicit)
    check_plan(plan, experiment, explicit)
    return RunFolder.create(home / "run", experiment, {"name": "sweep", **describe_plan(plan)}), plan


def test_a_search_applies_what_is_set_below_what_it_chooses(tmp_path: Path) -> None:
    run, plan = searched(tmp_path)
    queue = TrialQueue(run, plan, lambda point: None)
    found = [trial.describe()["overrides"] for trial in queue.trials]
    assert {one["objective"] for one in found} == {"contrastive", "m_ltm"}
    for one in found:
        assert one.get("objective.pair.epsilon") == (0.03 if one["objective"] == "m_ltm" else None)
    # The points that the search is told of are its own.
    assert all("objective.pair.epsilon" not in one.point for one in recorded_trials(run, without_seed=True))
    again = TrialQueue(run, plan, lambda point: None)
    assert [trial.trial_id for trial in again.trials] == [trial.trial_id for trial in queue.trials]


def test_a_resumed_sweep_keeps_what_was_set_and_refuses_another(tmp_path: Path) -> None:
    run, _ = searched(tmp_path)
    assert resumed_settings(run, {}) == {"objective.pair.epsilon": "0.03"}
    assert resumed_settings(run, {"objective.pair.epsilon": "0.03"}) == {"objective.pair.epsilon": "0.03"}
    assert set(varied_in(run)) == {"objective", "train.learning_rate", "seed"}
    with pytest.raises(ValueError, match=r"epsilon is '0\.03' there and '0\.05' here"):
        resumed_settings(run, {"objective.pair.epsilon": "0.05"})
    with pytest.raises(ValueError, match=r"temperature is not set there and '0\.1' here"):
        resumed_settings(run, {"objective.pair.temperature": "0.1"})
