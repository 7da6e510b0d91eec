"""``recall up``: everything that one machine needs, from nothing, in one command."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import typer

from recall import disk, log, processes
from recall.cli import detach as detached
from recall.cli.address import Address, check_free, parse_listen
from recall.cli.database_part import DatabasePart, RunningServer
from recall.cli.extras import need_server
from recall.cli.first_pass import first_pass
from recall.cli.found import print_found
from recall.cli.output import note
from recall.cli.own_store import need_own_store
from recall.cli.running import log_path, only_one, state_path, stop_leftovers
from recall.config import Settings, load_settings
from recall.errors import RecallError
from recall.supervisor import Child, Part, ProcessPart, StateFile, Supervisor

if TYPE_CHECKING:
    from recall.cli.embedding_watch import EmbeddingWatch

#: How often a part may fail before it has ever worked; then the start as a whole has failed.
_START_ATTEMPTS = 3


def up(
    detach: bool = typer.Option(
        False, "--detach", "-d", help="Go on in the background; return when the API answers."
    ),
    ingest: bool = typer.Option(
        True, "--ingest/--no-ingest", help="Whether to read the session logs of this machine."
    ),
    embed: bool = typer.Option(
        True, "--embed/--no-embed", help="Whether to give texts vectors, for search by meaning."
    ),
    quiet: bool = typer.Option(
        False, "--quiet", "-q", help="Print nothing but errors; for service managers."
    ),
) -> None:
    """Start the database, read the session logs, and serve the API until stopped.

    Without any session log on this machine, sample sessions are loaded so that there is something
    to search. Exit code 75 means that it is running already.
    """
    settings = load_settings()
    log.configure(settings.log_level)
    need_own_store(settings)
    need_server()
    if detach:
        detached.start(settings, ingest=ingest, embed=embed, quiet=quiet)
    else:
        _run(settings, ingest=ingest, embed=embed, quiet=quiet)


class _Signals:
    """SIGTERM, SIGINT and SIGHUP: end the start-up by an exception, later ask the supervisor."""

    def __init__(self) -> None:
        self.supervisor: Supervisor | None = None
        self._ending = False
        self._deferring = False
        self._deferred: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._receive)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.supervisor:
            self.supervisor.request_stop()
        elif self._deferring:
            self._deferred = number
        elif not self._ending:
            self._end(number)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """For what must not be cut in two: a signal that comes in the block ends the run after it.

        A database server that is just being started is nobody's yet and would be left behind.
        """
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        if self._deferred:
            self._end(self._deferred)

    def _end(self, number: int) -> NoReturn:
        self._ending = True
        sys.exit(128 + number)


def _run(settings: Settings, *, ingest: bool, embed: bool, quiet: bool) -> None:
    address = parse_listen(settings.listen)
    with only_one(settings.home):
        signals = _Signals()
        stop_leftovers(settings.home)
        check_free(address)
        state = StateFile(state_path(settings.home))
        try:
            _tell_start(state, address)
            state.update(stage="starting the database")
            with _database(settings, signals) as (database_url, foundation):
                if ingest:
                    state.update(stage="reading session logs")
                    first_pass(settings, database_url)
                if not quiet:
                    print_found(settings, database_url, ingest=ingest)
                parts = _parts(settings, database_url, ingest=ingest, embed=embed)
                supervisor = Supervisor(parts, state, foundation)
                signals.supervisor = supervisor
                with _vectors(database_url, settings, embed=embed, quiet=quiet) as vectors:
                    watch = _Watch(supervisor, state, settings, address, vectors, quiet=quiet)
                    supervisor.run(watch.tick)
                state.update(stage="stopping", ready=False)
        finally:
            state.remove()


def _tell_start(state: StateFile, address: Address) -> None:
    state.update(
        pid=os.getpid(),
        process=processes.identify(os.getpid()),
        url=address.url,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        stage="starting",
        ready=False,
        parts=[],
    )


@contextmanager
def _database(
    settings: Settings, signals: _Signals
) -> Iterator[tuple[str, tuple[Part, Child] | None]]:
    """The database with a current schema; the embedded one runs until the end of the block."""
    from recall_sql.embedded import EmbeddedServer
    from recall_sql.store import open_store

    if settings.database_url:
        with open_store(settings) as database_url:
            yield database_url, None
        return
    server = EmbeddedServer(settings.home)
    with ExitStack() as stack:
        stack.callback(server.stop)
        with signals.deferred():
            # Held as a user of the server, so that a search that began before us does not stop it.
            database_url = stack.enter_context(open_store(settings))
        yield database_url, (DatabasePart(server), RunningServer(server))


@contextmanager
def _vectors(
    database_url: str, settings: Settings, *, embed: bool, quiet: bool
) -> Iterator[EmbeddingWatch | None]:
    """Tells about the vectors while the block runs, if anybody is to be told."""
    from recall.cli.embedding_watch import EmbeddingWatch, forget_embedders

    if not embed:
        forget_embedders(settings, database_url)
    if quiet or not embed:
        yield None
        return
    with EmbeddingWatch(database_url) as watch:
        yield watch


def _parts(settings: Settings, database_url: str, *, ingest: bool, embed: bool) -> list[Part]:
    """The children get the database by its URL, so none of them ever starts or stops the server.

    ``-P`` keeps the folder in which `recall up` was called out of the module path.
    """
    command = [sys.executable, "-P", "-m", "recall"]
    env = _child_environment(settings, database_url)
    parts: list[Part] = [ProcessPart("api", [*command, "api"], env)]
    if ingest:
        every = str(settings.ingest_every_seconds)
        parts.append(ProcessPart("ingest", [*command, "ingest", "--every", every], env))
    if embed:
        parts.append(ProcessPart("embedder", [*command, "embedder"], env))
    return parts


def _child_environment(settings: Settings, database_url: str) -> Mapping[str, str]:
    folder = disk.database_folder(settings)
    return {
        **os.environ,
        "RECALL_HOME": str(settings.home),
        "RECALL_DATABASE_URL": database_url,
        **({"RECALL_DATABASE_VOLUME": str(folder)} if folder else {}),
    }


class _Watch:
    """Waits for the first answer of the API, then tells about the vectors, and keeps the log of a
    detached run small."""

    def __init__(
        self,
        supervisor: Supervisor,
        state: StateFile,
        settings: Settings,
        address: Address,
        vectors: EmbeddingWatch | None,
        *,
        quiet: bool,
    ) -> None:
        self._vectors = vectors
        self._supervisor = supervisor
        self._state = state
        self._log = log_path(settings.home)
        self._address = address
        self._quiet = quiet
        self._ready = False

    def tick(self) -> None:
        """Called by the supervisor after each look at the parts."""
        detached.trim_log(self._log)
        if self._ready:
            if self._vectors:
                self._vectors.tick()
            return
        if self._supervisor.restarts("api") >= _START_ATTEMPTS:
            self._give_up()
        if not self._supervisor.is_running("api"):
            return
        if _answers(f"{self._address.url}/health"):
            self._ready = True
            self._state.update(stage="ready", ready=True)
            if not self._quiet:
                note(f"\nrecall is running at {self._address.url} (Ctrl-C stops it)")

    def _give_up(self) -> NoReturn:
        raise RecallError(
            f"the API does not start (tried {_START_ATTEMPTS} times)",
            hint="its log lines above name the reason; `recall doctor` checks the rest",
        )


def _answers(url: str) -> bool:
    """Whether the API gives any answer; 503 from ``/health`` names a part, and is an answer."""
    import httpx

    with suppress(httpx.HTTPError), httpx.Client(trust_env=False, timeout=2.0) as client:
        client.get(url)
        return True
    return False
