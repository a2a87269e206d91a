"""Learning from negatives alone (Hu et al. 2023, "Cross-modal retrieval with partially mismatched pairs", RCL, Eq. 3-7).

    l_i = sum over negatives j of f(p_ij),   p_ij = softmax of the row's s_ij / tau
    f = -log(1 - p)  (log)  |  tan p  (tan)  |  (1 - (1 - p)^q) / q  (gce)

The negatives of a wrong pair are mostly true negatives. Nothing pulls the pair itself together but the softmax's
denominator. The paper averages both directions, as here; its code adds them. Tau is constant, as in that code. Its form
abs is gce with q = 1; its form exp and its drawing of negatives are left out. With sample weights y, l_i is multiplied by
y_i, and another pair counts by y_j in the sum and in the softmax; this is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ray_atr.common.settings import inherited, setting
from ray_atr.objectives.pairs.contrastive import Contrastive
from ray_atr.objectives.pairs.learned import Learned, LearnedSettings
from ray_atr.objectives.pairs.pair_loss import Comparison, Direction, PairLoss, Terms

FORMS = ("log", "tan", "gce")


@dataclass(frozen=True, kw_only=True)
class Complementary(PairLoss):
    """Low probability for every negative of the batch, in both directions; the pair's own probability is what is left.

    When: many pairs are wrong and no estimate of them is wanted: it learns from negatives alone.
    Related: `Contrastive` with a correspondence, `PartialLearningToMatch`.

    >>> import torch
    >>> from ray_atr.objectives.pairs import Comparison, Complementary
    >>> u, v = torch.eye(4), torch.eye(4)  # four true pairs [N, D], each unlike the others
    >>> loss = Complementary(form="log")
    >>> bool(loss(Comparison(u, v)).loss < loss(Comparison(u, v.roll(1, dims=0))).loss)
    True
    """

    name: ClassVar[str] = "complementary"
    takes_extra_negatives: ClassVar[bool] = True
    temperature: float = inherited(Contrastive, "temperature", 0.05)
    form: str = setting("log", "what a negative's probability costs: -log(1 - p), tan p, or gce with q", choices=FORMS)
    q: float = setting(0.5, "exponent of gce: towards 0 it is -log(1 - p), at 1 it is p", above=0, at_most=1)

    def learns(self) -> LearnedSettings:
        return LearnedSettings(temperature=self.temperature)

    def score(self, comparison: Comparison, learned: Learned) -> Terms:
        tau = learned.tau(self.temperature)
        rows, columns = comparison.directions()
        for_rows, for_columns = comparison.extra_logits(tau)
        row_losses = self.sample_losses(rows, tau, for_rows)
        column_losses = self.sample_losses(columns, tau, for_columns)
        probability = (rows.similarity / tau).detach().log_softmax(dim=1).diagonal().exp().mean()
        return Terms(comparison.both_directions(row_losses, column_losses), {"probability_of_true_pairs": probability})

    def sample_losses(self, direction: Direction, tau: float | Tensor, extra: Tensor | None) -> Tensor:
        """Loss [N] of each row. A negative with the soft target t_ij counts by 1 - t_ij.

        With soft targets and sample weights, positives count too: by 1 - t_ii, the share of the targets that they are not.
        """
        logits = direction.competing(direction.similarity / tau)
        targets, weights = direction.targets, direction.other_weights()
        counts = (~direction.mask).to(logits.dtype)
        if targets is not None:
            counts = counts * (1 - targets)
        if weights is not None:
            if targets is not None:
                counts = counts + direction.mask * (1 - targets.diagonal())[:, None]
            counts = counts * weights
        if extra is not None:
            logits = torch.cat([logits, extra], dim=1)
            counts = torch.cat([counts, torch.ones_like(extra)], dim=1)
        return (counts * self.penalty(logits.log_softmax(dim=1))).sum(dim=1)

    def penalty(self, log_p: Tensor) -> Tensor:
        """f of probabilities given by their logarithms; finite, as log(1 - p) is not at p = 1."""
        if self.form == "tan":
            return log_p.exp().tan()
        # 1 - p without cancellation; a probability that rounds to 1 counts as the next smaller number.
        other_probability = -torch.expm1(log_p.clamp(max=-torch.finfo(log_p.dtype).eps))
        return -other_probability.log() if self.form == "log" else (1 - other_probability**self.q) / self.q
