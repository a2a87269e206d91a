"""What the gradients that are written by hand have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def first_only(backward: Callable[P, R]) -> Callable[P, R]:
    """The `backward` of a function that has no second derivatives; RuntimeError where they are asked for.

    `torch.autograd.function.once_differentiable` refuses only if the incoming gradient is differentiable. That of a loss is
    not, and what `create_graph=True` then differentiates lacks this function's part, without a word.
    """

    @wraps(backward)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        # Enabled during a backward pass only for `create_graph=True`.
        if torch.is_grad_enabled():
            name = backward.__qualname__.removesuffix(".backward").lstrip("_")
            raise RuntimeError(f"{name} has no second derivatives, which create_graph=True asks for")
        return backward(*args, **kwargs)

    return checked
