"""``recall verify``: read everything that is stored of the original files back, and compare."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from recall.cli.originals import local_path, open_originals, shown_path, this_host
from recall.cli.output import note, notes, print_json, screen
from recall.cli.repair import Repaired
from recall.cli.repair import repair as repair_files
from recall.cli.running import ingest_lock
from recall.cli.terminal import one_line, short_size
from recall.config import Settings, load_settings
from recall.errors import BusyError, DamagedError, NotFoundError, SourceError

if TYPE_CHECKING:
    from recall.cli.originals import Connection
    from recall_sql.raw import Comparison, StoredFile

Verdict = Literal["ok", "grew", "gone", "not kept", "unreadable", "differs", "damaged"]

#: What each result means, in the order of the summary.
_MEANING: dict[Verdict, str] = {
    "ok": "sound, and equal to the file where that is on this machine",
    "grew": "sound; the file has more, which the next ingest reads",
    "gone": "sound; the file is not there any more",
    "not kept": "not all of the bytes are stored",
    "unreadable": "sound, but the file cannot be read and compared",
    "differs": "sound, but not what the file holds now",
    "damaged": "the stored bytes are damaged",
}
_BAD: frozenset[Verdict] = frozenset({"unreadable", "differs", "damaged"})
_QUIET: frozenset[Verdict] = frozenset({"ok", "grew", "gone"})


@dataclass(frozen=True, slots=True)
class Result:
    """What was found out about one file. ``differs_at`` is the first byte that is not the same;
    ``written_since`` says that the file's size or time changed after it was last read."""

    host: str
    path: str
    verdict: Verdict
    detail: str | None = None
    differs_at: int | None = None
    written_since: bool = False

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return {
            "host": self.host,
            "path": self.path,
            "result": self.verdict,
            "detail": self.detail,
            "differs_at": self.differs_at,
            "written_since": self.written_since,
        }


@dataclass(frozen=True, slots=True)
class Unused:
    """Blobs that no segment points to."""

    blobs: int
    stored_bytes: int
    dropped: int


def verify(
    source: str | None = typer.Option(None, "--source", metavar="NAME", help="Only this client."),
    session: str | None = typer.Option(
        None, "--session", metavar="SESSION", help="Only the files of this session."
    ),
    repair: bool = typer.Option(
        False, "--repair", help="Take damaged bytes again from files that still have the same."
    ),
    reread: bool = typer.Option(
        False, "--reread", help="Let the next ingest read files that differ from their start."
    ),
    prune: bool = typer.Option(
        False, "--prune", help="Delete stored bytes that no file points to any more."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result of every file as JSON."),
) -> None:
    """Check the stored original bytes of every file, and compare them with the files that are on
    this machine.

    Exit code 1: something is damaged, differs, or could not be compared.
    """
    settings = load_settings()
    with open_originals(settings, "recall verify") as connection:
        key = _resolve(connection, source, session)
        host = this_host(settings)
        results, bytes_read = _check_all(connection, host, source, key)
        repaired = None
        if repair:
            results, repaired = _repair(connection, host, results)
        unused = _unused(connection, prune=prune)
        differing = [result for result in results if result.verdict == "differs"]
        marked, busy = 0, None
        if reread and differing:
            try:
                marked = _mark(connection, settings, differing)
            except BusyError as error:
                busy = error
    if as_json:
        _print_json(results, bytes_read, unused, marked, repaired)
    else:
        _print(results, bytes_read)
        _print_notes(results, unused, marked, repaired)
    if busy is not None:
        raise busy
    if any(result.verdict in _BAD for result in results):
        raise typer.Exit(1)


def _resolve(connection: Connection, source: str | None, session: str | None) -> str | None:
    from recall_api.sessions import resolve_session
    from recall_sql.loader import load

    if source is not None:
        stored = [str(row[0]) for row in connection.execute(load("operate")["stored_sources"])]
        if source not in stored:
            raise NotFoundError(
                f"nothing of source `{source}` is stored",
                hint=f"stored sources: {', '.join(stored) or 'none'}",
            )
    return resolve_session(connection, session) if session is not None else None


def _check_all(
    connection: Connection, host: str | None, source: str | None, key: str | None
) -> tuple[list[Result], int]:
    """The result of every file, and how many bytes were read back."""
    from recall_sql.loader import load
    from recall_sql.raw import places

    what = {"source": source, "session_key": key}
    row = connection.execute(load("raw")["kept_bytes"], what).fetchone()
    with _bar(row[0] if row else 0) as advance:
        checker = _Checker(connection, host, advance)
        results = [checker.check(*place) for place in places(connection, **what)]
    return results, checker.bytes_read


def _repair(
    connection: Connection, host: str | None, results: Sequence[Result]
) -> tuple[list[Result], Repaired]:
    """What could be repaired, and the results after it. A piece may stand in several files."""
    damaged = [result for result in results if result.verdict == "damaged"]
    repaired = repair_files(connection, host, [(item.host, item.path) for item in damaged])
    checker = _Checker(connection, host, lambda _count: None)
    again = [
        checker.check(item.host, item.path) if item.verdict == "damaged" else item
        for item in results
    ]
    return again, repaired


class _Checker:
    """Checks file by file, each in a snapshot of its own: the ingester may go on meanwhile."""

    def __init__(
        self, connection: Connection, this_host: str | None, advance: Callable[[int], None]
    ) -> None:
        self._connection = connection
        self._this_host = this_host
        self._advance = advance
        self.bytes_read = 0

    def check(self, host: str, path: str) -> Result:
        """All generations of a file, the newest beside the file if that is of this machine."""
        from recall_sql.raw import find_file, generations, snapshot

        try:
            with snapshot(self._connection):
                file = find_file(self._connection, host, path)
                for kept in generations(self._connection, host, path):
                    if file is None or kept.number != file.generation:
                        self._read(host, path, kept.number)
                if file is None:
                    return Result(host, path, "ok", "no checkpoint belongs to it")
                return self._check_newest(file)
        except DamagedError as error:
            return Result(host, path, "damaged", error.message)

    def _check_newest(self, file: StoredFile) -> Result:
        if file.host != self._this_host or file.is_rows:
            self._read_newest(file)
            return _settled(file, "ok")
        from recall_ingester.reader import open_regular

        try:
            opened = open_regular(local_path(file.original))
        except FileNotFoundError:
            self._read_newest(file)
            return _settled(file, "gone")
        except (OSError, SourceError) as error:
            self._read_newest(file)
            return _settled(file, "unreadable", getattr(error, "strerror", None) or str(error))
        with opened:
            return self._compare(file, opened)

    def _compare(self, file: StoredFile, opened: IO[bytes]) -> Result:
        from recall_sql.raw import Comparison

        status = os.fstat(opened.fileno())
        since = (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns)
        comparison = Comparison(opened)
        try:
            self._read_newest(file, comparison)
            more = comparison.has_more()
        except OSError as error:
            self._read_newest(file)
            return _settled(file, "unreadable", error.strerror)
        at = comparison.first_difference
        if at is None:
            return _settled(file, "grew" if more else "ok", written_since=since)
        detail = f"from byte {at:,}"
        if since:
            detail += "; written after it was last read"
        return Result(file.host, file.path, "differs", detail, at, since)

    def _read_newest(self, file: StoredFile, comparison: Comparison | None = None) -> None:
        self._read(file.host, file.path, file.generation, file, comparison)

    def _read(
        self,
        host: str,
        path: str,
        generation: int,
        file: StoredFile | None = None,
        comparison: Comparison | None = None,
    ) -> None:
        from recall_sql.raw import read_chunks

        with closing(read_chunks(self._connection, host, path, generation, file=file)) as chunks:
            for chunk in chunks:
                if comparison is not None:
                    comparison.add(chunk)
                self.bytes_read += len(chunk)
                self._advance(len(chunk))


def _settled(
    file: StoredFile, verdict: Verdict, detail: str | None = None, *, written_since: bool = False
) -> Result:
    """The result of a file whose stored bytes are sound, as far as they are kept."""
    if (reason := file.why_not_kept) is not None:
        gone = "; the file is gone" if verdict == "gone" else ""
        verdict, detail = "not kept", reason + gone
    return Result(file.host, file.path, verdict, detail, written_since=written_since)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    columns = (
        TextColumn("reading stored bytes"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as bar:
        task = bar.add_task("verify", total=total)
        yield lambda count: bar.advance(task, count)


def _unused(connection: Connection, *, prune: bool) -> Unused:
    from recall_sql.loader import load

    row = connection.execute(load("raw")["unused_blobs"]).fetchone()
    assert row is not None
    blobs, stored_bytes = row
    dropped = 0
    if prune and blobs:
        row = connection.execute(load("raw")["drop_unused_blobs"]).fetchone()
        dropped = row[0] if row else 0
    return Unused(blobs, stored_bytes, dropped)


def _mark(connection: Connection, settings: Settings, differing: Sequence[Result]) -> int:
    """How many checkpoints were marked; all are of this host. Raises :class:`BusyError` while an
    ingest runs, which would write its own checkpoints over the marks."""
    from recall_sql.loader import load

    paths = [result.path for result in differing]
    with ingest_lock(settings.home):
        values = {"host": differing[0].host, "paths": paths}
        return connection.execute(load("raw")["reread"], values).rowcount


def _print_json(
    results: Sequence[Result],
    bytes_read: int,
    unused: Unused,
    marked: int,
    repaired: Repaired | None,
) -> None:
    counts = Counter(result.verdict for result in results)
    print_json(
        {
            "files": [result.as_json() for result in results],
            "counts": {verdict: counts[verdict] for verdict in _MEANING},
            "bytes_read": bytes_read,
            "marked": marked,
            "repaired": repaired.pieces if repaired else 0,
            "not_repaired": repaired.not_found if repaired else 0,
            "unused": {
                "blobs": unused.blobs,
                "stored_bytes": unused.stored_bytes,
                "dropped": unused.dropped,
            },
        }
    )


def _print(results: Sequence[Result], bytes_read: int) -> None:
    for result in results:
        if result.verdict not in _QUIET:
            line = f"{result.verdict}  {one_line(result.host, 40)}  {shown_path(result.path)}"
            style = "red" if result.verdict in _BAD else ""
            screen.print(Text(f"{line}  {one_line(result.detail, 400)}", style))
    counts = Counter(result.verdict for result in results)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right")
    for verdict, meaning in _MEANING.items():
        if counts[verdict]:
            table.add_row(f"{counts[verdict]:,}", verdict, Text(meaning, "dim"))
    if results:
        screen.print(table)
    note(f"{len(results):,} files, {short_size(bytes_read)} read back")


def _print_notes(
    results: Sequence[Result], unused: Unused, marked: int, repaired: Repaired | None
) -> None:
    if repaired is not None:
        note(f"{repaired.pieces:,} damaged pieces were written again from files of this machine")
        if repaired.not_found:
            note(
                f"{repaired.not_found:,} are in no file of this machine;"
                " a backup of the database may have them"
            )
    elif any(result.verdict == "damaged" for result in results):
        note("with --repair, damaged bytes are taken again from files that still have them")
    if marked:
        note(f"{marked:,} files are read from their start by the next ingest")
    elif any(result.verdict == "differs" for result in results):
        note("with --reread, the next ingest reads the files that differ from their start")
    if unused.dropped:
        note(f"{unused.dropped:,} stored pieces that no file points to were deleted")
    elif unused.blobs:
        size = short_size(unused.stored_bytes)
        note(f"{unused.blobs:,} stored pieces ({size}) belong to no file; --prune deletes them")
