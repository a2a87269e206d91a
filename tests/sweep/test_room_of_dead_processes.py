"""A trial whose processes are killed leaves the room of its workers to the trials after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ray_atr.sweep import FixedPoints, SweepPlan
from ray_atr.sweep.recording import Recording
from ray_atr.sweep.trial_queue import TrialQueue
from ray_atr.sweep.tune_bridge import _recorder
from ray_atr.training.checks import check_experiment
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import RunFolder
from tests.support.own_ray import wait_until

pytestmark = pytest.mark.ray


@pytest.fixture
def leaders(ray_session: None) -> Iterator[list[Any]]:
    import ray

    class Leader:
        """Takes room for workers, as the process that leads a trial does."""

        def take(self) -> str:
            from ray.util.placement_group import placement_group

            group = placement_group([{"CPU": 0.1}])
            assert group.wait(30)
            return str(group.id.hex())

    made = [ray.remote(num_cpus=0)(Leader).remote() for _ in range(2)]
    yield made
    for leader in made:
        ray.kill(leader)


def test_after_a_failure_the_room_of_a_killed_process_becomes_free(leaders: list[Any], tmp_path: Path) -> None:
    import ray
    from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

    run = RunFolder.create(tmp_path / "run", Experiment(), {"name": "test"})
    failed = SimpleNamespace(config={"trial_id": run.add_trial({"seed": 1}).trial_id})
    queue = TrialQueue(run, SweepPlan(FixedPoints([])), check_experiment)
    recorder = _recorder(queue, Recording([]), lambda: False)
    own = placement_group([{"CPU": 0.1}])
    assert own.wait(30)
    lost, kept = ray.get([leader.take.remote() for leader in leaders], timeout=60)

    def group(name: str) -> PlacementGroup:
        return PlacementGroup(ray.PlacementGroupID.from_hex(name))

    def state(name: str) -> str:
        return str(placement_group_table(group(name))["state"])

    def is_free() -> bool:
        recorder.on_step_end(0, [])
        return state(lost) == "REMOVED"

    try:
        recorder.on_trial_error(0, [], failed)
        ray.kill(leaders[0])
        wait_until(is_free, 30, "the room of a process that is gone")
        assert [state(name) for name in (kept, own.id.hex())] == ["CREATED"] * 2
    finally:
        # The tests after this one need all of the session's room.
        for name in (lost, kept, own.id.hex()):
            remove_placement_group(group(name))
