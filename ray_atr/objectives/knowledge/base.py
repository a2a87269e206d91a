"""The seam of knowledge from outside the batch: it may change what a pair loss sees, and add losses of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ray_atr.objectives.pairs.base import Comparison, PairLoss
from ray_atr.objectives.terms import Terms
from ray_atr.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Knowledge(Settings):
    """How one comparison is scored with what was retrieved for the batch. Stateless; searching is done by the caller.

    A subclass sets `name` (its key in KNOWLEDGE), `needs_retrieval` where `retrieved` may not be None, and implements `score`.
    It typically makes changed comparisons with `dataclasses.replace` and calls `pair(comparison, ...)` on each.
    `comparison.rows` says which clips of the batch the rows are, `u_language`/`v_language` which side is which.
    """

    name: ClassVar[str]
    needs_retrieval: ClassVar[bool] = False

    def score(
        self,
        comparison: Comparison,
        pair: PairLoss,
        retrieved: Any,
        *,
        metric: Tensor | None = None,
        temperature: Tensor | None = None,
    ) -> Terms:
        """The loss of one comparison."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NoKnowledge(Knowledge):
    """The batch alone."""

    name: ClassVar[str] = "none"

    def score(
        self,
        comparison: Comparison,
        pair: PairLoss,
        retrieved: Any,
        *,
        metric: Tensor | None = None,
        temperature: Tensor | None = None,
    ) -> Terms:
        """The pair loss as it is."""
        return pair(comparison, metric=metric, temperature=temperature)
