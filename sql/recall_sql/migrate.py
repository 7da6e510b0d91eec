"""Numbered migrations: each file once, in order, whole or not at all."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from recall.errors import SchemaError, StoreUnavailableError
from recall_sql.connection import connect, translate_errors

_log = logging.getLogger(__name__)

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
#: Two migrators, of whatever version, exclude each other by this advisory lock.
_LOCK_KEY = 0x7265_6361_6C6C
#: A statement that waits for a table lock makes everybody queue behind it, so it waits briefly.
_LOCK_TIMEOUT_SECONDS = 5
_ATTEMPTS = 6

_BOOTSTRAP = b"""
create schema if not exists recall;
create schema if not exists api;
create table if not exists recall.schema_version (
    version integer primary key,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default now()
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of ``recall_sql/migrations``."""

    version: int
    name: str
    statements: bytes

    @property
    def checksum(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(self.statements).hexdigest()


@cache
def packaged_migrations() -> tuple[Migration, ...]:
    """The files of this version, numbered from 1 without a gap."""
    found = [
        Migration(int(match[1]), match[2], file.read_bytes())
        for file in (resources.files("recall_sql") / "migrations").iterdir()
        if (match := _FILE.fullmatch(file.name))
    ]
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise SchemaError("the migrations of this installation have a gap", hint="reinstall recall")
    return tuple(found)


def latest_version() -> int:
    """The schema version that this code works with."""
    return packaged_migrations()[-1].version


def current_version(conn: psycopg.Connection[Any]) -> int:
    """The schema version of the database; 0 where there is none."""
    return max(_applied(conn), default=0)


def require_current(conn: psycopg.Connection[Any]) -> None:
    """Raise :class:`SchemaError` unless the database has exactly the schema of this code."""
    migrations = packaged_migrations()
    applied = _applied(conn)
    _check(applied, migrations)
    version = max(applied, default=0)
    if version < len(migrations):
        raise SchemaError(
            f"the schema of the database is older than this version of Recall "
            f"(schema {version}, needed {len(migrations)})",
            hint="run `recall db migrate`",
        )


def refuse_newer(version: int, what: str = "database", known: int | None = None) -> None:
    """Raise :class:`SchemaError` for what a newer Recall wrote."""
    known = latest_version() if known is None else known
    if version > known:
        raise SchemaError(
            f"this {what} was written by a newer Recall "
            f"(schema {version}, this version knows {known})",
            hint="upgrade recall",
        )


def refuse_newer_database(url: str) -> None:
    """Raise :class:`SchemaError` for the database of a newer Recall, where it can be reached; for a
    command that changes no schema and waits for a database that is down."""
    with (
        suppress(StoreUnavailableError),
        translate_errors(),
        connect(url, application="recall start") as conn,
    ):
        refuse_newer(current_version(conn))


def migrate(url: str, migrations: Sequence[Migration] | None = None) -> list[int]:
    """Bring the database to the newest schema; the versions that this call applied.

    Each file is one transaction under an advisory lock, so a call that is killed leaves whole
    versions and the next call goes on behind them. Raises :class:`SchemaError` for a database that
    a newer Recall wrote or whose history differs from the files.
    """
    migrations = packaged_migrations() if migrations is None else migrations
    done: list[int] = []
    with connect(url, application="recall migrate", autocommit=True) as conn, translate_errors():
        applied = _applied(conn)
        _check(applied, migrations)
        while len(applied) < len(migrations):
            version = _apply_next_patiently(conn, migrations)
            if version is not None:
                done.append(version)
            applied = _applied(conn)
    return done


def _apply_next_patiently(
    conn: psycopg.Connection[Any], migrations: Sequence[Migration]
) -> int | None:
    for attempt in range(1, _ATTEMPTS):
        try:
            return _apply_next(conn, migrations)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            _log.warning(
                "migration waits for a lock",
                extra={"attempt": attempt, "sqlstate": error.sqlstate},
            )
            time.sleep(attempt)  # let the queue behind the refused lock drain
    return _apply_next(conn, migrations)


def _load_vectors(conn: psycopg.Connection[Any]) -> None:
    """Load pgvector, if it is there, whose settings are then known to this connection: only a
    superuser may give a function a setting that is not."""
    row = conn.execute("select to_regtype('recall.vector') is not null").fetchone()
    if row and row[0]:
        conn.execute("select '[1]'::recall.vector")


def _apply_next(conn: psycopg.Connection[Any], migrations: Sequence[Migration]) -> int | None:
    """Apply the first missing file; ``None`` if another migrator was faster."""
    with conn.transaction():
        # Another migrator may take minutes, and waiting for it stands in nobody's way.
        conn.execute("set local lock_timeout = 0")
        conn.execute("select pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
        conn.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT_SECONDS}s'")
        if not _has_version_table(conn):
            conn.execute(_BOOTSTRAP)
        applied = _applied(conn)
        _check(applied, migrations)
        missing = [migration for migration in migrations if migration.version not in applied]
        if not missing:
            return None
        first = missing[0]
        _load_vectors(conn)
        conn.execute(first.statements)
        conn.execute(
            "insert into recall.schema_version (version, name, checksum) values (%s, %s, %s)",
            (first.version, first.name, first.checksum),
        )
    _log.info("migration applied", extra={"version": first.version, "migration": first.name})
    return first.version


def _has_version_table(conn: psycopg.Connection[Any]) -> bool:
    cursor = conn.cursor(row_factory=tuple_row)
    row = cursor.execute("select to_regclass('recall.schema_version') is not null").fetchone()
    return bool(row and row[0])


def _applied(conn: psycopg.Connection[Any]) -> dict[int, str]:
    """Version to checksum of what the database says was applied."""
    if not _has_version_table(conn):
        return {}
    cursor = conn.cursor(row_factory=tuple_row)
    cursor.execute("select version, checksum from recall.schema_version order by version")
    return dict(cursor.fetchall())


def _check(applied: Mapping[int, str], migrations: Sequence[Migration]) -> None:
    """Refuse a history that is not a beginning of the one in the files."""
    newest = max(applied, default=0)
    refuse_newer(newest, known=len(migrations))
    for migration in migrations[:newest]:
        if migration.version not in applied:
            raise SchemaError(
                f"migration {migration.version} is missing in the database, though later ones "
                "were applied",
                hint="restore the database from a backup",
            )
        if applied[migration.version] != migration.checksum:
            raise SchemaError(
                f"migration {migration.version} ({migration.name}) was changed after this "
                "database applied it",
                hint="install the version of recall that wrote it, or restore a backup",
            )
