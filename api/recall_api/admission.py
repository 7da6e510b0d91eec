"""How much at once, how long, and with which token: the rest of what is checked before a route.

The order keeps a stranger cheap: an address gets few places, its token is checked before a byte of
a body is read, and a body that comes slowly ends at a deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recall_api.access import Door, Policy, Visit, has_body, judge, too_large
from recall_api.problems import Problem

_log = logging.getLogger(__name__)

#: Requests of one address that are worked on at the same time; health checks count by themselves.
MOST_AT_ONCE = 8
#: Bytes of bodies in memory, of one address and of all; one body of any door has room.
MOST_HELD_BYTES, MOST_HELD_BYTES_AT_ALL = 80 * 2**20, 160 * 2**20


class TokenCheck(Protocol):
    """Whether a token counts now."""

    async def refusal(self, token: str) -> Problem | None:
        """Why not: 401, or 5xx where that cannot be said now."""
        ...


class _GoneError(Exception):
    """The client left before its body was complete."""


@dataclass(slots=True)
class _Held:
    """What one request holds in memory of what all of them may."""

    counts: Counter[str]
    share: str
    taken: int = 0

    def take(self, size: int) -> bool:
        """Room for so many bytes more, if there is any."""
        own = self.counts[self.share] + size
        if own > MOST_HELD_BYTES or self.counts.total() + size > MOST_HELD_BYTES_AT_ALL:
            return False
        self.counts[self.share] = own
        self.taken += size
        return True

    def release(self) -> None:
        """Give the room back."""
        self.counts[self.share] -= self.taken
        if not self.counts[self.share]:
            del self.counts[self.share]


@dataclass(slots=True)
class AccessMiddleware:
    """Refuses what :func:`judge` refuses, tokens that do not count, and what is too much.

    ``answer_seconds`` is the time for an answer, from the end of the body to its last byte.
    """

    app: ASGIApp
    policy: Policy
    tokens: TokenCheck
    answer_seconds: float
    _active: Counter[tuple[str, bool]] = field(default_factory=Counter)
    _held: Counter[str] = field(default_factory=Counter)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http":
            await self.app(scope, receive, send)
        else:
            visit = judge(self.policy, scope)
            if isinstance(visit, Problem):
                await _refuse(visit, scope, receive, send)
            else:
                await self._admit(visit, scope, receive, _readable(visit, send))

    async def _admit(self, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        key = (visit.share, scope["path"] == "/health")
        if self._active[key] >= MOST_AT_ONCE:
            refusal = Problem(
                429,
                "too-many-requests",
                f"{MOST_AT_ONCE} requests from this address are being answered",
                "ask again when one of them is done",
                headers={"Retry-After": "1"},
            )
            await _refuse(refusal, scope, receive, send)
            return
        self._active[key] += 1
        try:
            await self._answer(visit, scope, receive, send)
        finally:
            self._active[key] -= 1
            if not self._active[key]:
                del self._active[key]

    async def _answer(self, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._judge_token(visit)
        scope["recall.share"] = visit.share
        if refusal is not None:
            await _refuse(refusal, scope, receive, send)
        elif not visit.door.most_body_bytes:
            await self._answer_in_time(scope, receive, send)
        else:
            held = _Held(self._held, visit.share)
            try:
                body = await _read_body(visit.door, receive, held)
                if isinstance(body, Problem):
                    await _refuse(body, scope, receive, send)
                else:
                    await self._answer_in_time(scope, _replay(body, receive), send)
            except _GoneError:
                return
            finally:
                held.release()

    async def _judge_token(self, visit: Visit) -> Problem | None:
        """A token that is sent has to count, also where none is needed.

        Where it cannot be checked now, what is open without it stays open.
        """
        if visit.token is None:
            return None
        refusal = await self.tokens.refusal(visit.token)
        if refusal is not None and refusal.status >= 500 and not visit.needs_token:
            return None
        return refusal

    async def _answer_in_time(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def tell(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            async with asyncio.timeout(self.answer_seconds):
                await self.app(scope, receive, tell)
        except TimeoutError:
            _log.warning("answer took too long", extra={"seconds": self.answer_seconds})
            if not started:  # else the server sees that the rest is missing, and hangs up
                refusal = Problem(
                    504,
                    "timeout",
                    f"there was no answer within {self.answer_seconds:g} seconds",
                    "narrow the request, or ask again later",
                )
                await _refuse(refusal, scope, receive, send)


async def _refuse(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    """Nobody reads the body of a refused request, so its connection cannot go on."""
    if has_body(scope["headers"]):
        problem = replace(problem, headers={**problem.headers, "Connection": "close"})
    await problem.response()(scope, receive, send)


async def _read_body(door: Door, receive: Receive, held: _Held) -> bytes | Problem:
    """The whole body, of at most so many bytes, in at most so many seconds."""
    body = bytearray()
    try:
        async with asyncio.timeout(door.body_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _GoneError
                piece = message.get("body", b"")
                if len(body) + len(piece) > door.most_body_bytes:
                    return too_large(door)
                if not held.take(len(piece)):
                    return _no_room()
                body += piece
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        return Problem(
            408,
            "timeout",
            f"the body did not arrive within {door.body_seconds:g} seconds",
            "send it in smaller parts",
        )


def _no_room() -> Problem:
    return Problem(
        429,
        "too-many-requests",
        "too much that was sent is waiting in memory",
        "send it again when some of it is done",
        headers={"Retry-After": "2"},
    )


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body in one piece, and after it what the server says."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _readable(visit: Visit, send: Send) -> Send:
    """Lets the page of a configured site read the answer; never with its user's credentials."""
    if visit.origin is None:
        return send
    added = [
        (b"access-control-allow-origin", visit.origin.encode("latin-1")),
        (b"vary", b"Origin"),
    ]

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return tell
