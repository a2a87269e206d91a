"""Losses over pairs whose embeddings stay with their workers: the v pass around a ring, and no worker gathers them.

A worker holds its own n pairs, [n, D] on each side, two blocks of other workers that pass through it, and its rows of the
logits, [n, N]; where these would not fit, they are computed again, a tile at a time. The gradients are exact, and each ends at
the worker that has the embedding. Values are those of `contrastive.sample_losses` and `sigmoid.pair_losses`.
"""

from __future__ import annotations

import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.common.derivatives import first_only
from ray_atr.common.ranks import Ranks
from ray_atr.objectives.pairs.pair_loss import Comparison, OwnPairs, log_weight, same_group
from ray_atr.objectives.pairs.ring import Ring
from ray_atr.objectives.pairs.tiled_matching import tile_rows
from ray_atr.objectives.transport.row_blocks import tiles_of

FLOATS_HELD = 1.2
"""Most numbers that a worker holds for each entry of its rows of the logits."""


def own_pairs(comparison: Comparison, audio: Tensor, text: Tensor, ring: Ring) -> OwnPairs:
    """A worker's pairs of a comparison of some clips of a batch, from its own clips' audio [b, D] and text [b, K, D].

    The audio has unit norm. The texts are normalised here, for each side anew: two sides then share only `text` in the graph.
    The ring's blocks say which worker has which of the batch's B clips; the comparison's `rows` are in ascending order.
    """
    numbers = comparison.row_numbers.contiguous()
    starts = numbers.new_tensor([block.start for block in ring.blocks])
    firsts = [*torch.searchsorted(numbers, starts).tolist(), comparison.size]
    blocks = tuple(slice(first, last) for first, last in itertools.pairwise(firsts))
    own = blocks[ring.ranks.rank]
    clips = numbers[own] - ring.own.start

    def side(language: Tensor | None) -> Tensor:
        return audio[clips] if language is None else functional.normalize(text[clips, language[own]], dim=-1)

    ring = dataclasses.replace(ring, blocks=blocks)
    return OwnPairs(comparison, side(comparison.u_language), side(comparison.v_language), ring)


class TileLoss(ABC):
    """A loss that is computed from tiles of logits: rows of the worker's own u, columns of one worker's v."""

    needs_second_pass = False
    """Whether the sample losses need all tiles a second time (`add_again`)."""

    def __init__(self, pairs: OwnPairs, logits: Tensor) -> None:
        """logits: an example of their number type and device."""
        self.ring, self.groups = pairs.ring, pairs.comparison.groups
        sample_weight = pairs.comparison.sample_weight
        self.sample_weight = None if sample_weight is None else sample_weight.to(logits)
        n, N = pairs.ring.own.stop - pairs.ring.own.start, pairs.ring.size
        self.of_rows, self.of_columns = logits.new_zeros(n), logits.new_zeros(N)

    @abstractmethod
    def add(self, tile: Tensor, rows: slice, owner: int) -> None:
        """Add a tile of logits [t, m], which is not changed."""

    def join_columns(self) -> None:  # noqa: B027
        """Combine the workers' sums over columns, where the loss needs them. Called after the last tile."""

    def add_again(self, tile: Tensor, rows: slice, owner: int) -> None:
        """Add the same tile in the second pass, if `needs_second_pass`."""
        raise NotImplementedError

    @abstractmethod
    def losses(self) -> tuple[Tensor, Tensor]:
        """The sample losses of the own u and of the own v, [n] each."""

    @abstractmethod
    def gradient(self, tile: Tensor, rows: slice, owner: int, by_rows: Tensor, by_columns: Tensor) -> Tensor:
        """dL/d(logits) [t, m], from dL/d(sample losses) of the own u [n] and of all v [N]."""

    def positives(self, rows: slice, owner: int) -> Tensor | None:
        """Which entries of a tile are no negatives, bool [t, m]; None if only the own pairs are none."""
        if self.groups is None:
            return None
        first, block = self.ring.own.start, self.ring.blocks[owner]
        return same_group(self.groups, slice(first + rows.start, first + rows.stop), block)

    def own_pairs(self, tile: Tensor, rows: slice, owner: int) -> Tensor:
        """A view of the entries [t] that are the own pairs; empty if the columns are another worker's."""
        if owner != self.ring.ranks.rank:
            return tile[:0, :0].diagonal()
        return tile[:, rows].diagonal()


class SoftmaxTiles(TileLoss):
    """-log-probability of each sample's positives, each among itself and the sample's negatives (`contrastive.sample_losses`)."""

    def __init__(self, pairs: OwnPairs, logits: Tensor) -> None:
        super().__init__(pairs, logits)
        self.needs_second_pass = self.groups is not None
        least = torch.finfo(logits.dtype).min / 4
        self.row_sums = torch.full_like(self.of_rows, least)
        self.column_sums = torch.full_like(self.of_columns, least)
        self.log_weights = None if self.sample_weight is None else log_weight(self.sample_weight)
        self.own_logits = torch.empty_like(self.of_rows)
        self.shares: Tensor | None = None
        """The summed weight of each sample's positives, [N]: the denominator of their shares."""

    def competing(self, tile: Tensor, rows: slice, owner: int) -> Tensor:
        """The logits of the negatives, with the logarithms of both pairs' weights added; a new tensor if anything changes.

        A row's log-sum-exp then holds the row's own log weight too, and a column's the column's: `join_columns` subtracts them,
        so that one tile serves both directions.
        """
        positives = self.positives(rows, owner)
        if self.log_weights is not None:
            own = self.log_weights[self.ring.own][rows]
            tile = tile + own[:, None]
            tile += self.log_weights[self.ring.blocks[owner]]
            if owner == self.ring.ranks.rank:
                self.own_pairs(tile, rows, owner).sub_(own)
        return tile if positives is None else tile.masked_fill(positives, torch.finfo(tile.dtype).min / 4)

    def add(self, tile: Tensor, rows: slice, owner: int) -> None:
        if owner == self.ring.ranks.rank:
            self.own_logits[rows] = self.own_pairs(tile, rows, owner)
        block, competing = self.ring.blocks[owner], self.competing(tile, rows, owner)
        if competing.numel() == 0:
            return
        self.row_sums[rows] = torch.logaddexp(self.row_sums[rows], competing.logsumexp(dim=1))
        self.column_sums[block] = torch.logaddexp(self.column_sums[block], competing.logsumexp(dim=0))

    def join_columns(self) -> None:
        ring = self.ring
        self.column_sums = ring.ranks.log_sum_exp(self.column_sums)
        self.above_rows, self.above_columns = self.row_sums, self.column_sums
        if self.log_weights is not None:
            self.above_rows = self.row_sums - self.log_weights[ring.own]
            self.above_columns = self.column_sums - self.log_weights
        if self.groups is None:
            self.of_rows = self.above_rows - self.own_logits
            self.of_columns = self.above_columns
            # The derivative of a sample's loss by its log-sum-exp.
            self.by_row_sums, self.by_column_sums = torch.ones_like(self.of_rows), torch.ones_like(self.of_columns)
            return
        self.shares = self._shares()
        self.by_row_sums, self.by_column_sums = torch.zeros_like(self.of_rows), torch.zeros_like(self.of_columns)

    def _shares(self) -> Tensor:
        """The summed weight of each pair's positives, [N]; a row and its column have the same."""
        assert self.groups is not None, "positives"
        own, N = self.ring.own, self.ring.size
        weights = self.of_columns.new_ones(N) if self.sample_weight is None else self.sample_weight
        tile = tile_rows(N, weights)
        parts = [
            same_group(self.groups, slice(own.start + rows.start, own.start + rows.stop)).to(weights) @ weights
            for rows in tiles_of(own.stop - own.start, tile)
        ]
        mine = torch.cat(parts) if parts else weights[:0]
        return self.ring.joined(mine).clamp(min=torch.finfo(weights.dtype).tiny)

    def _weights(self, positives: Tensor, rows: slice, owner: int) -> tuple[Tensor, Tensor]:
        """The share of each positive in its row's loss, and in its column's, [t, m] each."""
        assert self.shares is not None, "joined before"
        own, block = self.ring.own, self.ring.blocks[owner]
        of_rows = of_columns = positives.to(self.of_rows)
        if self.sample_weight is not None:
            of_rows, of_columns = of_rows * self.sample_weight[block], of_columns * self.sample_weight[own][rows, None]
        return of_rows / self.shares[own][rows, None], of_columns / self.shares[block]

    def add_again(self, tile: Tensor, rows: slice, owner: int) -> None:
        positives, block = self.positives(rows, owner), self.ring.blocks[owner]
        assert positives is not None, "the second pass is for them"
        by_rows, by_columns = self._weights(positives, rows, owner)
        above_rows, above_columns = self.above_rows[rows, None] - tile, self.above_columns[block] - tile
        self.of_rows[rows] += (functional.softplus(above_rows) * by_rows).sum(dim=1)
        self.of_columns[block] += (functional.softplus(above_columns) * by_columns).sum(dim=0)
        self.by_row_sums[rows] += (above_rows.sigmoid_() * by_rows).sum(dim=1)
        self.by_column_sums[block] += (above_columns.sigmoid_() * by_columns).sum(dim=0)

    def losses(self) -> tuple[Tensor, Tensor]:
        if self.groups is None:
            return self.of_rows, self.of_columns[self.ring.own] - self.own_logits
        self.by_column_sums = self.ring.ranks.sum(self.by_column_sums)
        return self.of_rows, self.ring.ranks.sum(self.of_columns)[self.ring.own]

    def gradient(self, tile: Tensor, rows: slice, owner: int, by_rows: Tensor, by_columns: Tensor) -> Tensor:
        block, competing = self.ring.blocks[owner], self.competing(tile, rows, owner)
        of_rows, of_columns = by_rows[rows], by_columns[block]
        gradient = (competing - self.row_sums[rows, None]).exp_().mul_((of_rows * self.by_row_sums[rows])[:, None])
        gradient += (competing - self.column_sums[block]).exp_().mul_(of_columns * self.by_column_sums[block])
        positives = self.positives(rows, owner)
        if positives is None:
            if owner == self.ring.ranks.rank:
                self.own_pairs(gradient, rows, owner).sub_(of_rows + of_columns[rows])
            return gradient
        for_rows, for_columns = self._weights(positives, rows, owner)
        gradient -= (self.above_rows[rows, None] - tile).sigmoid_().mul_(for_rows).mul_(of_rows[:, None])
        gradient -= (self.above_columns[block] - tile).sigmoid_().mul_(for_columns).mul_(of_columns)
        return gradient


class SigmoidTiles(TileLoss):
    """-log sigmoid(z logit) of every pair, summed over a sample's, as in `sigmoid`; another pair counts by its sample weight."""

    def __init__(self, pairs: OwnPairs, logits: Tensor) -> None:
        super().__init__(pairs, logits)
        self.own_losses = torch.zeros_like(self.of_rows)

    def _signs(self, tile: Tensor, rows: slice, owner: int) -> Tensor:
        """-z, [t, m]."""
        positives = self.positives(rows, owner)
        if positives is not None:
            return 1 - 2 * positives.to(tile)
        signs = torch.ones_like(tile)
        self.own_pairs(signs, rows, owner).fill_(-1)
        return signs

    def _weights(self, rows: slice, owner: int) -> tuple[Tensor, Tensor] | None:
        """The weight of each pair in its row's loss [m] and in its column's [t, 1], but for the own pairs."""
        if self.sample_weight is None:
            return None
        return self.sample_weight[self.ring.blocks[owner]], self.sample_weight[self.ring.own][rows, None]

    def add(self, tile: Tensor, rows: slice, owner: int) -> None:
        losses = functional.softplus(self._signs(tile, rows, owner).mul_(tile))
        block, weights = self.ring.blocks[owner], self._weights(rows, owner)
        own = self.own_pairs(losses, rows, owner)
        if owner == self.ring.ranks.rank:
            self.own_losses[rows] = own
        if weights is None:
            self.of_rows[rows] += losses.sum(dim=1)
            self.of_columns[block] += losses.sum(dim=0)
            return
        mine = own.clone()
        own.zero_()
        self.of_rows[rows] += (losses * weights[0]).sum(dim=1)
        self.of_columns[block] += (losses * weights[1]).sum(dim=0)
        if owner == self.ring.ranks.rank:
            self.of_rows[rows] += mine
            self.of_columns[block][rows] += mine

    def losses(self) -> tuple[Tensor, Tensor]:
        return self.of_rows, self.ring.ranks.sum(self.of_columns)[self.ring.own]

    def gradient(self, tile: Tensor, rows: slice, owner: int, by_rows: Tensor, by_columns: Tensor) -> Tensor:
        signs = self._signs(tile, rows, owner)
        slopes = (signs * tile).sigmoid_().mul_(signs)
        of_rows, of_columns = by_rows[rows, None], by_columns[self.ring.blocks[owner]]
        weights = self._weights(rows, owner)
        if weights is None:
            return slopes.mul_(of_rows + of_columns)
        counts = of_rows * weights[0] + of_columns * weights[1]
        if owner == self.ring.ranks.rank:
            self.own_pairs(counts, rows, owner).copy_(by_rows[rows] + of_columns[rows])
        return slopes.mul_(counts)


Tiles = TypeVar("Tiles", bound=TileLoss)


def losses_around_ring(
    pairs: OwnPairs, kind: type[Tiles], tau: float | Tensor, bias: float | Tensor = 0.0
) -> tuple[Tensor, Tensor, Tiles]:
    """(sample losses of the own u [n], of the own v [n], the `kind` that has all tiles); logits are <u_i, v_j> / tau + bias.

    Every worker must take part, forward and backward, even if it has no pairs. If the ring has `pending` gradients, that of the
    own v is added to these.
    """
    ranks, pending, v = pairs.ring.ranks, pairs.ring.pending, pairs.v
    tau, bias = (ranks.replicated(value) if isinstance(value, Tensor) else value for value in (tau, bias))
    u = pairs.u / tau
    shift = torch.as_tensor(bias, dtype=u.dtype, device=u.device) if isinstance(bias, Tensor) or bias else None
    loss = kind(pairs, u.detach())
    # So that backward runs on a worker whose own embeddings need no gradient: the others' need its part.
    always = u.new_zeros((), requires_grad=torch.is_grad_enabled())
    add_pending = partial(pending.add, v) if pending is not None and v.requires_grad else None
    rows, columns = _AroundRing.apply(
        u, v if add_pending is None else v.detach(), shift, always, loss, pairs.ring, add_pending
    )
    return rows, columns, loss


class _AroundRing(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        v: Tensor,
        bias: Tensor | None,
        always: Tensor,
        loss: TileLoss,
        ring: Ring,
        add_pending: Callable[[Callable[[], Tensor]], None] | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(u, v, *([] if bias is None else [bias]))
        ctx.loss, ctx.ring, ctx.add_pending = loss, ring, add_pending
        # The same on every worker: without held tiles, a second pass is a second exchange.
        ctx.is_held = Ranks.fits(ring.size, FLOATS_HELD * u.element_size())
        ctx.held = held = {}
        for owner, block in ring.around(v):
            for rows in _tiles(ring, owner, u):
                tile = _logits(u, block, bias, rows)
                loss.add(tile, rows, owner)
                if ctx.is_held:
                    held[owner, rows.start] = tile
        loss.join_columns()
        if loss.needs_second_pass:
            blocks_of_v = ((owner, v) for owner in range(ring.ranks.size)) if ctx.is_held else ring.around(v)
            for owner, block in blocks_of_v:
                for rows in _tiles(ring, owner, u):
                    tile = held[owner, rows.start] if ctx.is_held else _logits(u, block, bias, rows)
                    loss.add_again(tile, rows, owner)
        rows_of, columns_of = loss.losses()
        return rows_of.clone(), columns_of.clone()

    @staticmethod
    @first_only
    def backward(ctx: Any, by_rows: Tensor, by_columns: Tensor) -> tuple[Tensor | None, ...]:
        u, v, *more = ctx.saved_tensors
        bias = more[0] if more else None
        loss, ring, held = ctx.loss, ctx.ring, ctx.held
        by_all_columns = ring.joined(by_columns)
        of_u, of_bias = torch.zeros_like(u), None if bias is None else torch.zeros_like(bias)

        def of_block(owner: int, block: Tensor) -> Tensor:
            of_v = torch.zeros_like(block)
            for rows in _tiles(ring, owner, u):
                tile = held.pop((owner, rows.start)) if ctx.is_held else _logits(u, block, bias, rows)
                gradient = loss.gradient(tile, rows, owner, by_rows, by_all_columns)
                of_u[rows].addmm_(gradient, block)
                of_v.addmm_(gradient.T, u[rows])
                if of_bias is not None:
                    of_bias.add_(gradient.sum())
            return of_v

        received = ring.summed_at_owners(v, of_block)
        of_v = received() if ctx.add_pending is None else ctx.add_pending(received)
        return of_u, of_v, of_bias, None, None, None, None


def _logits(u: Tensor, block: Tensor, bias: Tensor | None, rows: slice) -> Tensor:
    return u[rows] @ block.T if bias is None else torch.addmm(bias, u[rows], block.T)


def _tiles(ring: Ring, owner: int, u: Tensor) -> list[slice]:
    """Slices of the own rows: their tiles with the columns of one worker."""
    block = ring.blocks[owner]
    return tiles_of(len(u), tile_rows(max(1, block.stop - block.start), u))
