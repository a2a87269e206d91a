"""Similarities of clips and captions by heads that never saw the clip: each fold is scored by heads trained on the others.

A model that was trained on a wrong pair believes it. So two small heads are trained on vectors of clips and captions, with the
contrastive loss, on all folds but one, and that one is scored. The vectors come from encoders that do not know the pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from ray_atr.common.settings import refuse
from ray_atr.objectives import Embeddings, preset
from ray_atr.workshop.audit.options import CrossFit


@dataclass(frozen=True)
class Pairs:
    """N clips and M captions as vectors: `audio` [N, D], `text` [M, E], and of each caption its clip, language and text.

    Captions of equal `key` say the same: none is a mispair of a clip that has another of them. Raises ValueError for
    vectors that are not finite.
    """

    audio: NDArray[np.float32]
    text: NDArray[np.float32]
    clip: NDArray[np.int64]
    language: NDArray[np.str_]
    key: NDArray[np.str_]

    def __post_init__(self) -> None:
        assert len(self.clip) == len(self.language) == len(self.key) == len(self.text), "one for each caption"
        assert np.isin(self.clip, np.arange(len(self.audio))).all(), "rows of clips"
        for name in ("audio", "text"):
            rows = np.flatnonzero(~np.isfinite(getattr(self, name)).all(axis=1))
            if len(rows):
                raise refuse(f"{name}[{rows[0]}]", "a value that is not finite", "finite vectors")


@dataclass(frozen=True)
class Fold:
    """Clips [n] of one fold as the others' heads see them, `audio` [n, W], and every caption of the set, `text` [M, W].

    Both are centred, captions within their language: an inner product is the similarity less what clip and caption have
    with everything. A fold's products are divided by their deviation over random mispairs, so that folds compare.
    """

    clips: NDArray[np.int64]
    audio: NDArray[np.float32]
    text: NDArray[np.float32]

    def score(self, place: NDArray[np.int64], caption: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of the clips at these places of the fold [p] with these captions [p]."""
        return np.einsum("pw,pw->p", self.audio[place], self.text[caption], dtype=np.float64)


def cross_fit(pairs: Pairs, settings: CrossFit, progress: Callable[[int, int], None] | None) -> Iterator[Fold]:
    """The folds, one after the other. Deterministic in the seed. `progress` is called with the epochs done and all of them.

    Raises ValueError if there are fewer clips with captions than two folds need.
    """
    captioned = np.unique(pairs.clip)
    if len(captioned) < 2 * settings.folds:
        raise refuse("folds", settings.folds, f"at most half of the {len(captioned)} clips that have captions")
    shuffled = np.random.default_rng(settings.seed).permutation(captioned)
    for number, held_out in enumerate(np.array_split(shuffled, settings.folds)):
        seen = np.flatnonzero(~np.isin(pairs.clip, held_out))
        yield _fold(_train(pairs, seen, settings, number, progress), pairs, np.sort(held_out))


class Heads(nn.Module):
    """Two maps into one space: linear, ReLU, linear, unit norm."""

    def __init__(self, audio_width: int, text_width: int, width: int) -> None:
        super().__init__()
        self.audio, self.text = (
            nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width))
            for size in (audio_width, text_width)
        )

    def forward(self, audio: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Unit rows [b, width] each of vectors [b, D] and [b, E]."""
        return functional.normalize(self.audio(audio), dim=1), functional.normalize(self.text(text), dim=1)


def _train(
    pairs: Pairs,
    captions: NDArray[np.int64],
    settings: CrossFit,
    fold: int,
    progress: Callable[[int, int], None] | None,
) -> Heads:
    """Heads trained on these captions [m] and their clips: one caption a clip and epoch, drawn each time."""
    random = np.random.default_rng((settings.seed, fold))
    audio, text = torch.from_numpy(pairs.audio), torch.from_numpy(pairs.text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(random.integers(2**31)))
        heads = Heads(pairs.audio.shape[1], pairs.text.shape[1], settings.width)
    optimizer = torch.optim.Adam(heads.parameters(), lr=settings.learning_rate, fused=True)
    objective = preset("contrastive")
    _, key = np.unique(pairs.key, return_inverse=True)
    for epoch in range(settings.epochs):
        drawn = _one_caption_a_clip(pairs.clip, captions, random)
        # A last batch of one clip would have no negatives.
        for batch in np.array_split(drawn, max(1, round(len(drawn) / settings.batch_size))):
            u, v = heads(audio[pairs.clip[batch]], text[batch])
            same = torch.from_numpy(key[batch][:, None] == key[batch][None, :])
            terms = objective(Embeddings(audio=u, text=v[:, None], positives=same))
            optimizer.zero_grad()
            terms.loss.backward()
            optimizer.step()
        if progress is not None:
            progress(fold * settings.epochs + epoch + 1, settings.folds * settings.epochs)
    return heads.eval()


def _one_caption_a_clip(
    clip: NDArray[np.int64], captions: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.int64]:
    """One of its captions for each clip, in random order."""
    shuffled = random.permutation(captions)
    _, first = np.unique(clip[shuffled], return_index=True)
    return random.permutation(shuffled[first])


@torch.no_grad()
def _fold(heads: Heads, pairs: Pairs, clips: NDArray[np.int64]) -> Fold:
    """These clips [n] and all captions, centred."""
    u, v = (x.numpy() for x in heads(torch.from_numpy(pairs.audio[clips]), torch.from_numpy(pairs.text)))
    for language in np.unique(pairs.language):
        own = pairs.language == language
        v[own] -= v[own].mean(axis=0)
    return Fold(clips, u - u.mean(axis=0), v)
