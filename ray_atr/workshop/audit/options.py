"""The settings of an audit, without what they steer: a command's help needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from ray_atr.common.settings import Settings, setting

RATE_CAVEAT = (
    "A right pair whose sound the vectors do not represent scores like a wrong one, and the estimate does not cover it."
)
"""Said wherever the share of right pairs among those called wrong is."""


@dataclass(frozen=True, kw_only=True)
class CrossFit(Settings):
    """How the judges are trained."""

    folds: int = setting(4, "parts of the clips; each is judged by heads trained on the others", at_least=2)
    epochs: int = setting(20, "passes over the clips", at_least=1)
    width: int = setting(256, "width of the heads' hidden layer and of their embeddings", at_least=2)
    batch_size: int = setting(128, "clips per step", at_least=2)
    learning_rate: float = setting(1e-3, "learning rate of Adam", above=0)
    mispairs: int = setting(200_000, "most random mismatched pairs that pairs are compared with", at_least=100)
    seed: int = setting(0, "seed of folds, heads, order and mismatched pairs", at_least=0)


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Settings):
    """What is audited and how much is shown."""

    split: str = setting("train", "split whose pairs are judged")
    languages: tuple[str, ...] = setting((), "languages of the captions; unset: all that the split has")
    rate: float = setting(
        0.1, "share of right pairs among those called wrong that is accepted (false discovery rate)", above=0, below=1
    )
    worst: int = setting(200, "pairs on the page, worst first", at_least=1)
