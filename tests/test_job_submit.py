"""`ray start --head`, `ray job submit`, `ray job stop`, and a resubmission that resumes: for real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_ray import Head, own_ray, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SMALL = {
    "data.soundscapes.num_train": "64",
    "data.soundscapes.num_val": "16",
    "data.soundscapes.num_test": "16",
    "train.batch_size": "16",
    "train.epochs": "25",
}
SWEEP = [
    *("python", "pipelines/sweep_noise.py", "--objectives", "contrastive", "--noise", "0.2", "--seeds", "0"),
    *("--recipe", "from_scratch"),
    *(word for path, value in SMALL.items() for word in (f"--{path}", value)),
]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with own_ray(tmp_path_factory.mktemp("home")) as started:
        yield started


def epochs_of(home: Path) -> list[dict[str, float]]:
    return [json.loads(line) for path in home.glob("runs/*/trials/*/metrics.jsonl") for line in path.open()]


@pytest.mark.timeout(500)
def test_a_submitted_sweep_is_stopped_and_resumed_where_it_was(head: Head) -> None:
    submitted = head.job("submit", "--no-wait", "--submission-id", "first", "--working-dir", ".", "--", *SWEEP)
    assert "submitted successfully" in submitted
    wait_until(lambda: len(epochs_of(head.home)) >= 2, 200, "two epochs")
    head.job("stop", "first")
    before = epochs_of(head.home)
    assert 2 <= len(before) < 25, "the job should have been stopped in mid-run"
    (run,) = (head.home / "runs").glob("sweep_noise-*")

    output = head.job("submit", "--working-dir", ".", "--", *SWEEP, "--resume", str(run))
    assert "1 trials finished, 0 failed" in output
    after = epochs_of(head.home)
    assert [row["epoch"] for row in after] == list(range(1, 26))
    assert after[: len(before)] == before, "an epoch that was finished has been run again"
    assert (run / "report" / "report.html").is_file()
