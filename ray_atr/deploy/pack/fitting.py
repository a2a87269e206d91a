"""Fits a projection of captions' vectors and words to target vectors in a space, by regression, without contrasting pairs.

The target of a training caption in any language is the space's own vector of its English version, moved towards its clip's
vector by a share. So a language learns from all of its captions, and a wrong pair of clip and caption affects only that share.

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
"""Weight of a clip's vector, beside the text vector. Each is centred on the mean of its own modality."""
VECTOR_PENALTY, WORD_PENALTY = 0.1, 1.0
"""Ridge penalties: of a vector's component, in units of its variance over all captions; of a word, in captions."""
MOST_WORDS, MOST_BYTES = 2048, 2_500_000
SMALLEST = 1e-4
"""Least variance, as a share of the mean one: a nearly constant component must not get a weight beyond 16 bits."""
CHUNK, TINY = 4096, 1e-6


def target_vectors(space: ForeignSpace) -> tuple[NDArray[np.int64], Vectors]:
    """The rows [M] of the training captions, and their target unit vectors [M, D]."""
    assert space.text is not None
    text_rows = english_versions(space.pairs)
    rows = np.array([row for row, pair in enumerate(space.pairs) if pair.split in ("", "train")])
    audio = space.audio[[space.pairs[row].audio_row for row in rows]]
    captioned = np.array([row for row in rows if row in text_rows])
    middle = space.text[[text_rows[row] for row in captioned]].mean(axis=0)
    wanted = AUDIO_PART * (audio - audio.mean(axis=0)) + middle
    for place, row in enumerate(rows):
        if row in text_rows:
            wanted[place] += space.text[text_rows[row]] - middle
    return rows, (wanted / np.linalg.norm(wanted, axis=1, keepdims=True)).astype(np.float32)


def english_versions(pairs: Sequence[PairedCaption]) -> Mapping[int, int]:
    """Row of the table -> row of the space's vector of its English version, the caption of the same number and clip."""
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
    """The largest number of words of a projection from `WithWords`."""
    return max(0, min(MOST_WORDS, MOST_BYTES // (2 * D) - (2 * W + 1)))


def fit_projection(tower: WithWords, vectors: Vectors, captions: Sequence[str], wanted: Vectors) -> nn.Linear:
    """The linear map from the tower's vectors to the target vectors `wanted` [M, D], by two ridge regressions.

    One is on the encoder's vectors [M, W] alone, for texts of unknown words; the other on these and on the words of a caption.
    Weights are rounded to the 16 bits of the file.
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
