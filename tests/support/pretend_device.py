"""A pretend GPU: code that moves its tensors wrongly fails on it as on a real one, on any machine.

with pretend_device():
    retriever.to("cuda")           # every tensor of it is a PretendTensor
    group = WorkerGroup(device=torch.device("cuda"))

A `PretendTensor` says that it is on cuda:0 and holds a tensor of the CPU, which computes. As on a GPU, an operation on it and
on a tensor of the CPU fails unless the latter is a single number, an index, or what is copied; NumPy cannot read it; torch's
collectives and messages take nothing else. Kernels, streams, bfloat16, NCCL and memory are not pretended: results are the CPU's.

Within, `"cuda"` is called `"meta"` before torch would look for a driver (`_CudaIsMeta`), since torch computes no gradient for
the tensors of a device that it lacks and does for those of `meta`. What is made on or moved to `meta` is made on the CPU and
wrapped (`_MetaIsPretended`). Both are modes of a thread; threads that begin within have them too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, distributed
from torch.distributed import distributed_c10d
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

DEVICE = torch.device("cuda", 0)
CPU = torch.device("cpu")
ATEN = torch.ops.aten

MOVES = {ATEN._to_copy.default, ATEN.copy_.default}
"""Operations between devices."""
INDEXED = {
    ATEN.index.Tensor, ATEN.index_put.default, ATEN.index_put_.default, ATEN._index_put_impl_.default,
    ATEN._unsafe_index.Tensor, ATEN._unsafe_index_put.default,
}  # fmt: skip
"""Operations whose third argument, the indices, may be on the CPU."""


class PretendTensor(Tensor):
    """A tensor on the pretend GPU; `on_cpu` is the CPU's, with the same shape and strides."""

    on_cpu: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> PretendTensor:
        assert inner.device.type == "cpu", "made on `meta` past the modes"
        made = Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=torch.device("meta"),
        )  # fmt: skip
        made.on_cpu = inner.detach()
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return 0

    def tolist(self) -> Any:
        return self.on_cpu.tolist()

    def numpy(self, *arguments: Any, **options: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    __array__ = numpy

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return f"PretendTensor({self.on_cpu})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied = PretendTensor(self.on_cpu.clone()).requires_grad_(self.requires_grad)
            memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if _is_parameter(self) else copied
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A saved file holds the numbers; who loads it says where they are to be.
        return self.on_cpu.__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operation: Any, types: Any, arguments: Sequence[Any] = (), options: dict[str, Any] | None = None
    ) -> Any:
        # In a backward pass each of the questions below would be another call of `_CudaIsMeta`.
        with torch._C.DisableTorchFunction():
            return _run(operation, arguments, options or {}, is_pretended=True)


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter)


def _inner(value: Any) -> Any:
    """An argument of an operation, with the CPU's tensors in place of pretended ones."""
    if isinstance(value, PretendTensor):
        return value.on_cpu
    return type(value)(map(_inner, value)) if type(value) in (list, tuple) else value


def _wrapped(value: Any) -> Any:
    """What an operation returns, with pretended tensors in place of the CPU's."""
    if isinstance(value, Tensor):
        return PretendTensor(value)
    return type(value)(map(_wrapped, value)) if type(value) in (list, tuple) else value


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments, and in lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif type(value) in (list, tuple):
            yield from _tensors(value)


def _run(operation: Any, arguments: Sequence[Any], options: dict[str, Any], *, is_pretended: bool) -> Any:
    """An operation on the CPU's tensors; what it returns is wrapped if it `is_pretended`, or is asked for on `meta`."""
    if is_pretended:
        _require_one_device(operation, arguments, options)
    inner = {name: _inner(value) for name, value in options.items()}
    if inner.get("device") is not None:
        is_pretended = torch.device(inner["device"]).type in ("meta", "cuda")
        inner["device"] = CPU
    with torch._C._DisableTorchDispatch():
        result = operation(*map(_inner, arguments), **inner)
    changed = _changed(operation)
    if not changed:
        return _wrapped(result) if is_pretended else result
    written = [arguments[number] if number < len(arguments) else options.get(name) for number, name in changed]
    for one in written:
        if isinstance(one, PretendTensor) and one.shape != one.on_cpu.shape:
            # `out` may be empty before.
            with torch._C._DisableTorchDispatch():
                one.resize_(one.on_cpu.shape)
    if not operation._schema.returns:
        return result
    return written[0] if len(operation._schema.returns) == 1 else tuple(written)


@cache
def _changed(operation: Any) -> list[tuple[int, str]]:
    """The arguments that an operation in place, or one with `out`, writes and returns again; none for any other."""
    schema = operation._schema
    if not all(one.alias_info is not None and one.alias_info.is_write for one in schema.returns):
        return []
    return [(n, one.name) for n, one in enumerate(schema.arguments) if one.alias_info and one.alias_info.is_write]


def _require_one_device(operation: Any, arguments: Sequence[Any], options: dict[str, Any]) -> None:
    """RuntimeError, as on a GPU, if a tensor of the CPU takes part that must not."""
    if operation in MOVES:
        return
    looked_at = arguments if operation not in INDEXED else (arguments[0], *arguments[2:])
    for one in _tensors((*looked_at, *options.values())):
        if not isinstance(one, PretendTensor) and one.dim() > 0:
            shapes = ", ".join(
                f"{tuple(one.shape)} on {one.device}" for one in _tensors((*arguments, *options.values()))
            )
            raise RuntimeError(f"Expected all tensors to be on the same device, but {operation} has {shapes}")


class _MetaIsPretended(TorchDispatchMode):
    """What is made on, or moved to, `meta` is pretended; operations on tensors of the CPU alone stay as they are."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, and each operation would ask torch's compiler to keep away from it.
        return False

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Sequence[Any] = (), options: dict[str, Any] | None = None
    ) -> Any:
        found = PretendTensor in types
        with torch._C.DisableTorchFunction():
            return _run(operation, arguments, options or {}, is_pretended=found)


OF_DEVICES = {"tensor", "as_tensor", "asarray", "new_tensor", "cuda", "to"}
"""Functions that choose a device without naming one."""


class _CudaIsMeta(TorchFunctionMode):
    """The name of the device, before torch looks for a driver."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), options: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if not options and name not in OF_DEVICES and not any(type(one) in (str, torch.device) for one in arguments):
            return function(*arguments)
        options = options or {}
        if name == "device":
            return function(*arguments, **options)
        if name in ("tensor", "as_tensor", "asarray") and _is_cuda(options.get("device")):
            # On `meta` the numbers would be lost.
            return function(*arguments, **{**options, "device": "cpu"}).to("meta")
        if name == "new_tensor" and isinstance(arguments[0], PretendTensor):
            return torch.tensor(arguments[1], **{"dtype": arguments[0].dtype, **options}).to("meta")
        if name == "cuda":
            return arguments[0].to("meta")
        if name == "to" and len(arguments) > 1 and isinstance(arguments[1], Tensor):
            arguments = (arguments[0], arguments[1].device, arguments[1].dtype, *arguments[2:])
        if any(map(_is_cuda, arguments)) or _is_cuda(options.get("device")):
            arguments = tuple("meta" if _is_cuda(one) else one for one in arguments)
            options = {name: "meta" if _is_cuda(one) else one for name, one in options.items()}
        return function(*arguments, **options)


def _is_cuda(name: Any) -> bool:
    if isinstance(name, torch.device):
        return name.type == "cuda"
    return isinstance(name, str) and (name == "cuda" or name.startswith("cuda:"))


def _collective(own: Callable[..., Any]) -> Callable[..., Any]:
    """A collective of torch on gloo, with what stands inside of the pretended tensors; others are refused, as by NCCL."""

    def run(*arguments: Any, **options: Any) -> Any:
        _require_pretended(arguments, options)
        return own(*map(_inner, arguments), **{name: _inner(value) for name, value in options.items()})

    return run


def _message(own: Callable[..., Any]) -> Callable[..., Any]:
    """A message of torch from one rank to another; the CPU's tensors are refused, as by NCCL."""

    def run(*arguments: Any, **options: Any) -> Any:
        _require_pretended(arguments, options)
        # The dispatch finds what stands inside.
        return own(*arguments, **options)

    return run


def _require_pretended(arguments: Sequence[Any], options: dict[str, Any]) -> None:
    if not all(isinstance(one, PretendTensor) for one in _tensors((*arguments, *options.values()))):
        raise RuntimeError("No backend type associated with device type cpu")


MESSAGES = ("isend", "irecv", "send", "recv")
COLLECTIVES = ("all_reduce", "all_gather", "broadcast", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor")


def _load(own: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.load`, with all tensors where `map_location` says."""

    def load(*arguments: Any, map_location: Any = None, **options: Any) -> Any:
        is_cuda = _is_cuda(map_location)
        loaded = own(*arguments, map_location="cpu" if is_cuda else map_location, **options)
        return tree_map_only(Tensor, lambda one: one.to("meta"), loaded) if is_cuda else loaded

    return load


def _set_random_state(state: Tensor, device: object = None) -> None:
    if isinstance(state, PretendTensor):
        raise TypeError("RNG state must be a torch.ByteTensor")
    torch.set_rng_state(state)


def _answers() -> dict[str, Any]:
    """What torch.cuda says of one GPU whose random numbers are the CPU's."""
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "is_bf16_supported": lambda *arguments, **options: True,
        "get_device_name": lambda device=None: "pretended GPU",
        "get_device_properties": lambda device=None: SimpleNamespace(total_memory=2**32),
        "synchronize": lambda device=None: None,
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": _set_random_state,
        "manual_seed_all": lambda seed: None,
        "manual_seed": lambda seed: None,
    }


@contextmanager
def pretend_device() -> Iterator[torch.device]:
    """Within, torch has one GPU. Gives its device."""
    run_thread = threading.Thread.run

    def run_with_modes(thread: threading.Thread) -> None:
        with _MetaIsPretended(), _CudaIsMeta():
            run_thread(thread)

    with ExitStack() as stack:
        for name, answer in _answers().items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        # A mode is off within the functions that it handles, and the backward pass is one.
        run_backward = torch.autograd._engine_run_backward

        def run_backward_with_mode(*arguments: Any, **options: Any) -> Any:
            with _CudaIsMeta():
                return run_backward(*arguments, **options)

        stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", run_backward_with_mode))
        # Optimisers ask it whether a stream is being captured.
        stack.enter_context(mock.patch.object(torch.accelerator, "is_available", return_value=False))
        for name in COLLECTIVES:
            stack.enter_context(mock.patch.object(distributed, name, _collective(getattr(distributed, name))))
        for name in MESSAGES:
            message = _message(getattr(distributed, name))
            # torch looks a batch's messages up where they are defined.
            for module in (distributed, distributed_c10d):
                stack.enter_context(mock.patch.object(module, name, message))
        stack.enter_context(mock.patch.object(torch, "load", _load(torch.load)))
        stack.enter_context(mock.patch.object(threading.Thread, "run", run_with_modes))
        stack.enter_context(_MetaIsPretended())
        stack.enter_context(_CudaIsMeta())
        yield torch.device("cuda")
