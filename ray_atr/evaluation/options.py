"""Options of an evaluation. Nothing heavy is imported here, for the command's help."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import tyro

from ray_atr.common.ranking import (
    MOST_PLAN_SWEEPS,
    RANKING_HELP,
    RANKINGS,
    RELEVANCE,
    RELEVANCE_HELP,
    RankingSettings,
)
from ray_atr.common.settings import Settings, setting

if TYPE_CHECKING:
    from ray_atr.models.retriever import Retriever


NUMBER = tyro.conf.arg(metavar="NUMBER")
"""The value in help texts of numbers without a default."""


@dataclass(frozen=True, kw_only=True)
class SplitOptions(Settings):
    """The clips and captions that a saved retriever is evaluated on."""

    data: str = setting(
        "",
        "folder or URL of a prepared data set, or `soundscapes`; unset: what the checkpoint was trained on",
        path="always",
        words=("soundscapes",),
    )
    split: str = setting(
        "", "split that is used; unset: the test split, or the validation split of a data set without one"
    )
    languages: tuple[str, ...] = setting(
        (), "ISO 639 codes of the captions, with spaces or commas between them; unset: all that the split has"
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(SplitOptions):
    """What is evaluated, on what, and how."""

    relevance: str = setting("auto", RELEVANCE_HELP, choices=RELEVANCE)
    max_captions: int = setting(0, "captions per clip and language that are queries; 0: all of them", at_least=0)
    draws: int = setting(1000, "bootstrap draws of the clips", at_least=1)
    level: float = setting(0.95, "share of draws that an interval holds", above=0, below=1)
    seed: int = setting(0, "seed of the draws, and of the clips that pictures show", at_least=0)
    clips: tuple[str, ...] = setting(
        (), "ids of clips that pictures, players and cases show before those that the seed draws"
    )
    ranking: str = setting("own", f"own: as the checkpoint ranks; {RANKING_HELP}", choices=("own", *RANKINGS))
    plan_epsilon: Annotated[float | None, NUMBER] = setting(
        None, "entropic regularisation of a ranking by plan; none: the checkpoint's own", above=0
    )
    plan_sweeps: Annotated[int | None, NUMBER] = setting(
        None,
        "sweeps of Sinkhorn of a ranking by plan, 0: to convergence; none: the checkpoint's own",
        at_least=0,
        at_most=MOST_PLAN_SWEEPS,
    )
    figures: bool = setting(True, "draw the page's pictures too")
    trec: bool = setting(False, "also write the answers as TREC run and qrels files")
    mlflow: bool = setting(True, "log to MLflow (MLFLOW_TRACKING_URI, else a SQLite file next to the run folders)")

    def ranking_of(self, retriever: Retriever) -> RankingSettings:
        """The ranking of this evaluation for a retriever."""
        trained = retriever.ranking
        return replace(
            trained,
            ranking=trained.ranking if self.ranking == "own" else self.ranking,
            plan_epsilon=trained.plan_epsilon if self.plan_epsilon is None else self.plan_epsilon,
            plan_sweeps=trained.plan_sweeps if self.plan_sweeps is None else self.plan_sweeps,
        )


@dataclass(frozen=True, kw_only=True)
class Encoding(Settings):
    """Where and how clips and captions are embedded."""

    ray: str = setting("always", "always: encode in Ray actors; never: in this process", choices=("always", "never"))
    batch_size: int = setting(64, "clips or captions embedded at a time", at_least=1)
    encoders: int = setting(0, "Ray actors, each with a copy of the retriever; 0: as many as fit", at_least=0)
    cpus_per_encoder: float = setting(1.0, "logical CPUs of an actor", above=0)
    gpus_per_encoder: float = setting(0.0, "GPUs of an actor, may be a share of one; 0: on the CPU", at_least=0)
