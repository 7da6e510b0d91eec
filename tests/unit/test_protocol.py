"""Connections on which nothing, or half of a request, arrives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from recall_api import protocol
from recall_api.protocol import PunctualProtocol

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
    )
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.2)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        answer,
        log_config=None,
        lifespan="off",
        http=PunctualProtocol,
        timeout_keep_alive=600,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield int(listener.getsockname()[1])
    server.should_exit = True
    thread.join(timeout=30)
    listener.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def test_a_connection_without_a_request_is_closed(port: int) -> None:
    with connect(port) as client:
        assert client.recv(100) == b""


def test_headers_that_never_end_are_cut(port: int) -> None:
    with connect(port) as client:
        client.sendall(REQUEST)
        assert client.recv(100) == b""


def test_a_later_request_has_to_be_as_quick(port: int) -> None:
    with connect(port) as client:
        client.sendall(REQUEST + b"\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        client.sendall(REQUEST)
        assert client.recv(100) == b""


def test_a_whole_request_is_answered_and_the_connection_goes_on(port: int) -> None:
    with connect(port) as client:
        for _ in range(3):
            client.sendall(REQUEST + b"\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
