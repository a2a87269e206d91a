"""What is told of a trial whose workers die: the first cause, and never what follows from it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.train import WorkerGroupError
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from ray_atr.training import ray_train
from ray_atr.training.group import WorkerGroup
from ray_atr.training.ray_train import ERROR_FILE, TrialError, first_cause, run_trial
from tests.support.commands import replace_work
from tests.support.threads import run_threads
from tests.support.tiny import tiny

FOLLOWS = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error [10.0.0.7]:16015")
SAID = "The actor died unexpectedly before finishing this task.\n\tip: 10.0.0.7\n"


def died(said: str = SAID + "The actor is dead because its worker process has died.") -> Exception:
    return WorkerHealthCheckFailedError("A worker health check failed.", failure=RayActorError("0a", said))


@pytest.mark.parametrize(
    ("failures", "told"),
    [
        ({0: died(), 1: FOLLOWS}, "worker 0 died: its process on 10.0.0.7 was killed, as the system does where memory"),
        ({0: FOLLOWS, 1: died()}, "worker 1 died: its process on 10.0.0.7 was killed"),
        ({0: died(SAID + "its node has died"), 1: died()}, "workers 0 and 1 died: its node on 10.0.0.7 is gone"),
        (
            {0: WorkerHealthCheckFailedError("It failed.", failure=OutOfMemoryError("full")), 1: FOLLOWS},
            "worker 0 died: Ray ended its process, because the memory of the node was nearly full",
        ),
        ({0: KeyError("a\nb"), 1: FOLLOWS}, "KeyError: 'a\\nb'"),
        ({0: FOLLOWS, 1: MemoryError()}, "MemoryError"),
        ({1: FOLLOWS}, "a worker was lost, and Ray does not say how; another one said RuntimeError: [/pytorch"),
    ],
)
def test_the_first_cause_is_told(failures: dict[int, Exception], told: str) -> None:
    assert first_cause(failures).startswith(told)


def test_a_trial_ends_with_the_first_cause_and_keeps_what_ray_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(trainer: Any) -> None:
        raise WorkerGroupError("[Rank 0 Error Snippet]: ...", {0: died(), 1: FOLLOWS})

    monkeypatch.setattr(TorchTrainer, "fit", fit)
    with pytest.raises(TrialError, match=r"^worker 0 died") as error:
        run_trial(tiny("soundscapes", scaling__workers=2), tmp_path / "trial", tmp_path, [], None)
    assert isinstance(error.value.__cause__, WorkerGroupError)


@pytest.mark.parametrize("is_taken_down", [True, False])
def test_an_exchange_after_the_group_was_taken_away_is_no_mistake_in_the_settings(
    is_taken_down: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ray Train does to the workers that are left, while they train on: it joins all of them again afterwards."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def train(*_: Any, **__: Any) -> None:
        if is_taken_down:
            dist.destroy_process_group()
            dist.barrier()
        raise ValueError("train.batch_size: got 5")

    work = {"training.ray_train.prepare": lambda *_, **__: None, "training.ray_train.train_trial": train}
    replace_work(monkeypatch, work)
    config = {
        "experiment": tiny("soundscapes", scaling__workers=2),
        "folder": str(tmp_path / "trial"),
        "home": str(tmp_path),
        "shown": [],
    }
    try:
        if is_taken_down:
            with pytest.raises(ValueError, match="Default process group has not been initialized"):
                ray_train.worker(config)
        else:
            ray_train.worker(config)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    assert (tmp_path / "trial" / ERROR_FILE).exists() == (not is_taken_down)


def test_an_error_of_one_worker_alone_ends_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a damaged file that only it reads. If it returned, the others would wait for it until torch's time limit."""
    trained: list[int] = []

    def train(experiment: Any, prepared: Any, folder: Any, report: Any, group: WorkerGroup, **_: Any) -> None:
        trained.append(group.rank)
        if group.rank == 1:
            raise ValueError("train-00000.parquet: row group 1 cannot be read")

    replace_work(
        monkeypatch, {"training.ray_train.prepare": lambda *_, **__: None, "training.ray_train.train_trial": train}
    )
    config = {
        "experiment": tiny("soundscapes", scaling__workers=2),
        "folder": str(tmp_path / "trial"),
        "home": str(tmp_path),
        "shown": [],
    }

    def work(rank: int, size: int) -> None:
        error = pytest.raises(ValueError, match="row group 1") if rank == 1 else nullcontext()
        with error:
            ray_train.worker(config)
        # Ray Train restarts all of them, and they find the error.
        dist.barrier()
        ray_train.worker(config)

    run_threads(work, 2)
    assert sorted(trained) == [0, 1]
    assert "row group 1" in (tmp_path / "trial" / ERROR_FILE).read_text()
