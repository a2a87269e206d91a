"""Two nodes with object stores of their own: one trial with a worker on each, and a sweep of two trials at a time.

The trial has all that a trial may have besides its workers: readers, a knowledge base in parts, and a process that validates.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_atr.training.run_folder import RunFolder
from tests.support.own_ray import Head, own_ray

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[1]
CPUS = 2
"""Of each node and of each worker, which leaves a quarter of them to what reads its data: it waits a minute for room for that."""


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with own_ray(tmp_path_factory.mktemp("home"), nodes=2, cpus=CPUS, takes_jobs=False) as started:
        yield started


@pytest.mark.timeout(400)
def test_one_trial_and_then_a_sweep_take_both_nodes(head: Head) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.both_nodes", str(head.home), str(CPUS)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        env={**head.environment, "RAY_ADDRESS": head.ray_address},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "1 trial finished, 0 failed" in done.stdout
    assert "2 trials, 2 at a time" in done.stdout
    assert "2 trials finished, 0 failed" in done.stdout
    for name, trials in (("one", 1), ("many", 2)):
        run = RunFolder.open(head.home / "runs" / name)
        assert [[row["epoch"] for row in trial.epochs()] for trial in run.trials()] == [[1, 2]] * trials
    actors = json.loads(done.stdout.splitlines()[-1])
    nodes = [node for name, _, node in actors if name == "RayTrainWorker"]
    assert len(nodes) == len(set(nodes)) == 2
    # Each part is where it is searched. All ended with their trial.
    assert {node for name, _, node in actors if name in ("LeadingActor", "ShardActor")} == set(nodes)
    beside = [(state, node) for name, state, node in actors if name in ("LeadingActor", "SplitValidator")]
    assert [state for state, _ in beside] == ["DEAD"] * 2
    assert len({node for _, node in beside}) == 1, "both are beside the first worker"
    (trial,) = RunFolder.open(head.home / "runs" / "one").trials()
    for row in trial.epochs():
        assert row["knowledge/version"] == row["epoch"]
        assert 0 <= row["text_to_audio/fra/recall_at_1"] <= 1
    assert (trial.folder / "best" / "retriever.json").is_file()


@pytest.mark.timeout(400)
def test_what_is_left_open_is_ray_train_and_ray_data_here_with_the_losses_of_one_process(head: Head) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.auto_on_nodes", str(head.home), str(CPUS)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        env={**head.environment, "RAY_ADDRESS": head.ray_address},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    said = "a trial is trained by 2 workers of Ray Train, Ray Data streams what it trains on (auto: 2 nodes)"
    assert f"scaling: {said}" in done.stdout
    runs = {name: RunFolder.open(head.home / "runs" / name) for name in ("auto", "alone")}
    assert runs["auto"].info["scaling"]["settings"] == {"scaling.workers": 2, "scaling.ray_data": True}
    actors = json.loads(done.stdout.splitlines()[-1])
    earlier = 2  # those of the test above, if it ran
    nodes = [node for name, node in actors if name == "RayTrainWorker"]
    assert len(nodes) in (2, 2 + earlier)
    assert len(set(nodes)) == 2
    losses = {name: [row["train/loss"] for row in next(iter(run.trials())).epochs()] for name, run in runs.items()}
    assert losses["auto"] == pytest.approx(losses["alone"], rel=1e-5)
