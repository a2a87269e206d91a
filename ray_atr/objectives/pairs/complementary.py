"""Learning from negatives alone (Hu et al. 2023, "Cross-modal retrieval with partially mismatched pairs", RCL, Eq. 3-7).

    l_i = sum over negatives j of f(p_ij),   p_ij = softmax of the row's s_ij / tau
    f = -log(1 - p)  (log)  |  tan p  (tan)  |  (1 - (1 - p)^q) / q  (gce)

What a wrong pair says of its negatives is mostly right, so nothing pulls on the pair itself but the softmax's denominator.
The paper averages both directions, as here; its method to set tau by a schedule is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ray_atr.objectives.learned import Learned, LearnedSettings
from ray_atr.objectives.pairs.pair_loss import Comparison, PairLoss, Terms
from ray_atr.settings import setting

FORMS = ("log", "tan", "gce")


@dataclass(frozen=True, kw_only=True)
class Complementary(PairLoss):
    """Low probability for every negative of the batch, in both directions; the pair's own probability is what is left."""

    name: ClassVar[str] = "complementary"
    takes_extra_negatives: ClassVar[bool] = True
    temperature: float = setting(0.05, "divides the similarities (tau); a learned one takes its place", above=0)
    form: str = setting("log", "what a negative's probability costs: -log(1 - p), tan p, or gce with q", choices=FORMS)
    q: float = setting(0.5, "exponent of gce: towards 0 it is -log(1 - p), at 1 it is p", above=0, at_most=1)

    def learns(self) -> LearnedSettings:
        return LearnedSettings(temperature=self.temperature)

    def score(self, comparison: Comparison, learned: Learned) -> Terms:
        tau = learned.tau(self.temperature)
        logits, positives = comparison.cross_similarity() / tau, comparison.positive_mask()
        for_rows, for_columns = comparison.extra_logits(tau)
        row_losses = self.sample_losses(logits, positives, for_rows, comparison.targets)
        column_losses = self.sample_losses(logits.T, positives.T, for_columns, comparison.column_targets())
        own = logits.detach().log_softmax(dim=1).diagonal().exp().mean()
        return Terms(comparison.both_directions(row_losses, column_losses), {"probability_of_true_pairs": own})

    def sample_losses(self, logits: Tensor, positives: Tensor, extra: Tensor | None, targets: Tensor | None) -> Tensor:
        """Loss [N] of each row; a negative that is a soft target by t_ij counts by 1 - t_ij."""
        counts = (~positives).to(logits.dtype)
        if targets is not None:
            counts = counts * (1 - targets)
        if extra is not None:
            logits = torch.cat([logits, extra], dim=1)
            counts = torch.cat([counts, torch.ones_like(extra)], dim=1)
        return (counts * self.penalty(logits.log_softmax(dim=1))).sum(dim=1)

    def penalty(self, log_p: Tensor) -> Tensor:
        """f of probabilities given by their logarithms; finite, as log(1 - p) is not at p = 1."""
        if self.form == "tan":
            return log_p.exp().tan()
        # 1 - p without cancellation; a probability that rounds to 1 counts as the next smaller number.
        left = -torch.expm1(log_p.clamp(max=-torch.finfo(log_p.dtype).eps))
        return -left.log() if self.form == "log" else (1 - left**self.q) / self.q
