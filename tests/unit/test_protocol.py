"""Connections on which nothing, or half of a request, arrives.

The clock of the server stands still but for :meth:`Server.let_pass`: however long the machine takes
for something, no time limit of the server passes by that.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from recall_api.protocol import HEADER_SECONDS, PunctualProtocol

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
_LONGEST_SECONDS = 60


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
    )
    await send({"type": "http.response.body", "body": b""})


class StandingLoop(asyncio.SelectorEventLoop):
    """A loop for which no second passes that nobody lets pass."""

    passed = 0.0

    def time(self) -> float:
        return self.passed


class Server:
    """A server whose connections have a time limit, and a client of it."""

    def __init__(self) -> None:
        self._loop = StandingLoop()
        #: One for each connection that the server made, and for each piece that it read.
        self.events = events = threading.Semaphore(0)

        class Watched(PunctualProtocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                events.release()

            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                events.release()

        self._listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            answer, log_config=None, lifespan="off", http=Watched, timeout_keep_alive=600
        )
        self._uvicorn = uvicorn.Server(config)
        serving = self._uvicorn.serve(sockets=[self._listener])
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(serving,))
        self._thread.start()

    def connect(self) -> socket.socket:
        address = self._listener.getsockname()
        client = socket.create_connection(address, timeout=_LONGEST_SECONDS)
        self._wait()
        return client

    def send(self, client: socket.socket, data: bytes) -> None:
        """Send something, and wait until the server has read it."""
        client.sendall(data)
        self._wait()

    def _wait(self) -> None:
        assert self.events.acquire(timeout=_LONGEST_SECONDS), "the server reads nothing"

    def let_pass(self, seconds: float) -> None:
        """Let time pass for the server."""

        def jump() -> None:
            self._loop.passed += seconds

        self._loop.call_soon_threadsafe(jump)

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        while self._thread.is_alive():  # it looks each tenth of a second, of its own time
            self.let_pass(0.1)
            self._thread.join(0.01)
        self._loop.close()
        self._listener.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def test_a_connection_without_a_request_is_closed(server: Server) -> None:
    with server.connect() as client:
        server.let_pass(HEADER_SECONDS)
        assert client.recv(100) == b""


def test_headers_that_never_end_are_cut(server: Server) -> None:
    with server.connect() as client:
        server.send(client, REQUEST)
        server.let_pass(HEADER_SECONDS)
        assert client.recv(100) == b""


def test_more_headers_give_no_more_time(server: Server) -> None:
    with server.connect() as client:
        server.send(client, REQUEST)
        server.let_pass(HEADER_SECONDS / 2)
        server.send(client, b"X-More: headers\r\n")
        server.let_pass(HEADER_SECONDS / 2)
        assert client.recv(100) == b""


def test_a_later_request_has_to_be_as_quick(server: Server) -> None:
    with server.connect() as client:
        server.send(client, REQUEST + b"\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        server.send(client, REQUEST)
        server.let_pass(HEADER_SECONDS)
        assert client.recv(100) == b""


def test_a_whole_request_is_answered_and_the_connection_goes_on(server: Server) -> None:
    with server.connect() as client:
        for _ in range(3):
            server.send(client, REQUEST + b"\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            server.let_pass(2 * HEADER_SECONDS)
