"""How far each training pair is believed: the state of a run's correspondence, and what it does to a comparison.

    estimator.begin_epoch(epoch)
    believe = estimator.of(rows, slots)          # which clips, and which of their captions, the global batch holds
    objective(embeddings, believe=believe)       # each audio-text comparison passes through it
    estimator.end_epoch()                        # scalars: how good a detector it was, if the truth is known

A pair is a clip with one caption in one language: its place is (row, slot, language). Everything is computed from the gathered
batch, so it is the same on every worker without a word between them. Comparisons of two texts are left as they are.

Shapes: N training clips, J captions of a clip at most, K languages; n pairs of a comparison.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ray_atr.data import sampling
from ray_atr.objectives.correspondence.detection import detection
from ray_atr.objectives.pairs import Comparison


@dataclass(frozen=True, eq=False)
class TrainingPairs:
    """The pairs of a training split, as an estimator is started with them.

    clip_ids   N ids; a checkpoint's state is found again by them, in any order.
    slots      J.
    languages  K.
    truth      [N, J, K] bool: whether the caption is the clip's own; None if that is not known.
    seed       of what an estimator draws.
    device     where the batches are.
    teaching   the teachers' embeddings, for `teacher`.
    snapshot   the knowledge base's snapshot in use (audio [M, D], text [L, M, D], ids [M]) or None, for `neighbours`.
    """

    clip_ids: Sequence[str]
    slots: int = 1
    languages: int = 1
    truth: Tensor | None = None
    seed: int = 0
    device: torch.device | str = "cpu"
    teaching: Any = None
    snapshot: Callable[[], Any] = field(default=lambda: None)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, J, K)."""
        return len(self.clip_ids), self.slots, self.languages

    def keys(self) -> Tensor:
        """A number for each clip id, int64 [N]."""
        return torch.from_numpy(sampling.hashes(self.clip_ids, 0, "correspondence").astype("int64"))


class Places(NamedTuple):
    """Where the pairs of a comparison stand in a table [N, J, K]: three int64 [n]. `table[places]` reads them."""

    rows: Tensor
    slots: Tensor
    languages: Tensor


class Estimator:
    """Believes every pair; what judges them derives from it and overrides `judge`, and `begin_epoch` if it learns by epochs.

    `tables` are the state, [N, ...] each; `table` makes one.
    """

    def __init__(self, pairs: TrainingPairs) -> None:
        self.pairs, self.device, self.epoch = pairs, torch.device(pairs.device), 0
        self.tables: dict[str, Tensor] = {}
        self._notes: list[tuple[Tensor, Places, Tensor]] = []
        self.judged = self.table("judged", torch.nan)
        """What each pair was last judged to be worth in this epoch; NaN if it was not in a batch."""
        self.standing = self.table("standing", torch.nan)
        """The score that an epoch's beliefs were made of, which orders pairs that are worth the same; NaN if there is none."""

    def table(self, name: str, value: float, *more: int) -> Tensor:
        """A new part of the state, [N, J, K, ...], filled with one value."""
        self.tables[name] = torch.full((*self.pairs.shape, *more), value, device=self.device)
        return self.tables[name]

    def note(self, table: Tensor, places: Places, values: Tensor) -> None:
        """Write `table[places] = values` before the table is next read whole: at the end of an epoch, or in a checkpoint.

        A write costs a step as much as a product of two small matrices; many in a row cost little.
        """
        self._notes.append((table, places, values))

    def settle(self) -> None:
        """Write what was noted."""
        for table, places, values in self._notes:
            table[places] = values
        self._notes.clear()

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins."""
        self.settle()
        self.epoch = epoch
        self.judged.fill_(torch.nan)
        self.standing.fill_(torch.nan)

    def of(self, rows: Tensor, slots: Tensor) -> Callable[[Comparison], Comparison]:
        """What judges the comparisons of a global batch whose clips are `rows` [B] with their captions `slots` [B]."""

        @torch.no_grad()
        def believe(comparison: Comparison) -> Comparison:
            if comparison.u_language is not None or comparison.v_language is None:
                return comparison
            chosen = slice(None) if comparison.rows is None else comparison.rows
            places = Places(rows[chosen], slots[chosen], comparison.v_language)
            judgement = self.judge(comparison, places)
            self.note(self.judged, places, judgement.worth(comparison))
            return dataclasses.replace(comparison, belief=judgement.belief, targets=judgement.targets)

        return believe

    def judge(self, comparison: Comparison, places: Places) -> Judgement:
        """What is believed of a comparison's pairs. Called without gradients."""
        return Judgement()

    def end_epoch(self) -> dict[str, float]:
        """Mean belief, and how well it told true pairs from wrong ones, over the pairs that the epoch's batches held."""
        self.settle()
        seen = ~self.judged.isnan()
        if not bool(seen.any()):
            return {}
        judged = self.judged[seen]
        # In order of value, so that the sum does not depend on the order of the clips.
        found = {"belief": float(judged.double().sort().values.mean())}
        if self.pairs.truth is not None:
            found.update(detection(judged, self.pairs.truth.to(judged.device)[seen], self.standing[seen]))
        return found

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values for a checkpoint."""
        self.settle()
        return {"keys": self.pairs.keys(), "epoch": self.epoch, "tables": dict(self.tables)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; its rows are found by clip id. ValueError if it lacks a clip."""
        place = {int(key): row for row, key in enumerate(state["keys"])}
        missing = [
            name for name, key in zip(self.pairs.clip_ids, self.pairs.keys().tolist(), strict=True) if key not in place
        ]
        if missing:
            raise ValueError(f"correspondence: the checkpoint lacks {len(missing)} clips (first: {missing[0]})")
        order = torch.tensor([place[key] for key in self.pairs.keys().tolist()])
        self._notes.clear()
        self.epoch = int(state["epoch"])
        for name, table in self.tables.items():
            # A checkpoint of an earlier version has no `standing`; the next epoch makes it.
            if name in state["tables"] or name != "standing":
                table.copy_(state["tables"][name].cpu()[order])


class Judgement(NamedTuple):
    """What is believed of a comparison's n pairs: belief [n], None for ones; soft targets [n, n], None for the own partner."""

    belief: Tensor | None = None
    targets: Tensor | None = None

    def worth(self, comparison: Comparison) -> Tensor:
        """How far each pair itself is believed, [n]: belief times the own partner's share of the target."""
        worth = comparison.u.new_ones(comparison.size) if self.belief is None else self.belief
        if self.targets is None:
            return worth.float()
        # A positive is as good as the own partner: the same words.
        return (worth * (self.targets * comparison.positive_mask()).sum(dim=1)).float()
