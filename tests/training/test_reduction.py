"""Gradients of several workers are averaged, bucket by bucket, while the backward pass still runs; and what one sends to all."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

import ray_atr.training.group as training_group
from ray_atr.training.group import BUCKET_BYTES, GradientMean, WorkerGroup
from tests.support.processes import run_processes
from tests.support.threads import run_threads

LAYERS, WIDTH = 4, 8


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])


def inputs(rank: int) -> torch.Tensor:
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(rank))


def losses(layers: nn.Sequential, rank: int) -> list[torch.Tensor]:
    """Of a first part, and of a last one that on rank 1 leaves the last layer out."""
    last = layers[:-1] if rank == 1 else layers
    return [layers(inputs(rank)).square().sum(), last(inputs(rank + 10)).sin().sum()]


def gradients(layers: nn.Sequential) -> list[torch.Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in layers.parameters()]


def one_process(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """The means, and how many buckets were on their way at the end of each backward pass."""
    training_group.BUCKET_BYTES = 4 * WIDTH * (WIDTH + 1)  # a layer
    layers = model()
    underway = []
    with GradientMean(layers.parameters(), size) as mean:
        first, last = losses(layers, rank)
        first.backward()
        underway.append(len(mean.sent))
        mean.begin_last()
        last.backward()
        underway.append(len(mean.sent))
        mean.finish()
    first, last = losses(layers, rank)
    before = gradients(layers)
    first.backward()  # no hook is left behind that would send again
    return {"means": before, "underway": underway, "buckets": len(mean.buckets)}


def test_means_are_exact_and_sent_during_the_last_backward_pass_alone(tmp_path: Path) -> None:
    found = run_processes(one_process, 2, tmp_path)
    alone = []
    for rank in range(2):
        layers = model()
        for loss in losses(layers, rank):
            loss.backward()
        alone.append(gradients(layers))
    for process in found:
        for mean, *own in zip(process["means"], *alone, strict=True):
            torch.testing.assert_close(mean, sum(own) / 2)
    assert found[0]["buckets"] == LAYERS
    assert found[0]["underway"] == [0, LAYERS]
    # The last layer's bucket is the first to be sent; rank 1 never touches it and sends them all at the end.
    assert found[1]["underway"] == [0, 0]


def used_by_some(rank: int, size: int, folder: Path) -> list[list[float] | None]:
    """The gradients of what all workers use, the first alone, and none."""
    parameters = [nn.Parameter(torch.full((2,), 3.0)) for _ in range(3)]
    everybody, first, _ = parameters
    with GradientMean(parameters, size) as mean:
        mean.begin_last()
        (everybody.square() + (first if rank == 0 else 0)).sum().backward()
        mean.finish()
    return [None if parameter.grad is None else parameter.grad.tolist() for parameter in parameters]


def test_what_no_worker_uses_is_left_without_a_gradient_as_on_one_worker(tmp_path: Path) -> None:
    """With zeros an optimiser would let it decay, where one worker's leaves it alone."""
    assert used_by_some(0, 1, tmp_path)[2] is None
    assert run_processes(used_by_some, 2, tmp_path) == [[[6, 6], [0.5, 0.5], None]] * 2


def test_one_worker_sends_nothing() -> None:
    layers = model()
    with GradientMean(layers.parameters(), 1) as mean:
        mean.begin_last()
        losses(layers, 0)[0].backward()
        mean.finish()
    assert mean.sent == []


class SentNowhere(GradientMean):
    """Counts its buckets as sent, without another worker."""

    def _send(self) -> None:
        self.sent.append(cast(Any, None))


def test_a_gradient_that_changes_after_it_was_sent_is_an_error() -> None:
    layers = model()
    with SentNowhere(layers.parameters(), 2) as mean:
        mean.begin_last()
        losses(layers, 0)[0].backward()
        with pytest.raises(RuntimeError, match="added to after it had been sent"):
            losses(layers, 0)[0].backward()


def test_buckets_hold_one_number_type_and_no_more_than_their_bytes() -> None:
    half = BUCKET_BYTES // 4 // 2
    sizes = [
        (half, torch.float32),
        (half, torch.float32),
        (1, torch.float32),
        (3 * half, torch.float32),
        (1, torch.float64),
    ]
    # Of no memory: none is read.
    mean = GradientMean([nn.Parameter(torch.empty(n, dtype=dtype, device="meta")) for n, dtype in sizes], 2)
    # From the end of the forward pass to its start.
    assert [[p.numel() for p in bucket] for bucket in mean.buckets] == [[1], [3 * half], [1, half], [half]]


def first_value(rank: int, size: int) -> Any:
    return WorkerGroup(rank, size).of_first({"of": rank, "rows": torch.full((2,), float(rank))})


def test_every_worker_gets_the_value_of_the_first() -> None:
    for value in run_threads(first_value, 3):
        assert value["of"] == 0
        assert value["rows"].tolist() == [0.0, 0.0]
    assert WorkerGroup().of_first("alone") == "alone"
