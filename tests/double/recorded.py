"""The recorded exchanges of the real server, and how to repeat one."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.double.fixtures import SECRET
from tests.double.tokens import sign

WRITER = "ingest_writer"
AUDIENCE = "session-ingest"
_HEADERS = (
    "Content-Range", "Preference-Applied", "Proxy-Status", "WWW-Authenticate", "Retry-After",
    "Location", "Content-Location", "Content-Type", "Allow", "Access-Control-Allow-Origin",
    "Access-Control-Allow-Methods", "Access-Control-Allow-Headers", "Access-Control-Max-Age",
    "Access-Control-Expose-Headers", "Transfer-Encoding", "Server", "Vary", "Connection",
)  # fmt: skip
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True)
class Recorded:
    """One exchange; ``group`` and ``name`` as in the recording."""

    group: str
    name: str
    request: Mapping[str, Any]
    response: Mapping[str, Any]

    @property
    def has_answer(self) -> bool:
        """Whether the recording has a request and an answer to it, and not only a remark."""
        return bool(self.request) and self.response.get("status") is not None


@dataclass(frozen=True)
class Outcome:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


def load(file: Path) -> list[Recorded]:
    """All exchanges in their order."""
    return [
        Recorded(one["group"], one["name"], one["request"] or {}, one["response"] or {})
        for one in json.loads(file.read_text(encoding="utf-8"))
    ]


def repeat(recorded: Recorded, url: str, *, timeout: float = 60) -> Outcome:
    """Send the request again."""
    request = recorded.request
    headers = [(name, _header(name, value)) for name, value in request["headers"]]
    body = body_of(recorded)
    chunked = recorded.name == "chunked_request"
    return send(url, request["method"], request["path"], headers, body, timeout, chunked=chunked)


def send(
    url: str,
    method: str,
    target: str,
    headers: list[tuple[str, str]],
    body: bytes | None = None,
    timeout: float = 60,
    *,
    chunked: bool = False,
) -> Outcome:
    """One request on a connection of its own, without a header more than given."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        if chunked:
            connection.putheader("Transfer-Encoding", "chunked")
        elif body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.putheader("Connection", "close")
        pieces = [body[:100], body[100:]] if chunked and body else body
        connection.endheaders(pieces, encode_chunked=chunked)
        answer = connection.getresponse()
        return Outcome(answer.status, dict(answer.getheaders()), answer.read())
    finally:
        connection.close()


def body_of(recorded: Recorded) -> bytes | None:
    """The body as it was sent: long ones are made again, and bytes that are no text unescaped."""
    text = recorded.request["body"]
    made = _MADE.get(recorded.name)
    if made is not None:
        body = made()
    elif text is None:
        return None
    else:
        body = text.encode()
        if len(body) != recorded.request["body_bytes"]:
            body = _ESCAPED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), text).encode(
                "utf-8", "surrogateescape"
            )
    expected = recorded.request["body_bytes"]
    assert recorded.name in _OTHER_LENGTH or len(body) == expected, (recorded.name, len(body))
    return body


def differences(recorded: Recorded, outcome: Outcome, ignored: frozenset[str]) -> list[str]:
    """In what an outcome differs from the recording; ``ignored`` names headers or ``body``."""
    expected = recorded.response
    told = [] if outcome.status == expected["status"] else [f"status {outcome.status}"]
    recorded_headers = dict(expected["headers"])
    for name in _HEADERS:
        if name not in ignored and outcome.headers.get(name) != recorded_headers.get(name):
            told.append(f"{name}: {outcome.headers.get(name)!r} not {recorded_headers.get(name)!r}")
    body = outcome.body.decode(errors="replace")
    written = str(expected["body"])
    if "...<truncated" in written:
        written = written.partition("...<truncated")[0]
        body = body[: len(written)]
    if "details" in ignored:
        body, written = _without_details(body), _without_details(written)
    if "body" not in ignored and body != written:
        told.append(f"body {body[:300]!r} not {written[:300]!r}")
    return told


def _without_details(body: str) -> str:
    error = json.loads(body)
    return json.dumps({name: error[name] for name in ("code", "message")})


def row(key: str, title: str, number: int) -> dict[str, Any]:
    """A session as the recording has them."""
    return {
        "session_key": key, "source": "claude", "host": "h1",
        "started_at": "2026-01-02T03:04:05+00:00", "title": title, "meta": {"n": number},
    }  # fmt: skip


def sessions(first: int, count: int, *, descending: bool = False) -> bytes:
    """A body of many sessions."""
    rows = [row(f"s{n}", f"t{n}", n) for n in range(first, first + count)]
    return _json(rows[::-1] if descending else rows)


def token(word: str) -> str:
    """The token that the recording describes by a word."""
    now = int(time.time())
    claims: dict[str, Any] = {"role": WRITER, "exp": now + 3600}
    secret = SECRET
    algorithm = "HS256"
    if word == "payload altered, old signature":
        good = sign(SECRET, claims).split(".")
        other = sign(SECRET, claims | {"role": "postgres"}).split(".")
        return f"{good[0]}.{other[1]}.{good[2]}"
    literal = re.fullmatch(r"'(.*)'", word)
    if literal:
        return literal[1]
    if word == "HS256 signed with another secret":
        secret = "another secret of more than enough bytes"
    elif word == "alg=none":
        algorithm = "none"
    elif word == "valid signature, no role claim":
        del claims["role"]
    else:
        claims |= _claims(word, now)
    return sign(secret, claims, algorithm=algorithm)


def _claims(word: str, now: int) -> dict[str, Any]:
    shifted = re.fullmatch(r"(exp|iat|nbf)_(\d+)s_(ago|ahead)", word)
    if shifted:
        sign_of = 1 if shifted[3] == "ahead" else -1
        return {shifted[1]: now + sign_of * int(shifted[2])}
    role = re.match(r"valid, role=(\w+)", word)
    if role:
        return {"role": role[1]}
    audience = re.fullmatch(r"aud=(\S+)", word)
    if audience:
        return {"aud": audience[1]}
    known: dict[str, dict[str, Any]] = {
        "valid ingest_writer token": {},
        "expired 1h ago": {"exp": now - 3600},
        "nbf 1h in the future": {"nbf": now + 3600},
        "iat 1h in the future": {"iat": now + 3600},
        "exp is a string": {"exp": "tomorrow"},
    }
    return known[word]


def _header(name: str, value: str) -> str:
    found = re.fullmatch(r"Bearer <(.*)>", value)
    if name != "Authorization" or not found:
        if value.startswith("bearer "):
            return f"bearer {token('valid ingest_writer token')}"
        return value
    return f"Bearer {token(found[1])}"


def _json(rows: list[dict[str, Any]]) -> bytes:
    return json.dumps(rows).encode()


def _message(ordinal: int, letter: str, size: int) -> dict[str, Any]:
    return {"session_key": "s1", "ordinal": ordinal, "role": "user", "content": letter * size}


_MADE: dict[str, Callable[[], bytes]] = {
    "deadlock_setup": lambda: sessions(10_000, 3000),
    "body_10MB_single_row": lambda: _json([_message(100, "x", 10 << 20) | {"ts": None}]),
    "body_10MB_10k_rows": lambda: _json(
        [_message(1000 + n, "y", 950) | {"ts": None} for n in range(10_000)]
    ),
    "body_60MB_single_row": lambda: _json([_message(101, "x", 60 << 20) | {"ts": None}]),
    "body_10MB_unknown_table": lambda: _json([_message(100, "x", 10 << 20) | {"ts": None}]),
    "body_10MB_invalid_json": lambda: b"[" + b" " * (10 << 20) + b"x",
    "content_encoding_gzip": lambda: gzip.compress(_json([row("s1", "t1", 1)])),
}
#: Bodies that are equal in kind and not in length: what a compressor makes differs.
_OTHER_LENGTH = frozenset({"content_encoding_gzip"})
