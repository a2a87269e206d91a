"""How the metrics take numbers in: torch or numpy, one check, one message form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch

from ray_atr.settings import refuse

Array: TypeAlias = torch.Tensor | np.ndarray
IntegerArray: TypeAlias = torch.Tensor | np.ndarray | Sequence[int]


def as_matrix(path: str, values: Array, width: int | None = None) -> torch.Tensor:
    """`values` as a float tensor [rows, D], sharing memory where it can; an empty or non-numeric one is refused."""
    tensor = as_floats(path, values)
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise refuse(f"{path}.shape", tuple(tensor.shape), "[rows, D] with at least one row and column")
    if width is not None and tensor.shape[1] != width:
        raise refuse(f"{path}.shape", tuple(tensor.shape), f"[rows, {width}], the width of the other embeddings")
    return tensor


def as_floats(path: str, values: Array) -> torch.Tensor:
    """`values` as a detached floating-point tensor of any shape."""
    tensor = values.detach() if isinstance(values, torch.Tensor) else torch.as_tensor(np.asarray(values))
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise refuse(f"{path}.dtype", str(tensor.dtype), "real numbers")
    return tensor if tensor.is_floating_point() else tensor.double()
