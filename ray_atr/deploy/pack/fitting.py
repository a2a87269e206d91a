"""Fits a projection of captions' vectors to where they belong in a space, by regression: no pairs are contrasted.

Every training caption, in whatever language, belongs where the space's own vector of its English version is, moved towards its
clip's vector by a part. So a language learns from all of its captions, and wrong pairs of clip and caption move only that part.

Shapes: M captions, W width of the text encoder, D width of the space.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ray_atr.data.language_codes import ENGLISH
from ray_atr.deploy.pack.space import ForeignSpace, PairedCaption
from ray_atr.training.experiment import Experiment

Vectors = NDArray[np.float32]
AUDIO_PART = 0.25
"""Of a clip's vector, beside the text vector. Both are taken from the mean of their kind, which audio and text do not share."""
DROPOUT = 0.1
WEIGHT_DECAY = 0.01


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


def fit_projection(
    projection: nn.Sequential,
    vectors: Vectors,
    wanted: Vectors,
    experiment: Experiment,
    told: Callable[[int], None] = lambda epoch: None,
) -> None:
    """Fit a projection in place, so that captions' vectors [M, W] point where they belong [M, D]: the mean of 1 - cosine, by
    AdamW with a cosine rate. The vectors are standardised for it; that is folded into the first layer.
    """
    train = experiment.train
    mean, spread = vectors.mean(axis=0), vectors.std(axis=0) + 1e-6
    given, aim = torch.from_numpy((vectors - mean) / spread), torch.from_numpy(wanted)
    size = min(train.batch_size, len(given))
    steps = train.epochs * (len(given) // size)
    optimiser = torch.optim.AdamW(projection.parameters(), experiment.learning_rate, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)))
    first, *between, last = projection
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(experiment.seed)
        for epoch in range(train.epochs):
            for rows in torch.randperm(len(given))[: len(given) // size * size].split(size):
                hidden = first(given[rows])
                for layer in between:
                    hidden = layer(hidden)
                found = last(nn.functional.dropout(hidden, DROPOUT))
                loss = (1 - nn.functional.cosine_similarity(found, aim[rows])).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
            told(epoch + 1)
    with torch.no_grad():
        assert isinstance(first, nn.Linear)
        first.weight.div_(torch.from_numpy(spread))
        first.bias.sub_(first.weight @ torch.from_numpy(mean))
