"""HTTP/1.1 connections on which a request has to begin and arrive in time.

uvicorn waits for ever for the first request of a connection, and for the rest of its headers; as it
counts connections, silent ones would lock everybody else out.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: From the connection, or from the first byte of a later request, to the end of the headers.
HEADER_SECONDS = 10.0


class PunctualProtocol(H11Protocol):
    """Hangs up where the headers of a request are not complete within :data:`HEADER_SECONDS`."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first request has to come now; uvicorn's own limit waits for the later ones."""
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request, or the rest of it."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._deadline is None:
            self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop()
        super().connection_lost(exc)

    def _start(self) -> None:
        self._deadline = self.loop.call_later(HEADER_SECONDS, self.timeout_keep_alive_handler)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
