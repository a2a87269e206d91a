"""Batches of waiting requests: the encoder needs little more time for many texts than for one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Generic, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")
MOST_TOGETHER = 64  # requests


class BusyError(Exception):
    """The server cannot answer at present; the same request may succeed later. Its text says why."""


class Batcher(Generic[Request, Answer]):
    """Answers in batches, in a thread of its own. `answer_all` returns an answer, or an exception, for each request."""

    def __init__(
        self, answer_all: Callable[[Sequence[Request]], Sequence[Answer | Exception]], *, most_waiting: int
    ) -> None:
        self.answer_all = answer_all
        self._waiting: asyncio.Queue[tuple[Request, asyncio.Future[Answer]]] = asyncio.Queue(most_waiting)

    async def ask(self, asked: Request) -> Answer:
        """The answer. BusyError if too many wait already."""
        answer = asyncio.get_running_loop().create_future()
        try:
            self._waiting.put_nowait((asked, answer))
        except asyncio.QueueFull:
            raise BusyError("busy: too many requests wait; try again in a moment") from None
        return await answer

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answers while the block runs."""
        worker = asyncio.create_task(self._work())
        try:
            yield
        finally:
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker

    async def _work(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < MOST_TOGETHER and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            # Requests that were cancelled meanwhile are skipped.
            batch = [(asked, waiting) for asked, waiting in batch if not waiting.done()]
            if not batch:
                continue
            try:
                answers = await asyncio.to_thread(self.answer_all, [asked for asked, _ in batch])
            except Exception as error:  # noqa: BLE001 - each waiting request gets it
                answers = [error] * len(batch)
            for (_, waiting), answer in zip(batch, answers, strict=True):
                if waiting.done():
                    continue
                if isinstance(answer, Exception):
                    waiting.set_exception(answer)
                else:
                    waiting.set_result(answer)
