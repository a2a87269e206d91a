"""Blocks of rows that pass around the processes: each sees every block, and none holds them all.

As in ring attention (Liu et al. 2023, "Ring attention with blockwise transformers") and the chunked loss of SigLIP (Zhai et al.
2023, section 3.3). While a process computes with a block, the next one is on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from ray_atr.common.ranks import Ranks


class PendingGradients:
    """Gradients that are still on their way to the process that owns their rows, while the backward pass continues elsewhere.

    rows = pending.detached(rows)    # the losses' backward pass ends here
    loss.backward()                  # returns while gradients of rows that went around the ring are in their last exchange
    pending.backward()               # waits for these, and continues the backward pass from the rows
    """

    def __init__(self) -> None:
        self._rows: tuple[Tensor, Tensor] | None = None
        self._awaited: list[tuple[Tensor, Callable[[], Tensor]]] = []

    def detached(self, rows: Tensor) -> Tensor:
        """The rows, for the losses of one backward pass."""
        self._rows = rows, rows.detach().requires_grad_(rows.requires_grad)
        return self._rows[1]

    def add(self, used: Tensor, received: Callable[[], Tensor]) -> None:
        """`received()` will return the gradient of `used`, which was computed from the rows and went around the ring."""
        self._awaited.append((used, received))

    def backward(self) -> None:
        """Wait for the gradients that are still on their way, and back-propagate all of them through the rows."""
        if self._awaited:
            torch.autograd.backward([used for used, _ in self._awaited], [received() for _, received in self._awaited])
            self._awaited.clear()
        assert self._rows is not None, "detached before"
        rows, copy = self._rows
        if copy.grad is not None:
            rows.backward(copy.grad)


@dataclass(frozen=True, eq=False)
class Ring:
    """The processes in their order, each with some consecutive rows of N.

    blocks     the rows of each process; a block may be empty.
    pending    takes the gradients of rows that went around. None: the backward pass waits for them.
    """

    ranks: Ranks
    blocks: tuple[slice, ...]
    pending: PendingGradients | None = None

    @property
    def own(self) -> slice:
        """This process's rows."""
        return self.blocks[self.ranks.rank]

    @property
    def size(self) -> int:
        """N."""
        return self.blocks[-1].stop

    def joined(self, own: Tensor) -> Tensor:
        """One number [N] for every row, on every process, of the numbers that each has for its own rows. No gradient."""
        joined = own.new_zeros(self.size)
        joined[self.own] = own.detach()
        return self.ranks.sum(joined)

    def around(self, own: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(rank, its rows [n_r, ...]) of every process, its own first. Every process must iterate to the end."""
        block, size, rank = own, self.ranks.size, self.ranks.rank
        for step in range(size):
            owner = (rank - step) % size
            coming = None
            if step < size - 1:
                coming = _Exchange(self.ranks, block, self._empty((owner - 1) % size, own))
            yield owner, block
            if coming is not None:
                block = coming.received()

    def summed_at_owners(self, own: Tensor, part: Callable[[int, Tensor], Tensor]) -> Callable[[], Tensor]:
        """A function that waits for the sum over processes of part(rank, rows) at the owner of the rows: [n, ...], as `own`.

        A sum follows its rows around the ring, one process behind them, and so ends at their owner. All parts have been
        computed when this returns; the sums are in their last exchange.
        """
        size = self.ranks.size
        coming: _Exchange | None = None
        for owner, block in self.around(own):
            gradient = part(owner, block)
            if coming is not None:
                gradient += coming.received()
            if size == 1:
                return lambda: gradient
            # The last one that is sent goes to the owner.
            coming = _Exchange(self.ranks, gradient, self._empty((owner - 1) % size, own))
        assert coming is not None, "more than one process"
        return coming.received

    def _empty(self, owner: int, like: Tensor) -> Tensor:
        block = self.blocks[owner]
        return like.new_empty(block.stop - block.start, *like.shape[1:])


class _Exchange:
    """A tensor that is sent to the next process, and one that comes from the process before. Empty tensors are not sent."""

    def __init__(self, ranks: Ranks, sent: Tensor, received: Tensor) -> None:
        self.sent, self.into = sent.contiguous(), received
        group = ranks.group
        after, before = ((ranks.rank + step) % ranks.size for step in (1, -1))
        if group is not None:
            after, before = (distributed.get_global_rank(group, neighbour) for neighbour in (after, before))
        operations = []
        if self.sent.numel():
            operations.append(distributed.P2POp(distributed.isend, self.sent, after, group))
        if self.into.numel():
            operations.append(distributed.P2POp(distributed.irecv, self.into, before, group))
        self.works = distributed.batch_isend_irecv(operations) if operations else []

    def received(self) -> Tensor:
        """The tensor from the process before, once it has arrived."""
        for work in self.works:
            work.wait()
        return self.into
