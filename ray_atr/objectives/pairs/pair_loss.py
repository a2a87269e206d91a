"""The interface between what is compared (`Comparison`) and how it is scored (`PairLoss`).

A language scheme makes comparisons; a correspondence weighs their pairs; a knowledge variant may change
them; a pair loss turns one comparison into `Terms`. None of the four knows the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ray_atr.common.settings import Settings, refuse
from ray_atr.objectives.pairs.learned import NOTHING_LEARNED, Learned, LearnedSettings
from ray_atr.objectives.pairs.ring import Ring

LEAST_SAMPLE_WEIGHT = 1e-6
"""A smaller weight that a method estimates is 0, and has no part in a transport plan: its marginal would be lost in rounding."""
LEAST_LOG_WEIGHT = -1e4
"""Stands for the logarithm of a weight of 0: at any temperature a pair of weight 0 competes with nothing, its gradient is
exactly 0, and sums of such logits are finite in float32. With -80 its gradients were subnormal numbers, with which
a backward pass took 50 times as long on an Intel Xeon."""

_BY_PAIR = ("u", "v", "groups", "u_language", "v_language", "row_weight", "column_weight", "sample_weight")
_BY_TWO_PAIRS = ("positives", "similarity", "gain", "targets", "reverse_targets")
# Endings of the scalars whose largest value over several comparisons is reported; every other scalar is averaged.
_LARGEST = ("_residual", "_iterations", "_is_capped")


FOUNDED = 0.5
"""Share of the true pairs, as estimated, that must be found for the estimate of their share to be used as it is."""


class CleanShare(NamedTuple):
    """An estimated share of true pairs, and the share of these that are found; both in [0, 1]."""

    share: float
    found_share: float

    @property
    def mass(self) -> float:
        """The mass to transport: the share if at least FOUNDED of the true pairs are found; if fewer are, it is nearer to 1."""
        return self.share if self.found_share >= FOUNDED else 1 - self.found_share * (1 - self.share)


def same_group(groups: Tensor, rows: slice = slice(None), others: slice = slice(None)) -> Tensor:
    """`positives` [B, B], or some of its rows and columns, of group numbers [B]: of captions, class labels or clip ids.

    groups may be [B, G]: positives are then equal in one of the G columns.
    """
    columns = groups[:, None] if groups.ndim == 1 else groups
    row_groups, columns = columns[rows], columns[others]
    same = row_groups[:, :1] == columns[:, 0]
    for column in range(1, columns.shape[1]):
        same |= row_groups[:, column, None] == columns[:, column]
    return same


class Terms(NamedTuple):
    """What an objective returns. `loss`: scalar with gradient. `scalars`: detached float tensors by name, to log."""

    loss: Tensor
    scalars: Mapping[str, Tensor]


def weighted_sum(terms: Sequence[Terms], weights: Sequence[float]) -> Terms:
    """The weighted sum of losses. Scalars of one name are averaged by weight; of residuals and iterations it is the largest."""
    loss = torch.stack([weight * part.loss for part, weight in zip(terms, weights, strict=True)]).sum()
    scalars: dict[str, Tensor] = {}
    for name in {name: None for part in terms for name in part.scalars}:
        pairs = [
            (part.scalars[name], weight) for part, weight in zip(terms, weights, strict=True) if name in part.scalars
        ]
        if name.endswith(_LARGEST):
            scalars[name] = torch.stack([value for value, _ in pairs]).max()
        else:
            total = sum(weight for _, weight in pairs)
            scalars[name] = torch.stack([value * (weight / total) for value, weight in pairs]).sum()
    return Terms(loss, scalars)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two sides u and v of N true pairs (u_i, v_i), and everything that modifies how they are compared.

    u, v            [N, D], unit norm. In audio-text comparisons u is the audio.
    positives       [N, N] bool, diagonal True: pairs that are no negatives of each other. None: the identity.
    groups          [N, G] int64: the same as numbers: pairs that are equal in one of the G columns are no negatives of each
                    other. Not read if there are `positives`.
    rows            [N] int64: which clip of the batch each pair is. None: all of them, in order.
    u_language      [N] int64: the language index of each row of u; None if it is audio. v_language: the same of v.
    similarity      [N, N]: takes the place of u v^T. None: u v^T.
    gain            [N, N], >= 0: multiplies the similarity elementwise, S' = G * S (ASK Eq. 15). Losses on a cost scale
                    its cross term: c^2 = |u|^2 + |v|^2 - 2 G <u, v>, on the unit sphere c = sqrt(2 - 2 s').
    row_weight      [N]: multiplies sample i's loss in the direction u -> v (ASK Eq. 17-18). None: ones.
    column_weight   [N]: the same in the direction v -> u.
    sample_weight   [N], in [0, 1]: how likely each pair is to be a true one. It multiplies the
                    sample's loss in both directions, and weighs the pair among the others' positives and negatives: a pair
                    of weight 0 counts as absent. A transport loss takes it as the marginals. None: ones.
    targets         [N, N], >= 0, rows sum to 1: soft targets of each u_i in the place of its own partner; the diagonal is the
                    own partner's share. The direction v -> u reads the columns, brought to sum to 1; with sample weights the
                    column's own sum takes the place of v_j's sample weight there. None: the own partner.
    reverse_targets [N, N], >= 0, rows sum to 1: soft targets of each v_j, where they are not the columns of `targets`. A
                    transport loss, which has one matching for both directions, does not read them.
    clean_share     the estimated share of true pairs among them, for losses that transport a share; None: not known.
    extra_v         [Q, D] shared by all rows, or [N, Q, D] own ones: further negatives for the direction u -> v.
    extra_u         the same for the direction v -> u.

    Change one with `dataclasses.replace(comparison, gain=...)`.
    """

    u: Tensor
    v: Tensor
    positives: Tensor | None = None
    rows: Tensor | None = None
    u_language: Tensor | None = None
    v_language: Tensor | None = None
    similarity: Tensor | None = None
    gain: Tensor | None = None
    row_weight: Tensor | None = None
    column_weight: Tensor | None = None
    sample_weight: Tensor | None = None
    targets: Tensor | None = None
    reverse_targets: Tensor | None = None
    clean_share: CleanShare | None = None
    extra_u: Tensor | None = None
    extra_v: Tensor | None = None
    groups: Tensor | None = None
    cached_products: dict[str, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict, repr=False)
    """u v^T, and the u and v that it was computed from: the estimate passes it to the loss."""

    @property
    def size(self) -> int:
        """N."""
        return self.u.shape[0]

    @property
    def is_weighted(self) -> bool:
        return self.row_weight is not None or self.column_weight is not None

    @property
    def row_numbers(self) -> Tensor:
        """`rows`, or all of them in order: int64 [N]."""
        return torch.arange(self.size, device=self.u.device) if self.rows is None else self.rows

    def cross_similarity(self, *, keep: bool = False) -> Tensor:
        """The realigned similarity S' = G * S, [N, N]. With `keep` the next call reuses the product u v^T."""
        similarity = self._product(keep) if self.similarity is None else self.similarity
        return similarity if self.gain is None else self.gain * similarity

    def _product(self, keep: bool) -> Tensor:
        u, v, product = self.cached_products.pop("product", (None, None, None))
        if product is None or u is not self.u or v is not self.v:
            # An estimate runs without gradients, but the loss that reuses its product needs them.
            with torch.set_grad_enabled(keep or torch.is_grad_enabled()):
                product = self.u @ self.v.T
        if keep:
            self.cached_products["product"] = self.u, self.v, product
        return product

    @property
    def has_positives(self) -> bool:
        """Whether a pair may have others that are no negatives of it."""
        return self.positives is not None or self.groups is not None

    def positive_rows(self, rows: slice = slice(None)) -> Tensor | None:
        """`positives`, or those that the groups imply: bool [N, N] or some of its rows; None for the identity."""
        if self.positives is not None:
            return self.positives[rows]
        return None if self.groups is None else same_group(self.groups, rows)

    def positive_mask(self, rows: slice = slice(None)) -> Tensor:
        """`positive_rows`, with the identity in the place of None: bool [N, N] or some of its rows."""
        positives = self.positive_rows(rows)
        if positives is not None:
            return positives
        numbers = torch.arange(self.size, device=self.u.device)
        return numbers[rows, None] == numbers

    def weighted_part(self) -> Comparison:
        """The pairs whose sample weight is above LEAST_SAMPLE_WEIGHT; the comparison itself if all are."""
        if self.sample_weight is None or bool((self.sample_weight > LEAST_SAMPLE_WEIGHT).all()):
            return self
        weighed = (self.sample_weight > LEAST_SAMPLE_WEIGHT).nonzero().squeeze(1)
        by_pair = {name: value[weighed] for name in _BY_PAIR if (value := getattr(self, name)) is not None}
        by_two = {
            name: value[weighed][:, weighed] for name in _BY_TWO_PAIRS if (value := getattr(self, name)) is not None
        }
        return dataclasses.replace(self, rows=self.row_numbers[weighed], **by_pair, **by_two)

    def extra_logits(self, tau: float | Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Logits [N, Q] of every u_i and of every v_j against its further negatives; None for a side without any."""
        of_u = None if self.extra_v is None else inner_products(self.u, self.extra_v) / tau
        return of_u, None if self.extra_u is None else inner_products(self.v, self.extra_u) / tau

    def pair_weights(self) -> Tensor:
        """The mean of the row's `row_weight` and the column's `column_weight`, [N, N]; a scalar if there is neither."""
        row = 1.0 if self.row_weight is None else self.row_weight[:, None]
        column = 1.0 if self.column_weight is None else self.column_weight
        return self.u.new_tensor(0.5) * (row + column)

    def marginal(self) -> Tensor | None:
        """The sample weights brought to sum to 1, [N]: both marginals of a transport plan; None for uniform ones."""
        return None if self.sample_weight is None else self.sample_weight / self.sample_weight.sum()

    def column_targets(self) -> Tensor | None:
        """The soft targets of each v_j, [N, N]: rows sum to 1, or to 0 for a v_j that no u_i has as a target.

        Each u_i counts by its own sample weight.
        """
        if self.targets is None:
            return None
        targets = self.targets.T if self.reverse_targets is None else self.reverse_targets
        targets = targets if self.sample_weight is None else targets * self.sample_weight
        totals = targets.sum(dim=1, keepdim=True)
        return targets / totals.where(totals > 0, 1.0)

    def column_sample_weight(self) -> Tensor | None:
        """The factor of each v_j's loss in the direction v -> u, [N]: its sample weight or, where its partners are the columns of
        `targets`, the expected number of u whose partner it is. Each partner then counts equally in both directions, and a v_j
        without a partner is not pulled to the most similar u.
        """
        if self.sample_weight is None or self.targets is None or self.reverse_targets is not None:
            return self.sample_weight
        return self.sample_weight @ self.targets

    def directions(self) -> tuple[Direction, Direction]:
        """The comparison as every u_i sees it among the v, and as every v_j does among the u."""
        similarity, positives, clean = self.cross_similarity(), self.positive_rows(), self.sample_weight
        if clean is not None and self.targets is not None:
            # The pair's clean probability: that its clip has a partner in the batch, times that it is the own one.
            clean = clean * self.targets.diagonal()
        transposed = None if positives is None else positives.T
        return (
            Direction(similarity, positives, clean, self.targets),
            Direction(similarity.T, transposed, clean, self.column_targets()),
        )

    def true_matching(self, marginal: Tensor | None, rows: slice = slice(None)) -> Tensor:
        """pi_hat [N, N], or some of its rows: each row's mass a_i (1/N unless a marginal [N] is given) spread over its partners.

        The own partner's share is spread over the row's positives in proportion to their a_j, which keeps both marginals.
        """
        a = self.u.new_full((self.size,), 1 / self.size) if marginal is None else marginal
        positives = self.positive_mask(rows) * a
        shares = positives / positives.sum(dim=1, keepdim=True).clamp(min=torch.finfo(a.dtype).tiny)
        if self.targets is not None:
            on_diagonal = self.targets.diagonal()
            shares = self.targets[rows] - torch.diag(on_diagonal)[rows] + on_diagonal[rows, None] * shares
        return a[rows, None] * shares

    def both_directions(self, row_losses: Tensor, column_losses: Tensor) -> Tensor:
        """Half of each direction's weighted mean over its samples: the scalar loss of [N] and [N] sample losses."""
        if self.row_weight is not None:
            row_losses = row_losses * self.row_weight
        if self.column_weight is not None:
            column_losses = column_losses * self.column_weight
        if self.sample_weight is not None:
            row_losses = row_losses * self.sample_weight
        if (of_columns := self.column_sample_weight()) is not None:
            column_losses = column_losses * of_columns
        return 0.5 * (row_losses.mean() + column_losses.mean())


@dataclass(frozen=True, eq=False)
class OwnPairs:
    """A worker's own pairs of a comparison.

    comparison  of all N pairs: its `groups` and `sample_weight` are read, its u and v are not.
    u, v        [n, D], unit norm, of the own pairs.
    ring        its blocks are the pairs of each worker.
    """

    comparison: Comparison
    u: Tensor
    v: Tensor
    ring: Ring

    def both_directions(self, row_losses: Tensor, column_losses: Tensor) -> Tensor:
        """`Comparison.both_directions`, from the sample losses of each worker's own pairs, [n] and [n]."""
        losses = row_losses + column_losses
        if self.comparison.sample_weight is not None:
            losses = losses * self.comparison.sample_weight[self.ring.own]
        return self.mean(losses) / 2

    def mean(self, losses: Tensor) -> Tensor:
        """The mean over all pairs, from the numbers [n] of each worker's own pairs."""
        return self.ring.ranks.total(losses.sum()) / self.ring.size


@dataclass(frozen=True, eq=False)
class Direction:
    """One direction of a comparison: each row is an anchor, each column one of the other side's samples.

    similarity         [N, N] and positives [N, N] are as in `Comparison`.
    clean_probability  [N]: how likely each pair's two sides are to fit each other; None for 1.
    targets            [N, N]: the soft targets of each anchor.
    """

    similarity: Tensor
    positives: Tensor | None
    clean_probability: Tensor | None
    targets: Tensor | None

    @property
    def mask(self) -> Tensor:
        """`positives`, or the identity: bool [N, N]."""
        N = len(self.similarity)
        return (
            torch.eye(N, dtype=torch.bool, device=self.similarity.device) if self.positives is None else self.positives
        )

    def other_weights(self) -> Tensor | None:
        """The weight of each other pair for each anchor, [N, N], 1 for the own pair; None if all have 1.

        With soft targets any sample may be the partner: all have a weight of 1, but for the further positives.
        """
        if self.clean_probability is None:
            return None
        weights = self.clean_probability.expand(self.similarity.shape).clone()
        if self.targets is not None:
            weights = weights.where(self.mask, 1.0)
        return weights.fill_diagonal_(1.0)

    def competing(self, logits: Tensor) -> Tensor:
        """Logits [N, N] plus log weights: in a softmax each other pair counts by its weight."""
        weights = self.other_weights()
        return logits if weights is None else logits + log_weight(weights)

    def positive_shares(self) -> Tensor:
        """The share of each positive in its anchor's loss, [N, N]: equal shares, or by the positives' clean probabilities."""
        shares = self.mask.to(self.similarity.dtype)
        if self.clean_probability is not None:
            shares = shares * self.clean_probability
        return shares / shares.sum(dim=1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)


def log_weight(weight: Tensor) -> Tensor:
    """The logarithm of weights in [0, 1], finite for 0."""
    return weight.log().clamp(min=LEAST_LOG_WEIGHT)


def inner_products(anchors: Tensor, others: Tensor) -> Tensor:
    """[N, Q] of anchors [N, D] with vectors that all share, [Q, D], or each row's own, [N, Q, D]."""
    return anchors @ others.T if others.ndim == 2 else torch.einsum("nd,nqd->nq", anchors, others)


@dataclass(frozen=True, kw_only=True)
class PairLoss(Settings):
    """How one comparison is scored. Stateless: learned values are an argument.

    A subclass sets `name` (its key in PAIRS), implements `score`, and says in `learns` what it learns.
    """

    name: ClassVar[str]
    short_name: ClassVar[str] = ""
    """Stands for `name` in the names of trials, if it is set."""
    takes_extra_negatives: ClassVar[bool] = False
    shared_from: ClassVar[int] = 0
    """Number of pairs from which workers share the loss; 0: they never do."""
    goes_around: ClassVar[bool] = False
    """Whether workers can share it while each keeps its own embeddings (`score_own`)."""

    @property
    def needs_clean_share(self) -> bool:
        """Whether it reads the estimated share of true pairs."""
        return False

    def learns(self) -> LearnedSettings:
        """What the loss learns besides the embeddings: here nothing."""
        return LearnedSettings()

    def __call__(self, comparison: Comparison, learned: Learned = NOTHING_LEARNED) -> Terms:
        """The loss of one comparison. Learned values take the place of the settings."""
        has_extra = comparison.extra_u is not None or comparison.extra_v is not None
        if has_extra and not self.takes_extra_negatives:
            able = ", ".join(name for name, loss in PAIRS.items() if loss.takes_extra_negatives)
            raise refuse("objective.pair", self.name, f"a pair loss that takes further negatives: {able}")
        return self.score(comparison, learned)

    def score(self, comparison: Comparison, learned: Learned) -> Terms:
        """The loss itself."""
        raise NotImplementedError

    def score_own(self, pairs: OwnPairs, learned: Learned) -> Terms:
        """As `score`, where every worker has some of the pairs: each returns the loss and the scalars of all pairs."""
        raise NotImplementedError


PAIRS: dict[str, type[PairLoss]] = {}
"""Every pair loss by name; `ray_atr.objectives.pairs` lists them."""


def without(logits: Tensor, positives: Tensor) -> Tensor:
    """The logits, with a large negative number for positives: finite, so that a row without negatives has no NaN."""
    return logits.masked_fill(positives, torch.finfo(logits.dtype).min / 4)
