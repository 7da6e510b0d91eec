"""``recall reparse``: rebuild messages from the kept bytes of session logs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import IO, TYPE_CHECKING

import typer

from recall import disk
from recall.cli.extras import need_server
from recall.cli.ingest import progress_bar
from recall.cli.output import note, print_json, screen
from recall.cli.own_store import need_own_store
from recall.cli.running import ingest_lock
from recall.config import load_settings
from recall.errors import NotFoundError, StoreError
from recall.identity import load_identity

if TYPE_CHECKING:
    from recall_ingester.checkpoint import Checkpoint
    from recall_ingester.reparse import Reparsed

_SHOWN_FAILURES = 5


def reparse(
    source: list[str] = typer.Option([], "--source", metavar="NAME", help="Only this source."),
    session: list[str] = typer.Option([], "--session", metavar="KEY", help="Only this session."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    """Rebuild the messages of this machine's sessions from their original bytes.

    For use after an upgrade that reads a client's log better. The client's files are not needed.
    Messages that come out as before keep their ids; a text that is replaced is kept as taken back.
    """
    settings = load_settings()
    need_own_store(settings)
    need_server()
    from recall_ingester.exports import SOURCES
    from recall_ingester.reparse import Reparser
    from recall_ingester.run import pass_options
    from recall_ingester.sinks.postgres_reserve import ReservingSink
    from recall_ingester.sources import SAMPLE, all_sources, get_source
    from recall_sql.store import open_store

    identity = load_identity(settings.home, host=settings.host)
    sources = {**all_sources(settings), SAMPLE: get_source(SAMPLE)}
    with (
        open_store(settings) as url,
        ingest_lock(settings.home),
        progress_bar("reading kept bytes") as advance,
        ExitStack() as stack,
    ):
        sink = ReservingSink(url, identity, partial(disk.look, settings))
        stack.callback(sink.close)
        kept = KeptInStore(url, identity.host)
        reparser = Reparser(
            sink,
            pass_options(settings, identity),
            sources,
            {export.name: export for export in SOURCES},
            kept,
        )

        def wanted(known: Checkpoint) -> bool:
            return (not source or known.source in source) and (
                not session or known.session_key in session
            )

        result = reparser.run(wanted=wanted, progress=advance)
    for path in kept.incomplete:
        del result.failed[path]
    _report(result, len(kept.incomplete), as_json=as_json)


class KeptInStore:
    """The original bytes of one host in a database, each checked before it is given.

    A file of which only the beginning is kept is refused and listed in ``incomplete``: what stands
    in the rest of it would be taken for messages that the client took back.
    """

    def __init__(self, url: str, host: str) -> None:
        self._url = url
        self._host = host
        self.incomplete: list[str] = []

    @contextmanager
    def __call__(self, known: Checkpoint) -> Iterator[IO[bytes]]:
        from recall_sql.connection import connect
        from recall_sql.raw import find_file, open_stream

        with connect(self._url, application="recall reparse", autocommit=True) as connection:
            file = find_file(connection, self._host, known.path)
            if file is None:
                raise NotFoundError(f"nothing is kept of `{known.path}`")
            if file.why_not_kept is not None:
                self.incomplete.append(known.path)
                raise NotFoundError(f"`{known.path}` is not kept whole")
            with open_stream(connection, file) as stream:
                yield stream

    def forget_faults(
        self, read: Mapping[str, int], failed_again: Collection[tuple[str, int]]
    ) -> None:
        """Take from the quarantine what could not be read before and was read now."""
        from recall_ingester.faults import FAULT
        from recall_sql.connection import connect, translate_errors
        from recall_sql.loader import load

        values = {
            "host": self._host,
            "reason": FAULT,
            "paths": list(read),
            "generations": list(read.values()),
            "failed_paths": [path for path, _ in failed_again],
            "failed_offsets": [offset for _, offset in failed_again],
        }
        with (
            translate_errors(),
            connect(self._url, application="recall reparse", autocommit=True) as connection,
        ):
            connection.execute(load("raw")["forget_faults"], values)


def _report(result: Reparsed, incomplete: int, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "files": result.files,
                "without_bytes": result.without_bytes,
                "without_source": result.without_source,
                "incomplete": incomplete,
                "failed": result.failed,
                "rows": result.rows.as_json(),
            }
        )
    else:
        rows = result.rows
        screen.print(
            f"{result.files:,} files read from their kept bytes:"
            f" {rows.messages:,} messages written, {rows.retired:,} taken back",
            markup=False,
        )
        if result.without_bytes:
            note(f"{result.without_bytes:,} files were read before their bytes were kept")
        if incomplete:
            note(f"{incomplete:,} files are not kept to their end; nothing of them was changed")
        if result.without_source:
            note(f"{result.without_source:,} files are of a source that is not known here")
        for path, reason in list(result.failed.items())[:_SHOWN_FAILURES]:
            note(f"  {path}: {reason}")
    if result.failed:
        raise StoreError(
            f"{len(result.failed):,} files could not be read from their kept bytes",
            hint="`recall verify` tells what is damaged",
        )
