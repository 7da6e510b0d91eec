"""Faults on demand: what goes wrong between a client, the server and the database."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from tests.double.refusal import Refusal, no_connection, pool_exhausted

Moment = Literal["before body", "before commit", "after commit"]
#: How long a held request waits for a test that never lets it go on.
_LONGEST_HOLD_SECONDS = 120.0
_KEPT_EXCHANGES = 10_000


class Dropped(Exception):
    """The socket is to be closed without an answer."""


@dataclass(frozen=True)
class Exchange:
    """A request as it arrived, and the status it got; None where its socket was closed."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    status: int | None

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def json(self) -> object:
        """The body."""
        return json.loads(self.body)


class Held:
    """A request that waits; ``reached`` says that one does, ``release`` lets all go on."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._released = threading.Event()

    def wait(self, seconds: float = 90) -> None:
        """Return when a request has come this far."""
        assert self._reached.wait(seconds), "no request came"

    def release(self) -> None:
        """Let it go on."""
        self._released.set()

    def stop_here(self) -> None:
        """Called in the thread of the request."""
        self._reached.set()
        self._released.wait(_LONGEST_HOLD_SECONDS)


@dataclass
class _Fault:
    moment: Moment
    act: Callable[[], None]
    left: int | None
    skip: int
    path: str
    method: str | None


@dataclass
class Switches:
    """Faults of one server. ``path`` is the beginning of the paths that a fault is for.

    A fault happens ``times`` times (None: until :meth:`clear`), and not to the first ``skip``
    requests that come to its moment.
    Moments: ``before body`` is before the token is looked at, ``before commit`` is when everything
    is written, and ``after commit`` when everything is committed and nothing is answered.
    """

    #: The latest ones; without their bodies where ``keeps_bodies`` is switched off.
    exchanges: deque[Exchange] = field(default_factory=lambda: deque(maxlen=_KEPT_EXCHANGES))
    keeps_bodies: bool = True
    role_settings: dict[str, dict[str, str]] = field(default_factory=dict)
    _faults: list[_Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _database_error: Callable[[], Refusal] | None = None

    def answer(
        self,
        status: int,
        *,
        times: int | None = 1,
        skip: int = 0,
        code: str | None = None,
        message: str = "as the test wants it",
        moment: Moment = "before body",
        path: str = "",
        method: str | None = None,
    ) -> None:
        """Answer with an error; ``after commit`` is that of a proxy that lost its patience."""

        def refuse() -> None:
            raise Refusal(status, code or f"PT{status}", message)

        self._add(_Fault(moment, refuse, times, skip, path, method))

    def drop(
        self,
        moment: Moment,
        *,
        times: int | None = 1,
        skip: int = 0,
        path: str = "",
        method: str | None = None,
    ) -> None:
        """Close the socket instead of answering; what was not committed is rolled back."""

        def close() -> None:
            raise Dropped

        self._add(_Fault(moment, close, times, skip, path, method))

    def delay(
        self,
        seconds: float,
        *,
        times: int | None = 1,
        skip: int = 0,
        moment: Moment = "after commit",
        path: str = "",
        method: str | None = None,
    ) -> None:
        """Let a request take longer; :meth:`hold` needs no time that has to be guessed."""
        never = threading.Event()

        def wait() -> None:
            never.wait(seconds)

        self._add(_Fault(moment, wait, times, skip, path, method))

    @contextmanager
    def hold(
        self,
        moment: Moment = "after commit",
        *,
        times: int | None = 1,
        skip: int = 0,
        path: str = "",
        method: str | None = None,
    ) -> Iterator[Held]:
        """Stop a request at a moment until the block ends or :meth:`Held.release`."""
        held = Held()
        self._add(_Fault(moment, held.stop_here, times, skip, path, method))
        try:
            yield held
        finally:
            held.release()

    @contextmanager
    def database_down(self) -> Iterator[None]:
        """No connection to the database can be had."""
        with self._without_database(
            lambda: no_connection(
                'connection to server at "127.0.0.1", port 5432 failed: Connection refused\n'
                "\tIs the server running on that host and accepting TCP/IP connections?\n"
            )
        ):
            yield

    @contextmanager
    def pool_exhausted(self) -> Iterator[None]:
        """Every connection is busy for longer than a request may wait."""
        with self._without_database(pool_exhausted):
            yield

    def role_setting(self, role: str, name: str, value: str) -> None:
        """What ``alter role ... set`` and a reload do, for this server only."""
        self.role_settings.setdefault(role, {})[name] = value

    def clear(self) -> None:
        """No more faults."""
        with self._lock:
            self._faults.clear()
            self._database_error = None
            self.role_settings.clear()

    def pending(self) -> int:
        """How many faults have not happened as often as they should."""
        with self._lock:
            return sum(1 for fault in self._faults if fault.left != 0)

    def paths(self, *, method: str | None = None) -> list[str]:
        """The paths that were asked for."""
        return [one.path for one in self.exchanges if method in (None, one.method)]

    def reach(self, moment: Moment, method: str, path: str) -> None:
        """Let happen what is to happen here; called by the server."""
        with self._lock:
            happening = [
                fault
                for fault in self._faults
                if fault.moment == moment
                and fault.left != 0
                and path.startswith(fault.path)
                and fault.method in (None, method)
            ][:1]
            for fault in happening:
                if fault.skip:
                    fault.skip -= 1
                    return
                if fault.left is not None:
                    fault.left -= 1
        for fault in happening:
            fault.act()

    def check_database(self) -> None:
        """Refuse where the database is not to be reached; called by the server."""
        if self._database_error is not None:
            raise self._database_error()

    @property
    def is_database_down(self) -> bool:
        """Whether the readiness check is to fail."""
        error = self._database_error
        return error is not None and error is not pool_exhausted

    def _add(self, fault: _Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    @contextmanager
    def _without_database(self, error: Callable[[], Refusal]) -> Iterator[None]:
        self._database_error = error
        try:
            yield
        finally:
            self._database_error = None
