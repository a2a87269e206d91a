"""Towers whose weights are sharded over the workers of a run (torch's `fully_shard`), and the coordination of their calls.

A sharded tower gathers each layer's weights in every call, forward and backward, so all workers must call it equally often and in
the same order. But their shares differ: texts are encoded in groups of similar length, a worker may have no text in a language,
and the number of windows differs. So before each call the workers agree on the next tower. A worker with nothing to embed makes
an empty call, of one silent window or one token, whose gradient is zero. Each call costs a reduction of one number. Within a
call, all workers encode as many groups of one length (`tower.encode_groups`).
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
from ray_atr.models.tower import AudioTower, TextTower, Tower

NO_TOWER = 0
"""The request of a worker that has embedded everything."""


def shard_tower(tower: Tower, device: torch.device) -> None:
    """Shard the tower's weights: this worker gets its part, on `device`. All workers must call it.

    Each repeated layer is gathered by itself, and the rest with the tower's call: the device never holds the full weights of more
    than one layer. Parameters without a dimension are not sharded.
    """
    # Imported here because it takes two seconds.
    from torch.distributed.fsdp import fully_shard

    # Some towers return a view of a larger tensor, which nothing writes to.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    numbers = {parameter for parameter in tower.parameters() if parameter.ndim == 0}
    for part in (*reversed(repeated_layers(tower)), tower):
        fully_shard(part, mesh=mesh, reshard_after_forward=True, ignored_params=numbers)
    tower.is_sharded = True


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is sharded, torch's `DTensor` (without importing its module)."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """This worker's part of a sharded tensor; other tensors are returned unchanged."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return part


def full(tensor: Tensor) -> Tensor:
    """The full tensor of a sharded one; all workers must call it. Other tensors are returned unchanged."""
    gathered: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return gathered


def gathered(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Full copies of the tensors on the first worker's CPU, made one at a time; empty on others, which must all call it."""
    is_first, whole_state = dist.get_rank() == 0, {}
    for name, value in state.items():
        tensor = full(value)
        if is_first:
            whole_state[name] = tensor.detach().to("cpu", copy=True)
    return whole_state


class EqualCalls:
    """Makes all workers call their sharded towers equally often, whatever each has to embed.

    with calls.together(gradient=True) as extra:
        embedded = ...            # any calls of the towers, or none; no other exchange between workers
    embedded = extra.joined(embedded)     # if gradients are needed
    """

    def __init__(self, towers: Sequence[nn.Module], device: torch.device) -> None:
        self.towers, self.device = towers, device
        self.extra: Extra | None = None
        self.is_serving = False
        for number, tower in enumerate(towers, start=NO_TOWER + 1):
            tower.register_forward_pre_hook(partial(self._before_call, number), prepend=True)

    @contextmanager
    def together(self, *, gradient: bool = False, again: bool = False) -> Iterator[Extra]:
        """Within the context, calls are coordinated; all workers must be in the same mode (training or evaluation).

        `gradient`: empty calls have a gradient, as the others; `again`: they store no activations, as with `embed_again`.
        """
        if self.extra is not None:
            yield self.extra
            return
        self.extra = Extra(gradient, again)
        try:
            yield self.extra
            while (number := self._agree(NO_TOWER)) != NO_TOWER:
                self._serve(number)
        finally:
            self.extra = None

    def _before_call(self, number: int, module: nn.Module, inputs: Any) -> None:
        # In a backward pass all workers recompute the same calls, in the same order.
        if self.is_serving or torch._C._current_graph_task_id() != -1:
            return
        if self.extra is None:
            raise RuntimeError("a sharded tower is called outside of `together`: other workers would wait for ever")
        while (requested := self._agree(number)) != number:
            self._serve(requested)

    def _agree(self, number: int) -> int:
        """The number of the next tower: the largest that a worker requests."""
        largest = torch.tensor(number, device=self.device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest)

    def _serve(self, number: int) -> None:
        assert self.extra is not None
        self.is_serving = True
        try:
            tower = self.towers[number - NO_TOWER - 1]
            self.extra.add(partial(_pooled, tower), _least_input(tower, self.device))
        finally:
            self.is_serving = False


class Extra:
    """The empty calls that a worker made because others called a tower."""

    def __init__(self, gradient: bool = False, again: bool = False) -> None:
        self.gradient, self.again, self.made = gradient, again, list[Tensor]()

    def add(self, call: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        with torch.set_grad_enabled(self.gradient and torch.is_grad_enabled()):
            output = checkpoint(call, *inputs, use_reentrant=False) if self.again else call(*inputs)
        if output.requires_grad:
            self.made.append(output)

    def joined(self, embedded: Tensor) -> Tensor:
        """The embeddings, whose gradient reaches the empty calls as zeros."""
        return _Joined.apply(embedded, *self.made) if self.made else embedded


class _Joined(torch.autograd.Function):
    """One node for all calls, so that they are back-propagated from the last to the first, as on every other worker."""

    @staticmethod
    def forward(ctx: Any, embedded: Tensor, *outputs: Tensor) -> Tensor:
        ctx.shapes = [(tensor.shape, tensor.dtype, tensor.device) for tensor in outputs]
        return embedded.view_as(embedded)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return gradient, *(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.shapes)


def _pooled(tower: nn.Module, *inputs: Tensor) -> Tensor:
    """A tower's output through a function with an activation of its own, like the projection of a call that embeds something.

    With `again`, the backward pass recomputes a call when it first needs one of its activations. If that one were within the
    tower, this worker would gather the weights of the tower's last layer first, while others, whose first activation is in the
    projection, gather those of its first layer: the exchanges would not match.
    """
    pooled: Tensor = tower(*inputs).pooled
    return pooled.tanh()


def _least_input(tower: nn.Module, device: torch.device) -> tuple[Tensor, ...]:
    """An input that every tower takes: a text of one token, or one window of silence."""
    if isinstance(tower, TextTower):
        return torch.full((1, 1), tower.pad_token_id, device=device), torch.ones(1, 1, dtype=torch.bool, device=device)
    assert isinstance(tower, AudioTower)
    front_end = tower.front_end
    silence = log_mel(np.zeros(front_end.clip_samples, np.float32), front_end)
    return torch.zeros(1, *silence.shape, device=device), torch.full((1,), len(silence), device=device)
