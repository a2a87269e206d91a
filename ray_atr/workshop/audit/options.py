"""The settings of an audit. Imports no heavy library, since the command's help reads it."""

from __future__ import annotations

from dataclasses import dataclass

from ray_atr.common.settings import Settings, inherited, setting
from ray_atr.evaluation.options import SplitOptions

RATE_CAVEAT = (
    "A right pair whose sound the vectors do not represent scores like a wrong one, and the estimate does not cover it."
)
"""Shown wherever the share of right pairs among those called wrong is shown."""

NOTHING_FOUND = (
    "none is called wrong: the vectors say no more about the pairs than chance, so that nearly all would seem wrong"
)
"""Shown instead of the number of pairs that are called wrong."""

TELLING = 0.5
"""Share of the right pairs that the regressions must find. With fewer, the list is not to be trusted and no block is named."""


@dataclass(frozen=True, kw_only=True)
class CrossFit(Settings):
    """How the pairs are scored."""

    folds: int = setting(
        10, "number of parts of the clips; each part is scored by regressions that learned from the others", at_least=2
    )
    mispairs: int = setting(
        200_000,
        "number of random mismatched pairs to compare with; at least 1,000 are drawn from each part in each language",
        at_least=100,
    )
    seed: int = setting(0, "seed of folds and mismatched pairs", at_least=0)


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Settings):
    """What is audited and how much is shown."""

    split: str = setting("train", "split whose pairs are audited")
    languages: tuple[str, ...] = inherited(SplitOptions, "languages")
    rate: float = setting(
        0.1, "accepted share of right pairs among those called wrong (false discovery rate)", above=0, below=1
    )
    worst: int = setting(200, "number of pairs on audit.html, worst first", at_least=1)
    listen: int = setting(60, "number of random pairs on listen.html, for the interval of --estimate", at_least=10)
