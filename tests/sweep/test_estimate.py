"""What a sweep is said to take before it starts: which trials are measured, and what their parts add up to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from upath import UPath

from ray_atr.cli.experiment_options import SweepOptions
from ray_atr.cli.running import run_plan
from ray_atr.common.override import override
from ray_atr.common.progress import silent
from ray_atr.common.storage import is_local
from ray_atr.sweep import SEARCHES, FixedPoints, Goal, SweepPlan
from ray_atr.sweep import estimate as estimating
from ray_atr.sweep.estimate import duration, estimate, kind_of
from ray_atr.sweep.space import Space
from ray_atr.training import trial_cost
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import prepare
from ray_atr.training.knowledge_base.refresher import KEEP
from ray_atr.training.run_folder import RunFolder
from ray_atr.training.trial_cost import Spent, TrialCost, measure_trial
from tests.support.spies import spied
from tests.support.tiny import tiny


def test_parts_are_added_as_often_as_a_trial_does_them(home: Path) -> None:
    names = ["start", "step", "first refresh", "epoch's begin", "epoch's end", "validation", "checkpoint", "end"]
    cost = TrialCost(7, parts={name: Spent(10.0**place, 1.0) for place, name in enumerate(names)})
    experiment = tiny(
        home / "tones", train__epochs=5, evaluation__every_epochs=2, train__checkpoint_every_steps=3,
        objective="ask", objective__knowledge__refresh_every_epochs=2,
    )  # fmt: skip
    # Validated after epochs 2, 4 and 5; refreshed before 1, 3 and 5; checkpoints after steps 3, 6 and 7 of 7.
    times = [1, 7 * 5, 3, 5, 5, 3, 3 * 5, 1]
    assert cost.total(experiment).cpu == sum(number * 10.0**place for place, number in enumerate(times))
    assert cost.total(experiment).wall == sum(times)


def test_trials_that_cost_the_same_are_measured_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[str, float]] = []

    def measure(experiment: Any, home: Path, folder: Path) -> TrialCost:
        if experiment.objective.pair.name == "triplet":
            raise ValueError("no such thing")
        measured.append((experiment.objective.pair.name, experiment.data.noise.ratio))
        seconds = {"contrastive": 1.0, "sigmoid": 3.0}[experiment.objective.pair.name]
        return TrialCost(2, 4, {"step": Spent(seconds, seconds)}, disk=1000, memory=10**9)

    monkeypatch.setattr(estimating, "measure_trial", measure)
    base = tiny(home / "tones", train__epochs=3)
    points = [
        {"objective.pair": pair, "data.noise.ratio": noise, "seed": seed}
        for pair in ("contrastive", "sigmoid", "triplet")
        for noise in (0.0, 0.4)
        for seed in (0, 1)
    ]
    found = estimate(base, SweepPlan(FixedPoints(points)), home, tmp_path, echo=lambda line: None)
    assert measured == [("contrastive", 0.0), ("sigmoid", 0.0)]
    assert found.failed == ["triplet noise=0 seed=0: no such thing"]
    # Two steps an epoch, three epochs; a triplet trial costs what the first measured kind does.
    assert found.spent == Spent(4 * 6 * 1.0 + 4 * 6 * 3.0 + 4 * 6 * 1.0, 120.0)
    said = "\n".join(found.lines(base))
    assert "estimate for 12 trials (2 of 3 kinds of trial measured, by 4 steps or more)" in said
    assert "CPU time  2.0 minutes; a trial 6.0 s to 18 s" in said
    assert "12.0 kB in the run folder" in said
    assert "would fail: triplet noise=0 seed=0: no such thing" in said
    with monkeypatch.context() as machine:
        machine.setattr("torch.cuda.is_available", lambda: True)
        for workers, is_said in (("auto", True), (0, False)):
            said = "\n".join(found.lines(override(base, {"scaling.workers": workers})))
            assert ("the run trains on the GPU" in said) == is_said
    space = Space.parse(["train.learning_rate=loguniform(1e-4,1e-2)"], base)
    search = SEARCHES["optuna"](space, (Goal("text_to_audio/eng/recall_at_1"),), 0)
    found = estimate(base, SweepPlan(search, (0, 1), num_points=100), home, tmp_path, echo=lambda line: None)
    assert found.num_trials == 200
    assert found.spent.cpu == pytest.approx(200 * 6)
    few = SEARCHES["random"](Space.parse(["train.learning_rate=choice(0.01,0.001)"], base), (), 0)
    found = estimate(base, SweepPlan(few, (0, 1), num_points=100), home, tmp_path, echo=lambda line: None)
    assert (found.num_trials, found.spent.cpu) == (4, pytest.approx(4 * 6))


def test_a_measured_trial_is_that_trial_and_leaves_nothing(home: Path, tmp_path: Path) -> None:
    base = tiny(home / "tones", train__epochs=3, train__batch_size=4, data__test_split="test")
    plan = SweepPlan(FixedPoints([{"seed": 0}]))
    (home / "data").mkdir(exist_ok=True)
    before = {path for path in home.rglob("*") if "cache" not in path.parts}
    said: list[str] = []
    found = estimate(base, plan, home, tmp_path, echo=said.append)
    (cost,) = found.costs
    assert 1 <= cost.steps_measured <= cost.steps_per_epoch == 6
    assert set(cost.parts) == {"start", "step", "epoch's begin", "epoch's end", "validation", "checkpoint", "end"}
    assert cost.parts["step"].cpu > 0
    assert cost.memory > 10**8
    folder = tmp_path / "measured"
    folder.mkdir()
    assert abs(measure_trial(base, home, folder).disk - cost.disk) < 0.01 * cost.disk
    assert (folder / "last" / "state.pt").is_file()
    assert (folder / "best").is_dir()
    assert {path for path in home.rglob("*") if "cache" not in path.parts} == before


def test_trials_share_the_weights_of_frozen_towers_on_the_disk_of_the_home(home: Path, tmp_path: Path) -> None:
    frozen = {"model__audio__adapt__is_frozen": True, "model__text__adapt__is_frozen": True}
    base, plan = tiny(home / "tones", train__epochs=1, **frozen), SweepPlan(FixedPoints([{"seed": 0}]))
    weights = sum(
        file.stat().st_size for file in prepare(base, home, use_ray=False, echo=silent).frozen_weights.values()
    )
    disk = {}
    for place in (tmp_path / "runs" / "new", UPath("memory://runs/new")):
        (disk[is_local(place)],) = estimate(base, plan, home, place, echo=silent).disk
    assert weights > 10_000
    assert disk[True] == pytest.approx(disk[False] - weights, abs=2000)


def test_a_loss_is_measured_in_the_memory_that_it_may_take(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[WorkerGroup] = []
    spied(monkeypatch, trial_cost, "TrainingData", lambda _, experiment, prepared, group: groups.append(group))
    measure_trial(tiny(home / "tones", train__epochs=1, scaling__loss_memory=0.5), home, tmp_path / "measured")
    assert [group.loss_bytes for group in groups] == [2.0**29]


def test_as_many_versions_of_a_base_are_on_the_disk_as_a_trial_leaves(home: Path, tmp_path: Path) -> None:
    disk = {}
    for every in (0, 1, 4):
        refreshed = {"objective": "ask", "objective__knowledge__refresh_every_epochs": every}
        folder = tmp_path / str(every)
        experiment = tiny(home / "tones", train__epochs=5, **refreshed)
        disk[every] = measure_trial(experiment, home, folder).disk_of(experiment)
    version = sum(file.stat().st_size for file in (folder / "knowledge").rglob("*") if file.is_file())
    assert [round((disk[every] - disk[0]) / version) for every in (1, 4)] == [KEEP - 1, 1]


def test_each_epoch_of_each_trial_keeps_its_weights(home: Path, tmp_path: Path) -> None:
    """Trials that differ in their epochs are of one kind, which is measured once."""
    base = tiny(home / "tones", train__keep_trajectory=True)
    plan = SweepPlan(FixedPoints([{"train.epochs": epochs} for epochs in (1, 2, 12)]))
    found = estimate(base, plan, home, tmp_path / "run", echo=silent)
    first, second, last = found.disk
    assert len(found.costs) == 1
    assert last - first == 11 * (second - first) > 0


def test_what_costs_the_same() -> None:
    from ray_atr.training.experiment import Experiment

    first = Experiment()
    for path, value in {"seed": 3, "data.noise.ratio": 0.4, "train.learning_rate": 0.1, "train.epochs": 9}.items():
        assert kind_of(override(first, {path: value})) == kind_of(first), path
    others: dict[str, Any] = {"train.batch_size": 8, "objective": "kcl", "model.embedding_width": 64}
    for path, value in others.items():
        assert kind_of(override(first, {path: value})) != kind_of(first), path


def test_a_resumed_sweep_is_not_estimated(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", tiny(tmp_path), {"name": "train"})
    options = SweepOptions(estimate=True, resume=str(run.path))
    with pytest.raises(ValueError, match=r"--estimate: got .*allowed only without --resume"):
        run_plan("train", options, {}, lambda *_: SweepPlan(FixedPoints([{}])), {}, echo=print)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(4.2, "4.2 s"), (42.4, "42 s"), (90, "1.5 minutes"), (5400, "1.5 hours"), (9e6, "2,500.0 hours")],
)
def test_time_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
