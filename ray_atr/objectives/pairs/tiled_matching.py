"""Learning to match without the rows of the plan: costs, plan and gradients are computed again, a tile of rows at a time.

For workers whose rows [n, N] would not fit (`LearningToMatch.match_tiles`). Only arrays of size N and N D are held. The loss
and its gradients are those of the plan computed at once: each pass over the tiles computes the same costs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ray_atr.common.derivatives import first_only
from ray_atr.common.ranks import Ranks
from ray_atr.objectives.pairs.mahalanobis import WeighedRows
from ray_atr.objectives.pairs.pair_loss import Comparison
from ray_atr.objectives.transport.across_ranks import TiledPlan, multipliers
from ray_atr.objectives.transport.row_blocks import tiles_of

TILE_BYTES, TILE_BYTES_OF_DEVICE = 2**23, 2**29
"""Size of a tile of costs in bytes: on a CPU so that it fits the cache, on a GPU so that its kernels fill the device."""


def tile_rows(N: int, example: Tensor) -> int:
    """Number of rows [N] in a tile."""
    size = TILE_BYTES if example.device.type == "cpu" else TILE_BYTES_OF_DEVICE
    return max(1, size // (N * example.element_size()))


class Costs:
    """The own rows of distances divided by their maximum, [n, N] as `learning_to_match.normalised_cost`, by tiles.

    weighed     the own rows and all columns, [n, D] and [N, D], under the metric.
    own         which of the columns are the rows' true partners.
    of_pairs    [n]: the costs of the true pairs.
    least       the least of the own rows' costs. maximum: of the distances of all processes' rows.
    floor       rounding error of squared distances, below which the slope of the root is cut off.
    """

    def __init__(self, weighed: WeighedRows, own: slice, ranks: Ranks, floor: float, tile: int) -> None:
        self.weighed, self.own, self.ranks, self.floor = weighed, own, ranks, floor
        self.tiles = tiles_of(len(weighed.left), tile)
        # Allocated before the first tile: small tensors between the tiles would fragment the memory that the next one needs.
        of_pairs = weighed.left.new_empty(len(weighed.left))
        least, largest = (of_pairs.new_empty(len(self.tiles)) for _ in range(2))
        for number, rows in enumerate(self.tiles):
            distances = self._distances(rows)
            of_pairs[rows] = distances[:, own][:, rows].diagonal()
            least[number], largest[number] = torch.aminmax(distances)
        self.maximum = ranks.maximum(largest.max())
        self.of_pairs, self.least = of_pairs / self.maximum, least.min() / self.maximum
        # Where the maximum's share of the gradient goes: seldom more than one tile of one process has it.
        self.has_maximum = (largest == self.maximum).tolist()

    def _distances(self, rows: slice) -> Tensor:
        left, right, left_norms, right_norms = self.weighed
        squared = torch.addmm(right_norms, left[rows], right.T, alpha=-2).add_(left_norms[rows, None])
        return squared.clamp_(min=self.floor).sqrt_()

    def __call__(self, rows: slice) -> Tensor:
        """Costs [t, N] of some of the own rows, a new tensor."""
        return self._distances(rows).div_(self.maximum)


class TrueMatching:
    """The own rows of the true matching, [n, N], by tiles. `is_diagonal`: only the true pairs have mass, `a` [n]."""

    def __init__(self, comparison: Comparison, marginal: Tensor | None, own: slice, costs: Costs) -> None:
        self.comparison, self.marginal, self.own = comparison, marginal, own
        a = costs.of_pairs.new_full((comparison.size,), 1 / comparison.size) if marginal is None else marginal
        self.a = a.to(costs.of_pairs)[own]
        self.is_diagonal = not comparison.has_positives and comparison.targets is None

    def tile(self, rows: slice) -> Tensor:
        """[t, N] of some of the own rows."""
        first = self.own.start
        return self.comparison.true_matching(self.marginal, slice(first + rows.start, first + rows.stop))


class Matching(torch.autograd.Function):
    """(sum_j d_ij of the own rows [n], the own rows' part of sum_i d_ij [N]) of the divergence's terms d, by tiles.

    Differentiable in the weighed rows: left [n, D], right [N, D], and their norms [n] and [N].
    """

    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        left_norms: Tensor,
        right_norms: Tensor,
        costs: Costs,
        target: TrueMatching,
        plan: TiledPlan,
        marginals: tuple[Tensor, Tensor] | None,
        detach_maximum: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.parts = costs, target, plan, marginals, detach_maximum
        own, of_columns = costs.own, right_norms.new_zeros(len(right))
        if target.is_diagonal:
            log_pairs = costs.of_pairs / -plan.epsilon + plan.row_potential + plan.column_potential[own]
            of_columns[own] = torch.xlogy(target.a, target.a) - target.a * log_pairs
            return of_columns[own].clone(), of_columns
        of_rows = left_norms.new_empty(len(left))
        for rows in plan.tiles:
            aimed = target.tile(rows)
            terms = torch.xlogy(aimed, aimed).sub_(plan.log_rows(rows).mul_(aimed))
            of_rows[rows] = terms.sum(dim=1)
            of_columns += terms.sum(dim=0)
        return of_rows, of_columns

    @staticmethod
    @first_only
    def backward(ctx: Any, by_rows: Tensor, by_columns: Tensor) -> tuple[Any, ...]:
        costs, target, plan, marginals, detach_maximum = ctx.parts
        ranks, own = costs.ranks, costs.own
        left = costs.weighed.left
        outer = _Outer(target, by_rows, by_columns)
        row_sums, column_sums = outer.sums(plan.tiles)
        everywhere = row_sums, ranks.sum(column_sums), ranks.sum(row_sums.sum())
        x, y = multipliers(plan.rows, plan.row_active, plan.column_active, marginals, everywhere, ranks)
        x, y = x.to(left), None if y is None else y.to(left)
        gradient, of_maximum = _Gradient(costs), _Gradient(costs)
        product, ties = left.new_zeros((), dtype=torch.float64), left.new_zeros(())
        for rows, has_maximum in zip(plan.tiles, costs.has_maximum, strict=True):
            cost = costs(rows)
            # dL/d(cost), as `gradient`'s: -(G - pi (x + y)) / epsilon.
            of_cost = plan.log_rows(rows, cost).exp_()
            of_cost.mul_(x[rows, None] if y is None else x[rows, None] + y)
            outer.subtract_from(of_cost, rows, own)
            of_cost.div_(plan.epsilon)
            # The root's slope at a cost c of maximum m is 1 / (2 c m^2); the maximum's own is that of -<dL/dc, c> / m.
            product += torch.dot(of_cost.flatten(), cost.flatten())
            is_flat = cost <= costs.floor**0.5 / costs.maximum
            if has_maximum and not detach_maximum:
                is_largest = cost == cost.max()
                ties += is_largest.sum()
                of_maximum.add(rows, (is_largest & ~is_flat).to(cost))
            gradient.add(rows, of_cost.div_(cost).masked_fill_(is_flat, 0.0))
        scale = 1 / (2 * costs.maximum.square())
        parts = gradient.scaled(scale)
        if not detach_maximum:
            # The maximum's share, spread evenly over ties.
            share = -(ranks.sum(product) / ranks.sum(ties)).to(scale) * scale
            parts = [part + more for part, more in zip(parts, of_maximum.scaled(share), strict=True)]
        return (*parts, None, None, None, None, None)


class _Outer:
    """G = dL/d(log pi) of the own rows: -(by_rows_i + by_columns_j) pi_hat_ij, by tiles."""

    def __init__(self, target: TrueMatching, by_rows: Tensor, by_columns: Tensor) -> None:
        self.target, self.by_rows, self.by_columns = target, by_rows, by_columns
        self.of_pairs = -(by_rows + by_columns[target.own]) * target.a

    def tile(self, rows: slice) -> Tensor:
        return self.target.tile(rows).mul_(self.by_rows[rows, None] + self.by_columns).neg_()

    def sums(self, tiles: Sequence[slice]) -> tuple[Tensor, Tensor]:
        """(row sums [n], the own rows' part of the column sums [N])."""
        columns = torch.zeros_like(self.by_columns)
        if self.target.is_diagonal:
            columns[self.target.own] = self.of_pairs
            return self.of_pairs, columns
        of_rows = torch.empty_like(self.by_rows)
        for rows in tiles:
            tile = self.tile(rows)
            of_rows[rows] = tile.sum(dim=1)
            columns += tile.sum(dim=0)
        return of_rows, columns

    def subtract_from(self, values: Tensor, rows: slice, own: slice) -> None:
        """values [t, N] less G's rows."""
        if self.target.is_diagonal:
            values[:, own][:, rows].diagonal().sub_(self.of_pairs[rows])
        else:
            values.sub_(self.tile(rows))


class _Gradient:
    """The gradient of the weighed rows and their norms from dL/d(squared distances), summed over tiles."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.parts = [torch.zeros_like(part) for part in costs.weighed]

    def add(self, rows: slice, of_squared: Tensor) -> None:
        """Add the part of a tile's dL/d(squared distances) [t, N]."""
        left, right, _, _ = self.costs.weighed
        of_left, of_right, of_left_norms, of_right_norms = self.parts
        torch.mm(of_squared, right, out=of_left[rows])
        of_right.addmm_(of_squared.T, left[rows])
        of_left_norms[rows] = of_squared.sum(dim=1)
        of_right_norms += of_squared.sum(dim=0)

    def scaled(self, scale: Tensor) -> list[Tensor]:
        """The gradients times `scale`, in the order of `WeighedRows`; in place."""
        of_left, of_right, of_left_norms, of_right_norms = self.parts
        return [
            of_left.mul_(-2 * scale),
            of_right.mul_(-2 * scale),
            of_left_norms.mul_(scale),
            of_right_norms.mul_(scale),
        ]
