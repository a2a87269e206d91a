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


class Homecoming:
    """Gradients on their way to the process whose rows they are of, while the backward pass goes on with other things.

    rows = homecoming.leave(rows)     # what losses may use them for is back-propagated as far as here
    loss.backward()                   # returns while gradients of rows that went around are on their last way
    homecoming.arrive()               # waits for those, and goes on from here
    """

    def __init__(self) -> None:
        self._left: tuple[Tensor, Tensor] | None = None
        self._awaited: list[tuple[Tensor, Callable[[], Tensor]]] = []

    def leave(self, rows: Tensor) -> Tensor:
        """The rows, for the losses of one backward pass."""
        self._left = rows, rows.detach().requires_grad_(rows.requires_grad)
        return self._left[1]

    def expect(self, used: Tensor, received: Callable[[], Tensor]) -> None:
        """`received` will give the gradient of what was made of the rows and went around."""
        self._awaited.append((used, received))

    def arrive(self) -> None:
        """Back-propagate all that has come, and what is still to come, from the rows that left."""
        if self._awaited:
            torch.autograd.backward([used for used, _ in self._awaited], [received() for _, received in self._awaited])
            self._awaited.clear()
        assert self._left is not None, "rows have left"
        rows, here = self._left
        if here.grad is not None:
            rows.backward(here.grad)


@dataclass(frozen=True, eq=False)
class Ring:
    """The processes in their order, each with some consecutive rows of N.

    blocks       which rows each process has. No rows is allowed, and any number.
    homecoming   takes the gradients of rows that went around. None: the backward pass waits for them.
    """

    ranks: Ranks
    blocks: tuple[slice, ...]
    homecoming: Homecoming | None = None

    @property
    def own(self) -> slice:
        """This process's rows."""
        return self.blocks[self.ranks.rank]

    @property
    def size(self) -> int:
        """N."""
        return self.blocks[-1].stop

    def joined(self, own: Tensor) -> Tensor:
        """The processes' numbers of their own rows, [N], on each of them, without gradient."""
        whole = own.new_zeros(self.size)
        whole[self.own] = own.detach()
        return self.ranks.sum(whole)

    def around(self, own: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(whose, the rows [n_r, ...]) of every process, the own ones first; every process must take all."""
        block, size, rank = own, self.ranks.size, self.ranks.rank
        for step in range(size):
            owner = (rank - step) % size
            coming = None
            if step < size - 1:
                coming = _Exchange(self.ranks, block, self._empty((owner - 1) % size, own))
            yield owner, block
            if coming is not None:
                block = coming.received()

    def gathered_home(self, own: Tensor, part: Callable[[int, Tensor], Tensor]) -> Callable[[], Tensor]:
        """Waits for the sum over processes of part(whose, rows), at the process whose rows they are: [n, ...] as the own ones.

        A sum follows its rows around the ring, one process behind them, and so ends where they come from. All parts have been
        computed when this returns, and the sums are on their last way.
        """
        size = self.ranks.size
        coming: _Exchange | None = None
        for owner, block in self.around(own):
            gradient = part(owner, block)
            if coming is not None:
                gradient += coming.received()
            if size == 1:
                return lambda: gradient
            # The last one that is sent comes home.
            coming = _Exchange(self.ranks, gradient, self._empty((owner - 1) % size, own))
        assert coming is not None, "more than one process"
        return coming.received

    def _empty(self, owner: int, like: Tensor) -> Tensor:
        block = self.blocks[owner]
        return like.new_empty(block.stop - block.start, *like.shape[1:])


class _Exchange:
    """A tensor on its way to the next process, and one on its way from the one before. Nobody sends what has no rows."""

    def __init__(self, ranks: Ranks, sent: Tensor, received: Tensor) -> None:
        self.sent, self.into = sent.contiguous(), received
        group = ranks.group
        after, before = ((ranks.rank + step) % ranks.size for step in (1, -1))
        if group is not None:
            after, before = (distributed.get_global_rank(group, one) for one in (after, before))
        operations = []
        if self.sent.numel():
            operations.append(distributed.P2POp(distributed.isend, self.sent, after, group))
        if self.into.numel():
            operations.append(distributed.P2POp(distributed.irecv, self.into, before, group))
        self.works = distributed.batch_isend_irecv(operations) if operations else []

    def received(self) -> Tensor:
        """What the process before sent."""
        for work in self.works:
            work.wait()
        return self.into
