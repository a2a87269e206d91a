"""Pairs of small loss are true: a mixture over the pairs' losses (NCR, Huang et al. 2021; DivideMix, Li et al. 2020).

A network fits true pairs before it memorises wrong ones: after a few epochs the losses of all pairs are of two groups.
Left out of the papers: the second network that selects for the first (co-teaching; twice the time), NCR's soft margin (a
clean probability is a sample weight here, for every pair loss) and DivideMix's mixing of samples. Both papers also train on
the pairs of large loss, in batches of their own and with labels that both networks predict (NCR from half of the epochs
on), and mix what a network predicts into the labels of the others; here a pair only counts by its weight. The losses are those
of the training batches, not of a pass of their own over the training set, and contrastive, where NCR's are hinges; a pair that
has no negative in its batch keeps its loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.common.settings import setting
from ray_atr.objectives.correspondence.correspondence import Correspondence, PairIndex, TrainingPairs
from ray_atr.objectives.correspondence.scored import MixtureEstimator
from ray_atr.objectives.pairs import Comparison
from ray_atr.objectives.pairs.pair_loss import without


@dataclass(frozen=True, kw_only=True)
class SmallLoss(Correspondence):
    """The posterior of the low component of a mixture over the pairs' contrastive losses.

    When: some pairs are wrong, up to about half.
    Related: `leave_one_out` asks a regression that has not seen the pair, `rematch` gives wrong pairs new partners.

    >>> from ray_atr.objectives import Objective
    >>> from ray_atr.objectives.correspondence import CORRESPONDENCES
    >>> Objective(correspondence=CORRESPONDENCES["small_loss"]()).correspondence.name
    'small_loss'
    """

    name: ClassVar[str] = "small_loss"
    mixture: str = setting("gmm", "the two components: normal (gmm) or beta (bmm)", choices=("gmm", "bmm"))
    warmup_epochs: int = setting(2, "epochs in which every pair has a sample weight of 1", at_least=1)
    prior: str = setting(
        "mixture",
        "share of the low component: mixture, as the mixture fits it (as published); estimate, the language's estimated share "
        "of true pairs, if at least half of these are found",
        choices=("mixture", "estimate"),
    )
    temperature: float = setting(
        0.07, "divides the similarities in the loss of the mixture, whatever the pair loss is", above=0
    )

    @property
    def needs_clean_share(self) -> bool:
        return self.prior == "estimate"

    def estimator(self, pairs: TrainingPairs) -> SmallLossEstimator:
        return SmallLossEstimator(pairs, self)


class SmallLossEstimator(MixtureEstimator):
    """The score is the negative contrastive loss of the pair among its batch, both directions."""

    settings: SmallLoss

    def score(self, comparison: Comparison, index: PairIndex) -> Tensor:
        rows, columns = contrastive_losses(comparison, self.settings.temperature)
        return -0.5 * (rows + columns)


def contrastive_losses(comparison: Comparison, temperature: float) -> tuple[Tensor, Tensor]:
    """Each pair's own contrastive loss against the negatives of its batch in both directions, [n] each.

    Other positives are left out: another clip of the same caption does not show whether this one fits it. The loss is NaN without
    a negative, for example if only one clip of the batch has a caption in the language: its loss of 0 would be the best of all.
    """
    logits, positives = comparison.cross_similarity(keep=True) / temperature, comparison.positive_rows()
    of_pairs = logits.diagonal()
    if positives is None:
        if len(of_pairs) == 1:
            return torch.full_like(of_pairs, torch.nan), torch.full_like(of_pairs, torch.nan)
        return logits.logsumexp(dim=1) - of_pairs, logits.logsumexp(dim=0) - of_pairs
    negatives, has_negative = without(logits, positives), ~positives.all(dim=1)
    rows, columns = (functional.softplus(negatives.logsumexp(dim=dim) - of_pairs) for dim in (1, 0))
    return rows.where(has_negative, torch.nan), columns.where(has_negative, torch.nan)
