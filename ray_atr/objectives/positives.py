"""Which clips of a batch are no negatives of each other."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence

import torch
from torch import Tensor


def caption_groups(captions: Sequence[str]) -> Tensor:
    """A number for each caption, int64 [B], equal where the texts are: a hash, so that workers agree without talking.

    Case, surrounding and repeated white space, and Unicode's several ways to write a letter make no difference.
    """

    def number(caption: str) -> int:
        canonical = " ".join(unicodedata.normalize("NFKC", caption).casefold().split())
        return int.from_bytes(hashlib.blake2b(canonical.encode(), digest_size=8).digest(), "little", signed=True)

    return torch.tensor([number(caption) for caption in captions], dtype=torch.int64)


def same_group(groups: Tensor) -> Tensor:
    """`positives` [B, B] of group numbers [B], as of `caption_groups`, class labels or clip ids."""
    return groups[:, None] == groups[None, :]
