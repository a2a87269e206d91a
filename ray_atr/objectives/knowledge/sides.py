"""What the two sides of a comparison found in a knowledge base."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ray_atr.objectives.knowledge.reliability import consistency, potential
from ray_atr.objectives.knowledge.retrieved import Found, Granularity
from ray_atr.objectives.pairs.pair_loss import Comparison


@dataclass(frozen=True, eq=False)
class Sides:
    """What the two sides of a comparison found in one base, and which of them is audio."""

    u: Found
    v: Found
    u_is_audio: bool
    v_is_audio: bool

    @classmethod
    def of(cls, comparison: Comparison, granularity: Granularity) -> Sides:
        """The part of a batch's neighbours that the comparison's rows and languages are concerned with."""
        rows = comparison.rows
        if rows is None:
            rows = torch.arange(comparison.size, device=comparison.u.device)
        u_language, v_language = comparison.u_language, comparison.v_language

        def found(own: Tensor | None, other: Tensor | None) -> Found:
            queries = granularity.by_audio if own is None else granularity.by_text
            return queries.of(rows, own, other)

        return cls(found(u_language, v_language), found(v_language, u_language), u_language is None, v_language is None)

    def potentials(self, comparison: Comparison) -> tuple[Tensor, Tensor]:
        """phi [N] of the rows' queries u and of the columns' queries v (Eq. 11-13)."""
        # Components in the modality that the query is not: v's for u, u's for v.
        as_v = self.u.component(self.v_is_audio), self.v.component(self.v_is_audio)
        as_u = self.v.component(self.u_is_audio), self.u.component(self.u_is_audio)
        phi_u = potential(comparison.u, as_v[0], consistency(*as_v, self.v.valid), self.u.valid)
        phi_v = potential(comparison.v, as_u[0], consistency(*as_u, self.u.valid), self.v.valid)
        return phi_u, phi_v
