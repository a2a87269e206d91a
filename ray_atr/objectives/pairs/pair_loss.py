"""The seam between what is compared (`Comparison`) and how it is scored (`PairLoss`).

A language scheme makes comparisons; a correspondence says how far their pairs are believed; a knowledge variant may change
them (enhance the embeddings, set a gain, weights, or further negatives); a pair loss turns one comparison into a loss. None
of the four knows the others.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ray_atr.objectives.learned import NOTHING_LEARNED, Learned, LearnedSettings
from ray_atr.objectives.terms import Terms
from ray_atr.settings import Settings, refuse

LEAST_BELIEF = 1e-6
"""A pair that is believed less has no part in a transport plan: its marginal would be lost in rounding."""

_BY_PAIR = ("u", "v", "rows", "u_language", "v_language", "row_weight", "column_weight", "belief")
_BY_TWO_PAIRS = ("positives", "similarity", "gain", "targets")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two sides u and v of N true pairs (u_i, v_i), and everything that modifies how they are compared.

    u, v            [N, D], unit norm. In audio-text comparisons u is the audio.
    positives       [N, N] bool, diagonal True: pairs that are no negatives of each other. None: the identity.
    rows            [N] int64: which clip of the batch each pair is. None: all of them, in order.
    u_language,     [N] int64: the language index of each row of a side; None if the side is audio.
    v_language
    similarity      [N, N]: takes the place of u v^T. None: u v^T.
    gain            [N, N], >= 0: multiplies the similarity elementwise, S' = G * S (ASK Eq. 15). Losses on a cost
                    scale the cross term of the squared distance with it: c^2 = |u|^2 + |v|^2 - 2 G <u, v>, which on the
                    unit sphere is c = sqrt(2 - 2 s').
    row_weight      [N]: multiplies sample i's loss in the direction u -> v (ASK Eq. 17-18). None: ones.
    column_weight   [N]: the same in the direction v -> u. None: ones.
    belief          [N], in [0, 1]: how far each pair is believed to be a true one, the same in both directions. It multiplies
                    the sample's loss; a transport loss takes it as the marginals. None: ones.
    targets         [N, N], >= 0, rows sum to 1: soft partners of each u_i in the place of its own; the diagonal is the own
                    partner's share. The direction v -> u reads the columns, brought to sum to 1. None: the own partner.
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
    belief: Tensor | None = None
    targets: Tensor | None = None
    extra_u: Tensor | None = None
    extra_v: Tensor | None = None
    kept: dict[str, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict, repr=False)
    """u v^T with the u and v that it is of, from a judge to the loss; other sides have another one."""

    @property
    def size(self) -> int:
        """N, the number of true pairs."""
        return self.u.shape[0]

    @property
    def has_extra_negatives(self) -> bool:
        """Whether either direction has further negatives."""
        return self.extra_u is not None or self.extra_v is not None

    @property
    def is_weighted(self) -> bool:
        """Whether either direction has sample weights."""
        return self.row_weight is not None or self.column_weight is not None

    def cross_similarity(self, *, keep: bool = False) -> Tensor:
        """The realigned similarity S' = G * S, [N, N]. `keep` the product u v^T for the loss, if the one who asks is its judge.

        The loss takes it, so that no [N, N] is kept beside its own.
        """
        similarity = self._product(keep) if self.similarity is None else self.similarity
        return similarity if self.gain is None else self.gain * similarity

    def _product(self, keep: bool) -> Tensor:
        u, v, product = self.kept.pop("product", (None, None, None))
        if product is None or u is not self.u or v is not self.v:
            # A judge wants no gradient, and the loss does.
            with torch.set_grad_enabled(keep or torch.is_grad_enabled()):
                product = self.u @ self.v.T
        if keep:
            self.kept["product"] = self.u, self.v, product
        return product

    def positive_mask(self) -> Tensor:
        """`positives`, or the identity: bool [N, N]."""
        if self.positives is not None:
            return self.positives
        return torch.eye(self.size, dtype=torch.bool, device=self.u.device)

    def believed(self) -> Comparison:
        """The part whose pairs are believed at all; the comparison itself if all of them are."""
        if self.belief is None or bool((self.belief > LEAST_BELIEF).all()):
            return self
        kept = (self.belief > LEAST_BELIEF).nonzero().squeeze(1)
        part: dict[str, Any] = {name: self._among(name, kept) for name in _BY_PAIR + _BY_TWO_PAIRS}
        return dataclasses.replace(self, **part)

    def _among(self, name: str, kept: Tensor) -> Tensor | None:
        value = getattr(self, name)
        if name == "rows" and value is None:
            return kept
        if value is None:
            return None
        return value[kept][:, kept] if name in _BY_TWO_PAIRS else value[kept]

    def pair_weights(self) -> Tensor:
        """Mean of the two directions' sample weights, [N, N] or a scalar."""
        row = 1.0 if self.row_weight is None else self.row_weight[:, None]
        column = 1.0 if self.column_weight is None else self.column_weight
        return self.u.new_tensor(0.5) * (row + column)

    def marginal(self) -> Tensor | None:
        """The beliefs brought to sum to 1, [N]: both marginals of a transport plan; None for uniform ones."""
        return None if self.belief is None else self.belief / self.belief.sum()

    def column_targets(self) -> Tensor | None:
        """The soft partners of each v_j, [N, N]: rows sum to 1, or to 0 for a v_j that is nobody's partner."""
        if self.targets is None:
            return None
        totals = self.targets.sum(dim=0)
        return self.targets.T / totals.where(totals > 0, 1.0)[:, None]

    def true_matching(self, marginal: Tensor | None, rows: slice = slice(None)) -> Tensor:
        """pi_hat [N, N], or some of its rows: each row's mass a_i (1/N unless a marginal [N] is given) spread over its partners.

        The own partner's share is spread over the row's positives in proportion to their a_j, which keeps both marginals.
        """
        a = self.u.new_full((self.size,), 1 / self.size) if marginal is None else marginal
        positives = self.positive_mask()[rows] * a
        shares = positives / positives.sum(dim=1, keepdim=True).clamp(min=torch.finfo(a.dtype).tiny)
        if self.targets is not None:
            own = self.targets.diagonal()
            shares = self.targets[rows] - torch.diag(own)[rows] + own[rows, None] * shares
        return a[rows, None] * shares

    def both_directions(self, row_losses: Tensor, column_losses: Tensor) -> Tensor:
        """Half of each direction's weighted mean over its samples: the scalar loss of [N] and [N] sample losses."""
        if self.row_weight is not None:
            row_losses = row_losses * self.row_weight
        if self.column_weight is not None:
            column_losses = column_losses * self.column_weight
        if self.belief is not None:
            row_losses, column_losses = row_losses * self.belief, column_losses * self.belief
        return 0.5 * (row_losses.mean() + column_losses.mean())


@dataclass(frozen=True, kw_only=True)
class PairLoss(Settings):
    """How one comparison is scored. Stateless: learned values are an argument.

    A subclass sets `name` (its key in PAIRS), implements `score`, and says in `learns` what it learns.
    """

    name: ClassVar[str]
    takes_extra_negatives: ClassVar[bool] = False

    def learns(self) -> LearnedSettings:
        """What the loss learns besides the embeddings: nothing."""
        return LearnedSettings()

    def __call__(self, comparison: Comparison, learned: Learned = NOTHING_LEARNED) -> Terms:
        """The loss of one comparison. Learned values replace what the settings say if the loss uses them."""
        if comparison.has_extra_negatives and not self.takes_extra_negatives:
            able = ", ".join(name for name, loss in PAIRS.items() if loss.takes_extra_negatives)
            raise refuse("objective.pair", self.name, f"a pair loss that takes further negatives: {able}")
        return self.score(comparison, learned)

    def score(self, comparison: Comparison, learned: Learned) -> Terms:
        """The loss itself."""
        raise NotImplementedError


PAIRS: dict[str, type[PairLoss]] = {}
"""Every pair loss by name; `ray_atr.objectives.pairs` lists them."""
