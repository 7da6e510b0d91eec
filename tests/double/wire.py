"""HTTP/1.1 on a socket, with the habits of the real server's library.

A request line and headers of more than 50 KB are answered with ``HTTP/1.0 400``. An answer that was
given before the body was read is followed by the end of the connection, unless no more than 8 KB of
the body are missing: a client that still sends gets a broken pipe. The answer does not announce it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from http import HTTPStatus

from tests.double.answer import Answer
from tests.double.request import Request

_LONGEST_HEAD = 50 * 1024
_LONGEST_REST = 8192
#: How long a body may stand still.
_BODY_SECONDS = 30.0
_CHUNK = 1 << 16


class Closed(Exception):
    """The client is gone, or was silent for too long."""


class HeadTooLarge(Exception):
    """Request line and headers are longer than the server reads."""


class Wire:
    """One connection of a client."""

    def __init__(self, client: socket.socket, keep_alive_seconds: float) -> None:
        self._client = client
        self._keep_alive_seconds = keep_alive_seconds
        self._buffer = bytearray()
        self._left = 0
        self._is_chunked = False
        self._expect_continue = False
        self.is_idle = True

    def serve_one(self, answer: Callable[[Request, Callable[[], bytes]], Answer]) -> bool:
        """Answer the next request; whether another one can follow."""
        try:
            request = self._read_head()
        except HeadTooLarge:
            self._client.sendall(
                b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\n\r\nBad Request"
            )
            return False
        self.is_idle = False
        self._expect_continue = (request.header("expect") or "").lower() == "100-continue"
        found = answer(request, self._read_body)
        keeps = (request.header("connection") or "").lower() != "close"
        self._send(request, found, keeps=keeps)
        keeps = keeps and not found.is_crash and self._skip_body()
        self.is_idle = True
        return keeps

    def _read_head(self) -> Request:
        self._client.settimeout(self._keep_alive_seconds)
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _LONGEST_HEAD:
                raise HeadTooLarge
            self._receive()
        if end > _LONGEST_HEAD:
            raise HeadTooLarge
        self._client.settimeout(max(_BODY_SECONDS, self._keep_alive_seconds))
        head = bytes(self._buffer[:end]).decode("latin-1")
        del self._buffer[: end + 4]
        line, *fields = head.split("\r\n")
        method, target, _ = [*line.split(" "), "", ""][:3]
        headers = []
        for text in fields:
            name, _, value = text.partition(":")
            headers.append((name.strip().lower(), value.strip()))
        request = Request(method, target, headers)
        self._is_chunked = (request.header("transfer-encoding") or "").lower() == "chunked"
        self._left = int(request.header("content-length") or 0)
        return request

    def _read_body(self) -> bytes:
        if self._expect_continue and not self._buffer:
            self._client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._is_chunked:
            return self._read_chunks()
        body = self._take(self._left)
        self._left = 0
        return body

    def _read_chunks(self) -> bytes:
        body = bytearray()
        while size := int(self._line().partition(b";")[0], 16):
            body += self._take(size)
            self._line()
        while self._line():
            pass
        self._is_chunked = False
        return bytes(body)

    def _skip_body(self) -> bool:
        """Read the rest of a short body; whether the connection is still in step."""
        if self._is_chunked or self._left > _LONGEST_REST:
            return False
        self._take(self._left)
        self._left = 0
        return True

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._receive()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._receive()
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _receive(self) -> None:
        try:
            data = self._client.recv(_CHUNK)
        except OSError:
            raise Closed from None
        if not data:
            raise Closed
        self._buffer += data

    def _send(self, request: Request, answer: Answer, *, keeps: bool) -> None:
        headers = [] if keeps or answer.is_crash else [("Connection", "close")]
        headers.append(("Server", "postgrest/16.2"))
        body = b"" if request.method == "HEAD" else answer.body
        if answer.is_chunked and request.method != "HEAD":
            headers.insert(0, ("Transfer-Encoding", "chunked"))
            chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
            body = chunk + b"0\r\n\r\n"
        elif request.method != "HEAD" and answer.status != HTTPStatus.NO_CONTENT:
            headers.append(("Content-Length", str(len(body))))
        text = "".join(f"{name}: {value}\r\n" for name, value in [*headers, *answer.headers])
        line = f"HTTP/1.1 {answer.status} {_reason(answer.status)}\r\n"
        try:
            self._client.sendall(f"{line}{text}\r\n".encode() + body)
        except OSError:
            raise Closed from None


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
