"""Run folders in which a preset or a pair loss meant another metric still resolve to what ran, and are resumed as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ray_atr.migrate import FORMAT, migrated_run
from ray_atr.recipes import RECIPES
from ray_atr.run_folder import RunFolder, make_trial_id
from ray_atr.storage import read_json, write_json
from ray_atr.sweep import FixedPoints, SweepPlan
from ray_atr.sweep.trial_queue import TrialQueue, recorded_points

POINTS = [{"objective": name, "seed": 0} for name in ("contrastive", "m_ltm", "m_ltm_pot")]


@pytest.fixture
def former(tmp_path: Path) -> RunFolder:
    """A run folder as the version before wrote it: nothing says a format."""
    run = RunFolder.create(
        tmp_path / "run", RECIPES["quickstart"](), {"name": "sweep_noise", "varied": ["objective", "seed"]}
    )
    for point in POINTS:
        run.add_trial(point)
    for file in (run.path / "sweep.json", *run.path.glob("trials/*/trial.json")):
        content = json.loads(file.read_text())
        assert content.pop("format") == FORMAT
        content.pop("digest")
        file.write_text(json.dumps(content))
    return run


def metrics_of(run: RunFolder) -> dict[str, str | None]:
    return {trial.trial_id: getattr(run.experiment_of(trial).objective.pair, "metric", None) for trial in run.trials()}


def test_a_former_trial_is_what_it_was(former: RunFolder) -> None:
    metrics = metrics_of(former)
    assert [metrics[make_trial_id(point)] for point in POINTS] == [None, "factored", "factored"]


def test_a_former_sweep_is_resumed_in_its_own_folders(former: RunFolder) -> None:
    before = sorted(path.name for path in (former.path / "trials").iterdir())
    plan = SweepPlan(FixedPoints(recorded_points(former, without_seed=False)))
    assert sorted(trial.trial_id for trial in TrialQueue(former, plan, lambda point: None).trials) == before
    assert sorted(path.name for path in (former.path / "trials").iterdir()) == before
    # What was updated on the way still means the same.
    assert set(metrics_of(former).values()) == {None, "factored"}


def test_a_new_trial_is_todays(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", RECIPES["quickstart"](), {"name": "sweep_noise"})
    for point in POINTS:
        run.add_trial(point)
    assert set(metrics_of(run).values()) == {None, "mahalanobis"}


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        ("choice(contrastive,m_ltm,m_ltm_pot)", "choice(contrastive,m_ltm_factored,m_ltm_pot_factored)"),
        (["contrastive", "m_ltm"], ["contrastive", "m_ltm_factored"]),
    ],
)
def test_a_former_space_is_what_it_was(space: object, expected: object) -> None:
    assert migrated_run({"space": {"objective": space, "seed": [0]}}, {})["space"] == {
        "objective": expected,
        "seed": [0],
    }
    assert migrated_run({"space": {"objective": space}, "format": FORMAT}, {})["space"] == {"objective": space}


PAIRS = [
    {"objective.scheme": "kcl", "objective.pair": pair, "seed": 0} for pair in ("contrastive", "learning_to_match")
]
EUCLIDEAN = {"objective.pair.metric": "euclidean"}


def of_format_2(run: RunFolder, points: Sequence[Mapping[str, Any]]) -> RunFolder:
    """The run with trials at the points, when a pair loss by its own name was Euclidean."""
    for point in points:
        run.add_trial(point)
    for file in (run.path / "sweep.json", *run.path.glob("trials/*/trial.json")):
        write_json(file, {**read_json(file), "format": 2})
    return run


@pytest.mark.parametrize("pairs", ["grid(contrastive,learning_to_match)", ["contrastive", "learning_to_match"]])
def test_a_pair_loss_of_its_own_name_stays_euclidean_and_is_resumed(tmp_path: Path, pairs: object) -> None:
    info = {"name": "sweep", "space": {"objective.pair": pairs}, "varied": ["objective.scheme", "objective.pair"]}
    run = of_format_2(RunFolder.create(tmp_path / "run", RECIPES["quickstart"](), info), PAIRS)
    assert set(metrics_of(run).values()) == {None, "euclidean"}
    assert {trial.describe()["name"] for trial in run.trials()} == {"kcl+contrastive seed=0", "kcl+ltm seed=0"}
    for trial in run.trials():
        trial.update(status="pending")
    assert run.info["fixed"] == EUCLIDEAN
    before = sorted(path.name for path in (run.path / "trials").iterdir())
    # As it was run, and with a point that is added.
    for points in (recorded_points(run, without_seed=False), [*PAIRS, {**PAIRS[1], "seed": 1}]):
        queue = TrialQueue(run, SweepPlan(FixedPoints(points), fixed=run.info["fixed"]), lambda point: None)
        metrics = {
            trial.trial_id: getattr(run.experiment_of(trial).objective.pair, "metric", None) for trial in queue.trials
        }
        assert {None, "euclidean"} == set(metrics.values())
        assert set(before) <= set(metrics)
        assert len(set(metrics) - set(before)) == len(points) - len(PAIRS)


def test_a_new_trial_of_a_pair_losses_own_name_has_the_papers_metric(tmp_path: Path) -> None:
    run = RunFolder.create(
        tmp_path / "run", RECIPES["quickstart"](), {"name": "sweep", "space": {"objective.pair": "x"}}
    )
    for point in PAIRS:
        run.add_trial(point)
    assert set(metrics_of(run).values()) == {None, "mahalanobis"}
    assert "fixed" not in run.info


@pytest.mark.parametrize(
    ("overrides", "metric"),
    [
        ({"objective.pair": "learning_to_match"}, "mahalanobis"),
        ({"objective.pair": "partial_learning_to_match"}, "euclidean"),
        ({"objective.pair": "learning_to_match", "objective.pair.metric": "diagonal"}, "diagonal"),
        ({"objective": "kcl", "objective.pair": "learning_to_match"}, "euclidean"),
        ({"objective": "m_ltm_factored", "objective.pair": "learning_to_match"}, "factored"),
        ({"objective": "m_ltm_pot", "objective.pair": "learning_to_match"}, "euclidean"),
        ({"objective": "m_ltm_pot"}, "mahalanobis"),
    ],
)
def test_a_former_choice_that_changed_nothing_still_does_not(
    tmp_path: Path, overrides: dict[str, Any], metric: str
) -> None:
    """The experiment's own pair loss is the paper's already."""
    base = RECIPES["audiocaps_resnet38_bert_m_ltm"]()
    info = {"name": "sweep", "space": {"objective.pair": "grid(contrastive,learning_to_match)"}}
    run = of_format_2(RunFolder.create(tmp_path / "run", base, info), [overrides])
    assert list(metrics_of(run).values()) == [metric]
    assert "fixed" not in run.info
