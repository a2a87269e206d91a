"""Partial learning to match: only a share of the mass is transported.

loss = KL(pi_hat || pi),  pi = argmin <pi, c> - epsilon H(pi) with row and column sums <= 1/N and total mass s
                                                                        (Luong et al. 2024, Eq. 12-13)

With the paper's pi_hat = I/N the loss discards no pair: whatever the plan does, each pair is pulled by 1/(N epsilon), and a
pair that the plan leaves unmatched is pushed back less than the others, not more. With `target=followed`, which is ours,
pi_hat = diag of the plan's row mass, held constant: a pair is pulled as far as the plan matches it, a discarded one not at all.

With `transport_mass=auto` the mass follows from how many of a batch's pairs are true, judged from its similarities
alone. The rank of a wrong caption's own similarity among the negatives is uniform; a true caption ranks high. So the
share of wrong pairs is read off the low half of the ranks, as that of true null hypotheses is read off large p-values
(Storey 2002, "A direct approach to false discovery rates", with lambda = 1/2). A model that has learned little ranks
true pairs low too: the estimate e is then too small, and with so little mass the model would hardly learn. It is
trusted by f, the share of the true pairs (as estimated) that rank in the first twentieth: the mass is 1 - f (1 - e),
all of it where nothing can be told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ray_atr.common.settings import refuse, setting
from ray_atr.objectives.pairs.learning_to_match import LearningToMatch
from ray_atr.objectives.pairs.pair_loss import Comparison
from ray_atr.objectives.transport.scalings import is_small

FIRST = 0.05
LEAST_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class PartialLearningToMatch(LearningToMatch):
    """KL from the true matching to the partial entropic plan."""

    name: ClassVar[str] = "partial_learning_to_match"
    short_name: ClassVar[str] = "pot"
    transport_mass: float | Literal["auto"] = setting(
        0.95,
        "share of the mass that is transported; auto: the share of true pairs that each batch's ranks suggest, and "
        "closer to 1 the less the model can tell pairs apart yet",
        above=0,
        at_most=1,
    )
    target: str = setting(
        "identity",
        "the matching aimed at: identity, every pair by 1/N (the paper's); followed, each pair by its row's mass in the plan",
        choices=("identity", "followed"),
    )
    smallest_mass: float = setting(0.2, "the least that `transport_mass=auto` transports", above=0, at_most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_mass(self.transport_mass)

    @property
    def follows_plan(self) -> bool:
        return self.target == "followed"

    def is_shared(self, comparison: Comparison) -> bool:
        """Not with `auto` either: what a batch's ranks say needs all of its costs."""
        return not isinstance(self.transport_mass, str) and super().is_shared(comparison)

    def mass(self, cost: Tensor, comparison: Comparison) -> tuple[float, dict[str, Tensor]]:
        """The set share; or what the batch's ranks say, no less than `smallest_mass`."""
        if not isinstance(self.transport_mass, str):
            return float(self.transport_mass), {}
        judged = judge_pairs(-cost, comparison.positives)
        about = {"estimated_clean_share": judged.clean_share, "found_share": judged.found_share}
        return max(self.smallest_mass, judged.mass), {name: cost.new_tensor(value) for name, value in about.items()}


class MassEstimate(NamedTuple):
    """The estimated share of true pairs, and the share of these that the model ranks in the first twentieth; in [0, 1]."""

    clean_share: float
    found_share: float

    @property
    def mass(self) -> float:
        """The mass to transport."""
        return 1 - self.found_share * (1 - self.clean_share)


def require_mass(transport_mass: float | str) -> None:
    """ValueError unless a setting `transport_mass` is a share or `auto`; shares outside (0, 1] its own bounds refuse."""
    if isinstance(transport_mass, str) and transport_mass != "auto":
        raise refuse("transport_mass", transport_mass, "(0, 1] or auto")


@torch.no_grad()
def judge_pairs(similarity: Tensor, positives: Tensor | None) -> MassEstimate:
    """What the ranks in rows and columns of a similarity [N, N] say of its own pairs; positives are no negatives."""
    values: Any = similarity.detach()
    negatives: Any = None if positives is None else ~positives
    if is_small(similarity):
        values, negatives = values.numpy(), None if negatives is None else negatives.numpy()
    both = _p_values(values, negatives), _p_values(values.T, None if negatives is None else negatives.T)
    in_low_half = sum(float((p_values > 0.5).sum()) for p_values in both) / (2 * len(similarity))
    in_first = sum(float((p_values <= FIRST).sum()) for p_values in both) / (2 * len(similarity))
    wrong = 2 * min(in_low_half, 0.5)
    clean = 1 - wrong
    found = (in_first - FIRST * wrong) / max(clean, LEAST_SHARE)
    return MassEstimate(clean, min(max(found, 0.0), 1.0))


def _p_values(similarity: Any, negatives: Any) -> Any:
    """[N]: the place of each row's own similarity among its negatives, 0 the highest, 1 the lowest; of either kind."""
    gap = similarity - similarity.diagonal()[:, None]
    # 1 for what is above the own similarity, 0 for what is level with it, -1 for what is below.
    order = np.sign(gap, out=gap) if isinstance(gap, np.ndarray) else gap.sign_()
    count: Any = len(similarity) - 1
    if negatives is not None:
        count = negatives.sum(1)
        order *= negatives
    # Those above, and half of those that are level with it.
    above = 0.5 * (count + order.sum(1))
    return (above + 0.5) / ((max(count, 1) if negatives is None else count.clip(min=1)) + 1)
