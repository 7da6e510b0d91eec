"""``recall purge``: delete everything that one source brought in."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from recall.cli.extras import need_server
from recall.cli.output import note, print_json, screen
from recall.cli.own_store import need_own_store
from recall.cli.running import ingest_lock
from recall.config import Settings, load_settings
from recall.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    import psycopg

SAMPLE = "sample"

#: Rows of one transaction: short enough that a search beside it does not notice.
_BATCH_ROWS = 5_000

_TABLES = (
    "sessions",
    "messages",
    "retracted messages",
    "prompts",
    "notes",
    "text index rows",
    "passages",
    "spans of original bytes",
    "checkpoints",
    "quarantined lines",
)


def purge(
    source: str = typer.Option(..., "--source", metavar="NAME", help="What to delete."),
    host: str | None = typer.Option(
        None, "--host", metavar="HOST", help="Only what this machine fed."
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be deleted."),
    json: bool = typer.Option(False, "--json", help="Print the counts as JSON."),
) -> None:
    """Delete everything of one source from the store. The session logs themselves stay.

    Exit code 4 means that nothing of this source is stored.
    """
    settings = load_settings()
    need_own_store(settings)
    need_server()
    if not (yes or dry_run or sys.stdin.isatty()):
        raise UsageError("nobody can be asked here", hint="add --yes, or look first with --dry-run")
    from recall_sql.connection import connect, translate_errors
    from recall_sql.store import open_store

    what = {"source": source, "host": host}
    with (
        open_store(settings) as url,
        translate_errors(),
        connect(url, application="recall purge", autocommit=True) as connection,
    ):
        counts = _count(connection, what)
        if not any(counts.values()):
            raise _nothing(connection, source, host)
        if not dry_run:
            if not json:
                _print(counts, what)
            if not yes:
                _ask(source)
            with ingest_lock(settings.home):
                _delete(connection, what)
                _forget_samples(settings, source)
    _report(counts, what, dry_run=dry_run, as_json=json)
    if not (dry_run or json):
        _tell_how_back(settings, source)


def samples_are_purged(settings: Settings) -> bool:
    """Whether the samples were deleted in this home and are therefore not to be loaded again."""
    return (settings.home / "samples-purged").exists()


def _count(connection: psycopg.Connection[Any], what: Mapping[str, str | None]) -> dict[str, int]:
    from recall_sql.loader import load

    row = connection.execute(load("operate")["purge_counts"], what).fetchone()
    assert row
    return dict(zip(_TABLES, row, strict=True))


def _nothing(connection: psycopg.Connection[Any], source: str, host: str | None) -> NotFoundError:
    from recall_sql.loader import load

    names = [str(row[0]) for row in connection.execute(load("operate")["stored_sources"])]
    where = f" of host `{host}`" if host else ""
    return NotFoundError(
        f"nothing of source `{source}`{where} is stored",
        hint=f"stored sources: {', '.join(names) or 'none'}",
    )


def _ask(source: str) -> None:
    """The samples can be had again; for anything else the name has to be typed."""
    if source == SAMPLE:
        typer.confirm("delete the sample sessions?", abort=True, err=True)
        return
    typed = typer.prompt("type the name of the source to delete it", err=True)
    if typed != source:
        raise UsageError(f"`{typed}` is not `{source}`; nothing was deleted")


def _delete(connection: psycopg.Connection[Any], what: Mapping[str, str | None]) -> None:
    """Delete in short transactions. Killed at any point, a second purge deletes the rest."""
    from recall_sql.loader import load

    sql = load("operate")
    rows = {"rows": _BATCH_ROWS}
    before = ("ingest_state", "quarantine", "message_text", "embed_dirty", "embed_queue")
    for block in (f"purge_{name}" for name in before):
        while connection.execute(sql[block], {**what, **rows}).rowcount:
            pass
    while _number(connection.execute(sql["purge_passage"], {**what, **rows})):
        pass
    for block in ("purge_prompt", "purge_note", "purge_raw_segment"):
        while connection.execute(sql[block], {**what, **rows}).rowcount:
            pass
    connection.execute(sql["purge_blobs"])
    while True:
        keys = [row[0] for row in connection.execute(sql["purge_some_sessions"], what)]
        if not keys:
            return
        for block in ("purge_message", "purge_message_retracted"):
            while connection.execute(sql[block], {"keys": keys, **rows}).rowcount:
                pass
        connection.execute(sql["purge_session"], {"keys": keys})


def _number(cursor: psycopg.Cursor[Any]) -> int:
    row = cursor.fetchone()
    return int(row[0]) if row else 0


def _forget_samples(settings: Settings, source: str) -> None:
    if source == SAMPLE:
        (settings.home / "samples-purged").touch(mode=0o600)
        shutil.rmtree(settings.home / "samples", ignore_errors=True)


def _print(counts: Mapping[str, int], what: Mapping[str, str | None]) -> None:
    where = f" of host `{what['host']}`" if what["host"] else ""
    note(f"source `{what['source']}`{where}:")
    for name, number in counts.items():
        if number:
            note(f"  {number:>12,} {name}")


def _report(
    counts: Mapping[str, int], what: Mapping[str, str | None], *, dry_run: bool, as_json: bool
) -> None:
    if as_json:
        key = "would_delete" if dry_run else "deleted"
        print_json({**what, key: {name.replace(" ", "_"): n for name, n in counts.items()}})
        return
    if dry_run:
        _print(counts, what)
        screen.print("nothing was deleted (--dry-run)", markup=False)
        return
    screen.print(f"deleted source `{what['source']}`", markup=False)


def _tell_how_back(settings: Settings, source: str) -> None:
    from recall_ingester.sources import all_sources

    if source in all_sources(settings):
        note(
            "its session logs are still on disk: the next ingest stores them again unless"
            " `sources` in config.toml names only the sources to read"
        )
    elif source != SAMPLE:
        note("no source of this name is read here; what was imported comes with another import")
