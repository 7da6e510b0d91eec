"""Filling a database from a dump, and telling whether all of it came back."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from recall.errors import DamagedError, StoreError
from recall_sql.backup_databases import administration
from recall_sql.backup_manifest import Backup, Extension, Manifest, Progress, Role
from recall_sql.backup_programs import (
    Program,
    find_program,
    program_environment,
    read_output,
    run_program,
)
from recall_sql.backup_snapshot import open_snapshot
from recall_sql.connection import connect, translate_errors
from recall_sql.loader import load

Connection = psycopg.Connection[tuple[Any, ...]]

_APPLICATION = "recall restore"
_NEEDED = "vector"
_JOBS = 4
#: Entries of a dump that are made before it: extensions, and the schemas that they stand in.
_ENTRY = re.compile(r"\d+; \d+ \d+ (?P<what>.+)")
#: What `pg_restore` says of the file, and not of the server.
_UNREADABLE = re.compile(r"input file|end of file|compress|archive|header|magic", re.IGNORECASE)
_LISTS = ("search_path", "temp_tablespaces", "session_preload_libraries")


@dataclass(frozen=True, slots=True)
class Strength:
    """How much of a machine a restore may take.

    A vector index that does not fit into ``memory_bytes`` is built all the same, several times
    slower. Indexes are built one process each: several for one would need shared memory, of which a
    container has little.
    """

    jobs: int
    memory_bytes: int

    def options(self) -> dict[str, str]:
        """Settings of the sessions that restore."""
        return {
            "maintenance_work_mem": f"{self.memory_bytes >> 10}kB",
            "max_parallel_maintenance_workers": "0",
            "synchronous_commit": "off",
            "statement_timeout": "0",
            "lock_timeout": "0",
            "idle_in_transaction_session_timeout": "0",
        }


def strength(memory_bytes: int | None) -> Strength:
    """For a server on this machine with that memory; ``None`` for one that is not known."""
    jobs = max(1, min(_JOBS, os.cpu_count() or 1))
    if memory_bytes is None:
        return Strength(min(jobs, 2), 256 << 20)
    return Strength(jobs, max(64 << 20, min(2 << 30, memory_bytes // 4 // jobs)))


def check_server(url: str, manifest: Manifest) -> None:
    """Raise :class:`StoreError` unless a server can take the dump. Changes nothing."""
    with administration(url) as connection:
        row = connection.execute(load("backup")["dump_facts"]).fetchone()
        assert row
        version, major, _ = row
        if major < manifest.postgresql_major:
            raise StoreError(
                f"the dump is of PostgreSQL {manifest.postgresql}, and this server is {version}",
                hint=f"restore into PostgreSQL {manifest.postgresql_major} or later",
            )
        if manifest.pgvector is not None:
            row = connection.execute(load("operate")["server_versions"]).fetchone()
            available = row[1] if row else None
            if _numbers(available) < _numbers(manifest.pgvector):
                raise StoreError(
                    f"the dump needs pgvector {manifest.pgvector}, and this server has "
                    f"{available or 'none'}",
                    hint="install it on the server first",
                )
    find_program("pg_restore", _restore_major(manifest))


def fill(url: str, backup: Backup, power: Strength, progress: Progress | None = None) -> None:
    """Restore a dump into a database that is new and empty.

    Roles that are missing are made, and extensions before everything else. Objects belong to the
    role of the URL. Raises :class:`DamagedError` for a dump that cannot be read, and
    :class:`StoreError` for what the server refuses.
    """
    manifest = backup.manifest
    program = find_program("pg_restore", _restore_major(manifest))
    with connect(url, application=_APPLICATION, autocommit=True) as connection, translate_errors():
        _make_roles(connection, manifest.roles)
        made = {item.schema for item in manifest.extensions if _make_extension(connection, item)}
        with tempfile.TemporaryDirectory(prefix="recall-restore-") as folder:
            entries = Path(folder) / "entries"
            entries.write_text(_entries(program, backup.dump, made), "utf-8")
            look = _size_watch(connection, manifest, progress)
            _run(program, backup.dump, entries, url, power, look)
        connection.execute("analyze")


def _restore_major(manifest: Manifest) -> int:
    """Archives are read by programs of the version that wrote them, and later ones."""
    return int(_numbers(manifest.pg_dump)[0])


def _run(
    program: Program,
    dump: Path,
    entries: Path,
    url: str,
    power: Strength,
    look: Callable[[], None],
) -> None:
    env = program_environment(url, power.options())
    command = [
        str(program.path),
        "--exit-on-error",
        "--no-password",
        "--no-owner",
        "--no-tablespaces",
        f"--jobs={power.jobs}",
        f"--use-list={entries}",
        # The name alone: whatever else leads to the server is in the environment.
        f"--dbname={env.get('PGDATABASE', '')}",
        str(dump),
    ]
    code, complaint = run_program(command, env, look=look)
    if code != 0:
        kind = DamagedError if _UNREADABLE.search(complaint) else StoreError
        raise kind(
            f"the dump `{dump.name}` cannot be restored: {complaint}",
            hint="`recall backup --list` shows the other backups",
        )


def _entries(program: Program, dump: Path, schemas: set[str]) -> str:
    """The list of what is in a dump, without what was made before."""
    code, listed, complaint = read_output([str(program.path), "--list", str(dump)])
    if code != 0:
        raise DamagedError(f"the dump `{dump.name}` cannot be read: {complaint}")
    kept = []
    for line in listed.split("\n"):
        entry = _ENTRY.match(line)
        what = entry["what"] if entry else ""
        before = what.startswith(("EXTENSION ", "COMMENT - EXTENSION ")) or any(
            what.startswith(f"SCHEMA - {schema} ") for schema in schemas
        )
        if not before:
            kept.append(line)
    return "\n".join(kept)


def _size_watch(
    connection: Connection, manifest: Manifest, progress: Progress | None
) -> Callable[[], None]:
    def look() -> None:
        if progress is not None:
            row = connection.execute(load("operate")["database_size"]).fetchone()
            progress(row[0] if row else 0, manifest.database_bytes)

    return look


def _make_roles(connection: Connection, roles: Sequence[Role]) -> None:
    """Make the roles that the server lacks; those that it has are left as they are."""
    made = [role for role in roles if _make_role(connection, role)]
    for role in made:
        for group in role.member_of:
            grant = sql.SQL("grant {} to {}")
            named = grant.format(sql.Identifier(group), sql.Identifier(role.name))
            with suppress(psycopg.errors.UndefinedObject, psycopg.errors.InsufficientPrivilege):
                connection.execute(named)


def _make_role(connection: Connection, role: Role) -> bool:
    """Whether it was made now."""
    there = connection.execute("select from pg_roles where rolname = %s", (role.name,)).fetchone()
    if there is not None:
        return False
    name = sql.Identifier(role.name)
    form = sql.SQL(
        f"{'login' if role.can_login else 'nologin'} {'inherit' if role.inherits else 'noinherit'}"
    )
    try:
        with connection.transaction():
            connection.execute(sql.SQL("create role {} {}").format(name, form))
            for setting in role.settings:
                key, _, given = setting.partition("=")
                texts = (
                    [item.strip('"') for item in given.split(", ")] if key in _LISTS else [given]
                )
                connection.execute(
                    sql.SQL("alter role {} set {} to {}").format(
                        name,
                        sql.Identifier(*key.split(".")),
                        sql.SQL(", ").join(map(sql.Literal, texts)),
                    )
                )
    except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
        return False
    except psycopg.errors.InsufficientPrivilege:
        raise StoreError(
            f"the dump names the role `{role.name}`, which this server lacks and this user may "
            "not make",
            hint=f"let an administrator run: create role {role.name} nologin",
        ) from None
    return True


def _make_extension(connection: Connection, extension: Extension) -> bool:
    """Make an extension and the schema that it stands in; whether it is there now.

    Without pgvector nothing can be restored. The others only help, and a server may not have them.
    """
    schema, name = sql.Identifier(extension.schema), sql.Identifier(extension.name)
    try:
        with connection.transaction():
            connection.execute(sql.SQL("create schema if not exists {}").format(schema))
            create = sql.SQL("create extension if not exists {} schema {}")
            connection.execute(create.format(name, schema))
    except psycopg.Error as error:
        if extension.name != _NEEDED:
            return False
        raise StoreError(
            f"pgvector cannot be installed in the database ({error.sqlstate})",
            hint="let an administrator run: create extension vector schema recall",
        ) from None
    return True


def compare(url: str, manifest: Manifest) -> None:
    """Raise :class:`DamagedError` unless every table has the rows that were dumped."""
    with open_snapshot(url) as snapshot:
        if snapshot.schema_version != manifest.schema_version:
            raise DamagedError(
                f"the dump holds schema {snapshot.schema_version}, and its manifest says "
                f"{manifest.schema_version}"
            )
        wanted = [table for table in snapshot.tables if table.full_name in manifest.tables]
        found = snapshot.digests(wanted)
    for name, table in sorted(manifest.tables.items()):
        now = found.get(name)
        if now is None:
            raise DamagedError(f"the dump lacks the table `{name}`")
        if now.rows != table.rows:
            raise DamagedError(
                f"`{name}` has {now.rows:,} rows after the restore, and had {table.rows:,}"
            )
        if now.digest != table.digest:
            raise DamagedError(f"rows of `{name}` are not what they were, though all are there")


def mark_vectors_missing(url: str, manifest: Manifest) -> None:
    """After a restore without vectors: let the embedder make them again."""
    if not manifest.left_out:
        return
    with connect(url, application=_APPLICATION) as connection, translate_errors():
        connection.execute(load("backup")["mark_all_dirty"])


def check_indexes(url: str, power: Strength) -> str | None:
    """Let PostgreSQL check tables and indexes; why that was not possible, or ``None``.

    Raises :class:`DamagedError` for what is found.
    """
    try:
        with connect(url, application=_APPLICATION, autocommit=True) as connection:
            row = connection.execute(load("backup")["dump_facts"]).fetchone()
            assert row
            connection.execute("create extension if not exists amcheck schema public")
            program = find_program("pg_amcheck", row[1])
            for (index,) in connection.execute(load("backup")["gin_indexes"]).fetchall():
                connection.execute("select public.gin_index_check(%s::regclass)", (index,))
    except psycopg.errors.IndexCorrupted as error:
        raise DamagedError(f"an index is damaged: {error.diag.message_primary}") from None
    except psycopg.Error as error:
        return f"amcheck cannot be used here ({error.sqlstate})"
    except StoreError as error:
        return error.message
    env = program_environment(url, power.options())
    command = [
        str(program.path),
        "--no-password",
        "--heapallindexed",
        f"--jobs={power.jobs}",
        env.get("PGDATABASE", ""),
    ]
    code, complaint = run_program(command, env)
    if code == 2:
        raise DamagedError(f"`pg_amcheck` found damage: {complaint}")
    return None if code == 0 else f"`pg_amcheck` failed: {complaint}"


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version or "")) or (0,)
