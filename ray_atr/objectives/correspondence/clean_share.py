"""How many of a run's training pairs are true, by language, as told by what has not memorised them.

Before the first epoch the clips of a sample and their captions are read: by the first weights of the towers, which were never
trained on the pairs, and, where clips are recordings, by statistics of these and the words of the captions, which know
something before any tower does. A regression on the clips of other folds scores each pair (`cross_fit`), and the share is read
off the p-values (`noise_rate`): the likeliest one, where `ray-atr audit` states a bound. Of the two readings each language takes
the one that finds more of its true pairs, if that is more than chance, as `leave_one_out` does. The estimate counts only as far
as it is founded. Nothing is read again later: towers that have trained on the pairs know the wrong ones too. Where 99% were wrong
they seemed to find a fifth of the true ones after two epochs, and no p-value tells that this is memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_atr.objectives.correspondence.cross_fit import Pairs, cross_fitted_p_values
from ray_atr.objectives.correspondence.noise_rate import found_share, is_something_found, likeliest_wrong_share
from ray_atr.objectives.correspondence.ridge import Integers
from ray_atr.objectives.pairs import CleanShare
from ray_atr.objectives.pairs.pair_loss import FOUNDED

FOLDS = 10
MISPAIRS = 20_000
SAMPLE = 2048
"""Clips by which the share is estimated."""


class PairVectors(NamedTuple):
    """What is read of a training split, or a part of it: clips [N, D]; M captions [M, E], the places of their pairs (rows of the
    clips, slots, languages), and equal numbers for equal texts [M].
    """

    audio: NDArray[np.floating[Any]]
    text: NDArray[np.floating[Any]]
    places: tuple[Integers, Integers, Integers]
    key: Integers

    def in_language(self, k: int) -> Pairs:
        """The captions in one language, and the clips that have one."""
        return self.at(np.flatnonzero(self.places[2] == k))

    def at(self, of: Integers) -> Pairs:
        """The captions at these places [m], and the clips that have one of them."""
        clips, clip = np.unique(self.places[0][of], return_inverse=True)
        language, key = (numbers[of].astype(str) for numbers in (self.places[2], self.key))
        return Pairs(self.audio[clips], self.text[of], clip, language, key)


class Told(NamedTuple):
    """What is told of a language: the share of true pairs, the share of these that is found, whether that something is found is
    more than chance, and by which reading.
    """

    share: float
    found: float
    is_certain: bool
    reading: int = 0

    @property
    def rank(self) -> tuple[bool, float]:
        """The larger, the more a reading tells."""
        return self.is_certain, self.found


class CleanShares:
    """The estimate of a run for pairs in K languages; `wrong_shares` [K] take its place where they are known."""

    def __init__(self, languages: int, wrong_shares: Sequence[float] | None = None) -> None:
        self.is_known = wrong_shares is not None
        self.shares = 1 - torch.tensor([0.0] * languages if wrong_shares is None else wrong_shares)
        self.found = torch.full_like(self.shares, float(self.is_known))
        """0: nothing is known yet."""

    def estimate(self, readings: Sequence[PairVectors], seed: int) -> None:
        """Take the shares of the languages that are read, by the one of these readings that tells more."""
        for k in np.unique(readings[0].places[2]).tolist():
            told = true_share([one.in_language(k) for one in readings], seed)
            self.shares[k], self.found[k] = told.share, told.found

    def for_languages(self, languages: Tensor) -> CleanShare:
        """What is estimated of pairs in these languages, int64 [n]."""
        chosen = languages.cpu()
        return CleanShare(float(self.shares[chosen].mean()), float(self.found[chosen].mean()))

    def of_language(self, language: int) -> float | None:
        """The share of true pairs of a language; None while it is not founded."""
        return float(self.shares[language]) if float(self.found[language]) >= FOUNDED else None

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values: for a checkpoint, and for the other workers."""
        return {"shares": self.shares, "found": self.found}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same languages."""
        self.shares, self.found = state["shares"].cpu(), state["found"].cpu()


def true_share(readings: Sequence[Pairs], seed: int, known: float | None = None) -> Told:
    """The share of true pairs, `known` or as a regression on other clips tells it, and the share of these that it finds: by that
    of the readings of these pairs which tells more.

    Of too few clips, or captions that all say the same, nothing is found.
    """
    each = (_told(pairs, seed, known)._replace(reading=number) for number, pairs in enumerate(readings))
    return max(each, key=lambda one: one.rank)


def _told(pairs: Pairs, seed: int, known: float | None) -> Told:
    p_value = np.full(len(pairs.clip), np.nan)
    if len(pairs.audio) >= 2 * FOLDS:
        p_value = cross_fitted_p_values(pairs, FOLDS, MISPAIRS, seed)
    told = p_value[~np.isnan(p_value)]
    if not len(told):
        return Told(1.0 if known is None else known, 0.0, False)
    wrong = likeliest_wrong_share(told) if known is None else 1 - known
    return Told(1 - wrong, found_share(told, wrong), is_something_found(p_value, pairs.clip))
