"""The outermost layer of the API: every answer is counted, protected, and never a traceback."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recall_api.problems import Problem

_log = logging.getLogger(__name__)

#: Set unless the answer sets its own. The policy forbids everything: no answer here is a page.
_SECURITY = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class RequestCounter(Protocol):
    """Where answers are counted."""

    def count_request(self, route: str, status: int) -> None:
        """One answer; ``route`` is the template of the path."""
        ...


@dataclass(slots=True)
class Boundary:
    """Adds the security headers, answers HEAD like GET without the body, and hides what went wrong.

    An unexpected exception becomes a bare 500. The log has its type only, because messages of
    exceptions quote content.
    """

    app: ASGIApp
    metrics: RequestCounter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = _Answer(send, without_body=scope["method"] == "HEAD")
        # The routes know GET only. The server keeps the scope that says HEAD.
        inner = {**scope, "method": "GET"} if answer.without_body else dict(scope)
        try:
            await self.app(inner, receive, answer.send)
        except Exception as error:  # the boundary between requests: one that fails ends alone
            _log.error("request failed", extra={"route": _route(inner)}, exc_info=error)
            if answer.status is None:
                failed = Problem(
                    500, "internal", "the request failed", "the log of the API names the reason"
                )
                await failed.response()(inner, receive, answer.send)
        finally:
            self.metrics.count_request(_route(inner), answer.status or 499)


def _route(scope: Scope) -> str:
    """The template of the path that answered, so that no key becomes a label."""
    return str(getattr(scope.get("route"), "path", "none"))


class _Answer:
    """Passes an answer on and remembers its status; ``None`` until it has begun."""

    def __init__(self, send: Send, *, without_body: bool) -> None:
        self._send = send
        self.without_body = without_body
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        """One ASGI message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = {name.lower() for name, _ in message["headers"]}
            added = [(name, value) for name, value in _SECURITY if name not in given]
            message = {**message, "headers": [*message["headers"], *added]}
        elif message["type"] == "http.response.body" and self.without_body:
            message = {**message, "body": b""}
        await self._send(message)
