"""What passes through the modules of a model that a command or a training builds itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

Kind = TypeVar("Kind", bound=nn.Module)


@contextmanager
def before_each(kind: type[Kind], look: Callable[[Kind, tuple[Any, ...]], object]) -> Iterator[None]:
    """Have `look(module, inputs)` called before each forward pass of a module of this kind; its inputs are what that returns, if
    it is something.
    """

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        return look(module, inputs) if isinstance(module, kind) else None

    hook = register_module_forward_pre_hook(before)
    try:
        yield
    finally:
        hook.remove()
