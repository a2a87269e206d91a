"""Two nodes with object stores of their own: one trial with a worker on each, and a sweep of two trials at a time.

The trial has all that a trial may have besides its workers: readers, a knowledge base in parts, and a process that validates.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ray_atr.training.run_folder import RunFolder
from tests.support.own_ray import own_ray

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[1]
CPUS = 2
"""Of each node and of each worker, which leaves a quarter of them to what reads its data: it waits a minute for room for that."""


@dataclass(frozen=True)
class Done:
    """What the commands said and left behind."""

    said: str
    runs: dict[str, RunFolder]
    actors: list[tuple[str, str, str]]
    """Of each the class, the state and the node."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    with own_ray(tmp_path_factory.mktemp("home"), nodes=2, cpus=CPUS, takes_jobs=False) as head:
        commands = subprocess.run(
            [sys.executable, "-m", "tests.support.both_nodes", str(head.home), str(CPUS)],
            cwd=ROOT, capture_output=True, text=True, timeout=400, check=False,
            env={**head.environment, "RAY_ADDRESS": head.ray_address},
        )  # fmt: skip
    assert commands.returncode == 0, commands.stdout[-4000:] + commands.stderr[-4000:]
    runs = {name: RunFolder.open(head.home / "runs" / name) for name in ("one", "many", "auto", "alone")}
    return Done(commands.stdout, runs, json.loads(commands.stdout.splitlines()[-1]))


@pytest.mark.timeout(500)
def test_one_trial_and_then_a_sweep_take_both_nodes(done: Done) -> None:
    assert "1 trial finished, 0 failed" in done.said
    assert "2 trials, 2 at a time" in done.said
    assert "2 trials finished, 0 failed" in done.said
    for name, trials in (("one", 1), ("many", 2)):
        assert [[row["epoch"] for row in trial.epochs()] for trial in done.runs[name].trials()] == [[1, 2]] * trials
    # Of the first training and of that with `auto`.
    nodes = [node for name, _, node in done.actors if name == "RayTrainWorker"]
    assert [nodes.count(node) for node in set(nodes)] == [2, 2]
    # Each part is where it is searched. All ended with their trial.
    assert {node for name, _, node in done.actors if name in ("LeadingActor", "ShardActor")} == set(nodes)
    beside = [(state, node) for name, state, node in done.actors if name in ("LeadingActor", "SplitValidator")]
    assert [state for state, _ in beside] == ["DEAD"] * 2
    assert len({node for _, node in beside}) == 1, "both are beside the first worker"
    (trial,) = done.runs["one"].trials()
    for row in trial.epochs():
        assert row["knowledge/version"] == row["epoch"]
        assert 0 <= row["text_to_audio/fra/recall_at_1"] <= 1
    assert (trial.folder / "best" / "retriever.json").is_file()


@pytest.mark.timeout(500)
def test_what_is_left_open_is_ray_train_and_ray_data_here_with_the_losses_of_one_process(done: Done) -> None:
    said = "a trial is trained by 2 workers of Ray Train, Ray Data streams what it trains on (auto: 2 nodes)"
    assert f"scaling: {said}" in done.said
    assert done.runs["auto"].info["scaling"]["settings"] == {"scaling.workers": 2, "scaling.ray_data": True}
    auto, alone = (next(iter(done.runs[name].trials())).epochs() for name in ("auto", "alone"))
    assert [row["train/loss"] for row in auto] == pytest.approx([row["train/loss"] for row in alone], rel=1e-5)
