"""Where NumPy computes instead of torch: on vectors, and on matrices that take less time than torch's call of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

# NumPy's calls cost a third of torch's, and up to this size its product of a matrix and a vector computes on one thread.
SMALL = 96 * 96


def has_view(tensor: Tensor) -> bool:
    """Whether a view of NumPy's shares the tensor's memory: not on a GPU, nor under `torch.compile`."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def is_small(matrix: Tensor) -> bool:
    """Whether sweeps over a matrix [N, M] are better made on a view of NumPy's."""
    return matrix.numel() <= SMALL and has_view(matrix)


def times(matrix: Any, vector: Any) -> Any:
    """The product of a matrix [N, M] and a vector [M]; a vector of NumPy's gives one, also where torch has the matrix."""
    if isinstance(vector, np.ndarray) and isinstance(matrix, Tensor):
        return (matrix @ torch.from_numpy(vector)).numpy()
    return matrix @ vector
