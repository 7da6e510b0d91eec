"""``recall backup``: a dump of the database that can be proven to be whole."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from recall import log
from recall.cli.backup_proof import Proof, print_proof, prove
from recall.cli.extras import need_server
from recall.cli.ingest import progress_bar
from recall.cli.output import note, print_error, print_json, screen
from recall.cli.terminal import counted, short_age, short_size
from recall.config import Settings, load_settings
from recall.errors import NotFoundError, RecallError, StoreError, UsageError
from recall.identity import load_identity

if TYPE_CHECKING:
    from recall_sql.backup import Taken
    from recall_sql.backup_manifest import Backup

#: A backup of the loop that failed is tried again after this time, then twice as long each time.
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 300.0, 3_600.0
#: A machine that slept is noticed within this time.
_LOOK_SECONDS = 60.0


def backup(
    to: Path | None = typer.Option(
        None, "--to", metavar="FOLDER", help="Where to; `backup_dir` of the settings by default."
    ),
    without_vectors: bool = typer.Option(
        False, "--without-vectors", help="Leave out the vectors; a restore has them made again."
    ),
    verify: bool = typer.Option(
        False, "--verify", help="Then restore it into a scratch database and prove it."
    ),
    verify_every: float | None = typer.Option(
        None,
        "--verify-every",
        metavar="DAYS",
        min=0,
        help="The same if none that is younger than this was proven.",
    ),
    listing: bool = typer.Option(False, "--list", help="Show the backups that are there."),
    every: float | None = typer.Option(
        None, "--every", metavar="HOURS", min=0.01, help="Repeat at this interval until stopped."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the manifest as JSON."),
) -> None:
    """Write a backup of the database while it runs, and delete those that are too old.

    A backup counts once it was restored: `--verify`, or `recall restore-backup --verify` later.
    `backup_keep` and `backup_keep_days` say what is kept. Exit code 69: the database or `pg_dump`
    failed. 73: the folder cannot be written, or has no room. 75: another backup runs.
    """
    settings = load_settings()
    log.configure(settings.log_level)
    folder = backup_folder(settings, to)
    if listing:
        if verify or verify_every is not None or every is not None or without_vectors:
            raise UsageError(
                "--list makes and proves nothing",
                hint="`recall backup --list` by itself, or with --to",
            )
        need_server()
        _print_list(folder, as_json=as_json)
        return
    refuse_remote(settings)
    need_server()
    signal.signal(signal.SIGTERM, _end)

    def one() -> None:
        taken = _take(settings, folder, vectors=not without_vectors)
        proof = None
        if verify or is_proof_due(folder, verify_every, datetime.now(UTC)):
            proof = prove_and_record(settings, taken.backup)
            taken = replace(taken, backup=proof.backup)
        _print_taken(taken, proof, as_json=as_json)

    if every is None:
        one()
    else:
        _repeat(folder, timedelta(hours=every), one)


def backup_folder(settings: Settings, to: Path | None = None) -> Path:
    """Where backups are."""
    return to.expanduser().absolute() if to else settings.backup_dir or settings.home / "backups"


def refuse_remote(settings: Settings) -> None:
    """A machine that only feeds a server has nothing to back up."""
    if settings.url:
        raise UsageError(
            "backups are made and restored where the database is",
            hint="run this command on the server, without RECALL_URL",
        )


@contextmanager
def local_database(settings: Settings) -> Iterator[str]:
    """The database as it is: its schema is not changed. :class:`NotFoundError` if there is none."""
    from recall_sql.store import open_store

    if settings.database_url is None and not (settings.home / "pg").exists():
        raise NotFoundError(
            "nothing has been ingested yet", hint="`recall up` reads the logs of this machine"
        )
    with open_store(settings, migrate=False) as url:
        yield url


def prove_and_record(settings: Settings, what: Backup, scratch: Path | None = None) -> Proof:
    """Prove a backup, and tell the metrics where the database is there to be told."""
    from recall_sql.backup import record

    proof = prove(settings, what, scratch)
    try:
        with local_database(settings) as url:
            record(url, proof.backup)
    except (StoreError, NotFoundError):
        note("the database is not there to be told; the manifest has it")
    return proof


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    """Leave every block in order, so that nothing half is left."""
    raise SystemExit(128 + signal.SIGTERM)


def _take(settings: Settings, folder: Path, *, vectors: bool) -> Taken:
    from recall_sql.backup import Options, take_backup

    identity = None
    if (settings.home / "identity.json").exists():
        known = load_identity(settings.home)
        identity = {"host": known.host, "install_id": known.install_id}
    options = Options(vectors, settings.backup_keep, settings.backup_keep_days, identity)
    with local_database(settings) as url, progress_bar("writing the backup") as advance:
        return take_backup(url, folder, options, advance)


def _repeat(folder: Path, every: timedelta, one: Callable[[], None]) -> NoReturn:
    """At once if the last backup is older than the interval, then at each interval for ever. A
    failure is told and tried again; it ends nothing."""
    retry = _RETRY_SECONDS
    while True:
        due = seconds_until_due(folder, every, datetime.now(UTC))
        if due > 0:
            time.sleep(min(due, _LOOK_SECONDS))
            continue
        try:
            one()
            retry = _RETRY_SECONDS
        except RecallError as error:
            print_error(error)
            time.sleep(min(retry, every.total_seconds()))
            retry = min(retry * 2, _LONGEST_RETRY_SECONDS)


def seconds_until_due(folder: Path, every: timedelta, now: datetime) -> float:
    """How long until the next backup of a folder is due; one of the future counts for none."""
    from recall_sql.backup_manifest import list_backups

    times = [item.manifest.started_at for item in list_backups(folder)[0] if item.problem is None]
    last = max((moment for moment in times if moment <= now), default=None)
    return (last + every - now).total_seconds() if last else 0.0


def is_proof_due(folder: Path, every_days: float | None, now: datetime) -> bool:
    """Whether no backup of a folder was proven in so many days; ``None`` asks for no proof."""
    from recall_sql.backup_manifest import list_backups

    if every_days is None:
        return False
    proven = [item.manifest.verified_at for item in list_backups(folder)[0]]
    last = max((moment for moment in proven if moment and moment <= now), default=None)
    return last is None or now - last >= timedelta(days=every_days)


def _print_taken(taken: Taken, proof: Proof | None, *, as_json: bool) -> None:
    manifest = taken.backup.manifest
    seconds = (manifest.finished_at - manifest.started_at).total_seconds()
    if as_json:
        print_json(
            {
                **manifest.as_json(),
                "path": str(taken.backup.dump),
                "seconds": round(seconds, 1),
                "deleted": [old.manifest.file for old in taken.deleted],
                "recorded": taken.recorded,
                "proof": proof.as_json() if proof else None,
            }
        )
        return
    screen.print(
        f"`{taken.backup.dump}`: {short_size(manifest.bytes)}, {manifest.rows:,} rows of"
        f" {len(manifest.tables)} tables in {seconds:.1f} s",
        markup=False,
    )
    if not manifest.vectors:
        note("without the vectors, which the embedder makes again after a restore")
    if taken.deleted:
        deleted = counted(len(taken.deleted), "old backup")
        note(f"{deleted} deleted (`backup_keep`, `backup_keep_days`)")
    if proof:
        print_proof(proof)
    else:
        note("a backup counts once it was restored: `recall restore-backup --verify`")


def _print_list(folder: Path, *, as_json: bool) -> None:
    from recall_sql.backup_manifest import list_backups

    backups, others = list_backups(folder)
    now = datetime.now(UTC)
    if as_json:
        listed = [_listed(item, now) for item in backups]
        print_json({"folder": str(folder), "backups": listed, "no_backups": others})
        return
    table = Table(box=None, pad_edge=False)
    for name, justify in (("file", "left"), ("age", "right"), ("size", "right")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    for name in ("schema", "vectors", "verified"):
        table.add_column(name)
    for item in backups:
        manifest = item.manifest
        table.add_row(
            manifest.file,
            _age(manifest.started_at, now),
            short_size(manifest.bytes),
            str(manifest.schema_version),
            "yes" if manifest.vectors else "no",
            _verified(item, now),
        )
    if backups:
        screen.print(table)
    for name, reason in others.items():
        note(f"not a backup: `{name}`: {reason}")
    note(f"{counted(len(backups), 'backup')} in `{folder}`")


def _verified(item: Backup, now: datetime) -> Text:
    if item.problem is not None:
        return Text(item.problem, "red")
    moment = item.manifest.verified_at
    return Text(f"{_age(moment, now)} ago", "green") if moment else Text("no", "yellow")


def _age(moment: datetime, now: datetime) -> str:
    return short_age(max(0.0, (now - moment).total_seconds()))


def _listed(item: Backup, now: datetime) -> dict[str, Any]:
    manifest = item.manifest.as_json()
    names = ("file", "bytes", "schema_version", "vectors", "started_at", "verified_at")
    age = (now - item.manifest.started_at).total_seconds()
    return {
        **{name: manifest[name] for name in names},
        "age_seconds": round(age),
        "rows": item.manifest.rows,
        "problem": item.problem,
    }
