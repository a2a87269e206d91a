"""Fits a projection of captions' vectors and words to where they belong in a space, by regression: no pairs are contrasted.

Every training caption, in whatever language, belongs where the space's own vector of its English version is, moved towards its
clip's vector by a part. So a language learns from all of its captions, and wrong pairs of clip and caption move only that part.

Shapes: M captions, W width of the text encoder, V words of the vocabulary, D width of the space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ray_atr.common.language_codes import ENGLISH
from ray_atr.deploy.pack.space import ForeignSpace, PairedCaption
from ray_atr.models.words import WithWords

Vectors = NDArray[np.float32]
AUDIO_PART = 0.25
"""Of a clip's vector, beside the text vector. Both are taken from the mean of their kind, which audio and text do not share."""
VECTOR_PENALTY, WORD_PENALTY = 0.1, 1.0
"""Of the ridge: for a number of the encoder's vector in its variance over all captions, for a word in captions."""
MOST_WORDS, MOST_BYTES = 2048, 2_500_000
SMALLEST = 1e-4
"""Of the mean variance: a number that hardly varies must not get a weight beyond those of 16 bits."""
CHUNK, TINY = 4096, 1e-6


def belongs(space: ForeignSpace) -> tuple[NDArray[np.int64], Vectors]:
    """The rows [M] of the training captions, and the unit vector [M, D] at which each belongs."""
    assert space.text is not None
    text_rows = english_versions(space.pairs)
    rows = np.array([row for row, pair in enumerate(space.pairs) if pair.split in ("", "train")])
    audio = space.audio[[space.pairs[row].audio_row for row in rows]]
    known = np.array([row for row in rows if row in text_rows])
    middle = space.text[[text_rows[row] for row in known]].mean(axis=0)
    wanted = AUDIO_PART * (audio - audio.mean(axis=0)) + middle
    for place, row in enumerate(rows):
        if row in text_rows:
            wanted[place] += space.text[text_rows[row]] - middle
    return rows, (wanted / np.linalg.norm(wanted, axis=1, keepdims=True)).astype(np.float32)


def english_versions(pairs: Sequence[PairedCaption]) -> Mapping[int, int]:
    """Row of the table -> row of the space's vector of its English version: the caption of the same number of the same clip."""
    counts: dict[tuple[int, str], int] = {}
    sentences = []
    for pair in pairs:
        number = counts.get((pair.audio_row, pair.language), 0)
        counts[pair.audio_row, pair.language] = number + 1
        sentences.append((pair.audio_row, number))
    english = {
        sentence: pair.text_row
        for sentence, pair in zip(sentences, pairs, strict=True)
        if pair.language == ENGLISH and pair.text_row is not None
    }
    return {row: english[sentence] for row, sentence in enumerate(sentences) if sentence in english}


def most_words(W: int, D: int) -> int:
    """The words that a projection from `WithWords` has room for."""
    return max(0, min(MOST_WORDS, MOST_BYTES // (2 * D) - (2 * W + 1)))


def fit_projection(tower: WithWords, vectors: Vectors, captions: Sequence[str], wanted: Vectors) -> nn.Linear:
    """The linear map of the tower's vectors by which captions point where they belong [M, D]: two ridge regressions.

    One is on the encoder's vectors [M, W] alone, for texts of unknown words; the other on these and on which words a caption has.
    Weights are rounded to 16 bits, in which they are written.
    """
    (M, W), V, D = vectors.shape, len(tower.words), wanted.shape[1]
    gram, product = np.zeros((1 + W + V, 1 + W + V)), np.zeros((1 + W + V, D))
    for start in range(0, M, CHUNK):
        rows = slice(start, start + CHUNK)
        words = tower.bag(captions[rows])[:, :V].numpy()
        x = np.concatenate([np.ones((len(words), 1)), vectors[rows], words], axis=1)
        gram += x.T @ x
        product += x.T @ wanted[rows]
    variance = gram.diagonal()[1 : 1 + W] / M - (gram[0, 1 : 1 + W] / M) ** 2
    variance = np.maximum(variance, SMALLEST * variance.mean())
    gram[np.diag_indices(len(gram))] += [TINY, *(VECTOR_PENALTY * M * variance + TINY), *[WORD_PENALTY] * V]
    alone, both = np.linalg.solve(gram[: 1 + W, : 1 + W], product[: 1 + W]), np.linalg.solve(gram, product)
    weight = np.concatenate([alone[1:], both[1 : 1 + W] - alone[1:], both[1 + W :], both[:1] - alone[:1]])
    fitted = nn.Linear(2 * W + V + 1, D)
    with torch.no_grad():
        fitted.weight.copy_(torch.from_numpy(weight.T).half())
        fitted.bias.copy_(torch.from_numpy(alone[0]).half())
    return fitted
