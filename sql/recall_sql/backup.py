"""Making a backup: a dump, and a manifest of what stood in the store at that moment.

The dump comes through a pipe of this process. When this process dies, the pipe breaks and `pg_dump`
ends; its hash is known when its last byte is written, and whatever the disk refuses is told here.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from recall import __version__
from recall.errors import BusyError, StoreError, TargetError
from recall.lock import HomeLock
from recall_sql.backup_manifest import (
    Backup,
    Manifest,
    Progress,
    TableDigest,
    delete_backup,
    list_backups,
    new_name,
    outdated,
    partial_path,
    remove_partials,
    sync_folder,
    write_manifest,
)
from recall_sql.backup_programs import Program, find_program, program_environment, running
from recall_sql.backup_snapshot import Snapshot, Table, open_snapshot
from recall_sql.connection import connect, translate_errors
from recall_sql.loader import load
from recall_sql.migrate import refuse_newer

_log = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20
#: How much is written between two looks at the free space.
_LOOK_BYTES = 16 << 20
#: Every `pg_restore` reads gzip. Level 3 takes a third of the time of level 6, a tenth more room.
_COMPRESSION = "gzip:3"
_LOCK_WAIT = "60s"
#: What a disk keeps free: a full one stops the database that stands on it.
_RESERVE_SHARE = 0.02
_MOST_RESERVE_BYTES = 1 << 30
#: What a dump takes of a table. Original bytes are compressed already; texts are not.
_RAW_SHARE, _TEXT_SHARE = 1.1, 0.6
_GROWTH = 1.1
_RAW = "recall.raw_blob"


@dataclass(frozen=True, slots=True)
class Options:
    """How a backup is made. ``identity`` is kept with it."""

    vectors: bool = True
    keep: int = 7
    keep_days: int = 30
    identity: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """A new backup, and the old ones that were let go. ``recorded``: whether the metrics know."""

    backup: Backup
    deleted: tuple[Backup, ...]
    recorded: bool


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Whoever writes into a folder of backups holds this; a second one gets :class:`BusyError`."""
    with ExitStack() as held:
        try:
            held.enter_context(HomeLock(folder / "backup.lock", what="recall backup"))
        except BusyError as error:
            raise BusyError(error.message, hint="wait for it to end") from error
        except OSError as error:
            raise _refused(Path(error.filename or folder), error) from error
        yield


def take_backup(
    database_url: str, folder: Path, options: Options, progress: Progress | None = None
) -> Taken:
    """Make a backup in a folder, then delete those that retention lets go.

    Whatever fails or kills this, no half backup is left that counts as one. The schema is not
    migrated. Raises :class:`BusyError` while another backup runs, :class:`TargetError` for what the
    disk refuses, and :class:`StoreError` for what the database or `pg_dump` refuse.
    """
    with folder_lock(folder):
        remove_partials(folder)
        backup = _make(database_url, folder, options, progress)
        gone = outdated(
            list_backups(folder)[0],
            keep=options.keep,
            keep_days=options.keep_days,
            now=datetime.now(UTC),
        )
        for old in gone:
            delete_backup(old)
            _log.info("backup deleted", extra={"file": old.manifest.file, "reason": "retention"})
        recorded = record(database_url, backup, [old.manifest.file for old in gone])
        return Taken(backup, tuple(gone), recorded)


def record(database_url: str, backup: Backup, deleted: Sequence[str] = ()) -> bool:
    """Tell the metrics; whether they could be told. A backup is one without them, too."""
    manifest, sql = backup.manifest, load("backup")
    values = {
        "started_at": manifest.started_at,
        "finished_at": manifest.finished_at,
        "bytes": manifest.bytes,
        "file": manifest.file,
        "schema_version": manifest.schema_version,
        "verified_at": manifest.verified_at,
    }
    try:
        with translate_errors(), connect(database_url, application="recall backup") as connection:
            row = connection.execute(sql["has_backup_table"]).fetchone()
            if not (row and row[0]):
                return False
            connection.execute(sql["record_backup"], values)
            if manifest.verified_at is not None:
                connection.execute(sql["record_verified"], values)
            connection.execute(sql["forget_backups"], {"files": list(deleted)})
    except StoreError as error:
        _log.warning("backup not recorded in the database", extra={"reason": error.message})
        return False
    return True


def _make(database_url: str, folder: Path, options: Options, progress: Progress | None) -> Backup:
    started = datetime.now(UTC)
    name = new_name(folder, started)
    partial = partial_path(folder, name)
    with open_snapshot(database_url) as snapshot:
        refuse_newer(snapshot.schema_version)
        program = find_program("pg_dump", snapshot.postgresql_major)
        left_out = [t for t in snapshot.tables if t.holds_vectors and not options.vectors]
        tables = [table for table in snapshot.tables if table not in left_out]
        expected = _expected_bytes(folder, snapshot, tables, vectors=options.vectors)
        _check_free(folder, expected)
        command = _command(program, snapshot.export(), left_out)
        dump = _Dump(folder, partial, lambda done: progress and progress(done, expected))
        extensions, roles = snapshot.extensions(), snapshot.roles()
        try:
            digests = dump.write(snapshot, tables, command, program_environment(database_url))
            manifest = Manifest(
                file=name,
                recall_version=__version__,
                schema_version=snapshot.schema_version,
                postgresql=snapshot.postgresql,
                postgresql_major=snapshot.postgresql_major,
                pg_dump=program.version,
                started_at=started,
                finished_at=datetime.now(UTC),
                bytes=dump.bytes,
                sha256=dump.sha256,
                database_bytes=snapshot.database_bytes,
                vectors=options.vectors,
                tables=digests,
                left_out=tuple(table.full_name for table in left_out),
                extensions=extensions,
                roles=roles,
                identity=options.identity,
            )
            return _publish(folder, partial, manifest)
        finally:
            partial.unlink(missing_ok=True)


def _command(program: Program, snapshot: str, left_out: Sequence[Table]) -> list[str]:
    return [
        str(program.path),
        "--format=custom",
        f"--compress={_COMPRESSION}",
        f"--snapshot={snapshot}",
        f"--lock-wait-timeout={_LOCK_WAIT}",
        "--no-password",
        "--no-unlogged-table-data",
        "--no-publications",
        "--no-subscriptions",
        "--no-security-labels",
        *(f'--exclude-table-data="{table.schema}"."{table.name}"' for table in left_out),
    ]


def _publish(folder: Path, partial: Path, manifest: Manifest) -> Backup:
    """Give the dump its name, and then the manifest, which makes it a backup."""
    target = folder / manifest.file
    try:
        partial.rename(target)
        sync_folder(folder)
    except OSError as error:
        raise _refused(target, error) from error
    try:
        return write_manifest(folder, manifest)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


class _Dump:
    """The file that is being written, while the digests of the same moment are taken beside it."""

    def __init__(self, folder: Path, path: Path, tell: Callable[[int], object]) -> None:
        self._folder = folder
        self._path = path
        self._tell = tell
        self._digest = hashlib.sha256()
        self.bytes = 0

    @property
    def sha256(self) -> str:
        """Of all that was written."""
        return self._digest.hexdigest()

    def write(
        self,
        snapshot: Snapshot,
        tables: Sequence[Table],
        command: Sequence[str],
        env: Mapping[str, str],
    ) -> dict[str, TableDigest]:
        """Write the dump and force it to the disk; the digests of the tables in it."""
        with ThreadPoolExecutor(1) as pool:
            digests = pool.submit(snapshot.digests, tables)
            try:
                self._run(command, env, digests)
            except BaseException:
                with suppress(psycopg.Error):
                    snapshot.cancel()
                raise
            return digests.result()

    def _run(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        digests: Future[dict[str, TableDigest]],
    ) -> None:
        with running(command, env, stdout=subprocess.PIPE) as (process, complaint):
            assert process.stdout is not None
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with os.fdopen(os.open(self._path, flags, 0o600), "wb", buffering=0) as file:
                    while chunk := process.stdout.read(_PIECE_BYTES):
                        self._add(file.fileno(), chunk)
                        if digests.done() and (failed := digests.exception()):
                            raise failed
                    os.fsync(file.fileno())
            except OSError as error:
                raise _refused(self._path, error) from error
            if process.wait() != 0:
                raise StoreError(
                    f"`pg_dump` failed: {complaint()}", hint="nothing was kept of this backup"
                )

    def _add(self, descriptor: int, chunk: bytes) -> None:
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        self._digest.update(chunk)
        before, self.bytes = self.bytes, self.bytes + len(chunk)
        self._tell(self.bytes)
        if before // _LOOK_BYTES != self.bytes // _LOOK_BYTES:
            _check_free(self._folder, 0)


def _expected_bytes(
    folder: Path, snapshot: Snapshot, tables: Sequence[Table], *, vectors: bool
) -> int:
    """About how long the dump gets: as the last one of its kind, or as such tables usually do."""
    for backup in list_backups(folder)[0]:
        manifest = backup.manifest
        if manifest.vectors == vectors and manifest.database_bytes > 0:
            growth: float = snapshot.database_bytes / manifest.database_bytes
            return round(manifest.bytes * growth * _GROWTH)
    shares = {_RAW: _RAW_SHARE}
    return round(sum(item.size * shares.get(item.full_name, _TEXT_SHARE) for item in tables))


def _check_free(folder: Path, needed: int) -> None:
    disk = shutil.disk_usage(folder)
    reserve = min(_MOST_RESERVE_BYTES, round(disk.total * _RESERVE_SHARE))
    if disk.free >= needed + reserve:
        return
    if needed:
        raise TargetError(
            f"`{folder}` has {_size(disk.free)} free, and the backup needs about "
            f"{_size(needed)} and {_size(reserve)} to spare",
            hint=_ELSEWHERE,
        )
    raise TargetError(
        f"`{folder}` has only {_size(disk.free)} left; the backup was given up", hint=_ELSEWHERE
    )


def _refused(path: Path, error: OSError) -> TargetError:
    return TargetError(f"`{path}` cannot be written: {error.strerror}", hint=_ELSEWHERE)


def _size(size: float) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 1e10 else f"{size / 1e9:,.0f} GB"


_ELSEWHERE = "make room, or choose another folder with --to or `backup_dir`"
