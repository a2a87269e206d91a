"""Run folders in which `m_ltm` was the factored metric still resolve to what ran, and are resumed as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ray_atr.migrate import FORMAT, migrated_run
from ray_atr.recipes import RECIPES
from ray_atr.run_folder import RunFolder, make_trial_id
from ray_atr.sweep import FixedPoints, SweepPlan
from ray_atr.sweep.trial import experiment_of
from ray_atr.sweep.trial_queue import Agenda, recorded_points

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
    return {trial.trial_id: getattr(experiment_of(run, trial).objective.pair, "metric", None) for trial in run.trials()}


def test_a_former_trial_is_what_it_was(former: RunFolder) -> None:
    metrics = metrics_of(former)
    assert [metrics[make_trial_id(point)] for point in POINTS] == [None, "factored", "factored"]


def test_a_former_sweep_is_resumed_in_its_own_folders(former: RunFolder) -> None:
    before = sorted(path.name for path in (former.path / "trials").iterdir())
    plan = SweepPlan(FixedPoints(recorded_points(former, without_seed=False)))
    assert sorted(trial.trial_id for trial in Agenda(former, plan, lambda point: None).trials) == before
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
    assert migrated_run({"space": {"objective": space, "seed": [0]}})["space"] == {"objective": expected, "seed": [0]}
    assert migrated_run({"space": {"objective": space}, "format": FORMAT})["space"] == {"objective": space}
