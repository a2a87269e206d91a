"""Partial learning to match: only a share of the mass is transported.

loss = KL(pi_hat || pi),  pi = argmin <pi, c> - epsilon H(pi) with row and column sums <= 1/N and total mass s
                                                                        (Luong et al. 2024, Eq. 12-13)

With the paper's pi_hat = I/N the loss discards no pair: whatever the plan does, each pair is pulled by 1/(N epsilon), and a
pair that the plan leaves unmatched is pushed back less than the others, not more. With `target=followed`, which is ours,
pi_hat = diag of the plan's row mass, held constant: a pair is pulled as far as the plan matches it, a discarded one not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from ray_atr.objectives.pairs.clean_share import judge_pairs, require_mass
from ray_atr.objectives.pairs.learning_to_match import LearningToMatch
from ray_atr.objectives.pairs.pair_loss import Comparison
from ray_atr.settings import setting


@dataclass(frozen=True, kw_only=True)
class PartialLearningToMatch(LearningToMatch):
    """KL from the true matching to the partial entropic plan."""

    name: ClassVar[str] = "partial_learning_to_match"

    transport_mass: float | Literal["auto"] = setting(
        0.95,
        "share of the mass that is transported; auto: the share of true pairs that each batch's ranks suggest, and "
        "closer to 1 the less the model can tell pairs apart yet",
        above=0,
        at_most=1,
        changeable=True,
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
        """The set share; or what the batch's ranks say (clean_share.py), no less than `smallest_mass`."""
        if not isinstance(self.transport_mass, str):
            return float(self.transport_mass), {}
        judged = judge_pairs(-cost, comparison.positives)
        about = {"estimated_clean_share": judged.clean_share, "found_share": judged.found_share}
        return max(self.smallest_mass, judged.mass), {name: cost.new_tensor(value) for name, value in about.items()}
