"""Connections to uvicorn that close if a request's head does not arrive in time: uvicorn itself waits for ever, so that clients
which send a byte from time to time would use up its connections.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_SECONDS = 20.0


class TimedConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """One client's connection. The app limits bodies, and uvicorn's `timeout_keep_alive` idle connections."""

    _given_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._given_up is None:
            self._given_up = asyncio.get_running_loop().call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._given_up is not None:
            self._given_up.cancel()
            self._given_up = None


def server_of(app: Any) -> uvicorn.Server:
    """The server of an ASGI app, to run on a listening socket."""
    config = uvicorn.Config(app, http=TimedConnection, log_level="warning", access_log=False, timeout_keep_alive=5)
    return uvicorn.Server(config)
