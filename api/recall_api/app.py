"""The HTTP API: routes over the functions of this room, and one form for every error."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from psycopg_pool import ConnectionPool
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from recall import __version__, disk
from recall.config import Settings
from recall.errors import AccessError, ClaimError, RecallError
from recall_api import answers, answers_status, uploads
from recall_api.access import Policy
from recall_api.admission import AccessMiddleware
from recall_api.boundary import Boundary
from recall_api.forward import Forwarder, no_room, stores_rows
from recall_api.health import check_health
from recall_api.join import Failures, JoinAnswer, JoinRequest, join
from recall_api.messages import get_message, list_messages
from recall_api.metrics import CONTENT_TYPE, Metrics
from recall_api.metrics_store import collect_store
from recall_api.models import (
    LedgerParams,
    MemoriesParams,
    MessageParams,
    MessagesParams,
    SearchParams,
    SessionsParams,
    StatusParams,
    explain,
)
from recall_api.notes import list_notes
from recall_api.problems import MEDIA_TYPE, Problem, of_error
from recall_api.query_vectors import QueryVectors
from recall_api.reading import Answer, Connection, reading
from recall_api.search import search
from recall_api.sessions import get_session, list_sessions
from recall_api.status import get_status
from recall_api.tokens import Tokens, no_secret, read_token
from recall_sql.connection import open_pool, translate_errors

#: Connections to the database; requests above that wait briefly and then get 503.
_POOL_SIZE = 10
#: A statement of a search ends by itself this much after the time that the search may take.
_GRACE_SECONDS = 2.0
#: How long joining waits for a connection.
_POOL_SECONDS = 5.0
#: From the end of the body to the end of the answer: PostgREST, or a search and a slow line.
_ANSWER_SECONDS = 90.0

_DESCRIPTION = """\
Reads the session logs of coding agents that Recall has collected.

- Ids are text: they are 63-bit numbers, which JavaScript cannot hold. Times are ISO 8601 in UTC.
- A list that goes on has `next_cursor`; pass it as `cursor` and change nothing else.
- A filter can be given several times; its values are alternatives.
- An unknown parameter is an error.
- Every error is `application/problem+json` with a `hint`.
- From private addresses nothing but the question is needed, from others the token of a host.
"""


@dataclass(slots=True)
class Service:
    """What the routes share. The pool is open between start and end of the application."""

    settings: Settings
    database_url: str
    metrics: Metrics = field(init=False)
    vectors: QueryVectors = field(init=False)
    forwarder: Forwarder = field(init=False)
    failures: Failures = field(default_factory=Failures)
    started: float = field(default_factory=time.monotonic)
    #: The free space on the volume of the database, where it can be seen.
    room: Callable[[], disk.Room | None] = field(init=False)
    row_checks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    _pool: ConnectionPool[Connection] | None = None

    def __post_init__(self) -> None:
        self.room = partial(disk.look, self.settings)
        self.vectors = QueryVectors(self.settings)
        self.forwarder = Forwarder(self.settings.rest_url)
        self.metrics = Metrics(lambda: collect_store(self.database_url, self.settings))

    @property
    def pool(self) -> ConnectionPool[Connection]:
        """The connections for requests."""
        assert self._pool is not None, "the application has not been started"
        return self._pool

    def open(self) -> None:
        """Start to connect, without waiting for it."""
        limit = self.settings.search_timeout_seconds + _GRACE_SECONDS
        self._pool = open_pool(
            self.database_url,
            max_size=_POOL_SIZE,
            application="recall api",
            statement_timeout_seconds=limit,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self.forwarder.close()
        if self._pool is not None:
            self._pool.close()


def create_app(settings: Settings, database_url: str) -> FastAPI:
    """The application. It connects when it starts, and starts also while the database is down."""
    service = Service(settings, database_url)
    app = FastAPI(
        title="Recall",
        summary="Search over the session logs of coding agents.",
        description=_DESCRIPTION,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(service),
        responses=_error_responses(),
    )
    app.state.service = service
    app.add_exception_handler(RecallError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http_error)
    _add_routes(app)
    app.add_middleware(
        AccessMiddleware,
        policy=Policy.of(settings),
        tokens=Tokens(settings.jwt_secret, lambda: service.pool),
        answer_seconds=_ANSWER_SECONDS + settings.search_timeout_seconds,
    )
    app.add_middleware(Boundary, metrics=service.metrics)
    return app


def _lifespan(
    service: Service,
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def run(_app: FastAPI) -> AsyncIterator[None]:
        service.open()
        try:
            yield
        finally:
            await service.close()

    return run


def _error_responses() -> dict[int | str, dict[str, Any]]:
    content = {MEDIA_TYPE: {"schema": answers.ProblemDocument.model_json_schema()}}
    about: dict[int | str, str] = {
        400: "A parameter is missing, unknown or out of range.",
        401: "The address needs a token, or the token does not count any more.",
        403: "The `Host` header, the site or a proxy is not allowed.",
        429: "Too many requests of this address at once.",
        503: "The store cannot be reached now; `Retry-After` says when to ask again.",
        504: "The time limit was reached.",
        # With a `default`, FastAPI does not add the 422 that this API never gives.
        "default": "Any other error.",
    }
    return {status: {"description": text, "content": content} for status, text in about.items()}


def _answer_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RecallError)
    return of_error(error).response()


def _answer_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    hint = "/openapi.json lists the parameters of every path"
    return Problem(400, "usage", explain(list(error.errors())), hint).response()


def _answer_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        hint = "/openapi.json lists every path"
        return Problem(404, "no-such-page", "there is nothing under this path", hint).response()
    kind = "usage" if error.status_code < 500 else "internal"
    return Problem(error.status_code, kind, error.detail, headers=error.headers or {}).response()


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


_Service = Annotated[Service, Depends(_service)]
_Key = Annotated[
    str,
    Path(
        description="A session key, the client's own id, or its beginning if that is unique. "
        "Slashes may be written as they are or as `%2F`.",
        examples=["claude-code:laptop:0b7f2c9e-5d1a-4e0e-9a55-3f6f3f1f9f10"],
    ),
]
_MessageId = Annotated[str, Path(description="`id` of a hit.", examples=["812345678901234567"])]


def _json(answer: Answer, status: int = 200) -> Response:
    body = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    return Response(body.encode(), status, media_type="application/json")


def _add_routes(app: FastAPI) -> None:
    def add(path: str, endpoint: Callable[..., Response], model: type | None, **more: Any) -> None:
        responses = {200: {"model": model}, **more.pop("responses", {})} if model else None
        name = endpoint.__name__.removeprefix("_")
        app.add_api_route(
            path, endpoint, response_model=None, responses=responses, operation_id=name,
            summary=name.replace("_", " ").capitalize(), response_class=Response, **more,
        )  # fmt: skip

    missing = {404: {"description": "Not in the store."}}
    several = {**missing, 409: {"description": "Fits several; `candidates` lists them."}}
    unhealthy = {
        503: {"model": answers_status.HealthAnswer, "description": "A component does not work."}
    }
    add("/search", _search, answers.SearchAnswer)
    add("/sessions", _list_sessions, answers.SessionsAnswer)
    add("/sessions/{key:path}/messages", _list_messages, answers.MessagesAnswer, responses=several)
    add("/sessions/{key:path}", _get_session, answers.SessionAnswer, responses=several)
    add("/ledger", _search_ledger, answers.NotesAnswer, responses={409: several[409]})
    add("/memories", _list_memories, answers.NotesAnswer)
    add("/messages/{message_id}", _get_message, answers.MessageAnswer, responses=missing)
    add("/status", _get_status, answers_status.StatusAnswer)
    add("/health", _check_health, answers_status.HealthAnswer, responses=unhealthy)
    add("/metrics", _get_metrics, None)
    taken = {409: {"description": "The name or the installation is taken."}}
    add("/join", _join, JoinAnswer, methods=["POST"], responses=taken)
    app.add_route("/rest/{path:path}", _forward, ["GET", "POST"], include_in_schema=False)


def _search(service: _Service, params: Annotated[SearchParams, Query()]) -> Response:
    """Find messages. Every answer says which mode was used and what it could not see."""
    request = params.request(datetime.now(UTC))
    started = time.monotonic()
    with reading(service.pool) as connection:
        answer = search(
            connection,
            request,
            budget_seconds=service.settings.search_timeout_seconds,
            vectors=service.vectors,
        )
    service.metrics.observe_search(answer, time.monotonic() - started)
    return _json(answer)


def _list_sessions(service: _Service, params: Annotated[SessionsParams, Query()]) -> Response:
    """List sessions, newest first."""
    request = params.request(datetime.now(UTC))
    with reading(service.pool) as connection:
        return _json(list_sessions(connection, request))


def _get_session(service: _Service, key: _Key) -> Response:
    """One session with its parent, children, files and counts."""
    with reading(service.pool) as connection:
        return _json(get_session(connection, key))


def _list_messages(
    service: _Service, key: _Key, params: Annotated[MessagesParams, Query()]
) -> Response:
    """The messages of a session in order: from the start, from a place, or around one."""
    with reading(service.pool) as connection:
        return _json(list_messages(connection, key, params.request()))


def _get_message(
    service: _Service, message_id: _MessageId, params: Annotated[MessageParams, Query()]
) -> Response:
    """One message or note in full, where else it stands, and the messages around it."""
    with reading(service.pool) as connection:
        return _json(
            get_message(connection, message_id, context=params.context, max_chars=params.max_chars)
        )


def _search_ledger(service: _Service, params: Annotated[LedgerParams, Query()]) -> Response:
    """Entries of work ledgers: those with the words of `q`, best first; else newest first."""
    request = params.request(datetime.now(UTC))
    with reading(service.pool) as connection:
        return _json(list_notes(connection, request))


def _list_memories(service: _Service, params: Annotated[MemoriesParams, Query()]) -> Response:
    """Memories of agents: those with the words of `q`, best first; else file by file."""
    request = params.request(datetime.now(UTC))
    with reading(service.pool) as connection:
        return _json(list_notes(connection, request))


def _get_status(service: _Service, params: Annotated[StatusParams, Query()]) -> Response:
    """What is in the store, where it came from, what went wrong, and which parts are alive."""
    interval = service.settings.ingest_every_seconds
    with reading(service.pool) as connection:
        return _json(
            get_status(
                connection,
                interval_seconds=interval,
                problems=params.problems,
                room=service.room(),
            )
        )


def _check_health(service: _Service) -> Response:
    """200 if the database answers, its schema is current and the ingester reports; else 503."""
    answer = check_health(
        service.database_url,
        interval_seconds=service.settings.ingest_every_seconds,
        running_seconds=time.monotonic() - service.started,
        ingests_here=service.settings.rest_url is None,
        room=service.room(),
    )
    return _json(answer, 200 if answer["ok"] else 503)


def _get_metrics(service: _Service) -> Response:
    """Metrics in the text format of Prometheus."""
    return Response(service.metrics.render(), media_type=CONTENT_TYPE)


def _join(service: _Service, request: Request, body: JoinRequest) -> Response:
    """Turn the code of `recall token create` into the token of a machine."""
    secret = service.settings.jwt_secret
    if secret is None:
        return no_secret().response()
    share = request.scope["recall.share"]
    if wait := service.failures.wait_seconds(share):
        later = {"Retry-After": str(round(wait) + 1)}
        return Problem(
            429, "too-many-requests", "this address failed to join too often",
            f"try again in {round(wait / 60) + 1} minutes", headers=later,
        ).response()  # fmt: skip
    try:
        with translate_errors(), service.pool.connection(_POOL_SECONDS) as connection:
            return _json(join(connection, secret, body))
    except (AccessError, ClaimError):
        service.failures.add(share)
        raise


async def _forward(request: Request) -> Response:
    service: Service = request.app.state.service
    path = request.path_params["path"]
    if request.method == "POST":
        await request.body()  # an answer that comes before the end of a body may not be read
    if stores_rows(request.method, path) and (room := service.room()) and room.is_short:
        return no_room(room).response()
    if request.method == "POST" and (refused := await _refuse_rows(service, request)):
        # As PostgREST says that a row breaks a rule: the sender looks for the row.
        refusal = {"code": "23514", "message": refused, "details": None, "hint": None}
        return _json(refusal, 400)
    return await service.forwarder.forward(request, path)


async def _refuse_rows(service: Service, request: Request) -> str | None:
    """Why rows of a host are refused. Its token was checked; here it is only read."""
    token = request.headers.get("authorization", "").partition(" ")[2].strip()
    claims = read_token(service.settings.jwt_secret or "", token)
    if claims is None:
        return "the token is not one of this server"
    path, body = request.path_params["path"], await request.body()
    types = request.headers.getlist("content-type")
    async with service.row_checks:  # one at a time: a large body is there several times
        return await run_in_threadpool(uploads.refusal, path, claims.host, types, body)
