"""Which captions a batch of clips wears in an epoch: noise applied, one paraphrase drawn, missing languages masked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_atr.data import draws
from ray_atr.data.features import FeatureSet
from ray_atr.data.noise import Noise, caption_owners

POSITIVES = ("captions", "labels", "identity")


@dataclass(frozen=True)
class CaptionBatch:
    """Captions of b clips in K languages: `texts[i][k]` where `mask[i, k]`, and the positive group of each clip `[b]`."""

    texts: list[list[str]]
    mask: NDArray[np.bool_]
    groups: NDArray[np.int64]


class TrainingCaptions:
    """The captions that the clips of a training split wear for a whole run.

    `positives` says which clips of a batch are not negatives of each other: those that wear the same English text
    (`captions`), those whose worn captions carry the same labels (`labels`), or each clip alone (`identity`).
    """

    def __init__(
        self, features: FeatureSet, languages: Sequence[str], noise: Noise, seed: int, positives: str = "captions"
    ) -> None:
        self.features, self.languages, self.seed, self.positives = features, tuple(languages), seed, positives
        self.num_captions = np.stack(
            [
                np.array([len(texts) for texts in features.captions_in(language)], np.int64)
                for language in self.languages
            ],
            axis=1,
        )
        self.owners = caption_owners(features.clip_ids, self.languages, noise, seed, self.num_captions > 0)

    @property
    def clean_share(self) -> float:
        """Share of clips that wear their own captions in every language."""
        own = np.arange(len(self.features))[:, None]
        return float((self.owners == own).all(axis=1).mean())

    def batch(self, rows: NDArray[np.int64], epoch: int) -> CaptionBatch:
        """The captions of the clips at `rows` in an epoch; caption j is drawn from (seed, epoch, clip_id).

        j is the same in every language, since caption j is the same sentence in every language that has it; a language
        without a caption j is masked.
        """
        owners = self.owners[rows]
        ids = [self.features.clip_ids[row] for row in rows]
        most = np.maximum(self.num_captions[owners, np.arange(len(self.languages))].max(axis=1), 1)
        drawn = draws.integers(ids, 0, most, self.seed, "caption", epoch)
        texts = [[""] * len(self.languages) for _ in rows]
        mask = np.zeros((len(rows), len(self.languages)), bool)
        for column, language in enumerate(self.languages):
            for index, captions in enumerate(self.features.captions_in(language, owners[:, column])):
                caption = captions[drawn[index]] if drawn[index] < len(captions) else ""
                texts[index][column], mask[index, column] = caption, bool(caption)
        return CaptionBatch(texts=texts, mask=mask, groups=self._groups(rows, owners, texts, mask))

    def _groups(
        self,
        rows: NDArray[np.int64],
        owners: NDArray[np.int64],
        texts: list[list[str]],
        mask: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        if self.positives == "labels":
            keys = ["|".join(sorted(self.features.labels[owner])) for owner in owners[:, 0]]
        elif self.positives == "captions":
            keys = [
                " ".join(row[0].casefold().split()) if known[0] else "" for row, known in zip(texts, mask, strict=True)
            ]
        else:
            keys = [""] * len(rows)
        named = [key or f"clip {self.features.clip_ids[row]}" for key, row in zip(keys, rows, strict=True)]
        return np.array([group_number(name) for name in named], np.int64)


def group_number(name: str) -> int:
    """A 63-bit number that stands for a positive group's name on every worker."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1
