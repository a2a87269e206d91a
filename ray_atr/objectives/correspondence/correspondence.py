"""How likely each training pair is to be clean: an objective's fourth part, and the state of a run for it.

    estimator = objective.correspondence.estimator(pairs)
    estimator.begin_epoch(epoch)
    weigh_pairs = estimator.for_batch(rows, slots)      # which clips, and which of their captions, the global batch holds
    objective(embeddings, weigh_pairs=weigh_pairs)      # each audio-text comparison passes through it
    estimator.end_epoch()                        # scalars: how good a detector it was, if the wrong pairs are known

A pair is a clip with one caption in one language: its place is (row, slot, language), in tables [N, J, K] of N training
clips with J captions at most in K languages; a comparison has n pairs. Everything is computed from the gathered batch,
so it is the same on every worker.

Two texts of a clip are true partners if both fit the clip, or if neither does because all its captions are another clip's. In a
comparison of texts a pair has the sample weight 1 - |b - b'|, where b and b' are the clean probabilities of the two texts with
the clip. Under these probabilities no larger chance of being true partners is possible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ray_atr.common import sampling
from ray_atr.common.settings import Settings, counted, refuse
from ray_atr.objectives.correspondence.clean_share import CleanShares
from ray_atr.objectives.correspondence.detection import detection
from ray_atr.objectives.pairs import CleanShare, Comparison
from ray_atr.objectives.pairs.pair_loss import LEAST_SAMPLE_WEIGHT


@dataclass(frozen=True, kw_only=True)
class Correspondence(Settings):
    """A subclass sets `name` (its key in CORRESPONDENCES) and makes its estimator."""

    name: ClassVar[str]
    reads_embeddings: ClassVar[bool] = True
    """Whether it needs the embeddings of a batch."""

    @property
    def needs_clean_share(self) -> bool:
        """Whether it reads the estimated share of true pairs."""
        return False

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        """The estimator of a run for these training pairs. ValueError if they lack what it needs."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class TrainingPairs:
    """The pairs of a training split, as an estimator is started with them.

    clip_ids   N ids; a checkpoint's state is found again by them, in any order. slots: J. languages: K.
    truth      [N, J, K] bool: whether the caption is the clip's own; None if that is not known.
    seed       of what an estimator draws. device: where the batches are.
    teacher_embeddings  for `teacher`.
    snapshot   the knowledge base's snapshot in use (audio [M, D], text [L, M, D], text_mask [L, M], ids [M]) or None, for
               `neighbours`.
    needs_clean_share  whether something reads the estimated share of true pairs. wrong_shares: the share of wrong pairs of
               each language, where it is known.
    """

    clip_ids: Sequence[str]
    slots: int = 1
    languages: int = 1
    truth: Tensor | None = None
    seed: int = 0
    device: torch.device | str = "cpu"
    teacher_embeddings: Any = None
    snapshot: Callable[[], Any] = field(default=lambda: None)
    needs_clean_share: bool = False
    wrong_shares: Sequence[float] | None = None

    def keys(self) -> Tensor:
        """A number for each clip id, int64 [N]."""
        return torch.from_numpy(sampling.hashes(self.clip_ids, 0, "correspondence").astype("int64"))


class PairIndex(NamedTuple):
    """The indices of a comparison's pairs in a table [N, J, K]: three int64 [n]. `table[index]` reads their values."""

    rows: Tensor
    slots: Tensor
    languages: Tensor


class Estimator:
    """Weighs every pair by 1. A method overrides `estimate`, and `begin_epoch` if it learns by epochs. State: `tables`."""

    settings: Any

    def __init__(self, pairs: TrainingPairs, settings: Correspondence) -> None:
        self.pairs, self.settings, self.device, self.epoch = pairs, settings, torch.device(pairs.device), 0
        self.tables: dict[str, Tensor] = {}
        self.epoch_probabilities = self.table("epoch_probabilities", torch.nan)
        """Each pair's clean probability, as last estimated in this epoch; NaN if it was not in a batch."""
        self.ranking_scores = self.table("ranking_scores", torch.nan)
        """The score behind an epoch's clean probabilities. It orders pairs of the same probability; NaN if there is none."""
        is_read = pairs.needs_clean_share
        self.clean_shares = CleanShares(pairs.languages, pairs.wrong_shares) if is_read else None

    def table(self, name: str, value: float, *more: int) -> Tensor:
        """A new table [N, J, K, ...] filled with one value."""
        shape = len(self.pairs.clip_ids), self.pairs.slots, self.pairs.languages, *more
        self.tables[name] = torch.full(shape, value, device=self.device)
        return self.tables[name]

    @staticmethod
    def put(table: Tensor, index: PairIndex, values: Tensor) -> None:
        """`table[index] = values`; of a pair that a batch has twice, the last value counts.

        Where an index is repeated, torch writes any of the values, on several threads or a GPU even parts of different rows.
        """
        _, J, K, *_ = table.shape
        pairs, group = ((index.rows * J + index.slots) * K + index.languages).unique(return_inverse=True)
        places = torch.arange(len(group), device=group.device)
        last = places.new_zeros(len(pairs)).scatter_reduce(0, group, places, "amax")
        table[tuple(part[last] for part in index)] = values[last]

    @classmethod
    def write(cls, table: Tensor, index: PairIndex, values: Tensor) -> None:
        """`put`, but for values that are NaN."""
        cls.put(table, index, torch.where(values.isnan(), table[index], values))

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.epoch_probabilities.fill_(torch.nan)
        self.ranking_scores.fill_(torch.nan)

    def for_batch(self, rows: Tensor, slots: Tensor) -> Callable[[Comparison], Comparison]:
        """A function that adds the estimate to the comparisons of a global batch: clips `rows` [B] with their captions `slots`
        [B].

        Comparisons of two texts come after those of the audio with them.
        """
        weighed = torch.full((len(rows), self.pairs.languages), torch.nan, device=self.device)

        @torch.no_grad()
        def weigh_pairs(comparison: Comparison) -> Comparison:
            if comparison.v_language is None:
                return comparison
            if comparison.u_language is not None:
                b_u, b_v = (weighed[comparison.row_numbers, k] for k in (comparison.u_language, comparison.v_language))
                if bool(b_u.isnan().any()) or bool(b_v.isnan().any()):
                    return comparison
                return dataclasses.replace(comparison, sample_weight=1 - (b_u - b_v).abs().to(comparison.u.dtype))
            chosen = comparison.row_numbers
            index = PairIndex(rows[chosen], slots[chosen], comparison.v_language)
            if self.clean_shares is not None:
                comparison = dataclasses.replace(
                    comparison, clean_share=self.clean_shares.for_languages(index.languages)
                )
            estimate = self.estimate(comparison, index)
            if comparison.clean_share is not None and estimate.sample_weight is not None:
                # Of pairs that are weighed already, the share among what their weights leave.
                share, found_share = comparison.clean_share
                share_of_weight = min(1.0, share / max(float(estimate.sample_weight.mean()), share, 1e-6))
                comparison = dataclasses.replace(comparison, clean_share=CleanShare(share_of_weight, found_share))
            clean_probability = estimate.clean_probability(comparison)
            self.write(self.epoch_probabilities, index, clean_probability)
            if estimate.sample_weight is not None:
                weighed[comparison.row_numbers, index.languages] = clean_probability.to(weighed.dtype)
                # A smaller weight's gradients could be subnormal numbers, which are slow.
                has_none = estimate.sample_weight < LEAST_SAMPLE_WEIGHT
                estimate = estimate._replace(sample_weight=estimate.sample_weight.masked_fill(has_none, 0.0))
            return dataclasses.replace(comparison, **estimate._asdict())

        return weigh_pairs

    def estimate(self, comparison: Comparison, index: PairIndex) -> PairEstimate:
        """The estimate for a comparison's pairs. Called without gradients."""
        return PairEstimate()

    def is_clean(self, rows: Tensor, slots: Tensor) -> Tensor:
        """Which pairs of a batch have a clean probability of 0.5 or more in the first language, bool [B]; True for a pair
        without an estimate.
        """
        return ~(self.epoch_probabilities[rows, slots, 0] < 0.5)

    def end_epoch(self) -> dict[str, float]:
        """Mean clean probability of the pairs in the epoch's batches, and how well it separated true pairs from wrong ones."""
        estimated = ~self.epoch_probabilities.isnan()
        if not bool(estimated.any()):
            return {}
        probabilities = self.epoch_probabilities[estimated]
        # In order of value, so that the sum does not depend on the order of the clips.
        scalars = {"clean_probability": float(probabilities.double().sort().values.mean())}
        if self.pairs.truth is not None:
            scalars.update(
                detection(probabilities, self.pairs.truth.to(self.device)[estimated], self.ranking_scores[estimated])
            )
        return scalars

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values for a checkpoint."""
        shares = {} if self.clean_shares is None else {"clean_shares": self.clean_shares.state_dict()}
        return {"keys": self.pairs.keys(), "epoch": self.epoch, "tables": dict(self.tables), **shares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; its rows are found by clip id. ValueError if it lacks a clip."""
        row_of_key = {int(key): row for row, key in enumerate(state["keys"])}
        keys = self.pairs.keys().tolist()
        missing = [name for name, key in zip(self.pairs.clip_ids, keys, strict=True) if key not in row_of_key]
        if missing:
            raise ValueError(
                f"correspondence: the checkpoint lacks {counted(len(missing), 'clip')} (first: {missing[0]})"
            )
        order = torch.tensor([row_of_key[key] for key in keys])
        self.epoch = int(state["epoch"])
        if self.clean_shares is not None:
            self.clean_shares.load_state_dict(state["clean_shares"])
        for name, table in state["tables"].items():
            stored = table.cpu()[order].to(self.device)
            # A table of embeddings is made when their width is known: here, or by the first batch.
            self.tables.setdefault(name, stored).copy_(stored)


class PairEstimate(NamedTuple):
    """The estimate for a comparison's n pairs: sample weights [n], None for ones; soft targets [n, n], None for the own
    partner, and those of the texts [n, n], None for the columns of `targets`.
    """

    sample_weight: Tensor | None = None
    targets: Tensor | None = None
    reverse_targets: Tensor | None = None

    def clean_probability(self, comparison: Comparison) -> Tensor:
        """How likely the own caption is to be the right one, [n]: sample weight times the own partner's share of the target."""
        clean_probability = comparison.u.new_ones(comparison.size) if self.sample_weight is None else self.sample_weight
        if self.targets is None:
            return clean_probability.float()
        # A positive is as good as the own partner: the same words.
        return (clean_probability * (self.targets * comparison.positive_mask()).sum(dim=1)).float()


@dataclass(frozen=True, kw_only=True)
class NoCorrespondence(Correspondence):
    """Every pair has a sample weight of 1: the baseline.

    When: pairs are clean.
    Related: `small_loss` is the cheapest that tells wrong pairs.

    >>> from ray_atr.objectives import Objective
    >>> from ray_atr.objectives.correspondence import CORRESPONDENCES
    >>> Objective(correspondence=CORRESPONDENCES["none"]()).correspondence.name
    'none'
    """

    name: ClassVar[str] = "none"
    reads_embeddings: ClassVar[bool] = False

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        return Estimator(pairs, self)


@dataclass(frozen=True, kw_only=True)
class Oracle(Correspondence):
    """True pairs have a sample weight of 1, wrong ones of 0, as injected noise is known.

    When: noise was injected, and the other methods are compared with weights that are right.
    Related: every other method estimates what this one knows. Those that give wrong pairs new partners can be better.

    >>> from ray_atr.objectives import Objective
    >>> from ray_atr.objectives.correspondence import CORRESPONDENCES
    >>> Objective(correspondence=CORRESPONDENCES["oracle"]()).correspondence.name
    'oracle'
    """

    name: ClassVar[str] = "oracle"
    reads_embeddings: ClassVar[bool] = False

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        self.require_truth(pairs.truth is not None)
        return _OracleEstimator(pairs, self)

    def require_truth(self, is_known: bool) -> None:
        """ValueError if it is not known which pairs are wrong."""
        if not is_known:
            allowed = "on data whose noise is known: data.noise.ratio above 0, or an index"
            raise refuse("objective.correspondence", self.name, allowed)


class _OracleEstimator(Estimator):
    def estimate(self, comparison: Comparison, index: PairIndex) -> PairEstimate:
        assert self.pairs.truth is not None
        return PairEstimate(self.pairs.truth.to(self.device)[index].to(comparison.u.dtype))
