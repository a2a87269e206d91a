"""The seam of knowledge from outside the batch: it may change what a pair loss sees, and add losses of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ray_atr.objectives.learned import Learned
from ray_atr.objectives.pairs.pair_loss import Comparison, PairLoss
from ray_atr.objectives.terms import Terms
from ray_atr.settings import Settings

LeftOut = Literal["nothing", "own", "positives"]
"""Which entries are never among a query's: none of them; those of its own clip; those of its own clip and of its positives."""


@dataclass(frozen=True)
class SearchSpec:
    """What a knowledge variant wants to have searched for each clip of a batch.

    neighbours        entries that a query retrieves.
    fine, coarse      search among single clips; among prototypes.
    left_out          which single clips are never among them.
    across            audio searches texts and texts search audio; else each searches its own modality.
    index, probes     the search structure, and how many of its lists are searched (`Snapshot`).
    """

    neighbours: int
    fine: bool = True
    coarse: bool = True
    left_out: LeftOut = "own"
    across: bool = False
    index: str = "auto"
    probes: int = 16


@dataclass(frozen=True, kw_only=True)
class Knowledge(Settings):
    """How one comparison is scored with what was retrieved for the batch. Stateless; searching is done by the caller.

    A subclass sets `name` (its key in KNOWLEDGE), `needs_retrieval` where `retrieved` may not be None, and implements `score`.
    It typically makes changed comparisons with `dataclasses.replace` and calls `pair(comparison, ...)` on each.
    `comparison.rows` says which clips of the batch the rows are, `u_language`/`v_language` which side is which.
    """

    name: ClassVar[str]
    needs_retrieval: ClassVar[bool] = False

    @property
    def search_spec(self) -> SearchSpec | None:
        """What to search for each batch; None if nothing is searched in a snapshot."""
        return None

    def score(self, comparison: Comparison, pair: PairLoss, retrieved: Any, learned: Learned) -> Terms:
        """The loss of one comparison."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NoKnowledge(Knowledge):
    """The batch alone."""

    name: ClassVar[str] = "none"

    def score(self, comparison: Comparison, pair: PairLoss, retrieved: Any, learned: Learned) -> Terms:
        """The pair loss as it is."""
        return pair(comparison, learned)
