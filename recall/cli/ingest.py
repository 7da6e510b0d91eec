"""``recall ingest``: read what is new in the session logs and store it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from recall.cli.extras import JOIN_OR_INSTALL, need_server
from recall.cli.output import note, notes, print_json, screen
from recall.config import Settings, load_settings
from recall.errors import UsageError
from recall.identity import load_identity

if TYPE_CHECKING:
    from recall_ingester.run import Selection
    from recall_ingester.summary import Summary


def ingest(
    source: list[str] = typer.Option(
        [], "--source", metavar="NAME[=PATH]", help="Read only this source, or this folder as it."
    ),
    once: bool = typer.Option(False, "--once", help="One pass, then end (the default)."),
    every: float | None = typer.Option(
        None, "--every", metavar="SECONDS", min=1, help="Repeat at this interval until stopped."
    ),
    watch: bool = typer.Option(
        False, "--watch", help="Read within seconds of a change, until stopped."
    ),
    json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    """Read what is new in the session logs of this machine and store it.

    A file that did not change is not opened; of a file that grew only the new bytes are read.
    Where this machine has joined a server, the server gets it; exit code 69 means that it cannot be
    reached now. Exit code 75 means that another ingester works for this home.
    """
    if sum([once, every is not None, watch]) > 1:
        raise UsageError("--once, --every and --watch exclude each other")
    settings = load_settings()
    from recall_ingester.run import (
        feeds_server,
        open_target,
        run_every,
        run_on_change,
        select_sources,
    )

    if not feeds_server(settings):
        need_server(hint=JOIN_OR_INSTALL)
    sources = select_sources(settings, source)
    with open_target(settings) as url, _stop_on_signal() as stop:
        interval = settings.ingest_every_seconds if watch else every

        def one_pass() -> None:
            summary = pass_with_progress(
                settings, url, sources, stop=stop, interval_seconds=interval
            )
            print_summary(summary, as_json=json)

        if watch:
            roots = [root for _, roots in sources for root in roots]
            run_on_change(roots, one_pass, stop, every_seconds=settings.ingest_every_seconds)
        elif every is not None:
            run_every(every, one_pass, stop)
        else:
            one_pass()


def pass_with_progress(
    settings: Settings,
    database_url: str | None,
    sources: list[Selection] | None = None,
    *,
    stop: Event | None = None,
    interval_seconds: float | None = None,
) -> Summary:
    """One pass with a bar on stderr while there is much to read and someone to see it. Without a
    database it goes to the server that this machine feeds."""
    from recall_ingester.run import run_once

    identity = load_identity(settings.home, host=settings.host)
    with progress_bar("reading session logs") as advance:
        return run_once(
            settings,
            identity,
            database_url=database_url,
            sources=sources,
            progress=advance,
            stop=stop,
            interval_seconds=interval_seconds,
        )


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, in bytes, while someone is there to see it."""
    columns = (
        TextColumn(what),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as bar:
        task = bar.add_task("ingest", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _stop_on_signal() -> Iterator[Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one ends the process at once."""
    stop = Event()

    def ask(number: int, _frame: Any) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_summary(summary: Summary, *, as_json: bool) -> None:
    """The numbers of a pass, for a person or a program."""
    if as_json:
        print_json(summary.as_json())
        return
    screen.print(
        f"{summary.files_seen:,} files, {summary.files_opened:,} opened,"
        f" {summary.bytes_read / 1e6:,.1f} MB read in {summary.seconds:.1f} s"
    )
    screen.print(
        f"{summary.lines_seen:,} lines = {summary.stored:,} stored + {summary.merged:,} merged"
        f" + {summary.quarantined:,} quarantined + {summary.skipped:,} skipped"
    )
    screen.print(f"{summary.messages:,} messages written in {summary.sessions:,} sessions")
    if summary.retired:
        note(f"{summary.retired:,} messages taken back by their client are kept, out of search")
    if summary.quarantined or summary.unreadable:
        note(
            f"{summary.quarantined:,} lines and {len(summary.unreadable):,} files could not be"
            " read; see `recall status --problems`"
        )
    for path, reason in list(summary.unreadable.items())[:5]:
        note(f"  {Path(path)}: {reason}")
