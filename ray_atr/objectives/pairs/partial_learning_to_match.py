"""Partial learning to match: only a share of the mass is transported.

loss = KL(pi_hat || pi),  pi = argmin <pi, c> - epsilon H(pi) with row and column sums <= 1/N and total mass s
                                                                        (Luong et al. 2024, Eq. 12-13)

With the paper's pi_hat = I/N the loss discards no pair: whatever the plan does, each pair is pulled by 1/(N epsilon), and a
pair that the plan leaves unmatched is pushed back less than the others, not more. With `target=followed`, which is ours,
pi_hat = diag of the plan's row mass, held constant: a pair is pulled as far as the plan matches it, a discarded one not at all.

With `transport_mass=auto` the mass is the comparison's estimated share of true pairs (`Comparison.clean_share`), which a
run reads off embeddings that have not memorised the pairs: see `ray_atr.objectives.correspondence.clean_share`. All of it is
transported where no share is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from ray_atr.common.settings import setting
from ray_atr.objectives.pairs.learning_to_match import LearningToMatch
from ray_atr.objectives.pairs.pair_loss import Comparison


@dataclass(frozen=True, kw_only=True)
class PartialLearningToMatch(LearningToMatch):
    """KL from the true matching to the partial entropic plan.

    When: to repeat m-LTM's partial transport. A pair that the plan leaves out is still pulled together, unless `target` is
    `followed`.
    Related: `LearningToMatch` matches every pair, the correspondence `transport` weighs any other loss by such a plan.

    >>> import torch
    >>> from ray_atr.objectives.pairs import Comparison, PartialLearningToMatch
    >>> u, v = torch.eye(4), torch.eye(4)  # four true pairs [N, D], each unlike the others
    >>> loss = PartialLearningToMatch(metric="euclidean", transport_mass=0.8)
    >>> bool(loss(Comparison(u, v)).loss < loss(Comparison(u, v.roll(1, dims=0))).loss)
    True
    """

    name: ClassVar[str] = "partial_learning_to_match"
    short_name: ClassVar[str] = "pot"
    transport_mass: float | Literal["auto"] = setting(
        0.95,
        "share of the mass that is transported; auto: the share of true pairs, estimated before the first epoch or given by "
        "data.wrong_share; closer to 1 if less than half of the true pairs are found",
        above=0,
        at_most=1,
    )
    target: str = setting(
        "identity",
        "the matching aimed at: identity, every pair by 1/N (the paper's); followed, each pair by its row's mass in the plan",
        choices=("identity", "followed"),
    )
    smallest_mass: float = setting(0.2, "the least that `transport_mass=auto` transports", above=0, at_most=1)

    @property
    def follows_plan(self) -> bool:
        return self.target == "followed"

    @property
    def needs_clean_share(self) -> bool:
        return isinstance(self.transport_mass, str)

    def mass(self, cost: Tensor, comparison: Comparison) -> tuple[float, dict[str, Tensor]]:
        """The share that is set; with `auto` the estimated share of true pairs, at least `smallest_mass`."""
        if not isinstance(self.transport_mass, str):
            return float(self.transport_mass), {}
        estimate = comparison.clean_share
        if estimate is None:
            return 1.0, {}
        about = {"estimated_clean_share": estimate.share, "found_share": estimate.found_share}
        return max(self.smallest_mass, estimate.mass), {name: cost.new_tensor(value) for name, value in about.items()}
