"""The share of a run's training pairs that are true, by language, estimated by regressions that have not memorised the pairs.

Before the first epoch the clips of a sample and their captions become vectors: the outputs of the towers' first weights, which
were never trained on the pairs; and, if clips are recordings, statistics of these and the words of the captions. A regression
on the clips of other folds scores each pair (`cross_fit`), and the share is read off the p-values (`noise_rate`): the likeliest
one, where `ray-atr audit` states a bound. Each language uses the one of these two readings that finds more of its true pairs,
if it finds more than by chance, as `leave_one_out` does. The fewer of the true pairs are found, the less the estimate counts
(`CleanShare`). It is not made again later, since towers that have trained on the pairs fit the wrong ones too. Where 99% were
wrong, such towers seemed to find a fifth of the true ones after two epochs, and no p-value shows that this is memorised.
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
    """What is read of a training split, or a part of it, as vectors: clips `audio` [N, D], and M captions `text` [M, E] with the
    indices of their pairs (rows of the clips, slots, languages, each [M]); equal captions have an equal `key` [M].
    """

    audio: NDArray[np.floating[Any]]
    text: NDArray[np.floating[Any]]
    pair_index: tuple[Integers, Integers, Integers]
    key: Integers

    def subset(self, captions: Integers) -> Pairs:
        """These captions, by their rows of `text` [m], and the clips that have one of them."""
        clips, clip = np.unique(self.pair_index[0][captions], return_inverse=True)
        language = self.pair_index[2][captions].astype(str)
        return Pairs(self.audio[clips], self.text[captions], clip, language, self.key[captions])


class TrueShare(NamedTuple):
    """An estimate of one language's share of true pairs: the share, the share of these that the regression finds, whether that is
    more than chance, and the number of the reading that it is from.
    """

    share: float
    found_share: float
    is_certain: bool
    reading: int = 0


class CleanShares:
    """A run's estimated shares of true pairs in K languages; the known `wrong_shares` [K] take their place if they are given."""

    def __init__(self, languages: int, wrong_shares: Sequence[float] | None = None) -> None:
        self.is_known = wrong_shares is not None
        self.shares = 1 - torch.tensor([0.0] * languages if wrong_shares is None else wrong_shares)
        self.found_shares = torch.full_like(self.shares, float(self.is_known))
        """0: nothing is known yet."""

    def estimate(self, readings: Sequence[PairVectors], seed: int) -> None:
        """Set the shares of the languages that are read; each is from the reading that finds most in that language. Where none
        finds more than chance, the share stays unknown.
        """
        languages = readings[0].pair_index[2]
        for k in np.unique(languages).tolist():
            estimate = true_share([vectors.subset(np.flatnonzero(languages == k)) for vectors in readings], seed)
            if estimate.is_certain:
                self.shares[k], self.found_shares[k] = estimate.share, estimate.found_share

    def for_languages(self, languages: Tensor) -> CleanShare:
        """The mean estimate over pairs in these languages, int64 [n]."""
        chosen = languages.cpu()
        return CleanShare(float(self.shares[chosen].mean()), float(self.found_shares[chosen].mean()))

    def of_language(self, language: int) -> float | None:
        """The share of true pairs of a language; None while it is not founded."""
        return float(self.shares[language]) if float(self.found_shares[language]) >= FOUNDED else None

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values: for a checkpoint, and for the other workers."""
        return {"shares": self.shares, "found": self.found_shares}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same languages."""
        self.shares, self.found_shares = state["shares"].cpu(), state["found"].cpu()


def true_share(readings: Sequence[Pairs], seed: int, known_share: float | None = None) -> TrueShare:
    """The share of true pairs, `known_share` or estimated by a regression on other clips, and the share of these that it finds.
    Of the readings, which are of the same pairs, the one that finds most.

    With too few clips, or captions that are all equal, the found share is 0.
    """
    estimates = (
        _true_share(pairs, seed, known_share)._replace(reading=reading) for reading, pairs in enumerate(readings)
    )
    return max(estimates, key=lambda estimate: (estimate.is_certain, estimate.found_share))


def _true_share(pairs: Pairs, seed: int, known_share: float | None) -> TrueShare:
    p_value = np.full(len(pairs.clip), np.nan)
    if len(pairs.audio) >= 2 * FOLDS:
        p_value = cross_fitted_p_values(pairs, FOLDS, MISPAIRS, seed)
    p_values = p_value[~np.isnan(p_value)]
    if not len(p_values):
        return TrueShare(1.0 if known_share is None else known_share, 0.0, False)
    wrong_share = likeliest_wrong_share(p_values) if known_share is None else 1 - known_share
    return TrueShare(1 - wrong_share, found_share(p_values, wrong_share), is_something_found(p_value, pairs.clip))
