"""Clips of a batch that are no negatives of each other."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_atr.common.sampling import number_of

POSITIVES = ("captions", "labels", "identity")


def positive_groups(
    positives: str, clip_ids: Sequence[str], captions: Sequence[str], labels: Sequence[Sequence[str]]
) -> NDArray[np.int64]:
    """A number for each clip, int64 [n], equal for those that are no negatives of each other by the setting `positives`."""
    keys = [""] * len(clip_ids)
    if positives == "labels":
        keys = ["|".join(sorted(labels_of_clip)) for labels_of_clip in labels]
    elif positives == "captions":
        keys = [folded(caption) for caption in captions]
    named = (key or f"clip {clip_id}" for key, clip_id in zip(keys, clip_ids, strict=True))
    return np.array([group_number(name) for name in named], np.int64)


def folded(text: str) -> str:
    """A text in the form in which captions are compared: without differences of case, white space and Unicode composition."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def group_number(name: str) -> int:
    """A 63-bit hash of a positive group's name, the same on every worker."""
    return number_of(name.encode()) >> 1


def numbered(texts: Sequence[str]) -> NDArray[np.int64]:
    """A number for each text, int64 [M], from 0 in the order of the distinct texts.

    An array of texts would take as much memory for each as the longest one needs.
    """
    number_of_text = {text: number for number, text in enumerate(sorted(set(texts)))}
    return np.array([number_of_text[text] for text in texts], np.int64)


def caption_groups(captions: Sequence[str]) -> Tensor:
    """A number for each caption, int64 [B], equal where the texts are: a hash, so that workers agree without communication."""
    return torch.tensor([group_number(folded(caption)) for caption in captions], dtype=torch.int64)
