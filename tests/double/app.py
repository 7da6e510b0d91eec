"""From a request to an answer: the token, the plan, the transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.double import mutate
from tests.double.answer import (
    JSON,
    VARY,
    Answer,
    check_single,
    content_location,
    content_range,
    content_type,
    media_type,
    ranged,
)
from tests.double.config import Config
from tests.double.database import Connection, Pool, Row, Statement, in_transaction, quoted
from tests.double.filters import window
from tests.double.mutate import Written
from tests.double.read import arguments, call, planned_rows, read
from tests.double.refusal import DatabaseError, Refusal, connection_lost, no_schema_cache
from tests.double.request import (
    Preferences,
    Request,
    UndecodableQueryError,
    parse_query,
    payload,
    preferences,
)
from tests.double.schema import Relation, SchemaCache
from tests.double.switches import Switches
from tests.double.tokens import anonymous_disabled, claims_of

_METHODS = {"GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"}
_READS = {"GET", "HEAD"}
_CORS = ("Access-Control-Allow-Origin", "*")
_EXPOSED = (
    "Access-Control-Expose-Headers",
    "Content-Encoding, Content-Location, Content-Range, Content-Type, Date, Location, Server, "
    "Transfer-Encoding, Range-Unit",
)


class App:
    """Answers requests; ``cache`` is None until the schema was loaded once."""

    def __init__(self, config: Config, pool: Pool, switches: Switches) -> None:
        self._config = config
        self._pool = pool
        self._switches = switches
        self.cache: SchemaCache | None = None

    def answer(self, request: Request, read_body: Callable[[], bytes]) -> Answer:
        """The answer to a request, whose body is read once its sender is known."""
        try:
            try:
                found = self._answer(request, read_body)
            except DatabaseError as error:
                raise error.refusal(authenticated=True) from None
        except Refusal as refusal:
            body = refusal.body(self._config.client_error_verbosity)
            found = Answer(refusal.status, refusal.all_headers(), body)
        except UndecodableQueryError:
            plain = [("Content-Type", "text/plain; charset=utf-8")]
            return Answer(500, plain, b"Something went wrong", is_chunked=True, is_crash=True)
        if request.header("origin") is not None and request.method != "OPTIONS":
            return replace(found, headers=[*found.headers, _CORS, _EXPOSED])
        return found

    def _answer(self, request: Request, read_body: Callable[[], bytes]) -> Answer:
        if request.method == "OPTIONS" and request.header("access-control-request-method"):
            return _preflight(request)
        self._switches.reach("before body", request.method, request.path)
        claims = claims_of(
            request.header("authorization"), self._config.jwt_secret, self._config.jwt_aud
        )
        role = (claims or {}).get("role") or self._config.anon_role
        if role is None:
            raise anonymous_disabled()
        request = replace(request, body=read_body())
        if self.cache is None:
            raise no_schema_cache()
        try:
            return _Handling(
                self._config, self._pool, self._switches, self.cache, str(role), claims or {}
            ).answer(request)
        except DatabaseError as error:
            raise error.refusal(authenticated=role != self._config.anon_role) from None


class _Handling:
    """One request of somebody whose role is known."""

    def __init__(
        self,
        config: Config,
        pool: Pool,
        switches: Switches,
        cache: SchemaCache,
        role: str,
        claims: Mapping[str, Any],
    ) -> None:
        self._config = config
        self._pool = pool
        self._switches = switches
        self._cache = cache
        self._role = role
        self._claims = claims

    def answer(self, request: Request) -> Answer:
        parts = request.path.strip("/").split("/") if request.path != "/" else []
        if (request.path.endswith("/") and parts) or len(parts) > 2 - (parts[:1] != ["rpc"]):
            raise Refusal(404, "PGRST125", "Invalid path specified in request URL")
        schema = self._schema(request)
        if request.method not in _METHODS:
            raise _unsupported(request.method)
        if not parts:
            return self._root(request)
        if parts[0] == "rpc" and len(parts) == 2:
            return self._call(request, schema, parts[1])
        request = replace(request, query=parse_query(request.target))
        return self._relation(request, schema, parts[0])

    def _schema(self, request: Request) -> str:
        reads = request.method in _READS
        wanted = request.header("accept-profile" if reads else "content-profile")
        if wanted is None:
            return self._config.schemas[0]
        if wanted not in self._config.schemas:
            raise Refusal(
                406,
                "PGRST106",
                f"Invalid schema: {wanted}",
                hint=f"Only the following schemas are exposed: {', '.join(self._config.schemas)}",
            )
        return wanted

    def _root(self, request: Request) -> Answer:
        if request.method == "OPTIONS":
            return _allow("OPTIONS,GET,HEAD")
        if request.method not in _READS:
            raise _unsupported(request.method)
        if self._config.openapi_mode == "disabled":
            raise Refusal(404, "PGRST126", "Root endpoint metadata is disabled")
        body = json.dumps({"swagger": "2.0", "info": {"title": "PostgREST API"}}).encode()
        return Answer(200, [content_type("application/openapi+json"), VARY], body)

    def _relation(self, request: Request, schema: str, name: str) -> Answer:
        prefer = preferences(request)
        if request.method == "OPTIONS":
            self._cache.relation(schema, name)
            return _allow("OPTIONS,GET,HEAD,POST,PUT,PATCH,DELETE")
        if request.method in _READS:
            return self._read(request, prefer, schema, name)
        has_body = request.method != "DELETE"
        body = payload(request, is_call=False) if has_body else None
        prefer.check()
        relation = self._cache.relation(schema, name)
        media = media_type(request.header("accept"))
        if body is None:
            written = mutate.delete(request, prefer, relation, media)
        else:
            make = {"POST": mutate.insert, "PUT": mutate.put, "PATCH": mutate.update}
            written = make[request.method](request, prefer, body, relation, media)
        row = self._run(request, written, prefer, lambda row: _check_written(request, prefer, row))
        return self._written(request, prefer, relation, media, row)

    def _read(self, request: Request, prefer: Preferences, schema: str, name: str) -> Answer:
        wanted = window(request.query, request.header("range"))
        wanted = wanted.at_most(self._config.max_rows)
        prefer.check()
        relation = self._cache.relation(schema, name)
        media = media_type(request.header("accept"))
        written = read(request, relation, media, wanted, prefer.get("count"))
        row = self._run(
            request, written, prefer, lambda row: check_single(media, _number(row[0]) or 0)
        )
        rows, total = _number(row[0]) or 0, _number(row[2])
        location = content_location(request.path, request.query)
        applied = prefer.applied("count", *self._transaction(prefer), "handling", "timezone")
        status = ranged(wanted, rows, total, [location, *applied])
        headers = [
            content_range(wanted.offset, rows, total), location, content_type(media), *applied,
            VARY,
        ]  # fmt: skip
        return Answer(status, headers, row[1] or b"")

    def _call(self, request: Request, schema: str, name: str) -> Answer:
        if request.method not in {"GET", "HEAD", "POST", "OPTIONS"}:
            raise Refusal(405, "PGRST101", f"Cannot use the {request.method} method on RPC")
        request = replace(request, query=parse_query(request.target))
        wanted = window(request.query, request.header("range"))
        wanted = wanted.at_most(self._config.max_rows)
        posts = request.method == "POST"
        body = payload(request, is_call=True) if posts else None
        prefer = preferences(request)
        prefer.check()
        given = arguments(request, body)
        function = self._cache.function(schema, name, given, is_body=posts)
        if request.method == "OPTIONS":
            return _allow("OPTIONS,POST" if function.volatility == "v" else "OPTIONS,GET,HEAD,POST")
        media = media_type(request.header("accept"))
        written = call(request, function, body, media, wanted, prefer.get("count"))
        reads = not posts or function.volatility != "v"
        shape = media if function.returns_rows else JSON
        row = self._run(
            request,
            written,
            prefer,
            lambda row: check_single(shape, _number(row[0]) or 0),
            reads=reads,
        )
        rows, total = _number(row[0]) or 0, _number(row[2])
        applied = prefer.applied("count", *self._transaction(prefer), "handling", "timezone")
        status = ranged(wanted, rows, total, applied)
        headers = [content_range(wanted.offset, rows, total)]
        if function.returns_void:
            return Answer(204, [*headers, *applied, VARY])
        return Answer(status, [*headers, content_type(media), *applied, VARY], row[1] or b"")

    def _written(
        self, request: Request, prefer: Preferences, relation: Relation, media: str, row: Row
    ) -> Answer:
        rows, inserted = _number(row[0]) or 0, _number(row[3]) or 0
        shows = prefer.get("return") == "representation"
        names = ["return", "count", *self._transaction(prefer), "handling", "timezone"]
        total = rows if prefer.get("count") else None
        if request.method == "POST":
            merges = prefer.get("resolution") == "merge-duplicates"
            status = 200 if merges and inserted <= 0 else 201
            applied = prefer.applied("resolution", "missing", *names)
            headers = [*mutate.location(relation, row[2]), content_range(1, 0, total)]
        elif request.method == "PUT":
            status = (201 if inserted > 0 else 200) if shows else 204
            applied = prefer.applied(*names)
            headers = []
        else:
            status = 200 if shows else 204
            applied = prefer.applied("missing", *names, "max-affected")
            shown = rows if request.method == "PATCH" else 0
            headers = [content_range(0, shown, total)]
        media_header = [content_type(media)] if shows else []
        return Answer(
            status, [*headers, *applied, *media_header, VARY], (row[1] or b"") if shows else b""
        )

    def _transaction(self, prefer: Preferences) -> tuple[str, ...]:
        return ("tx",) if self._config.tx_end.endswith("-allow-override") else ()

    def _run(
        self,
        request: Request,
        written: Written,
        prefer: Preferences,
        check: Callable[[Row], object],
        *,
        reads: bool | None = None,
    ) -> Row:
        """The one row of a statement, run as the role of the caller."""
        is_read = request.method in _READS if reads is None else reads
        mode = "read only" if is_read else "read write"
        end = self._config.tx_end.removesuffix("-allow-override")
        if self._transaction(prefer):
            end = prefer.get("tx") or end

        def work(connection: Connection) -> Row:
            self._impersonate(connection, request)
            if self._config.pre_request:
                connection.run(f"select {quoted(*self._config.pre_request.split('.'))}()")
            row = connection.run(written.sql, written.statement)[0]
            if written.plan:
                plan = connection.run(written.plan, written.statement)[0][0]
                row = (row[0], row[1], str(planned_rows(plan)).encode())
            check(row)
            return row

        self._switches.check_database()
        row = in_transaction(
            self._pool,
            f"begin isolation level read committed {mode}",
            work,
            end=end,
            before_end=lambda: self._switches.reach("before commit", request.method, request.path),
            lost=connection_lost,
        )
        self._switches.reach("after commit", request.method, request.path)
        return row

    def _impersonate(self, connection: Connection, request: Request) -> None:
        headers = {name: value for name, value in request.headers if name != "cookie"}
        path = ", ".join(
            quoted(name) for name in (*self._config.schemas, self._config.extra_search_path) if name
        )
        settings = {
            "search_path": path,
            "role": self._role,
            "request.jwt.claims": json.dumps({**self._claims, "role": self._role}),
            "request.method": request.method,
            "request.path": request.path,
            "request.headers": json.dumps(headers),
            "request.cookies": "{}",
            **self._cache.role_settings.get(self._role, {}),
            **self._switches.role_settings.get(self._role, {}),
        }
        statement = Statement()
        calls = [
            f"set_config({statement.value(name)}, {statement.value(value)}, true)"
            for name, value in settings.items()
        ]
        connection.run(f"select {', '.join(calls)}", statement)


def _check_written(request: Request, prefer: Preferences, row: Row) -> None:
    rows = _number(row[0]) or 0
    if request.method == "PUT" and rows != 1:
        raise Refusal(400, "PGRST115", "Payload values do not match URL in primary key column(s)")
    most = prefer.max_affected()
    if most is not None and rows > most and request.method in {"PATCH", "DELETE"}:
        raise Refusal(
            400,
            "PGRST124",
            "Query result exceeds max-affected preference constraint",
            details=f"The query affects {rows} rows",
        )


def _preflight(request: Request) -> Answer:
    asked = request.header("access-control-request-headers") or ""
    names = ["Authorization", *[part.strip() for part in asked.split(",") if part.strip()]]
    allowed = ", ".join([*names, "Accept", "Accept-Language", "Content-Language"])
    return Answer(
        200,
        [
            _CORS,
            ("Access-Control-Allow-Methods", "GET, POST, PATCH, PUT, DELETE, OPTIONS, HEAD"),
            ("Access-Control-Allow-Headers", allowed),
            ("Access-Control-Max-Age", "86400"),
        ],
        is_chunked=True,
    )


def _allow(methods: str) -> Answer:
    return Answer(200, [_CORS, ("Allow", methods), VARY])


def _unsupported(method: str) -> Refusal:
    return Refusal(405, "PGRST117", f"Unsupported HTTP method: {method}")


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(value)
