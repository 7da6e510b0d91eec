"""Making backups: what is in one, what a failure leaves, what is kept, who waits for whom."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from recall.cli import backup as backup_command
from recall.errors import (
    BusyError,
    DamagedError,
    NotFoundError,
    SchemaError,
    StoreError,
    TargetError,
)
from recall_sql import backup_programs
from recall_sql.backup import Options, folder_lock, take_backup
from recall_sql.backup_manifest import (
    Backup,
    Manifest,
    TableDigest,
    check_whole,
    delete_backup,
    find_backup,
    list_backups,
    mark_verified,
    outdated,
    write_manifest,
)
from recall_sql.backup_programs import find_program, first_error, program_environment
from recall_sql.backup_restore import compare, fill, strength
from recall_sql.backup_snapshot import Snapshot, Table
from recall_sql.connection import connect
from recall_sql.migrate import latest_version
from tests.db.backup_store import (
    KEY,
    RARE,
    Done,
    Run,
    command,
    count,
    errors_of,
    execute,
)
from tests.db.backup_store import fill as fill_store
from tests.db.embedding import fetch, say

NOW = datetime(2025, 11, 1, 12, tzinfo=UTC)
#: The first 16 KiB of a dump are written, and then this happens.
IN_THE_MIDDLE = """
import os, signal
from recall_sql import backup
whole = backup._Dump._add
def add(self, descriptor, chunk):
    whole(self, descriptor, chunk[:16384])
    {what}
backup._Dump._add = add
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backups"


@pytest.fixture
def recall(home: Path, folder: Path, database: str) -> Run:
    """Runs the command on the database of this test."""

    def run(*arguments: str, script: str = "", **more: str) -> Done:
        env = {"RECALL_DATABASE_URL": database, "RECALL_BACKUP_DIR": str(folder), **more}
        return command(home, list(arguments), env, script)

    return run


def names(folder: Path) -> set[str]:
    """Every file of a folder but its lock."""
    return {path.name for path in folder.iterdir()} - {"backup.lock"}


def program(path: Path, script: str) -> Path:
    """A program that the tests write themselves."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def old(folder: Path, days: float, *, verified: bool = False, file: str = "") -> Backup:
    """A backup of some days ago; nobody opens its dump."""
    moment = NOW - timedelta(days=days)
    folder.mkdir(exist_ok=True)
    name = file or f"recall-{moment:%Y%m%dT%H%M%SZ}.dump"
    (folder / name).write_bytes(b"dump")
    manifest = Manifest(
        file=name,
        recall_version="0.1.0",
        schema_version=latest_version(),
        postgresql="18.0",
        postgresql_major=18,
        pg_dump="18.0",
        started_at=moment,
        finished_at=moment,
        bytes=4,
        sha256=hashlib.sha256(b"dump").hexdigest(),
        database_bytes=1000,
        vectors=True,
        tables={},
        left_out=(),
        extensions=(),
        roles=(),
        verified_at=moment if verified else None,
    )
    return write_manifest(folder, manifest)


def test_manifest_tells_what_is_in_the_dump(database: str, folder: Path) -> None:
    fill_store(database)
    identity = {"host": "laptop", "install_id": "6e1b0f5e-0000-4000-8000-000000000000"}
    taken = take_backup(database, folder, Options(identity=identity))
    manifest, dump = taken.backup.manifest, taken.backup.dump
    assert names(folder) == {dump.name, dump.with_suffix(".json").name}
    assert manifest.sha256 == hashlib.sha256(dump.read_bytes()).hexdigest()
    assert manifest.bytes == dump.stat().st_size
    for table in ("message", "message_text", "raw_blob", "raw_segment", "passage_1", "session"):
        assert manifest.tables[f"recall.{table}"].rows == count(database, f"recall.{table}") > 0
    assert not [name for name in manifest.tables if "incoming" in name]
    assert manifest.schema_version == latest_version()
    assert manifest.pgvector and manifest.postgresql.startswith("18.")
    assert {role.name for role in manifest.roles} >= {"recall_anon", "recall_writer"}
    assert manifest.verified_at is None
    assert find_backup(folder, "latest") == taken.backup
    assert taken.backup.manifest.identity == identity
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert RARE not in taken.backup.manifest_path.read_text()


def test_metrics_are_told_of_a_backup(database: str, folder: Path) -> None:
    taken = take_backup(database, folder, Options())
    manifest = taken.backup.manifest
    assert taken.recorded
    assert fetch(
        database, "select file, bytes, schema_version, verified_at from recall.backup"
    ) == [(manifest.file, manifest.bytes, latest_version(), None)]


def test_backup_needs_no_table_to_be_told_in(database: str, folder: Path) -> None:
    execute(database, "drop table recall.backup cascade")
    taken = take_backup(database, folder, Options())
    assert not taken.recorded
    assert find_backup(folder, "latest") == taken.backup


def test_rows_that_come_during_a_backup_are_in_neither_the_dump_nor_the_manifest(
    database: str,
    folder: Path,
    empty_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill_store(database)
    before = count(database, "recall.message")
    export = Snapshot.export

    def export_and_write(self: Snapshot) -> str:
        name = export(self)
        say(database, KEY, ["a message that comes later"], first=50)
        execute(database, "delete from recall.message where ordinal = 1")
        execute(database, "update recall.session set title = 'changed meanwhile'")
        return name

    monkeypatch.setattr(Snapshot, "export", export_and_write)
    backup = take_backup(database, folder, Options()).backup
    assert backup.manifest.tables["recall.message"].rows == before
    assert count(database, "recall.message") != before
    fill(empty_database, backup, strength(None))
    compare(empty_database, backup.manifest)
    assert fetch(empty_database, "select title from recall.session where title like '%mean%'") == []


def test_migration_waits_for_a_backup_to_end(
    database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would change a table after the dump and before its digest."""
    digests = Snapshot.digests
    refused: list[str] = []

    def alter(self: Snapshot, tables: list[Table]) -> dict[str, TableDigest]:
        with connect(database, lock_timeout_seconds=0.1) as connection:
            for table in ("message", "worker_heartbeat"):
                with pytest.raises(psycopg.errors.LockNotAvailable), connection.transaction():
                    connection.execute(f"alter table recall.{table} add column n int".encode())
                refused.append(table)
        return digests(self, tables)

    monkeypatch.setattr(Snapshot, "digests", alter)
    take_backup(database, folder, Options())
    assert refused == ["message", "worker_heartbeat"]


def test_vectors_can_be_left_out(database: str, folder: Path) -> None:
    fill_store(database)
    whole = take_backup(database, folder, Options()).backup.manifest
    manifest = take_backup(database, folder, Options(vectors=False)).backup.manifest
    assert not manifest.vectors
    assert "recall.passage_1" in manifest.left_out
    assert {"recall.message", "recall.embed_queue"} < set(manifest.tables)
    assert set(whole.tables) - set(manifest.tables) == set(manifest.left_out)
    assert manifest.bytes < whole.bytes


def test_database_of_a_newer_recall_is_not_dumped(database: str, folder: Path) -> None:
    execute(database, "insert into recall.schema_version values (9999, 'later', 'x')")
    with pytest.raises(SchemaError, match="newer Recall"):
        take_backup(database, folder, Options())
    assert names(folder) == set()


def test_killed_backup_counts_for_nothing_and_is_cleared_away(
    database: str, folder: Path, recall: Run
) -> None:
    done = recall("backup", script=IN_THE_MIDDLE.format(what="os.kill(os.getpid(), 9)"))
    assert done.returncode == -9
    (left,) = names(folder)
    assert left.endswith(".partial")
    assert list_backups(folder) == ([], {})
    with pytest.raises(NotFoundError):
        find_backup(folder, "latest")
    backup = take_backup(database, folder, Options()).backup
    assert names(folder) == {backup.dump.name, backup.manifest_path.name}


def test_backup_killed_before_its_manifest_counts_for_nothing(
    database: str, folder: Path, recall: Run
) -> None:
    script = (
        "import os; from recall_sql import backup\n"
        "backup.write_manifest = lambda *_: os.kill(os.getpid(), 9)"
    )
    assert recall("backup", script=script).returncode == -9
    (left,) = names(folder)
    assert list_backups(folder) == ([], {left: "it has no manifest"})
    with pytest.raises(NotFoundError):
        find_backup(folder, "latest")
    with pytest.raises(NotFoundError, match="has no manifest"):
        find_backup(folder, left)
    listed = json.loads(recall("backup", "--list", "--json").stdout)
    assert (listed["backups"], listed["no_backups"]) == ([], {left: "it has no manifest"})


def test_stopped_backup_leaves_nothing(folder: Path, recall: Run) -> None:
    what = "os.kill(os.getpid(), signal.SIGTERM)"
    done = recall("backup", script=IN_THE_MIDDLE.format(what=what))
    assert done.returncode == 143, done.stderr
    assert names(folder) == set()


def test_full_disk_leaves_nothing_and_says_where_to_go(folder: Path, recall: Run) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))"
    done = recall("backup", script=limit)
    assert done.returncode == 73
    assert "cannot be written: File too large hint: make room" in errors_of(done)
    assert names(folder) == set()


def test_disk_without_room_is_refused_before_anything_is_written(
    database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "recall_sql.backup.shutil.disk_usage",
        lambda _: type("Usage", (), {"total": 1_000_000_000, "free": 20_100_000})(),
    )
    with pytest.raises(TargetError, match="free, and the backup needs about") as caught:
        take_backup(database, folder, Options())
    assert caught.value.hint and "--to" in caught.value.hint
    assert names(folder) == set()


def test_disk_that_fills_up_meanwhile_ends_the_backup(
    database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def usage(_: Path) -> object:
        asked.append(1)
        free = 900_000_000 if len(asked) == 1 else 1_000_000
        return type("Usage", (), {"total": 1_000_000_000, "free": free})()

    monkeypatch.setattr("recall_sql.backup.shutil.disk_usage", usage)
    monkeypatch.setattr("recall_sql.backup._LOOK_BYTES", 1000)
    with pytest.raises(TargetError, match="was given up"):
        take_backup(database, folder, Options())
    assert names(folder) == set()


def test_folder_that_cannot_be_written_is_told(database: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TargetError, match="cannot be written"):
        take_backup(database, tmp_path / "file" / "backups", Options())


def test_lost_database_leaves_nothing(
    database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = Snapshot.digests

    def lose(self: Snapshot, tables: object) -> object:
        execute(
            database,
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()",
        )
        return digests(self, tables)  # type: ignore[arg-type]

    monkeypatch.setattr(Snapshot, "digests", lose)
    with pytest.raises(StoreError):
        take_backup(database, folder, Options())
    assert names(folder) == set()


def test_failure_of_the_program_is_told_without_stored_text(
    database: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "arguments"
    dump = program(
        tmp_path / "bin" / "pg_dump",
        f"""case "$1" in --version) echo "pg_dump (PostgreSQL) 18.9"; exit 0;; esac
        echo "$@" > {said}; env >> {said}
        echo half
        echo 'pg_dump: detail: nothing' >&2
        echo 'pg_dump: error: a value "of a session, as text" at "message"' >&2; exit 1""",
    )
    monkeypatch.setattr(backup_programs, "_places", lambda _: iter([dump]))
    monkeypatch.setenv("RECALL_TOKEN", "token-canary")
    with pytest.raises(StoreError) as caught:
        take_backup(f"{database}&password=pass-canary", folder, Options())
    assert caught.value.message == '`pg_dump` failed: a value "…"'
    assert names(folder) == set()
    arguments, _, environment = said.read_text().partition("\n")
    assert "pass-canary" not in arguments
    assert "PGPASSWORD=pass-canary" in environment
    assert "token-canary" not in environment


def test_program_that_is_older_than_the_server_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = program(tmp_path / "old" / "pg_dump", 'echo "pg_dump (PostgreSQL) 15.2 (Debian)"')
    newer = program(tmp_path / "new" / "pg_dump", 'echo "pg_dump (PostgreSQL) 19beta1"')
    broken = program(tmp_path / "broken" / "pg_dump", "exit 1")
    monkeypatch.setattr(backup_programs, "_places", lambda _: iter([broken, older, newer]))
    assert find_program("pg_dump", 18).path == newer
    assert find_program("pg_dump", 15).path == older
    with pytest.raises(StoreError, match="`pg_dump` 19beta1 is older") as caught:
        find_program("pg_dump", 20)
    assert caught.value.hint and "postgresql-client-20" in caught.value.hint
    monkeypatch.setattr(backup_programs, "_places", lambda _: iter([broken]))
    with pytest.raises(StoreError, match="not installed"):
        find_program("pg_dump", 18)


def test_settings_of_the_url_reach_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c from_environment=1")
    url = "postgresql://me:secret@db.example:5433/recall?sslmode=require"
    env = program_environment(url, {"maintenance_work_mem": "64MB"})
    wanted = {
        "PGHOST": "db.example", "PGPORT": "5433", "PGUSER": "me", "PGPASSWORD": "secret",
        "PGDATABASE": "recall", "PGSSLMODE": "require",
    }  # fmt: skip
    assert {name: env.get(name) for name in wanted} == wanted
    assert env["PGOPTIONS"] == "-c from_environment=1 -c maintenance_work_mem=64MB"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "it said nothing"),
        ("Killed", "Killed"),
        ('pg_restore: error: "recall.message" is "not here"', '"recall.message" is "…"'),
        ('x: error: value "a "text" with quotes" is bad', 'value "…"'),
        ("pg_dump: warning: x\npg_dump: error: lost\nDETAIL: Key (id)=(a text)", "lost"),
    ],
)  # fmt: skip
def test_first_error_is_one_line_of_the_program(said: str, told: str) -> None:
    assert first_error(said) == told


def test_second_backup_does_not_run_beside_the_first(
    database: str, folder: Path, recall: Run
) -> None:
    with folder_lock(folder):
        with pytest.raises(BusyError, match=f"pid {os.getpid()}"):
            take_backup(database, folder, Options())
        done = recall("backup")
    assert done.returncode == 75
    assert "hint: wait for it to end" in errors_of(done)
    assert names(folder) == set()


@pytest.mark.parametrize(
    ("keep", "keep_days", "gone"),
    [
        (7, 1, []),
        (2, 1, [20, 30]),
        (2, 25, [30]),
        (1, 1, [10, 20, 30]),
        (1, 365, []),
    ],
)
def test_retention_lets_go_what_is_beyond_the_count_and_too_old(
    folder: Path, keep: int, keep_days: int, gone: list[int]
) -> None:
    made = {days: old(folder, days) for days in (30, 0, 10, 20)}
    found = outdated(list_backups(folder)[0], keep=keep, keep_days=keep_days, now=NOW)
    assert found == [made[days] for days in gone]


def test_retention_never_lets_go_the_newest_that_was_verified(folder: Path) -> None:
    for days, verified in ((0, False), (10, False), (20, True), (30, True)):
        old(folder, days, verified=verified)
    found = outdated(list_backups(folder)[0], keep=1, keep_days=1, now=NOW)
    assert [(NOW - item.manifest.started_at).days for item in found] == [10, 30]


def test_retention_counts_no_backup_whose_dump_is_gone(folder: Path) -> None:
    old(folder, 0).dump.unlink()
    kept, lost = old(folder, 10), old(folder, 20)
    lost.dump.write_bytes(b"du")
    assert outdated(list_backups(folder)[0], keep=1, keep_days=1, now=NOW) == [lost]
    assert kept.problem is None


def test_backup_deletes_old_ones_and_nothing_else(database: str, folder: Path) -> None:
    old(folder, 40)
    gone = old(folder, 50)
    execute(
        database,
        "insert into recall.backup (started_at, bytes, file, schema_version)"
        " values (now(), 1, %s, 1)",
        gone.manifest.file,
    )
    foreign = {"recall-by-hand.dump", "notes.json", "recall-20200101T000000Z.dump", "recall-x.json"}
    for name in foreign:
        (folder / name).write_text("{}")
    taken = take_backup(database, folder, Options(keep=2, keep_days=10))
    assert taken.deleted == (gone,)
    assert not {gone.dump.name, gone.manifest_path.name} & names(folder)
    assert foreign < names(folder)
    assert len(list_backups(folder)[0]) == 2
    assert fetch(database, "select file from recall.backup") == [(taken.backup.manifest.file,)]


def test_manifest_can_name_no_file_but_its_own(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim.dump"
    victim.write_bytes(b"dump")
    backup = old(folder, 40)
    data = json.loads(backup.manifest_path.read_text())
    backup.manifest_path.write_text(json.dumps({**data, "file": "../victim.dump"}))
    found, others = list_backups(folder)
    assert found == []
    assert others[backup.manifest_path.name] == "this is not a manifest of a backup"
    with pytest.raises(DamagedError, match="not a manifest"):
        find_backup(folder, backup.manifest.file)
    assert victim.exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"format": "recall-backup-1"}', '{"format": "other"}', "[" * 9999],
)
def test_file_that_is_no_manifest_is_refused(folder: Path, text: str) -> None:
    backup = old(folder, 1)
    backup.manifest_path.write_text(text)
    with pytest.raises(DamagedError, match="not a manifest"):
        find_backup(folder, backup.manifest.file)


def test_manifest_comes_back_as_it_was_written(folder: Path) -> None:
    backup = old(folder, 1)
    assert find_backup(folder, backup.manifest.file) == backup
    assert find_backup(folder, str(backup.dump)) == backup
    assert find_backup(folder, str(backup.manifest_path)) == backup
    assert mark_verified(backup, NOW).manifest == replace(backup.manifest, verified_at=NOW)
    assert find_backup(folder, "latest").manifest.verified_at == NOW
    assert names(folder) == {backup.dump.name, backup.manifest_path.name}


def test_damage_of_a_file_is_found(folder: Path) -> None:
    backup = old(folder, 1)
    check_whole(backup)
    backup.dump.write_bytes(b"dumb")
    with pytest.raises(DamagedError, match="its checksum is not that of the manifest"):
        check_whole(backup)
    backup.dump.write_bytes(b"dum")
    with pytest.raises(DamagedError, match="it has 3 bytes and not 4"):
        check_whole(backup)
    backup.dump.unlink()
    with pytest.raises(DamagedError, match="is missing"):
        check_whole(backup)
    delete_backup(backup)
    assert names(folder) == set()


def test_list_tells_age_size_and_proof(recall: Run, folder: Path) -> None:
    good, bad = old(folder, 1, verified=True), old(folder, 2)
    bad.dump.write_bytes(b"du")
    (folder / "recall-lost.dump").touch()
    listed = json.loads(recall("backup", "--list", "--json").stdout)
    assert [item["file"] for item in listed["backups"]] == [good.manifest.file, bad.manifest.file]
    assert [item["problem"] for item in listed["backups"]] == [None, "the dump has another length"]
    assert listed["backups"][0]["verified_at"] and listed["backups"][0]["age_seconds"] > 0
    done = recall("backup", "--list")
    assert done.returncode == 0, done.stderr
    assert "the dump has another length" in done.stdout
    assert "`recall-lost.dump`: it has no manifest" in done.stderr


def test_list_of_a_folder_that_is_not_there_is_empty(recall: Run) -> None:
    done = recall("backup", "--list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "0 backups in" in done.stderr


def test_loop_waits_for_its_time(folder: Path) -> None:
    def seconds(hours: float) -> float:
        return backup_command.seconds_until_due(folder, timedelta(hours=hours), NOW)

    assert seconds(24) == 0
    old(folder, -1)  # a clock that went wrong must not stop the backups
    assert seconds(24) == 0
    old(folder, 0.75)
    assert seconds(24) == 6 * 3600
    assert seconds(12) < 0
    old(folder, 0.25).dump.unlink()  # one that is not there was none
    assert seconds(24) == 6 * 3600


def test_a_proof_is_due_when_none_is_young_enough(folder: Path) -> None:
    def due(days: float | None) -> bool:
        return backup_command.is_proof_due(folder, days, NOW)

    assert not due(None)
    assert due(7)
    old(folder, 1)  # never proven
    assert due(7)
    mark_verified(old(folder, 3), NOW - timedelta(days=3))
    assert not due(7)
    assert due(2)
    assert due(3)


class Over(BaseException):
    """The test has seen enough."""


def test_loop_goes_on_after_a_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited: list[float] = []
    outcomes: list[Callable[[], object]] = [
        lambda: (_ for _ in ()).throw(BusyError("another one runs")),
        lambda: (_ for _ in ()).throw(TargetError("the disk is full")),
        lambda: old(folder, -((datetime.now(UTC) - NOW) / timedelta(days=1))),
    ]

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if not outcomes:
            raise Over

    def one() -> None:
        outcomes.pop(0)()

    monkeypatch.setattr("recall.cli.backup.time.sleep", sleep)
    with pytest.raises(Over):
        backup_command._repeat(folder, timedelta(hours=1), one)
    assert waited == [300.0, 600.0, 60.0]
    said = capsys.readouterr().err
    assert "another one runs" in said and "the disk is full" in said


def test_machine_that_feeds_a_server_has_nothing_to_back_up(recall: Run) -> None:
    for arguments in (["backup"], ["restore-backup", "--verify"]):
        done = recall(*arguments, RECALL_URL="http://server.example:7717")
        assert done.returncode == 2
        assert "where the database is" in errors_of(done)


def test_home_without_a_database_has_nothing_to_back_up(home: Path) -> None:
    done = command(home, ["backup"], {})
    assert done.returncode == 4
    assert "nothing has been ingested yet" in errors_of(done)
    assert not (home / "pg").exists()
