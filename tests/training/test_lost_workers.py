"""What is told of a trial whose workers die: the first cause, and never what follows from it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from ray_atr.training import ray_train
from ray_atr.training.ray_train import ERROR_FILE, first_cause
from ray_atr.training.step import NonFiniteError
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


@pytest.mark.parametrize("error", [ValueError("clip rain: not audio"), NonFiniteError("loss is not finite")])
def test_an_error_of_one_worker_ends_the_others_and_the_next_attempt(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may wait for it in an exchange, for half an hour. A loss that is not finite ends all of them in the same step."""
    attempts = []

    def train(*_: Any, **__: Any) -> None:
        attempts.append(error)
        raise error

    replace_work(
        monkeypatch, {"training.ray_train.prepare": lambda *_, **__: None, "training.ray_train.train_trial": train}
    )
    experiment, folder = tiny("soundscapes", scaling__workers=2), tmp_path / "trial"
    config = {"experiment": experiment, "folder": str(folder), "home": str(tmp_path), "shown": []}

    def work(rank: int, size: int) -> None:
        if rank == 0:
            with pytest.raises(ValueError, match="clip rain") if isinstance(error, ValueError) else nullcontext():
                ray_train.worker(config)
            assert (folder / ERROR_FILE).read_text() == f"{error}\n"
            ray_train.worker(config)

    run_threads(work, 2)
    assert len(attempts) == 1
