"""Captions of clips in several languages as one numbered list, so that caption m is one sentence in all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ray_atr.settings import refuse


@dataclass(frozen=True)
class AlignedCaptions:
    """M captions: `sentences[language][m]` ("" where absent), `present[language]` [M] bool, `clip_of_caption` [M]."""

    sentences: dict[str, list[str]]
    present: dict[str, np.ndarray]
    clip_of_caption: np.ndarray

    def __len__(self) -> int:
        return len(self.clip_of_caption)


def align_captions(captions: Mapping[str, Sequence[Sequence[str]]], limit: int = 0) -> AlignedCaptions:
    """Number the captions of N clips, `captions[language][clip]`, caption j of a clip being one sentence in all languages.

    An empty string, or a list shorter than another language's, is an absent caption. `limit` keeps the first so many
    of each clip; 0 keeps all. Languages without any caption are refused.
    """
    sizes = {language: len(of_clip) for language, of_clip in captions.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise refuse("captions", sizes, "the same clips, at least one, in every language")
    num_clips = next(iter(sizes.values()))
    counts = [max(len(of_clip[clip]) for of_clip in captions.values()) for clip in range(num_clips)]
    numbers = [(clip, j) for clip in range(num_clips) for j in range(min(counts[clip], limit or counts[clip]))]
    sentences = {
        language: [of_clip[clip][j] if j < len(of_clip[clip]) else "" for clip, j in numbers]
        for language, of_clip in captions.items()
    }
    present = {
        language: np.array([bool(text.strip()) for text in texts], bool) for language, texts in sentences.items()
    }
    silent = [language for language, mask in present.items() if not mask.any()]
    if silent:
        raise refuse("captions", f"no caption in {', '.join(silent)}", "languages with captions")
    return AlignedCaptions(sentences, present, np.array([clip for clip, _ in numbers], dtype=np.int64))
