"""Searching a base of which each worker has a part, with the result of one base, bit for bit.

All workers make every call here, in the same order. A worker sends its queries to one worker of each part, which searches
them apart from other workers' queries: multiplied together they would be rounded differently. The results are sent back and
merged. Entries that are looked up are gathered from the workers of their parts, each entry once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ray_atr.common.ranks import Ranks, has_group, stacked
from ray_atr.common.settings import refuse
from ray_atr.training.knowledge_base.equal_rows import EqualRows
from ray_atr.training.knowledge_base.parts import BasePart, part_of_worker


class LocalRows(Protocol):
    """A searchable matrix [N, D] in this process."""

    rows: Tensor

    def top_k(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]: ...


def best_first(scores: Tensor, positions: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best (scores, positions), both [B, k], of some [B, C]: higher scores, then smaller positions."""
    order = positions.argsort(dim=1, stable=True)
    scores, positions = scores.gather(1, order), positions.gather(1, order)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    return scores[:, :k], positions.gather(1, order)[:, :k]


class Exchange:
    """This worker among those that search a base in parts: which worker searches for which, and exchanges of tensors."""

    def __init__(self, parts: int) -> None:
        ranks = Ranks.here()
        self.rank, self.size = ranks.rank, ranks.size
        if parts > self.size:
            raise refuse("scaling.base_shards", parts, f"at most {self.size}, the number of workers")
        self.parts = parts
        self.part = part_of_worker(self.rank, self.size, parts)
        # gloo cannot exchange tensors on a GPU.
        self.is_on_cpu = has_group() and dist.get_backend() == "gloo"

    def searchers_of(self, rank: int) -> list[int]:
        """The workers that search the parts for a worker; the workers of a part take turns."""
        teams = (BasePart(number, self.parts).workers(self.size) for number in range(self.parts))
        return [team[rank % len(team)] for team in teams]

    def askers(self) -> list[int]:
        """The workers that this one searches for."""
        team = self.part.workers(self.size)
        return [rank for rank in range(self.size) if rank % len(team) == self.rank - team.start]

    def numbers(self, *own: int) -> list[list[int]]:
        """Every worker's numbers."""
        return self.gathered(torch.tensor([own]), [1] * self.size).tolist()

    def swapped(self, own: Tensor, to: dict[int, int], by: dict[int, int]) -> Tensor:
        """Send rows of `own` [n, ...], `to` (number of rows by rank), and return those received, `by` (the same)."""
        device = own.device
        sent = (own.cpu() if self.is_on_cpu else own).contiguous()
        received = sent.new_empty(sum(by.values()), *sent.shape[1:])
        dist.all_to_all_single(
            received, sent, [by.get(r, 0) for r in range(self.size)], [to.get(r, 0) for r in range(self.size)]
        )
        return received.to(device)

    def gathered(self, own: Tensor, lengths: Sequence[int]) -> Tensor:
        """The workers' rows concatenated in rank order; `lengths` are their numbers of rows."""
        device = torch.device("cpu") if self.is_on_cpu else torch.device("cuda") if own.is_cpu else own.device
        return stacked(own.to(device), lengths).to(own.device)


class ShardedRows:
    """A matrix [N, D] of which this worker holds the rows of its part, `own`."""

    is_shared = True

    def __init__(self, own: LocalRows, keys: NDArray[np.uint64], count: int, exchange: Exchange) -> None:
        """`keys` are the `row_keys` of the own rows. Those of all parts, 8 bytes an entry, are gathered and then freed."""
        self.own, self.count, self.exchange = own, count, exchange
        self.first = exchange.part.rows(count).start
        parts = [part_of_worker(rank, exchange.size, exchange.parts) for rank in range(exchange.size)]
        lengths = [part.rows(count).stop - part.rows(count).start for part in parts]
        of_workers = exchange.gathered(torch.from_numpy(keys.view(np.int64)), lengths).split(lengths)
        # The workers of a part have the same keys.
        of_parts = {part.number: own_keys for part, own_keys in zip(parts, of_workers, strict=True)}
        every = torch.cat([of_parts[number] for number in range(exchange.parts)])
        self.equal = EqualRows(every.cpu().numpy().view(np.uint64), own.rows.device)

    def __len__(self) -> int:
        return self.count

    def top_k(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(scores, positions), both [B, min(k, N)], of this worker's queries [B, D]; -inf and any position if there is none."""
        exchange, k = self.exchange, min(k, self.count)
        counts, widths = zip(*exchange.numbers(len(queries), k), strict=True)
        searchers, askers = exchange.searchers_of(exchange.rank), exchange.askers()
        theirs = exchange.swapped(
            queries.repeat(len(searchers), 1), dict.fromkeys(searchers, len(queries)), {r: counts[r] for r in askers}
        )
        scores, positions = [], []
        for rank, rank_queries in zip(askers, theirs.split([counts[r] for r in askers]), strict=True):
            best = self._search(rank_queries, widths[rank])
            scores.append(best[0].flatten())
            positions.append(best[1].flatten())
        back = {r: counts[r] * widths[r] for r in askers}
        own = dict.fromkeys(searchers, len(queries) * k)
        of_parts = (exchange.swapped(torch.cat(every), back, own) for every in (scores, positions))
        shape = (len(searchers), len(queries), k)
        all_scores, all_positions = (values.view(shape).transpose(0, 1).flatten(1) for values in of_parts)
        return self.equal.in_order(*best_first(all_scores, all_positions, k))

    def _search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(scores, positions in the base), both [B, k], among the own rows; -inf where there are fewer than k."""
        scores = queries.new_full((len(queries), k), -torch.inf)
        positions = torch.zeros(len(queries), k, dtype=torch.int64, device=queries.device)
        if len(queries) and len(self.own.rows):
            values, where = self.own.top_k(queries, k)
            scores[:, : values.shape[1]], positions[:, : values.shape[1]] = values, where + self.first
        return scores, positions

    def take(self, positions: Tensor) -> Tensor:
        """The rows at positions, which are equal on every worker, as float32 [*positions, D]; position -1 gives any row."""
        exchange = self.exchange
        unique, inverse = positions.clamp(min=0).flatten().unique(return_inverse=True)
        # In the order of the ranks, whose parts are in the order of the positions.
        parts = (BasePart(number, exchange.parts) for number in range(exchange.parts))
        lengths = [length for part in parts for length in self._shares(unique, part)]
        first = sum(lengths[: exchange.rank])
        mine = unique[first : first + lengths[exchange.rank]] - self.first
        rows = self.own.rows.index_select(0, mine.to(self.own.rows.device))
        vectors = exchange.gathered(rows, lengths).to(positions.device)
        return vectors.float()[inverse].view(*positions.shape, -1)

    def _shares(self, unique: Tensor, part: BasePart) -> list[int]:
        """Number of the sorted positions that each worker of a part looks up."""
        rows, workers = part.rows(self.count), len(part.workers(self.exchange.size))
        ends = torch.searchsorted(unique, torch.tensor([rows.start, rows.stop], device=unique.device)).tolist()
        length = ends[1] - ends[0]
        return [length * (number + 1) // workers - length * number // workers for number in range(workers)]


class EntriesAt:
    """A sharded matrix that can be indexed like an array; every worker reads the same rows at the same time."""

    def __init__(self, rows: ShardedRows) -> None:
        self.rows = rows

    def __getitem__(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        return self.rows.take(torch.from_numpy(np.asarray(positions, dtype=np.int64))).numpy()
