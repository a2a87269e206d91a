"""The seam between what is compared (`Comparison`) and how it is scored (`PairLoss`).

A language scheme makes comparisons; a knowledge variant may change them (enhance the embeddings, set a gain, weights, or
further negatives); a pair loss turns one comparison into a loss. None of the three knows the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ray_atr.objectives.terms import Terms
from ray_atr.settings import Settings, refuse


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two sides u and v of N true pairs (u_i, v_i), and everything that modifies how they are compared.

    u, v            [N, D], unit norm. In audio-text comparisons u is the audio.
    positives       [N, N] bool, diagonal True: pairs that are no negatives of each other. None: the identity.
    rows            [N] int64: which clip of the batch each pair is. None: all of them, in order.
    u_language,     [N] int64: the language index of each row of a side; None where the side is audio.
    v_language
    similarity      [N, N]: takes the place of u v^T. None: u v^T.
    gain            [N, N], >= 0: multiplies the similarity elementwise, S' = G * S (ASK Eq. 15). Losses on a cost
                    scale the cross term of the squared distance with it: c^2 = |u|^2 + |v|^2 - 2 G <u, v>, which on the
                    unit sphere is c = sqrt(2 - 2 s').
    row_weight      [N]: multiplies sample i's loss in the direction u -> v (ASK Eq. 17-18). None: ones.
    column_weight   [N]: the same in the direction v -> u. None: ones.
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
    extra_u: Tensor | None = None
    extra_v: Tensor | None = None

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

    def cross_similarity(self) -> Tensor:
        """The realigned similarity S' = G * S, [N, N]."""
        similarity = self.u @ self.v.T if self.similarity is None else self.similarity
        return similarity if self.gain is None else self.gain * similarity

    def positive_mask(self) -> Tensor:
        """`positives`, or the identity: bool [N, N]."""
        if self.positives is not None:
            return self.positives
        return torch.eye(self.size, dtype=torch.bool, device=self.u.device)

    def both_directions(self, row_losses: Tensor, column_losses: Tensor) -> Tensor:
        """Half of each direction's weighted mean over its samples: the scalar loss of [N] and [N] sample losses."""
        if self.row_weight is not None:
            row_losses = row_losses * self.row_weight
        if self.column_weight is not None:
            column_losses = column_losses * self.column_weight
        return 0.5 * (row_losses.mean() + column_losses.mean())


@dataclass(frozen=True, kw_only=True)
class PairLoss(Settings):
    """How one comparison is scored. Stateless: learned values (`metric`, `temperature`) are arguments.

    A subclass sets `name` (its key in PAIRS) and implements `score`.
    """

    name: ClassVar[str]
    takes_extra_negatives: ClassVar[bool] = False

    def __call__(
        self, comparison: Comparison, *, metric: Tensor | None = None, temperature: Tensor | None = None
    ) -> Terms:
        """The loss of one comparison. `metric` and `temperature` replace what the settings say where the loss uses them."""
        if comparison.has_extra_negatives and not self.takes_extra_negatives:
            raise refuse(
                "objective.pair",
                self.name,
                "a pair loss that takes further negatives: contrastive, contrastive_entropic, sigmoid",
            )
        return self.score(comparison, metric, temperature)

    def score(self, comparison: Comparison, metric: Tensor | None, temperature: Tensor | None) -> Terms:
        """The loss itself."""
        raise NotImplementedError
