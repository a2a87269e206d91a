"""`ray start --head`, `ray job submit`, `ray job stop`, and a resubmission that resumes: for real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.own_ray import Head, own_ray, wait_until
from tests.support.tiny import make_data, prepared_for, tiny

pytestmark = pytest.mark.ray

SWEEP = [
    *("python", "pipelines/sweep_noise.py", "--objectives", "contrastive", "--noise", "0.2", "--seeds", "0"),
    *("--recipe", "from_scratch"),
]
EPOCHS = 60
"""Enough to be stopped in the middle: an epoch takes a tenth of a second."""


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with own_ray(tmp_path_factory.mktemp("home")) as started:
        yield started


def epochs_of(home: Path) -> list[dict[str, float]]:
    return [json.loads(line) for path in home.glob("runs/*/trials/*/metrics.jsonl") for line in path.open()]


@pytest.mark.timeout(500)
def test_a_submitted_sweep_is_stopped_and_resumed_where_it_was(head: Head) -> None:
    # The features are made here, once: on Ray, which test_two_nodes.py shows, they would take three processes that import torch.
    prepared_for(tiny(make_data(head.home / "tones")), head.home)
    settings = {
        "data.source": head.home / "tones", "model.embedding_width": 16, "model.text.width": 16, "model.text.num_layers": 1,
        "model.text.vocab_size": 300, "train.batch_size": 8, "train.epochs": EPOCHS, "scaling.ray_data": "false",
        "tracking.mlflow": "false",
    }  # fmt: skip
    typed = [*SWEEP, *(f"--{path}={value}" for path, value in settings.items())]
    submitted = head.job("submit", "--no-wait", "--submission-id", "first", "--working-dir", ".", "--", *typed)
    assert "submitted successfully" in submitted
    wait_until(lambda: len(epochs_of(head.home)) >= 2, 200, "two epochs")
    head.job("stop", "first")
    before = epochs_of(head.home)
    assert 2 <= len(before) < EPOCHS, "the job should have been stopped in mid-run"
    (run,) = (head.home / "runs").glob("sweep_noise-*")

    output = head.job("submit", "--working-dir", ".", "--", *typed, "--resume", str(run))
    assert "1 trial finished, 0 failed" in output
    after = epochs_of(head.home)
    assert [row["epoch"] for row in after] == list(range(1, EPOCHS + 1))
    assert after[: len(before)] == before, "an epoch that was finished has been run again"
    assert (run / "report" / "report.html").is_file()
