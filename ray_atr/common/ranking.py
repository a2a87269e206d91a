"""What is relevant to a query, and how a retriever ranks: a setting saved with the retriever, as its vectors depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ray_atr.common.settings import Settings, setting

RELEVANCE = ("auto", "clip", "label")
"""What is relevant to a caption: its own clip, every clip of its class, or the class if each has one caption."""
RELEVANCE_HELP = (
    "clip: a caption's own clip is relevant; label: every clip of its class; auto: label if each class has one caption"
)

Ranking = Literal["learned", "cosine", "plan"]
RANKINGS: tuple[Ranking, ...] = ("learned", "cosine", "plan")
MOST_PLAN_SWEEPS = 100_000
"""Largest number of Sinkhorn sweeps that can be set for a ranking by plan; 0 means to convergence."""
RANKING_HELP = (
    "order of a query's candidates: learned, by distance under the learned metric (cosine if none is learned); cosine; plan, by "
    "the transport plan of the whole set, in which one query's answer depends on the others"
)

EPSILON = 0.05
"""Epsilon of the plan in the evaluation of learning to match (Luong et al. 2024, section 5.3)."""


@dataclass(frozen=True)
class PlanOptions:
    """Settings of a plan: epsilon, and the number of Sinkhorn sweeps (0: to convergence)."""

    epsilon: float = EPSILON
    sweeps: int = 0


DEFAULT_PLAN = PlanOptions()


@dataclass(frozen=True, kw_only=True)
class RankingSettings(Settings):
    """How the candidates of a query are ordered."""

    ranking: str = setting("learned", RANKING_HELP, choices=RANKINGS)
    plan_epsilon: float = setting(EPSILON, "entropic regularisation of the plan", above=0)
    plan_sweeps: int = setting(
        0,
        "sweeps of Sinkhorn of a ranking by plan; 0: to convergence (the released code of learning to match makes 10, at "
        "epsilon .03)",
        at_least=0,
        at_most=MOST_PLAN_SWEEPS,
    )

    @property
    def plan(self) -> PlanOptions:
        """The settings of the plan alone."""
        return PlanOptions(self.plan_epsilon, self.plan_sweeps)
