"""Towers whose weights are spread over the workers of a run (torch's `fully_shard`), and the calls that workers make together.

A sharded tower gathers each layer's weights whenever it is called, forwards and backwards, so all workers must call it equally
often and in the same order. They do not by themselves: texts go through the encoder in groups of similar length, a worker may
have no text of a language at all, and clips in chunks are as many as its share has windows. So before each call the workers
agree which tower is called next. One that has nothing to embed with it makes an empty call: one frame or token whose gradient is
zero. That costs a reduction of one number a call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

from ray_atr.data.audio import log_mel
from ray_atr.models.adaptation import repeated_layers
from ray_atr.models.tower import AudioTower, TextTower

NOBODY = 0
"""What a worker asks for that has embedded everything."""


def shard_tower(tower: nn.Module, device: torch.device) -> None:
    """Leave this worker its part of the tower's weights, on `device`; to be called by all workers.

    Each repeated layer is gathered by itself, and what is not in one with the tower's call. At no time are more than one layer's
    whole weights on the device. Numbers alone (of no dimension) stay whole.
    """
    # It takes two seconds to import, which no other run should wait for.
    from torch.distributed.fsdp import fully_shard

    # Some towers return a part of a larger tensor; nothing here writes into it.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    numbers = {parameter for parameter in tower.parameters() if parameter.ndim == 0}
    for part in (*reversed(repeated_layers(tower)), tower):
        fully_shard(part, mesh=mesh, reshard_after_forward=True, ignored_params=numbers)


def is_sharded(tensor: Tensor) -> bool:
    """Whether each worker has a part of a tensor: torch's `DTensor`, whose module is not imported for the question."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """This worker's part of a sharded tensor; another tensor as it is."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return part


def full(tensor: Tensor) -> Tensor:
    """All workers' parts of a sharded tensor, which all ask for; another tensor as it is."""
    gathered: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return gathered


def gathered(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole copies on the CPU of all workers' parts, on the first worker; nothing on others, which all take part. One tensor at
    a time is whole on the device.
    """
    is_first, found = dist.get_rank() == 0, {}
    for name, value in state.items():
        tensor = full(value)
        if is_first:
            found[name] = tensor.detach().to("cpu", copy=True)
    return found


class EqualCalls:
    """Has all workers call their sharded towers equally often, whatever each has to embed.

    with calls.together(gradient=True) as extra:
        embedded = ...            # any calls of the towers, or none; no other exchange between workers
    embedded = extra.joined(embedded)     # where gradients are wanted
    """

    def __init__(self, towers: Sequence[nn.Module], device: torch.device) -> None:
        self.towers, self.device = towers, device
        self.extra: Extra | None = None
        self.is_serving = False
        for number, tower in enumerate(towers, start=NOBODY + 1):
            tower.register_forward_pre_hook(partial(self._before_call, number), prepend=True)

    @contextmanager
    def together(self, *, gradient: bool = False, again: bool = False) -> Iterator[Extra]:
        """Within, calls are made together, in one mode (training or evaluation) on all workers. Empty calls have a gradient
        where others have (`gradient`), and keep no activations where others keep none (`again`, as `embed_again`).
        """
        if self.extra is not None:
            yield self.extra
            return
        self.extra = Extra(gradient, again)
        try:
            yield self.extra
            while (asked := self._agree(NOBODY)) != NOBODY:
                self._serve(asked)
        finally:
            self.extra = None

    def _before_call(self, number: int, module: nn.Module, inputs: Any) -> None:
        # Backwards all workers compute the same calls again, which they made in the same order.
        if self.is_serving or torch._C._current_graph_task_id() != -1:
            return
        if self.extra is None:
            raise RuntimeError("a sharded tower is called outside of `together`: other workers would wait for ever")
        while (asked := self._agree(number)) != number:
            self._serve(asked)

    def _agree(self, number: int) -> int:
        """The tower that is called next: the last one that a worker asks for."""
        asked = torch.tensor(number, device=self.device)
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
        return int(asked)

    def _serve(self, number: int) -> None:
        assert self.extra is not None
        self.is_serving = True
        try:
            tower = self.towers[number - NOBODY - 1]
            self.extra.add(partial(_pooled, tower), _least_input(tower, self.device))
        finally:
            self.is_serving = False


class Extra:
    """The empty calls that a worker made for others."""

    def __init__(self, gradient: bool = False, again: bool = False) -> None:
        self.gradient, self.again, self.made = gradient, again, list[Tensor]()

    def add(self, call: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        with torch.set_grad_enabled(self.gradient and torch.is_grad_enabled()):
            made = checkpoint(call, *inputs, use_reentrant=False) if self.again else call(*inputs)
        if made.requires_grad:
            self.made.append(made)

    def joined(self, embedded: Tensor) -> Tensor:
        """The embeddings, whose gradient reaches the empty calls as zeros."""
        return _Joined.apply(embedded, *self.made) if self.made else embedded


class _Joined(torch.autograd.Function):
    """One node for all: the calls before it are then back-propagated from the last to the first, as on every other worker."""

    @staticmethod
    def forward(ctx: Any, embedded: Tensor, *made: Tensor) -> Tensor:
        ctx.shapes = [(one.shape, one.dtype, one.device) for one in made]
        return embedded.view_as(embedded)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return gradient, *(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.shapes)


def _pooled(tower: nn.Module, *inputs: Tensor) -> Tensor:
    """What a tower returns, in a form that backwards is needed first, as that of every call that embeds something is.

    A call that keeps no activations is computed again when one of them is needed. If the first of them were within the tower,
    the weights of its last layer would have been asked for by then, while workers with something to embed ask for those of its
    first layer: each would compute with what another one asked for. After a projection and a norm all begin with the first.
    """
    pooled: Tensor = tower(*inputs).pooled
    return pooled.tanh()


def _least_input(tower: nn.Module, device: torch.device) -> tuple[Tensor, ...]:
    """What a tower can embed with little work: a text of one token; a clip of silence, as long as some towers want one."""
    if isinstance(tower, TextTower):
        return torch.full((1, 1), tower.pad_token_id, device=device), torch.ones(1, 1, dtype=torch.bool, device=device)
    assert isinstance(tower, AudioTower)
    front_end = tower.front_end
    silence = log_mel(np.zeros(front_end.clip_samples, np.float32), front_end)
    return torch.zeros(1, *silence.shape, device=device), torch.full((1,), len(silence), device=device)
