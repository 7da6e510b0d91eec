"""Where the recorded exchanges are repeated: a database server of its own, and servers for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from recall_sql.embedded import EmbeddedServer
from tests.double.config import Config
from tests.double.fixtures import SECRET, Served, start, with_user
from tests.double.recorded import Outcome, Recorded, differences, repeat

_DATABASE = "contract"
_PROBES = ("/live", "/ready")
_LONGEST_WAIT_SECONDS = 90.0
_ACTIVE = (
    "select count(*) from pg_stat_activity where usename = 'authenticator' and state = 'active'"
)


class Stage:
    """Plays exchanges, and keeps in what each one differed from the recording."""

    def __init__(self, folder: Path, ignored: Mapping[str, frozenset[str]]) -> None:
        self.server = EmbeddedServer(
            folder,
            extra_settings={
                "fsync": "off",
                "synchronous_commit": "off",
                "full_page_writes": "off",
                "shared_buffers": "64MB",
                "deadlock_timeout": "100ms",
            },
        )
        self.found: dict[str, list[str]] = {}
        self._ignored = ignored
        self._main: Served | None = None

    @property
    def main(self) -> Served:
        """The server with the settings of most groups."""
        if self._main is None:
            self._main = self._start()
        return self._main

    def prepare(self) -> None:
        """Start the database server and make the recorded schema."""
        self.server.start()
        with psycopg.connect(self.server.url_for("postgres"), autocommit=True) as connection:
            connection.execute(f"create database {_DATABASE}".encode())
        self.sql(Path(__file__).with_name("contract.sql").read_text(encoding="utf-8"))

    def close(self) -> None:
        """Stop everything."""
        self.restart_main()
        self.server.stop("immediate")

    def start_main(self) -> None:
        """Let it be there before something else happens."""
        self._main = self.main

    def restart_main(self) -> None:
        """Let the next exchange start another main server."""
        main, self._main = self._main, None
        if main is not None:
            main.stop()

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection of the superuser, outside of every server under test."""
        return psycopg.connect(
            self.server.url_for(_DATABASE),
            autocommit=True,
            options="-c default_transaction_read_only=off",
        )

    def sql(self, statement: str) -> None:
        """Run statements."""
        with self.connect() as connection:
            connection.execute(statement.encode())

    def value(self, query: str) -> Any:
        """The one value of a query."""
        with self.connect() as connection:
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]

    @contextmanager
    def serving(self, *, wait: bool = True, **settings: Any) -> Iterator[Served]:
        """Another server with other settings."""
        served = self._start(wait=wait, **settings)
        try:
            yield served
        finally:
            served.stop()

    def play(
        self, recorded: Recorded, served: Served | None = None, *, timeout: float = 60
    ) -> Outcome:
        """Repeat one exchange and compare it."""
        using = served or self.main
        path = recorded.request["path"]
        is_admin = path in _PROBES or recorded.group == "admin server"
        is_admin = is_admin and recorded.name != "api_port_live"
        outcome = repeat(recorded, using.admin_url if is_admin else using.url, timeout=timeout)
        self.compare(recorded, outcome)
        return outcome

    def compare(self, recorded: Recorded, outcome: Outcome) -> None:
        """Keep in what an outcome differs."""
        ignored = self._ignored.get(recorded.name, frozenset())
        self.found[recorded.name] = differences(recorded, outcome, ignored)

    def check(self, name: str, holds: bool, told: object = "") -> None:
        """Keep whether what a remark says of the real server holds."""
        self.found[name] = [] if holds else [f"does not hold: {told}"]

    def play_in_background(self, recorded: Recorded, served: Served | None = None) -> Background:
        """Repeat one exchange in a thread of its own."""
        return Background(lambda: self.play(recorded, served))

    @contextmanager
    def slow_calls_running(self) -> Iterator[None]:
        """Calls of ``slow`` do not end by themselves before the block does."""
        connection = self.connect()
        try:
            connection.execute("select pg_advisory_lock(1)")
            yield
        finally:
            connection.close()

    def until_running(self, count: int = 1) -> None:
        """Wait until so many calls of ``slow`` run."""
        query = f"{_ACTIVE} and query ilike '%slow%'"
        until(lambda: bool(self.value(query) >= count))

    def until_waiting(self, count: int = 1) -> None:
        """Wait until so many statements wait for a lock."""
        query = f"{_ACTIVE} and wait_event_type = 'Lock'"
        until(lambda: bool(self.value(query) >= count))

    def _start(self, *, wait: bool = True, **settings: Any) -> Served:
        given: dict[str, Any] = {"anon_role": "web_anon", "jwt_secret": SECRET, **settings}
        uri = with_user(self.server.url_for(_DATABASE), "authenticator")
        return start(Config(uri, **given), wait=wait)


class Background:
    """A call in a thread, whose error is raised where it is waited for."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Return when it is done."""
        self._thread.join(_LONGEST_WAIT_SECONDS)
        assert not self._thread.is_alive(), "it does not end"
        if self._error is not None:
            raise self._error

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error


def until(condition: Callable[[], bool]) -> None:
    """Ask until it is so."""
    pause = threading.Event()
    limit = time.monotonic() + _LONGEST_WAIT_SECONDS
    while not condition():
        assert time.monotonic() < limit, "it does not come true"
        pause.wait(0.02)
