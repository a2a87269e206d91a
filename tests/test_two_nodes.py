"""Two nodes with object stores of their own: one trial with a worker on each, and a sweep with a trial on each, as a job."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from own_ray import ROOT, Head, own_ray
from tiny import make_data

from ray_atr.run_folder import RunFolder

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with own_ray(tmp_path_factory.mktemp("home"), nodes=2, cpus=1) as started:
        yield started


def nodes_of(head: Head, actor_class: str) -> list[set[str]]:
    """The nodes that actors of a class lived on, a set a job."""
    listed = head.ray(
        "list", "actors", "--address", head.address, "--format", "json", "--filter", f"class_name={actor_class}"
    )
    actors = json.loads(listed)
    return [{a["node_id"] for a in actors if a["job_id"] == job} for job in sorted({a["job_id"] for a in actors})]


@pytest.mark.timeout(400)
def test_one_trial_and_then_a_sweep_take_both_nodes(head: Head) -> None:
    data = make_data(head.home / "tones")
    settings = {
        "data.source": data, "data.languages": "eng,fra", "model.embedding_width": 16, "model.text.width": 16,
        "model.text.num_layers": 1, "model.text.vocab_size": 300, "train.epochs": 2, "train.batch_size": 8,
        "tracking.mlflow": "false",
    }  # fmt: skip
    tiny = " ".join(f"--{path} {value}" for path, value in settings.items())
    one = f"python pipelines/train.py --out {head.home}/runs/one --scaling.workers 2 {tiny}"
    points = "--objectives contrastive --noise 0.2 0.4 --seeds 0"
    in_one_process = "--scaling.workers 0 --scaling.ray_data false"
    many = f"python pipelines/sweep_noise.py --out {head.home}/runs/many {points} {in_one_process} {tiny}"
    # Without --working-dir: nodes of one machine share its copy, which goes when the first of them needs it no more.
    output = head.job("submit", "--", "bash", "-c", f"cd {ROOT} && {one} && {many}")
    assert "1 trials finished, 0 failed" in output
    assert "2 trials, 2 at a time" in output
    assert "2 trials finished, 0 failed" in output
    for name, trials in (("one", 1), ("many", 2)):
        run = RunFolder.open(head.home / "runs" / name)
        assert [[row["epoch"] for row in trial.epochs()] for trial in run.trials()] == [[1, 2]] * trials
    (workers,) = nodes_of(head, "RayTrainWorker")
    assert len(workers) == 2
