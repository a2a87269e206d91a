"""A module as an ONNX graph in one file."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from ray_atr.common.settings import require_extra

EXTRA = "onnx"


def require_onnx(option: str) -> None:
    """ValueError unless the libraries that write and run graphs are installed."""
    require_extra("onnxscript", EXTRA, option)
    require_extra("onnxruntime", EXTRA, option)


def write_graph(graph: nn.Module, example: tuple[Tensor, ...], file: Path, axes: dict[str, dict[int, str]]) -> None:
    """Write a graph with its weights to one file; the named axes are dynamic."""
    dynamic = tuple(dict.fromkeys(axes_of_one, torch.export.Dim.DYNAMIC) for axes_of_one in axes.values())
    with errors_alone("torch.onnx", "onnxscript", "onnx_ir"), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            example,
            str(file),
            input_names=list(axes),
            output_names=["vectors"],
            dynamic_shapes=dynamic,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


@contextmanager
def errors_alone(*loggers: str) -> Iterator[None]:
    """Within the context, these loggers (the empty name is the root's) log only errors."""
    levels = {name: logging.getLogger(name).level for name in loggers}
    try:
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
