"""Migrations: once, in order, whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from psycopg import sql

from recall.errors import SchemaError, StoreError, StoreUnavailableError
from recall_sql.connection import connect
from recall_sql.migrate import (
    Migration,
    current_version,
    latest_version,
    migrate,
    packaged_migrations,
    require_current,
)
from tests.double.fixtures import with_user

EVERY_VERSION = [migration.version for migration in packaged_migrations()]


def table_exists(url: str, name: str) -> bool:
    with connect(url) as conn:
        row = conn.execute("select to_regclass(%s) is not null", (name,)).fetchone()
    return bool(row and row[0])


def blocking_migrations(pipe: Path) -> list[Migration]:
    """The second one makes a table, tells that it did so, and then waits until it is killed."""
    wait = f"""
        create table recall.half (n integer);
        copy (select 1) to '{pipe}';
        select pg_advisory_lock(1);
    """
    return [
        Migration(1, "whole", b"create table recall.whole (n integer)"),
        Migration(2, "half", wait.encode()),
    ]


def test_every_migration_is_applied_once(empty_database: str) -> None:
    assert migrate(empty_database) == EVERY_VERSION
    assert migrate(empty_database) == []
    with connect(empty_database) as conn:
        assert current_version(conn) == latest_version() == EVERY_VERSION[-1]
        require_current(conn)
        schema = conn.execute("select to_regnamespace('api') is not null").fetchone()
    assert schema == (True,)


def test_two_migrators_at_once_apply_each_migration_once(empty_database: str) -> None:
    together = threading.Barrier(4)

    def run(_: int) -> list[int]:
        together.wait(60)
        return migrate(empty_database)

    with ThreadPoolExecutor(4) as pool:
        applied = list(pool.map(run, range(4)))
    assert sorted(version for versions in applied for version in versions) == EVERY_VERSION


def test_database_without_a_schema_is_older(empty_database: str) -> None:
    with connect(empty_database) as conn:
        assert current_version(conn) == 0
        with pytest.raises(SchemaError, match="older") as caught:
            require_current(conn)
    assert caught.value.hint == "run `recall db migrate`"


def test_database_of_a_newer_recall_is_refused(database: str) -> None:
    newer = latest_version() + 1
    with connect(database) as conn:
        conn.execute("insert into recall.schema_version values (%s, 'later', 'x')", (newer,))
    message = (
        f"this database was written by a newer Recall "
        f"(schema {newer}, this version knows {latest_version()})"
    )
    with pytest.raises(SchemaError) as caught:
        migrate(database)
    assert (caught.value.message, caught.value.hint) == (message, "upgrade recall")
    with connect(database) as conn, pytest.raises(SchemaError) as caught:
        require_current(conn)
    assert caught.value.message == message


def test_changed_migration_is_refused(database: str) -> None:
    with connect(database) as conn:
        conn.execute("update recall.schema_version set checksum = 'x' where version = 1")
    with pytest.raises(SchemaError, match=r"migration 1 .* was changed"):
        migrate(database)
    with connect(database) as conn, pytest.raises(SchemaError, match="was changed"):
        require_current(conn)


def test_missing_migration_behind_later_ones_is_refused(empty_database: str) -> None:
    migrations = [Migration(1, "one", b"select 1"), Migration(2, "two", b"select 2")]
    migrate(empty_database, migrations)
    with connect(empty_database) as conn:
        conn.execute("delete from recall.schema_version where version = 1")
    with pytest.raises(SchemaError, match="migration 1 is missing"):
        migrate(empty_database, migrations)


def test_migration_whose_connection_ends_half_way_leaves_nothing_and_is_resumed(
    empty_database: str, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with connect(empty_database) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("select pg_advisory_lock(1)")
        running = pool.submit(migrate, empty_database, blocking_migrations(pipe))
        assert pipe.read_text() == "1\n"
        holder.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'recall migrate' and datname = current_database()"
        )
        with pytest.raises(StoreUnavailableError):
            running.result()
    assert table_exists(empty_database, "recall.whole")
    assert not table_exists(empty_database, "recall.half")
    resumed = [*blocking_migrations(pipe)[:1], Migration(2, "half", b"create table recall.half ()")]
    assert migrate(empty_database, resumed) == [2]
    assert table_exists(empty_database, "recall.half")


def test_killed_migrator_leaves_nothing_and_is_resumed(empty_database: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    whole, half = blocking_migrations(pipe)
    script = (
        "import sys; from recall_sql.migrate import Migration, migrate;"
        "url, one, two = sys.argv[1:];"
        "migrate(url, [Migration(1, 'whole', one.encode()), Migration(2, 'half', two.encode())])"
    )
    with connect(empty_database, autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(1)")
        child = subprocess.Popen(
            [sys.executable, "-c", script, empty_database, whole.statements, half.statements],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert pipe.read_text() == "1\n"
        child.kill()
        child.wait()
        resumed = [whole, Migration(2, "half", b"create table recall.half ()")]
        # Waits until the server has noticed that its client is gone; the lock is never given up.
        assert migrate(empty_database, resumed) == [2]


def test_migration_that_fails_leaves_nothing(empty_database: str) -> None:
    failing = Migration(1, "failing", b"create table recall.half (n integer); select 1 / 0")
    with pytest.raises(StoreError, match="22012"):
        migrate(empty_database, [failing])
    assert not table_exists(empty_database, "recall.half")


def test_migration_that_cannot_be_recorded_leaves_nothing(empty_database: str) -> None:
    unrecorded = b"""
        create table recall.half (n integer);
        alter table recall.schema_version add check (version <> 1);
    """
    with pytest.raises(StoreError, match="23514"):
        migrate(empty_database, [Migration(1, "unrecorded", unrecorded)])
    assert not table_exists(empty_database, "recall.half")


def test_migration_waits_for_a_table_lock_and_then_goes_on(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Migration(1, "one", b"create table recall.one (n integer)")
    two = Migration(2, "two", b"alter table recall.one add column m integer")
    migrate(empty_database, [one])
    monkeypatch.setattr("recall_sql.migrate._LOCK_TIMEOUT_SECONDS", 1)
    with connect(empty_database) as holder:
        holder.execute("lock table recall.one in access share mode")
        # The pause after a refused lock is where the holder lets go of it.
        monkeypatch.setattr("recall_sql.migrate.time.sleep", lambda _: holder.rollback())
        assert migrate(empty_database, [one, two]) == [2]


def test_a_role_that_only_owns_the_database_migrates_and_lets_services_in(
    empty_database: str,
) -> None:
    """On a server of somebody else, where only pgvector was made by an administrator."""
    name = f"recall_test_{uuid.uuid4().hex[:8]}"
    role = sql.Identifier(name)
    with connect(empty_database, application="tests", autocommit=True) as admin:
        database = sql.Identifier(admin.info.dbname)
        admin.execute(sql.SQL("create role {} login").format(role))
        try:
            admin.execute(sql.SQL("alter database {} owner to {}").format(database, role))
            admin.execute(sql.SQL("create schema recall authorization {}").format(role))
            admin.execute("create extension vector schema recall")
            url = with_user(empty_database, name)
            assert migrate(url)[-1] == latest_version()
            with connect(url, application="tests", autocommit=True) as owner:
                owner.execute("call recall.forbid_temporary()")
                owner.execute("select recall.stage_batch()")
            found = admin.execute(
                "select has_database_privilege('public', current_database(), 'temporary')"
            ).fetchone()
            assert found == (False,)
        finally:
            admin.execute("drop schema if exists recall, api cascade")
            admin.execute(sql.SQL("alter database {} owner to current_user").format(database))
            admin.execute(sql.SQL("drop owned by {}").format(role))
            admin.execute(sql.SQL("drop role {}").format(role))
