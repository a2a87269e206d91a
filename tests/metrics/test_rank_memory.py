"""No tensor as large as the score matrix, and nothing wide that grows with both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ray_atr.metrics import ranks
from ray_atr.metrics.ranks import count_ranks
from ray_atr.metrics.relevance import relevance_by_clip


class Largest(TorchDispatchMode):
    """The size in bytes of the largest tensor any operation gives back (views of what was there aside)."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and not func.is_view:
                self.bytes = max(self.bytes, tensor.numel() * tensor.element_size())
        return result


def spread(captions: int, clips: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(captions, 8, generator=generator), torch.randn(clips, 8, generator=generator)


def collapsed(captions: int, clips: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(captions, 8), torch.ones(clips, 8)


@pytest.mark.parametrize("make", [spread, collapsed])
def test_the_largest_tensor_is_a_block_whatever_the_sizes(monkeypatch: pytest.MonkeyPatch, make: Callable) -> None:
    captions, clips, side = 400, 256, 32
    text, audio = make(captions, clips)
    monkeypatch.setattr(ranks, "BLOCK_SIDE_CPU", side)
    with Largest() as largest:
        count_ranks(text, audio, relevance_by_clip(torch.arange(captions) % clips, captions, clips))
    indices_of_a_block = side * side * 2 * 8
    some_bytes_a_row = 64 * captions
    assert largest.bytes <= max(indices_of_a_block, some_bytes_a_row) < captions * clips * 4 / 8
