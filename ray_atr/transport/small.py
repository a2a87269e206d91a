"""Where NumPy computes instead of torch: on matrices so small that they take less time than torch's call of them."""

from __future__ import annotations

import torch
from torch import Tensor

# NumPy's calls cost a third of torch's, and up to this size it computes on one thread.
SMALL = 96 * 96


def is_small(matrix: Tensor) -> bool:
    """Whether sweeps over a matrix [N, M] are better made on views of NumPy's, which share the tensors' memory.

    Not under `torch.compile`, which makes tensors of them that share nothing.
    """
    return matrix.device.type == "cpu" and matrix.numel() <= SMALL and not torch.compiler.is_compiling()
