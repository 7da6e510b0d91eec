"""``/rest``: what hosts write goes on to PostgREST, which nobody else can reach.

The token was checked before; PostgREST checks it again, and row level security decides which rows.
Only what the protocol of PostgREST needs is passed on, in both directions.
"""

from __future__ import annotations

import re

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from recall import disk
from recall_api.problems import RETRY_AFTER_SECONDS, Problem

#: A statement of a host may take 60 s.
_ANSWER_SECONDS = 70.0
_CONNECT_SECONDS = 3.0
_TIMEOUT = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS, pool=_CONNECT_SECONDS)
_CONNECTIONS = 16
#: PostgREST hangs up after 30 s; a request must not go into a connection that is just ending.
_KEEP_ALIVE_SECONDS = 10.0

_PATH = re.compile(r"(rpc/)?[a-z][a-z0-9_]*")
#: What a host reads: whether its token counts, before it sends a large body.
_READABLE = re.compile(r"incoming_[a-z_]+")
#: Functions that store what a host sends: each path that could not be read gets a row as well.
_STORING = frozenset({"rpc/store_batch", "rpc/mark"})
_REQUEST_HEADERS = (
    "accept", "accept-profile", "authorization", "content-profile", "content-type", "prefer",
)  # fmt: skip
_ANSWER_HEADERS = (
    "content-length", "content-range", "content-type", "preference-applied", "proxy-status",
    "retry-after", "www-authenticate",
)  # fmt: skip


class Forwarder:
    """Connections to PostgREST at ``rest_url``; ``None`` means that there is none."""

    def __init__(
        self, rest_url: str | None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._base = httpx.URL(rest_url) if rest_url else None
        # A transport and no client, which would keep cookies and follow redirects.
        self._http = transport or httpx.AsyncHTTPTransport(
            limits=httpx.Limits(
                max_connections=_CONNECTIONS,
                max_keepalive_connections=_CONNECTIONS,
                keepalive_expiry=_KEEP_ALIVE_SECONDS,
            ),
            trust_env=False,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def forward(self, request: Request, path: str) -> Response:
        """The answer of PostgREST as it is, or a problem where it does not answer."""
        if self._base is None:
            return Problem(
                404,
                "no-such-page",
                "this server takes no writes over HTTP: `rest_url` is not set",
                "set RECALL_REST_URL of the server to the address of PostgREST",
            ).response()
        if not _PATH.fullmatch(path):
            return Problem(404, "no-such-page", "there is nothing under this path").response()
        if request.method != "POST" and not _READABLE.fullmatch(path):
            allowed = {"Allow": "POST"}
            return Problem(405, "method", "only POST is answered here", headers=allowed).response()
        body = await request.body() if request.method == "POST" else None
        try:
            sent = _build(self._base, request, path, body)
        except (UnicodeEncodeError, httpx.InvalidURL):
            unsaid = "a header or the query holds what no header or query may hold"
            return Problem(400, "usage", unsaid).response()
        return await self._ask(sent)

    async def _ask(self, request: httpx.Request) -> Response:
        try:
            answer = await self._http.handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            return _unavailable("PostgREST cannot be reached now", "nothing was written")
        except httpx.TimeoutException:
            return Problem(
                504,
                "timeout",
                f"PostgREST did not answer within {_ANSWER_SECONDS:g} seconds",
                "what was sent may have been written; send it again",
            ).response()
        except httpx.HTTPError:
            return _unavailable(
                "the connection to PostgREST was lost",
                "what was sent may have been written; send it again",
            )
        return _Passing(answer)


def stores_rows(method: str, path: str) -> bool:
    """Whether a request makes the store grow. What a host asks, its beat, and the end of a pass do
    not, and go on while the disk is full."""
    return method == "POST" and (path.startswith("incoming_") or path in _STORING)


def no_room(room: disk.Room) -> Problem:
    """As PostgreSQL says it of a full disk: every version of the client sends it again later."""
    return Problem(
        507,
        "disk-full",
        room.told,
        disk.HINT,
        extra={"code": "53100", "message": room.told, "free_bytes": room.free},
    )


def _build(base: httpx.URL, request: Request, path: str, body: bytes | None) -> httpx.Request:
    """The request for PostgREST. How long its body is, is counted and not believed."""
    query = request.scope["query_string"]
    target = base.raw_path.rstrip(b"/") + b"/" + path.encode() + (b"?" + query if query else b"")
    given = request.headers
    headers = [(name, value) for name in _REQUEST_HEADERS for value in given.getlist(name)]
    headers += [("accept-encoding", "identity"), ("user-agent", "recall-api")]
    return httpx.Request(
        request.method,
        base.copy_with(raw_path=target),
        headers=headers,
        content=body,
        extensions={"timeout": _TIMEOUT.as_dict()},
    )


class _Passing(StreamingResponse):
    """The answer of PostgREST, piece by piece; the connection to it is free again in any case."""

    def __init__(self, answer: httpx.Response) -> None:
        given = answer.headers
        headers = {name: given[name] for name in _ANSWER_HEADERS if name in given}
        super().__init__(answer.aiter_raw(), answer.status_code, headers)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._answer.aclose()


def _unavailable(detail: str, hint: str) -> Response:
    later = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return Problem(503, "store-unavailable", detail, hint, headers=later).response()
