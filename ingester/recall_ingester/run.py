"""Starting passes: which sources, which store, one at a time for a home."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event

from recall.config import Settings
from recall.errors import RecallError, UsageError
from recall.identity import Identity, load_identity
from recall.lock import HomeLock
from recall_ingester.importing import Importer, ImportSummary
from recall_ingester.loop import run_pass
from recall_ingester.run_state import Options, Progress
from recall_ingester.sources import all_sources, get_source
from recall_ingester.sources.base import Source
from recall_ingester.summary import Summary

_log = logging.getLogger(__name__)

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


def run_once(
    settings: Settings,
    identity: Identity,
    *,
    database_url: str,
    sources: Sequence[Selection] | None = None,
    progress: Progress | None = None,
    stop: Event | None = None,
    interval_seconds: float | None = None,
) -> Summary:
    """One pass into a database whose schema is current.

    Raises :class:`BusyError` if another ingester works for this home.
    """
    from recall_ingester.sinks.postgres import PostgresSink

    with HomeLock(_lock_path(settings), what="ingester"):
        first = PostgresSink(database_url, identity)
        try:
            first.register()
        finally:
            first.close()
        return run_pass(
            select_sources(settings) if sources is None else sources,
            lambda: PostgresSink(database_url, identity),
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
    from recall_ingester.sinks.postgres import PostgresSink
    from recall_sql.store import open_store

    identity = load_identity(settings.home, host=settings.host)
    with open_store(settings) as url, HomeLock(_lock_path(settings), what="ingester"):
        sink = PostgresSink(url, identity)
        try:
            sink.register()
            importer = Importer(sink, pass_options(settings, identity), progress)
            store(importer)
        finally:
            sink.close()
    return importer.summary


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

    A pass that fails for a reason that may pass by itself is tried again at the next turn; any
    other error ends the loop.
    """
    while not stop.is_set():
        started = time.monotonic()
        _tolerant(one_pass)
        stop.wait(max(0.0, seconds - (time.monotonic() - started)))


def run_on_change(
    roots: Sequence[Path], one_pass: Callable[[], object], stop: Event, *, every_seconds: float
) -> None:
    """A pass whenever something below the roots changes, and one at the interval in any case:
    events are hints that can be lost, the scan is the truth."""
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

    while not stop.is_set():
        _tolerant(one_pass)
        try:
            wait_for_change()
        except OSError as error:  # the system's limit of watches; fall back to the interval
            _log.warning("cannot watch", extra={"reason": error.strerror})
            stop.wait(every_seconds)


def _tolerant(one_pass: Callable[[], object]) -> None:
    try:
        one_pass()
    except RecallError as error:
        if not error.retryable:
            raise
        _log.warning("pass failed", extra={"reason": error.message})
