"""Requests to PostgREST: what an answer means, when one is sent again, and when to give up.

A status alone says little: a duplicate key inside one request is a 500, a deadlock too, and a
refused row a 400 like a request that this version sends wrongly. The ``code`` in the JSON of an
answer decides, and where an answer has none, what kind of failure it was.
"""

from __future__ import annotations

import json
import logging
import re
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from random import uniform
from threading import Lock
from typing import Any, NoReturn

import httpx

from recall import __version__
from recall.client import tls_error, unreachable
from recall.errors import AccessError, ClaimError, SchemaError, StoreError, StoreUnavailableError
from recall_ingester.sinks.overloaded import NoRoomError, overloaded
from recall_ingester.sinks.overtaken import OvertakenError, overtaken_paths

_log = logging.getLogger(__name__)

JOIN_AGAIN = "`recall token create HOST` on the server prints the line to join again with"

#: Tries of one request, and the time after which no further one begins.
_ATTEMPTS = 8
_LONGEST_SECONDS = 90.0
#: Tries of a server that refuses connections and never answered before: a pass that cannot begin
#: ends soon. One that is under way waits for a restart.
_CONNECT_ATTEMPTS = 4
_LONGEST_PAUSE_SECONDS = 15.0
#: The server ends a statement of a host after 60 s.
_ANSWER_SECONDS = 75.0
_CONNECT_SECONDS = 5.0
#: The server closes a silent connection after 30 s, so no request goes into one that old.
_KEEP_ALIVE_SECONDS = 20.0
#: From this size on, a body is sent only to a server that lately took the token: one that refuses
#: a token does not read the body, and its answer is lost in a broken pipe.
_LARGE_BYTES = 262_144
_PROVEN_SECONDS = 60.0
#: What the buffers of a socket hold; a smaller body is sent before anybody can hang up on it.
_PIPE_BYTES = 65_536
_MOST_ANSWER_BYTES = 64 * 2**20
#: Codes that are counted by themselves; a server has no more.
_MOST_CODES = 64

_CODE = re.compile(r"[A-Za-z0-9_-]{2,40}")
_PROBLEM = "urn:recall:problem:"
_PROBE = "/incoming_session?limit=0"


class Decision(Enum):
    """What an answer asks the client to do."""

    DONE = "done"
    #: The outcome is not known, or the request may succeed later: the same request again.
    AGAIN = "again"
    #: What was sent can never be stored. Smaller parts of it may be.
    REFUSED = "refused"
    #: The batch is not what the store needs (any more): all of it again, under a new name.
    STALE = "stale"
    #: The token does not count.
    ACCESS = "access"
    #: The server and this client do not speak the same protocol.
    FOREIGN = "foreign"


_AGAIN_CODES = frozenset(
    {"23505", "40001", "40P01", "55P03", "57014", "25006", "PGRST000", "PGRST001",
     "PGRST002", "PGRST003", "store-unavailable", "timeout", "too-many-requests", "store",
     "internal", "not-set-up"}
)  # fmt: skip
_AGAIN_CLASSES = ("08", "53", "57", "58", "XX")
#: A key that comes twice in one request (21000) does not in two halves of it.
_REFUSED_CODES = frozenset({"21000", "54000", "54001", "PGRST102", "too-long"})
_REFUSED_CLASSES = ("22", "23")
_ACCESS_CODES = frozenset(
    {"42501", "28000", "28P01", "PT401", "PT403", "PGRST300", "PGRST301", "PGRST302", "PGRST303",
     "token", "access", "host"}
)  # fmt: skip


def decide(status: int, code: str | None) -> Decision:
    """What to do after an answer. ``code`` is that of PostgREST or of PostgreSQL, or the kind of a
    problem of the API; without any, an answer comes from something in between."""
    if code is None:
        return _decide_without_code(status)
    if code in _ACCESS_CODES or (code == "22023" and status in (401, 403)):
        return Decision.ACCESS  # a role that is not there is a 22023, as a bad value is
    if code == "PT409":
        return Decision.STALE
    if code in _AGAIN_CODES or code.startswith(_AGAIN_CLASSES):
        return Decision.AGAIN
    if code in _REFUSED_CODES or code.startswith(_REFUSED_CLASSES):
        return Decision.REFUSED
    if re.fullmatch("PT5[0-9][0-9]", code) or code == "PT429":
        return Decision.AGAIN
    return Decision.FOREIGN


def _decide_without_code(status: int) -> Decision:
    if status in (200, 201, 204):
        return Decision.DONE
    if status in (401, 403):
        return Decision.ACCESS
    if status == 413:
        return Decision.REFUSED
    if status in (408, 425, 429) or status >= 500:
        return Decision.AGAIN
    return Decision.FOREIGN


@dataclass(slots=True)
class SinkErrors:
    """How often each error came, for whoever watches the server; the sinks of a pass share it."""

    _seen: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def add(self, code: str) -> None:
        """One more."""
        with self._lock:
            if code not in self._seen and len(self._seen) >= _MOST_CODES:
                code = "other"
            self._seen[code] += 1

    def as_json(self) -> dict[str, int]:
        """By code."""
        with self._lock:
            return dict(self._seen)


class RefusedError(Exception):
    """What was sent can never be stored as it is; the text names no content."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class StaleBatchError(Exception):
    """The batch has to be made again."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    retry_after: float

    def problem(self) -> Mapping[str, Any]:
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


class Wire:
    """One client of one server; not shared between threads. The token goes there and nowhere else.

    ``wait`` sleeps and says whether the pass goes on; a test waits in no time.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        errors: SinkErrors | None = None,
        transport: httpx.BaseTransport | None = None,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self.url = url.rstrip("/")
        #: What a person calls it.
        self._server = self.url.removesuffix("/rest")
        self.errors = errors or SinkErrors()
        self._wait = wait
        self._proven_at: float | None = None
        #: Whether the last request had no answer.
        self._is_silent = False
        self._http = httpx.Client(
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "Authorization": f"Bearer {token}",
                "User-Agent": f"recall/{__version__}",
            },
            timeout=httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(
                max_connections=1,
                max_keepalive_connections=1,
                keepalive_expiry=_KEEP_ALIVE_SECONDS,
            ),
            follow_redirects=False,
            trust_env=False,
            verify=ssl.create_default_context() if self.url.startswith("https:") else True,
            transport=transport,
        )

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def upload(self, kind: str, columns: str, body: bytes) -> None:
        """Upsert rows into a table of incoming ones. Raises :class:`RefusedError`.

        That the server said yes proves nothing (a body that is no array of objects is a 200, too);
        the call that uses the rows counts them.
        """
        self._send(
            "POST",
            f"/incoming_{kind}?columns={columns}",
            body,
            {"Prefer": "resolution=merge-duplicates,return=minimal"},
        )

    def call(self, name: str, **arguments: Any) -> Any:
        """The answer of a function, which is JSON. Sending it again changes nothing."""
        body = json.dumps(arguments).encode()
        answer = self._send("POST", f"/rpc/{name}", body, {})
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            self.errors.add("no-json")
            raise self._foreign(answer.status, None) from None

    def probe(self) -> None:
        """Ask whether the token counts, with a request that reads and writes nothing."""
        self._send("GET", _PROBE, None, {})

    def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> _Answer:
        """An answer that says yes; what may succeed later is sent again with growing pauses."""
        if body is not None and len(body) >= _LARGE_BYTES and not self._is_proven():
            self.probe()
        started = time.monotonic()
        refused_connections = 0
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                answer = self._exchange(method, path, body, headers)
            except httpx.HTTPError as error:
                self._is_silent = True
                self.errors.add(_network_code(error))
                refused_connections += isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                failure: Exception = self._unavailable(error)
                if isinstance(error, httpx.ConnectError) and tls_error(error):
                    raise failure from error
                retry_after = 0.0
                is_broken = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)
                if is_broken and body is not None and len(body) >= _PIPE_BYTES:
                    self._ask_after_broken_pipe()
            else:
                decision = self._judge(answer)
                if decision is Decision.DONE:
                    self._proven_at, self._is_silent = time.monotonic(), False
                    return answer
                failure, retry_after = self._overloaded(answer), answer.retry_after
            if (
                attempt == _ATTEMPTS
                or isinstance(failure, NoRoomError)
                or (self._proven_at is None and refused_connections >= _CONNECT_ATTEMPTS)
                or time.monotonic() - started > _LONGEST_SECONDS
            ):
                raise failure
            level = logging.INFO if refused_connections == attempt else logging.WARNING
            _log.log(level, "request sent again", extra={"attempt": attempt, "path": path[:60]})
            self._wait(pause_seconds(attempt, retry_after))
        raise AssertionError("unreachable")

    def _is_proven(self) -> bool:
        if self._proven_at is None or self._is_silent:
            return False
        return time.monotonic() - self._proven_at < _PROVEN_SECONDS

    def _ask_after_broken_pipe(self) -> None:
        """A server that refuses a token hangs up on the body; asked without one, it says so."""
        try:
            answer = self._exchange("GET", _PROBE, None, {})
        except httpx.HTTPError:
            return
        self._judge(answer)

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> _Answer:
        given = {**headers, **({} if body is None else {"Content-Type": "application/json"})}
        with self._http.stream(
            method, f"{self.url}{path}", content=body, headers=given
        ) as response:
            read = bytearray()
            for piece in response.iter_bytes():
                read += piece
                if len(read) > _MOST_ANSWER_BYTES:
                    raise StoreError(f"the answer of `{self.url}` is too large")
            after = response.headers.get("retry-after", "")
            retry_after = min(float(after), _LONGEST_PAUSE_SECONDS) if after.isdigit() else 0.0
            return _Answer(response.status_code, bytes(read), retry_after)

    def _judge(self, answer: _Answer) -> Decision:
        """``DONE`` or ``AGAIN``; everything else is raised."""
        if answer.status in (200, 201, 204):
            return Decision.DONE
        problem = answer.problem()
        code = _code_of(problem)
        self.errors.add(code or f"http-{answer.status}")
        decision = decide(answer.status, code)
        if decision in (Decision.DONE, Decision.AGAIN):
            return Decision.AGAIN
        told = _told(problem, "message") or _told(problem, "detail")
        hint = _told(problem, "hint")
        if decision is Decision.ACCESS:
            what = told if code in ("PT401", "PT403", "token", "access", "host") else None
            raise AccessError(
                what or "the server does not take the token of this machine (any more)",
                hint=(hint if what else None) or JOIN_AGAIN,
            )
        if decision is Decision.STALE:
            raise _stale(told, hint, overtaken_paths(problem.get("details")))
        if decision is Decision.REFUSED:
            raise RefusedError(code or f"http-{answer.status}")
        raise self._foreign(answer.status, code)

    def _foreign(self, status: int, code: str | None) -> StoreError:
        if code is None:
            return StoreError(
                f"what answers at `{self._server}` is not a Recall server (status {status})",
                hint="check `url`; a proxy or a login page may stand in between",
            )
        return SchemaError(
            f"the server at `{self._server}` does not know what this version sends ({code})",
            hint="run the same version of Recall on the server and on this machine",
        )

    def _unavailable(self, error: httpx.HTTPError) -> StoreUnavailableError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return unreachable(self._server, error)
        if isinstance(error, httpx.TimeoutException):
            told = f"the Recall server at `{self._server}` did not answer in time"
        else:
            told = f"the connection to the Recall server at `{self._server}` breaks"
        return StoreUnavailableError(
            told, hint="is it running, and is this machine in its network?"
        )

    def _overloaded(self, answer: _Answer) -> StoreUnavailableError:
        problem = answer.problem()
        return overloaded(self._server, answer.status, _code_of(problem), problem)


def pause_seconds(attempt: int, retry_after: float = 0.0) -> float:
    """How long to wait after a failed attempt: anything up to a bound that doubles, so that clients
    that were cut off together do not come back together. The first pause is short: the server may
    only have closed a connection that was silent."""
    bound = min(0.1 * 4.0 ** (attempt - 1), _LONGEST_PAUSE_SECONDS)
    return retry_after + uniform(0.0, max(bound, retry_after / 2))  # noqa: S311


def _stale(told: str | None, hint: str | None, overtaken: list[str]) -> NoReturn:
    if overtaken:
        raise OvertakenError(overtaken)
    if told is not None and "another installation" in told:
        raise ClaimError(
            told,
            hint=hint or "`recall token create HOST --replace` on the server moves it to this one",
        )
    raise StaleBatchError(told or "PT409")


def _code_of(problem: Mapping[str, Any]) -> str | None:
    code = problem.get("code")
    if isinstance(code, str) and _CODE.fullmatch(code):
        return code
    kind = problem.get("type")
    if isinstance(kind, str) and kind.startswith(_PROBLEM):
        return kind.removeprefix(_PROBLEM)[:40]
    return None


def _told(problem: Mapping[str, Any], name: str) -> str | None:
    value = problem.get(name)
    return value[:300] if isinstance(value, str) and value else None


def _network_code(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return "connect"
    return "timeout" if isinstance(error, httpx.TimeoutException) else "connection"
