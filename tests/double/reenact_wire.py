"""Groups of the recording that are about connections, and which function plays which group."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from tests.double import reenact
from tests.double.recorded import send, sessions, token
from tests.double.reenact import Names, row_locked
from tests.double.stage import Stage, until

_TOO_MANY = "too many connections (authenticator CONNECTION LIMIT 2, db-pool=10)"
_GOOD = "valid ingest_writer token"


def client_disconnect(stage: Stage, names: Names) -> None:
    """A client that goes away while its write waits: the write is committed."""
    body = sessions(1, 1).replace(b'"s1"', b'"gone"')
    parts = urlsplit(stage.main.url)
    stage.sql("insert into api.sessions (session_key, title) values ('gone', 'before')")
    with row_locked(stage, "gone"):
        client = socket.create_connection((parts.hostname, parts.port))
        client.sendall(
            b"POST /sessions HTTP/1.1\r\nHost: x\r\nPrefer: resolution=merge-duplicates\r\n"
            b"Authorization: Bearer %b\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (token(_GOOD).encode(), len(body), body)
        )
        stage.until_waiting()
        client.close()
    title = "select title from api.sessions where session_key = 'gone'"
    until(lambda: bool(stage.value(title) == "t1"))
    stage.check("client_gone_before_response", holds=True)


def early_responses(stage: Stage, names: Names) -> None:
    """An answer before the body was read ends the connection; one after it does not."""
    for name in names:
        if name.startswith("expired_jwt_body_"):
            size = int(name.removeprefix("expired_jwt_body_").removesuffix("KB")) * 1024
            first, second = two_on_one_connection(stage, "/messages", "expired 1h ago", size)
            holds = first in {"401", "broken"} and second == "broken"
            stage.check(name, holds, (first, second))
    wrong = {
        "unknown_column_1MB": ("/messages?columns=bogus", "application/json", "400"),
        "unknown_table_1MB": ("/nope", "application/json", "404"),
        "content_type_1MB": ("/messages", "text/plain", "400"),
    }
    for name, (path, media, status) in wrong.items():
        told = two_on_one_connection(stage, path, _GOOD, 1 << 20, media)
        stage.check(name, told == (status, "200"), told)


def url_lengths(stage: Stage, names: Names) -> None:
    """How long a request line may be."""
    head = [("Authorization", f"Bearer {token(_GOOD)}")]
    for name in names:
        size = int(name.removeprefix("url_").removesuffix("KB")) * 1000
        url = "/sessions?select=session_key&session_key=in.("
        url += ",".join(f"k{n:07}" for n in range((size - len(url)) // 9)) + ")"
        try:
            status = send(stage.main.url, "GET", url, head).status
        except ConnectionError:
            status = 400
        stage.check(name, status == (200 if size <= 50_000 else 400), status)


def unanswered(stage: Stage, names: Names) -> None:
    """Requests that the recording has no answer to."""
    for name, word, size in (
        ("body_10MB_bad_jwt", "HS256 signed with another secret", 10 << 20),
        ("very_long_url", "", 0),
    ):
        if size:
            told = two_on_one_connection(stage, "/messages", word, size)
            stage.check(name, told[1] == "broken", told)
        else:
            with suppress(ConnectionError):
                path = names[name].request["path"] + "x" * 72_000
                assert send(stage.main.url, "GET", path, []).status == 400
            stage.check(name, holds=True)
    stalled = names["content_length_too_long_client_aborts"]
    parts = urlsplit(stage.main.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=0.3) as client:
        client.sendall(
            b"POST /sessions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer %b\r\nContent-Length: 100000\r\n\r\n[" % token(_GOOD).encode()
        )
        try:
            told_back = client.recv(1)
            stage.check(stalled.name, holds=False, told=told_back)
        except TimeoutError:
            stage.check(stalled.name, holds=True)


def surviving_connection(stage: Stage, names: Names) -> None:
    """Errors do not end a connection."""
    parts = urlsplit(stage.main.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=90)
    statuses = []
    asked = [
        ("/sessions?limit=0", "GET", b""),
        ("/messages", "POST", b'[{"session_key": "no", "ordinal": 1, "role": "x"}]'),
        ("/nope", "GET", b""),
        ("/rpc/boom", "POST", b'{"code": "XX000", "msg": "m"}'),
        ("/sessions?limit=0", "GET", b""),
    ]
    head = {"Authorization": f"Bearer {token(_GOOD)}", "Content-Type": "application/json"}
    for path, method, body in asked:
        connection.request(method, path, body, head)
        used = connection.sock
        answer = connection.getresponse()
        answer.read()
        statuses.append((answer.status, connection.sock is used))
    connection.close()
    expected = [(status, True) for status in (200, 409, 404, 500, 200)]
    stage.check("connection_survives_errors", statuses == expected, statuses)


ENACTED: dict[str, Callable[[Stage, Names], None]] = {
    "timeouts and locks": reenact.timeouts,
    "schema cache": reenact.schema_cache,
    "postgres down": reenact.postgres_down,
    "start while postgres is down": reenact.starting_without_database,
    "retry-after": reenact.outages,
    "graceful shutdown": reenact.graceful_shutdown,
    "pool exhaustion (db-pool=2, db-pool-acquisition-timeout=2)": reenact.pool_exhaustion,
    _TOO_MANY: reenact.too_many_connections,
    "config variants": reenact.config_variants,
    "jwt clock skew": reenact.clock_skew,
    "deadlock between two concurrent batches": reenact.deadlock,
    "frozen postgres": reenact.frozen_database,
    "client disconnect": client_disconnect,
    "early response": early_responses,
    "url length": url_lengths,
    "keep-alive": surviving_connection,
}


def two_on_one_connection(
    stage: Stage, path: str, word: str, size: int, media: str = "application/json"
) -> tuple[str, str]:
    """What a large request and another one after it get: statuses, or ``broken``."""
    parts = urlsplit(stage.main.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=90)
    body = b'[{"session_key": "s1", "ordinal": 1, "role": "x", "bogus": "%b"}]' % (b"x" * size)
    told = []
    for method, target, sent, used in (
        ("POST", path, body, word),
        ("GET", "/sessions?limit=0", b"", _GOOD),
    ):
        head = {"Authorization": f"Bearer {token(used)}", "Content-Type": media}
        try:
            connection.request(method, target, sent, head)
            if connection.sock is None:
                raise ConnectionError
            answer = connection.getresponse()
            answer.read()
            told.append(str(answer.status))
        except (ConnectionError, http.client.HTTPException):
            told.append("broken")
            if len(told) == 1:
                told.append("broken")
                break
    connection.close()
    return told[0], told[1]
