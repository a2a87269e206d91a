"""The settings of an audit, without what they steer: a command's help needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from ray_atr.common.settings import Settings, inherited, setting
from ray_atr.evaluation.options import SplitOptions

RATE_CAVEAT = (
    "A right pair whose sound the vectors do not represent scores like a wrong one, and the estimate does not cover it."
)
"""Said wherever the share of right pairs among those called wrong is."""

NOTHING_FOUND = (
    "none is called wrong, since the vectors tell no more of the pairs than chance does (nearly all seem wrong then)"
)
"""Said in the place of how many are called wrong."""

TELLING = 0.5
"""Least share of right pairs that the regressions must find for their list to count, and for any block to be named."""


@dataclass(frozen=True, kw_only=True)
class CrossFit(Settings):
    """How the pairs are scored."""

    folds: int = setting(10, "parts of the clips; each is scored by what the others say", at_least=2)
    mispairs: int = setting(
        200_000,
        "random mismatched pairs that pairs are compared with, but never fewer than 1,000 of a part in each language",
        at_least=100,
    )
    seed: int = setting(0, "seed of folds and mismatched pairs", at_least=0)


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Settings):
    """What is audited and how much is shown."""

    split: str = setting("train", "split whose pairs are audited")
    languages: tuple[str, ...] = inherited(SplitOptions, "languages")
    rate: float = setting(
        0.1, "share of right pairs among those called wrong that is accepted (false discovery rate)", above=0, below=1
    )
    worst: int = setting(200, "pairs on the page, worst first", at_least=1)
    listen: int = setting(
        60,
        "pairs drawn at random that the second page asks one to listen to, for the interval of --estimate",
        at_least=10,
    )
