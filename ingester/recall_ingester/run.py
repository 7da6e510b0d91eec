"""Starting passes: which sources, which store, one at a time for a home."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import uniform
from threading import Event
from typing import TYPE_CHECKING

from recall import disk
from recall.config import Settings
from recall.errors import ConfigError, RecallError, UsageError
from recall.identity import Identity, load_identity
from recall.lock import HomeLock
from recall.readers import server_url
from recall_ingester.importing import Importer, ImportSummary
from recall_ingester.loop import run_pass
from recall_ingester.outage import Outage
from recall_ingester.run_state import Options, Progress
from recall_ingester.sinks import Sink
from recall_ingester.sources import all_sources, get_source
from recall_ingester.sources.base import Source
from recall_ingester.summary import Summary

if TYPE_CHECKING:
    from recall_ingester.sinks.postgres import PostgresSink
    from recall_ingester.sinks.postgrest import PostgrestSink

_log = logging.getLogger(__name__)

#: The longest pause between passes that fail, where the interval is not longer.
_LONGEST_PAUSE_SECONDS = 300.0

#: A source and the roots to look below.
Selection = tuple[Source, Sequence[Path]]


def select_sources(
    settings: Settings, wanted: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> list[Selection]:
    """The sources to read: ``NAME`` at its usual roots or ``NAME=PATH``, else all that are known.

    Raises :class:`UsageError` for an unknown name, and for a path that was named and is not there.
    """
    env = os.environ if env is None else env
    chosen: dict[str, tuple[Source, list[Path]]] = {}
    for item in wanted or settings.sources or sorted(all_sources(settings)):
        name, given, path = item.partition("=")
        source = get_source(name, settings)
        entry = chosen.setdefault(name, (source, []))
        if not given:
            entry[1].extend(source.roots(env, Path.home()))
            continue
        root = Path(path).expanduser().absolute()
        if not path or not root.exists():
            raise UsageError(f"`{path}` does not exist", hint="give a folder: --source NAME=PATH")
        entry[1].append(root)
    return list(chosen.values())


def feeds_server(settings: Settings) -> bool:
    """Whether this home writes to a server over HTTP, and to no database by itself.

    An address without a token only says whom reading commands ask.
    """
    return settings.url is not None and settings.token is not None


@contextmanager
def open_sinks(
    settings: Settings, identity: Identity, database_url: str | None
) -> Iterator[Callable[[], Sink]]:
    """What makes sinks: for a database whose schema is current, or (``None``) for the server of the
    settings. This host is registered there."""
    make: Callable[[], PostgresSink | PostgrestSink]
    if database_url is not None:
        from recall_ingester.sinks.postgres_reserve import ReservingSink

        make = partial(ReservingSink, database_url, identity, partial(disk.look, settings))
        _register(make)
        yield make
        return
    from recall_ingester.sinks.postgrest import PostgrestSink
    from recall_ingester.sinks.postgrest_http import SinkErrors

    url, token = rest_of(settings)
    make = partial(PostgrestSink, url, token, identity, errors=SinkErrors())
    with Outage(settings.home).noted():
        _register(make)
        yield make


def rest_of(settings: Settings) -> tuple[str, str]:
    """Where rows go over HTTP, and the token. Raises :class:`ConfigError`."""
    if settings.url is None or settings.token is None:
        raise ConfigError(
            "this machine has not joined a server",
            hint="`recall token create HOST` on the server prints the line to join with",
        )
    try:
        return f"{server_url(settings.url)}/rest", settings.token
    except ValueError as error:
        raise ConfigError(f"`url` {error}") from error


def _register(make: Callable[[], PostgresSink | PostgrestSink]) -> None:
    first = make()
    try:
        first.register()
    finally:
        first.close()


def run_once(
    settings: Settings,
    identity: Identity,
    *,
    database_url: str | None,
    sources: Sequence[Selection] | None = None,
    progress: Progress | None = None,
    stop: Event | None = None,
    interval_seconds: float | None = None,
) -> Summary:
    """One pass into a database whose schema is current, or into the server of the settings.

    Raises :class:`BusyError` if another ingester works for this home.
    """
    with (
        HomeLock(_lock_path(settings), what="ingester"),
        open_sinks(settings, identity, database_url) as make_sink,
    ):
        return run_pass(
            select_sources(settings) if sources is None else sources,
            make_sink,
            pass_options(settings, identity, interval_seconds),
            progress=progress,
            stop=stop,
        )


def run_import(
    settings: Settings,
    store: Callable[[Importer], None],
    progress: Progress | None = None,
) -> ImportSummary:
    """Store files that are given once, into the store of the settings.

    Raises :class:`BusyError` if an ingester works for this home.
    """
    identity = load_identity(settings.home, host=settings.host)
    with (
        open_target(settings) as database_url,
        HomeLock(_lock_path(settings), what="ingester"),
        open_sinks(settings, identity, database_url) as make_sink,
    ):
        sink = make_sink()
        try:
            importer = Importer(sink, pass_options(settings, identity), progress)
            store(importer)
        finally:
            sink.close()
    return importer.summary


@contextmanager
def open_target(settings: Settings) -> Iterator[str | None]:
    """The database that a home writes to, running and current; ``None`` where it is a server's."""
    if feeds_server(settings):
        yield None
        return
    from recall_sql.store import open_store

    with open_store(settings) as url:
        yield url


def _lock_path(settings: Settings) -> Path:
    return settings.home / "run" / "ingest.lock"


def pass_options(
    settings: Settings, identity: Identity, interval_seconds: float | None = None
) -> Options:
    """What the settings say about a pass."""
    return Options(
        identity.host,
        settings.max_line_bytes,
        settings.redact,
        interval_seconds,
        keep_raw=settings.keep_raw,
        max_document_bytes=settings.max_document_bytes,
        reconcile_seconds=settings.reconcile_every_hours * 3600.0,
    )


def run_every(seconds: float, one_pass: Callable[[], object], stop: Event) -> None:
    """Repeat a pass until told to stop.

    A pass that fails for a reason that may pass by itself is tried again, after a pause that grows;
    any other error ends the loop.
    """
    failures = 0
    while not stop.is_set():
        started = time.monotonic()
        failures = 0 if _tolerant(one_pass) else failures + 1
        if failures:
            stop.wait(pause_after(failures, seconds))
        else:
            stop.wait(max(0.0, seconds - (time.monotonic() - started)))


def pause_after(failures: int, every_seconds: float) -> float:
    """How long to wait after so many failed passes in a row: at least half the interval, at most
    five minutes beyond it, and never the same on two machines, so that a server that is back is
    not asked by all of them at once."""
    bound = max(every_seconds, min(2.0**failures, _LONGEST_PAUSE_SECONDS))
    return uniform(0.5, 1.0) * bound  # noqa: S311


def run_on_change(
    roots: Sequence[Path], one_pass: Callable[[], object], stop: Event, *, every_seconds: float
) -> None:
    """A pass whenever something below the roots changes, and one at the interval in any case:
    events are hints that can be lost, the scan is the truth. While passes fail, nobody watches:
    each change would be another attempt."""
    from watchfiles import watch

    def wait_for_change() -> None:
        watched = [root for root in roots if root.is_dir()]
        if not watched:
            stop.wait(every_seconds)
            return
        changes = watch(
            *watched,
            stop_event=stop,
            rust_timeout=int(every_seconds * 1000),
            yield_on_timeout=True,
            raise_interrupt=False,
        )
        next(iter(changes), None)

    failures = 0
    while not stop.is_set():
        failures = 0 if _tolerant(one_pass) else failures + 1
        if failures:
            stop.wait(pause_after(failures, 1.0))
            continue
        try:
            wait_for_change()
        except OSError as error:  # the system's limit of watches; fall back to the interval
            _log.warning("cannot watch", extra={"reason": error.strerror})
            stop.wait(every_seconds)


def _tolerant(one_pass: Callable[[], object]) -> bool:
    """Whether a pass came to its end."""
    try:
        one_pass()
    except RecallError as error:
        if not error.retryable:
            raise
        _log.warning("pass failed", extra={"reason": error.message})
        return False
    return True
