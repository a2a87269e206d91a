"""How many of a run's training pairs are true, by language, as told by what has not memorised them.

Before the first epoch the clips of a sample and their captions are encoded by the first weights, which were never trained on
the pairs. A regression on the clips of other folds scores each pair (`cross_fit`), and the share is read off the p-values
(`noise_rate`), as `ray-atr audit` reads it. If too few of the true pairs, as estimated, are found for that, as with towers
that know nothing yet, it is tried again before each of the next epochs; until then the estimate counts only as far as it is
founded. A founded one is final: a model that is trained on memorises wrong pairs, and would count them as true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ray_atr.objectives.correspondence.cross_fit import Pairs, cross_fitted_p_values
from ray_atr.objectives.correspondence.noise_rate import found_share, wrong_share
from ray_atr.objectives.pairs import CleanShare
from ray_atr.objectives.pairs.pair_loss import FOUNDED

FOLDS = 10
MISPAIRS = 20_000
TRIES = 4
"""Epochs before which an estimate is made. Later ones would be of a model that has memorised."""


class CleanShares:
    """The estimate of a run for pairs in K languages; `wrong_shares` [K] take its place where they are known."""

    def __init__(self, languages: int, wrong_shares: Sequence[float] | None = None) -> None:
        self.is_final = wrong_shares is not None
        self.shares = 1 - torch.tensor([0.0] * languages if wrong_shares is None else wrong_shares)
        self.found = torch.full_like(self.shares, float(self.is_final))
        """0: nothing is known yet."""

    def is_wanted(self, epoch: int) -> bool:
        """Whether an estimate is to be made before this epoch, from 0."""
        return not self.is_final and epoch < TRIES

    def estimate(self, pairs: Pairs, seed: int) -> None:
        """Take the shares from pairs whose `language` is the language's number. Too few pairs are left out of it."""
        if len(np.unique(pairs.clip)) < 2 * FOLDS:
            return
        p_value = cross_fitted_p_values(pairs, FOLDS, MISPAIRS, seed)
        languages = pairs.language.astype(int)
        for k in np.unique(languages):
            known = p_value[(languages == k) & ~np.isnan(p_value)]
            if len(known):
                share = wrong_share(known).share
                self.shares[k], self.found[k] = 1 - share, found_share(known, share)
        self.is_final = bool((self.found[np.unique(languages)] >= FOUNDED).all())

    def for_languages(self, languages: Tensor) -> CleanShare:
        """What is estimated of pairs in these languages, int64 [n]."""
        chosen = languages.cpu()
        return CleanShare(float(self.shares[chosen].mean()), float(self.found[chosen].mean()))

    def of_language(self, language: int) -> float | None:
        """The share of true pairs of a language; None while it is not founded."""
        return float(self.shares[language]) if float(self.found[language]) >= FOUNDED else None

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values: for a checkpoint, and for the other workers."""
        return {"shares": self.shares, "found": self.found, "is_final": self.is_final}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same languages."""
        self.shares, self.found = state["shares"].cpu(), state["found"].cpu()
        self.is_final = bool(state["is_final"])
