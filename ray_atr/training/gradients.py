"""The norm of all gradients, and clipping by it, where some of them are whole on each worker and others sharded."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ray_atr.models.sharding import is_sharded, local


def divide(parameters: Iterable[nn.Parameter], number: int) -> None:
    """Divide the gradients that there are."""
    torch._foreach_div_([local(p.grad) for p in parameters if p.grad is not None], number)


def total_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of all gradients as one vector, the same on every worker; all take part if some are sharded."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    parts = [local(gradient) for gradient in gradients if is_sharded(gradient)]
    if not parts:
        return nn.utils.get_total_norm(gradients)
    squared = nn.utils.get_total_norm(parts).square()
    dist.all_reduce(squared)
    whole = [gradient for gradient in gradients if not is_sharded(gradient)]
    return (squared + nn.utils.get_total_norm(whole).square().to(squared.device)).sqrt() if whole else squared.sqrt()


def clip(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """The norm of all gradients, which are then scaled so that it is at most `limit`; 0: not."""
    parameters = list(parameters)
    norm = total_norm(parameters)
    # One kernel takes no sharded and whole gradients together.
    for kind in (True, False):
        alike = [parameter for parameter in parameters if is_sharded(parameter) is kind]
        nn.utils.clip_grads_with_norm_(alike, limit or math.inf, norm)
    return norm
