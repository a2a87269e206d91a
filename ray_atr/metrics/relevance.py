"""Inputs of the metrics: arrays of torch or NumPy, and which candidates are relevant to which query, by clip or by label."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.common.settings import refuse

Array: TypeAlias = torch.Tensor | np.ndarray
IntegerArray: TypeAlias = torch.Tensor | np.ndarray | Sequence[int]


def as_matrix(path: str, values: Array, width: int | None = None) -> torch.Tensor:
    """`values` as a float tensor [rows, D], without a copy if possible. ValueError if empty, not numeric, or of another width."""
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


@dataclass(frozen=True)
class Relevance:
    """The relevant (text, clip) pairs of a retrieval task; `text[p]` and `clip[p]` are pair p's indices, int64 [P]."""

    text: torch.Tensor
    clip: torch.Tensor
    num_texts: int
    num_clips: int

    def of_texts(self, rows: torch.Tensor) -> Relevance:
        """The relevance of some of the texts, `rows` [R] ascending, which get numbers from 0."""
        is_chosen = torch.isin(self.text, rows)
        return Relevance(
            torch.searchsorted(rows, self.text[is_chosen]), self.clip[is_chosen], len(rows), self.num_clips
        )

    def of_clips(self, rows: torch.Tensor) -> Relevance:
        """The relevance of some of the clips, `rows` [R] ascending, which get numbers from 0. All texts stay."""
        is_chosen = torch.isin(self.clip, rows)
        return Relevance(
            self.text[is_chosen], torch.searchsorted(rows, self.clip[is_chosen]), self.num_texts, len(rows)
        )

    @property
    def matrix(self) -> NDArray[np.bool_]:
        """Which texts and clips are relevant to each other, [M, N]."""
        match = np.zeros((self.num_texts, self.num_clips), bool)
        match[self.text.numpy(), self.clip.numpy()] = True
        return match

    @property
    def first_clip(self) -> torch.Tensor:
        """A relevant clip of each text: the first in order of the pairs, int64 [M]. Every text needs one."""
        clip = torch.full((self.num_texts,), -1)
        clip[self.text.flip(0)] = self.clip.flip(0)
        assert bool((clip >= 0).all()), "a text without a relevant clip"
        return clip


def as_relevance(relevant: IntegerArray | Relevance, num_texts: int, num_clips: int) -> Relevance:
    """A `Relevance` from the clip of each caption, or the given one. ValueError if its sizes differ."""
    if not isinstance(relevant, Relevance):
        return relevance_by_clip(relevant, num_texts, num_clips)
    if (relevant.num_texts, relevant.num_clips) != (num_texts, num_clips):
        raise refuse("relevance", (relevant.num_texts, relevant.num_clips), f"the sizes given, {num_texts, num_clips}")
    return relevant


def relevance_by_clip(clip_of_caption: IntegerArray, num_captions: int, num_clips: int) -> Relevance:
    """Caption m is relevant to clip `clip_of_caption[m]` alone. `clip_of_caption` is integers [M] in [0, N)."""
    is_tensor = isinstance(clip_of_caption, torch.Tensor)
    clip = torch.as_tensor(clip_of_caption if is_tensor else np.asarray(clip_of_caption)).detach().cpu()
    if clip.shape != (num_captions,):
        raise refuse("clip_of_caption.shape", tuple(clip.shape), f"[{num_captions}]")
    if clip.is_floating_point() or clip.is_complex() or clip.dtype == torch.bool:
        raise refuse("clip_of_caption.dtype", str(clip.dtype), "integers")
    clip = clip.long()
    if len(clip) and not 0 <= int(clip.min()) <= int(clip.max()) < num_clips:
        raise refuse("clip_of_caption", f"{int(clip.min())}..{int(clip.max())}", f"0..{num_clips - 1}")
    return Relevance(torch.arange(num_captions), clip, num_captions, num_clips)


def relevance_by_label(
    labels_of_text: Sequence[str | Collection[str]], labels_of_clip: Sequence[str | Collection[str]]
) -> Relevance:
    """A text and a clip are relevant to each other if they share a label (ESC-50: all clips of one class)."""
    texts_of_label: dict[str, list[int]] = {}
    for text, labels in enumerate(labels_of_text):
        for label in _as_labels(labels):
            texts_of_label.setdefault(label, []).append(text)
    pairs = {
        (text, clip)
        for clip, labels in enumerate(labels_of_clip)
        for label in _as_labels(labels)
        for text in texts_of_label.get(label, ())
    }
    if not pairs:
        raise refuse("labels_of_clip", sorted(set().union(*map(_as_labels, labels_of_clip)))[:5], "labels of the texts")
    index = torch.from_numpy(np.array(sorted(pairs), dtype=np.int64))
    return Relevance(index[:, 0].contiguous(), index[:, 1].contiguous(), len(labels_of_text), len(labels_of_clip))


def _as_labels(labels: str | Collection[str]) -> set[str]:
    return {labels} if isinstance(labels, str) else set(labels)
