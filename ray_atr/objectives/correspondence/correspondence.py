"""How far each training pair is believed: an objective's fourth choice, and the state that a run keeps for it.

    estimator = objective.correspondence.estimator(pairs)
    estimator.begin_epoch(epoch)
    believe = estimator.of(rows, slots)          # which clips, and which of their captions, the global batch holds
    objective(embeddings, believe=believe)       # each audio-text comparison passes through it
    estimator.end_epoch()                        # scalars: how good a detector it was, if the truth is known

A pair is a clip with one caption in one language: its place is (row, slot, language), in tables [N, J, K] of N training
clips with J captions at most in K languages; a comparison has n pairs. Everything is computed from the gathered batch,
so it is the same on every worker. Comparisons of two texts are left as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ray_atr.common.settings import Settings, counted, refuse
from ray_atr.data import sampling
from ray_atr.objectives.correspondence.clean_share import CleanShares
from ray_atr.objectives.correspondence.detection import detection
from ray_atr.objectives.pairs import CleanShare, Comparison


@dataclass(frozen=True, kw_only=True)
class Correspondence(Settings):
    """A subclass sets `name` (its key in CORRESPONDENCES) and makes its estimator. `needs_truth`: injected noise."""

    name: ClassVar[str]
    needs_truth: ClassVar[bool] = False
    reads_embeddings: ClassVar[bool] = True
    """Whether it judges by the embeddings of a batch."""

    @property
    def needs_clean_share(self) -> bool:
        """Whether it reads the estimated share of true pairs."""
        return False

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        """What a run keeps to judge these training pairs. ValueError if it cannot judge them."""
        raise NotImplementedError

    def require_truth(self, has_truth: bool) -> None:
        """ValueError if it needs to know which pairs are wrong, and that is not known."""
        if self.needs_truth and not has_truth:
            allowed = "on data whose noise is known: data.noise.ratio above 0, or an index"
            raise refuse("objective.correspondence", self.name, allowed)


@dataclass(frozen=True, eq=False)
class TrainingPairs:
    """The pairs of a training split, as an estimator is started with them.

    clip_ids   N ids; a checkpoint's state is found again by them, in any order. slots: J. languages: K.
    truth      [N, J, K] bool: whether the caption is the clip's own; None if that is not known.
    seed       of what an estimator draws. device: where the batches are.
    teaching   the teachers' embeddings, for `teacher`.
    snapshot   the knowledge base's snapshot in use (audio [M, D], text [L, M, D], ids [M]) or None, for `neighbours`.
    needs_clean_share  whether something reads the estimated share of true pairs. wrong_shares: the share of wrong pairs of
               each language, where it is known.
    """

    clip_ids: Sequence[str]
    slots: int = 1
    languages: int = 1
    truth: Tensor | None = None
    seed: int = 0
    device: torch.device | str = "cpu"
    teaching: Any = None
    snapshot: Callable[[], Any] = field(default=lambda: None)
    needs_clean_share: bool = False
    wrong_shares: Sequence[float] | None = None

    def keys(self) -> Tensor:
        """A number for each clip id, int64 [N]."""
        return torch.from_numpy(sampling.hashes(self.clip_ids, 0, "correspondence").astype("int64"))


class Places(NamedTuple):
    """Where the pairs of a comparison stand in a table: three int64 [n]. `table[places]` reads them."""

    rows: Tensor
    slots: Tensor
    languages: Tensor


class Estimator:
    """Believes every pair; what judges overrides `judge`, and `begin_epoch` if it learns by epochs. State: `tables`."""

    settings: Any

    def __init__(self, pairs: TrainingPairs, settings: Correspondence) -> None:
        self.pairs, self.settings, self.device, self.epoch = pairs, settings, torch.device(pairs.device), 0
        self.tables: dict[str, Tensor] = {}
        self._notes: list[tuple[Tensor, Places, Tensor]] = []
        self.judged = self.table("judged", torch.nan)
        """What each pair was last judged to be worth in this epoch; NaN if it was not in a batch."""
        self.standing = self.table("standing", torch.nan)
        """The score that an epoch's beliefs were made of, which orders pairs that are worth the same; NaN if there is none."""
        is_read = pairs.needs_clean_share
        self.clean_shares = CleanShares(pairs.languages, pairs.wrong_shares) if is_read else None

    def table(self, name: str, value: float, *more: int) -> Tensor:
        """A new table [N, J, K, ...] filled with one value."""
        shape = len(self.pairs.clip_ids), self.pairs.slots, self.pairs.languages, *more
        self.tables[name] = torch.full(shape, value, device=self.device)
        return self.tables[name]

    def note(self, table: Tensor, places: Places, values: Tensor) -> None:
        """Write `table[places] = values` before the table is next read whole: many writes in a row cost little."""
        self._notes.append((table, places, values))

    def settle(self) -> None:
        for table, places, values in self._notes:
            table[places] = values
        self._notes.clear()

    def begin_epoch(self, epoch: int) -> None:
        self.settle()
        self.epoch = epoch
        self.judged.fill_(torch.nan)
        self.standing.fill_(torch.nan)

    def of(self, rows: Tensor, slots: Tensor) -> Callable[[Comparison], Comparison]:
        """What judges the comparisons of a global batch of clips `rows` [B] with their captions `slots` [B]."""

        @torch.no_grad()
        def believe(comparison: Comparison) -> Comparison:
            if comparison.u_language is not None or comparison.v_language is None:
                return comparison
            chosen = slice(None) if comparison.rows is None else comparison.rows
            places = Places(rows[chosen], slots[chosen], comparison.v_language)
            if self.clean_shares is not None:
                comparison = dataclasses.replace(comparison, clean_share=self.clean_shares.of(places.languages))
            judgement = self.judge(comparison, places)
            if comparison.clean_share is not None and judgement.belief is not None:
                # Of pairs that are weighed already, the share among what their weights leave.
                share, found = comparison.clean_share
                left = min(1.0, share / max(float(judgement.belief.mean()), share, 1e-6))
                comparison = dataclasses.replace(comparison, clean_share=CleanShare(left, found))
            self.note(self.judged, places, judgement.worth(comparison))
            return dataclasses.replace(comparison, **judgement._asdict())

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
        shares = {} if self.clean_shares is None else {"clean_shares": self.clean_shares.state_dict()}
        return {"keys": self.pairs.keys(), "epoch": self.epoch, "tables": dict(self.tables), **shares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; its rows are found by clip id. ValueError if it lacks a clip."""
        place = {int(key): row for row, key in enumerate(state["keys"])}
        keys = self.pairs.keys().tolist()
        missing = [name for name, key in zip(self.pairs.clip_ids, keys, strict=True) if key not in place]
        if missing:
            raise ValueError(
                f"correspondence: the checkpoint lacks {counted(len(missing), 'clip')} (first: {missing[0]})"
            )
        order = torch.tensor([place[key] for key in keys])
        self._notes.clear()
        self.epoch = int(state["epoch"])
        if self.clean_shares is not None:
            self.clean_shares.load_state_dict(state["clean_shares"])
        for name, table in state["tables"].items():
            kept = table.cpu()[order].to(self.device)
            # A table of embeddings is made when their width is known: here, or by the first batch.
            self.tables.setdefault(name, kept).copy_(kept)


class Judgement(NamedTuple):
    """What is believed of a comparison's n pairs: belief [n], None for ones; soft targets [n, n], None for the own partner,
    and those of the texts [n, n], None for the columns of `targets`.
    """

    belief: Tensor | None = None
    targets: Tensor | None = None
    reverse_targets: Tensor | None = None

    def worth(self, comparison: Comparison) -> Tensor:
        """How far each pair itself is believed, [n]: belief times the own partner's share of the target."""
        worth = comparison.u.new_ones(comparison.size) if self.belief is None else self.belief
        if self.targets is None:
            return worth.float()
        # A positive is as good as the own partner: the same words.
        return (worth * (self.targets * comparison.positive_mask()).sum(dim=1)).float()


@dataclass(frozen=True, kw_only=True)
class NoCorrespondence(Correspondence):
    """Every pair is believed: the floor."""

    name: ClassVar[str] = "none"
    reads_embeddings: ClassVar[bool] = False

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        return Estimator(pairs, self)


@dataclass(frozen=True, kw_only=True)
class Oracle(Correspondence):
    """True pairs are believed, wrong ones are not, as injected noise is known: the ceiling of every method."""

    name: ClassVar[str] = "oracle"
    needs_truth: ClassVar[bool] = True
    reads_embeddings: ClassVar[bool] = False

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        self.require_truth(pairs.truth is not None)
        return _Truth(pairs, self)


class _Truth(Estimator):
    def judge(self, comparison: Comparison, places: Places) -> Judgement:
        assert self.pairs.truth is not None
        return Judgement(self.pairs.truth.to(self.device)[places].to(comparison.u.dtype))
