"""Restoring backups: the proof of one, a new database, an old schema, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from recall.cli.backup_proof import Proof, look_for_canaries, prove
from recall.config import Settings
from recall.errors import BusyError, DamagedError, SchemaError, StoreError, TargetError
from recall.identity import load_identity
from recall_sql.backup import Options, take_backup
from recall_sql.backup_databases import scratch_database
from recall_sql.backup_manifest import (
    Backup,
    Extension,
    Role,
    TableDigest,
    find_backup,
    write_manifest,
)
from recall_sql.backup_restore import check_server
from recall_sql.backup_scratch import open_scratch, own_strength, require_room
from recall_sql.connection import connect
from recall_sql.embedded import EmbeddedServer
from recall_sql.migrate import current_version, latest_version, migrate, packaged_migrations
from tests.db.backup_store import (
    KEY,
    RARE,
    Done,
    Run,
    command,
    count,
    databases,
    drain,
    errors_of,
    everything,
    execute,
    fill,
    named,
)
from tests.db.embedding import check_store, fetch, passages
from tests.db.search_store import searching
from tests.db.serving import Store

OLD_SCHEMA = 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backups"


@pytest.fixture
def filled(database: str) -> str:
    fill(database)
    return database


@pytest.fixture
def backup(filled: str, folder: Path) -> Backup:
    return take_backup(filled, folder, Options()).backup


@pytest.fixture
def recall(home: Path, folder: Path) -> Callable[..., Done]:
    """Runs the command on a database."""

    def run(url: str, *arguments: object, script: str = "", **more: str) -> Done:
        env = {"RECALL_DATABASE_URL": url, "RECALL_BACKUP_DIR": str(folder)} | more
        return command(home, list(map(str, arguments)), env, script)

    return run


def settings_for(home: Path, url: str) -> Settings:
    return Settings(home=home, database_url=url, embed_model="hash-model")


def rewrite(backup: Backup, data: bytes) -> Backup:
    """The same manifest over another dump: damage from before the checksum was made."""
    backup.dump.write_bytes(data)
    manifest = replace(backup.manifest, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    return write_manifest(backup.folder, manifest)


def test_proof_looks_at_every_row_and_searches_in_every_mode(
    backup: Backup, filled: str, home: Path
) -> None:
    before = databases(filled)
    proof: Proof = prove(settings_for(home, filled), backup)
    assert proof.found == {"exact": 3, "text": 3, "semantic": 1}
    assert proof.skipped == {}
    assert proof.rows == sum(table.rows for table in backup.manifest.tables.values())
    assert proof.backup.manifest.verified_at is not None
    assert find_backup(backup.folder, "latest") == proof.backup
    assert databases(filled) == before


def test_command_proves_and_tells_the_metrics(filled: str, recall: Run) -> None:
    done = recall(filled, "backup", "--verify", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["verified_at"] == told["proof"]["verified_at"] is not None
    assert told["proof"]["found"] == {"exact": 3, "text": 3, "semantic": 1}
    rows = fetch(filled, "select file, verified_at is not null from recall.backup")
    assert rows == [(told["file"], True)]
    done = recall(filled, "restore-backup", "--verify")
    assert done.returncode == 0, done.stderr
    assert "is good" in done.stdout


def test_empty_store_can_be_proven(database: str, folder: Path, home: Path) -> None:
    proof = prove(settings_for(home, database), take_backup(database, folder, Options()).backup)
    assert proof.found == {"exact": 0, "text": 0, "semantic": 0}
    assert set(proof.skipped) == {"exact", "text", "semantic"}


@pytest.mark.parametrize("damage", ["flipped", "truncated", "other checksum", "gone"])
def test_damaged_file_is_not_proven(backup: Backup, filled: str, recall: Run, damage: str) -> None:
    data = backup.dump.read_bytes()
    if damage == "flipped":
        backup.dump.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    elif damage == "truncated":
        backup.dump.write_bytes(data[:-100])
    elif damage == "gone":
        backup.dump.unlink()
    else:
        write_manifest(backup.folder, replace(backup.manifest, sha256="0" * 64))
    before = databases(filled)
    done = recall(filled, "restore-backup", backup.manifest.file, "--verify")
    assert done.returncode == 65
    assert done.stdout == ""
    assert backup.manifest.file in errors_of(done)
    assert json.loads(backup.manifest_path.read_text())["verified_at"] is None
    assert databases(filled) == before


def test_dump_that_was_damaged_before_its_checksum_is_not_proven(
    backup: Backup, filled: str, home: Path
) -> None:
    data = backup.dump.read_bytes()
    before = databases(filled)
    half = len(data) * 9 // 10
    for broken in (data[:half], data[:half] + bytes(100) + data[half + 100 :], b"no dump"):
        with pytest.raises(DamagedError) as caught:
            prove(settings_for(home, filled), rewrite(backup, broken))
        assert RARE not in caught.value.message
    assert databases(filled) == before
    assert find_backup(backup.folder, "latest").manifest.verified_at is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (TableDigest(3, "0"), r"`recall.message` has 16 rows after the restore, and had 3"),
        (TableDigest(16, "0"), r"rows of `recall.message` are not what they were"),
    ],
)
def test_rows_that_differ_from_the_manifest_are_found(
    backup: Backup, filled: str, home: Path, change: TableDigest, told: str
) -> None:
    tables = {**backup.manifest.tables, "recall.message": change}
    other = write_manifest(backup.folder, replace(backup.manifest, tables=tables))
    with pytest.raises(DamagedError, match=told):
        prove(settings_for(home, filled), other)
    tables = {**backup.manifest.tables, "recall.lost": TableDigest(0, "0")}
    other = write_manifest(backup.folder, replace(backup.manifest, tables=tables))
    with pytest.raises(DamagedError, match=r"lacks the table `recall.lost`"):
        prove(settings_for(home, filled), other)


def test_search_that_does_not_find_what_is_there_proves_damage(
    filled: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = {"hits": [], "degraded": False, "next_cursor": None}
    monkeypatch.setattr("recall_api.search.search", lambda *_, **__: nothing)
    with pytest.raises(DamagedError, match=r"a search \(exact\) .* does not find entry"):
        look_for_canaries(filled, settings_for(home, filled))


def test_restore_into_an_empty_database_brings_everything_back(
    backup: Backup, filled: str, empty_database: str, recall: Run
) -> None:
    name = fetch(empty_database, "select current_database()")[0][0]
    execute(empty_database, f"alter database {name} set work_mem = '7MB'")
    before = databases(filled)
    done = recall(empty_database, "restore-backup", backup.dump, "--into-empty", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["kept_as"], told["identity"], told["vectors"]) == (None, None, True)
    assert databases(filled) == before
    assert everything(empty_database) == everything(filled)
    assert fetch(empty_database, "show work_mem") == [("7MB",)]
    assert fetch(empty_database, "select file from recall.backup") == [(backup.manifest.file,)]
    assert fetch(
        empty_database,
        "select has_table_privilege('recall_anon', 'recall.token', 'select'),"
        " has_function_privilege('recall_writer', 'api.check_request()', 'execute')",
    ) == [(False, True)]
    with searching(empty_database) as messages:
        for mode in ("exact", "text"):
            assert messages.contents(RARE, mode=mode)
    done = recall(empty_database, "search", RARE, "--json")
    assert json.loads(done.stdout)["hits"][0]["session_key"] == KEY


def test_restore_into_a_store_that_holds_nothing_yet(
    backup: Backup, filled: str, new_database: Callable[..., str], template: str, recall: Run
) -> None:
    """What a server writes into a new database by itself is no reason to refuse."""
    fresh = new_database(template)
    Store(fresh).beat()
    assert recall(fresh, "restore-backup", "--into-empty").returncode == 0
    assert everything(fresh) == everything(filled)


def test_restore_makes_a_database_that_is_not_there(
    backup: Backup, filled: str, empty_database: str, recall: Run
) -> None:
    name = fetch(empty_database, "select current_database()")[0][0]
    execute(filled, f"drop database {name} with (force)")
    done = recall(empty_database, "restore-backup", "--into-empty")
    assert done.returncode == 0, done.stderr
    assert everything(empty_database) == everything(filled)


def test_store_with_content_is_replaced_only_on_request_and_kept(
    backup: Backup, filled: str, new_database: Callable[..., str], template: str, recall: Run
) -> None:
    other = new_database(template)
    Store(other).add_session("cccc3333", ["something else"])
    done = recall(other, "restore-backup", "--into-empty")
    assert done.returncode == 73
    assert "is not empty: it has rows in `recall.session` hint: `--replace`" in errors_of(done)
    done = recall(other, "restore-backup", "--replace")
    assert done.returncode == 2
    assert "nobody can be asked here" in errors_of(done)
    assert count(other, "recall.session") == 1
    done = recall(other, "restore-backup", "--replace", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    kept = named(other, json.loads(done.stdout)["kept_as"])
    assert everything(other) == everything(filled)
    assert fetch(kept, "select content from recall.message") == [("something else",)]
    execute(other, f"drop database {json.loads(done.stdout)['kept_as']} with (force)")


def test_tables_of_somebody_else_are_not_replaced_unasked(
    backup: Backup, empty_database: str, recall: Run
) -> None:
    execute(empty_database, "create table public.invoices (n integer)")
    done = recall(empty_database, "restore-backup", "--into-empty")
    assert done.returncode == 73
    assert "it has 1 tables that are not of Recall" in errors_of(done)


def test_database_in_use_is_left_alone(
    backup: Backup, filled: str, empty_database: str, recall: Run
) -> None:
    before = databases(filled)
    with connect(empty_database, application="somebody"):
        done = recall(empty_database, "restore-backup", "--into-empty")
    assert done.returncode == 75
    assert "is in use: `somebody` (1)" in errors_of(done)
    assert databases(filled) == before


def test_database_that_comes_into_use_meanwhile_is_as_it_was(
    backup: Backup, filled: str, new_database: Callable[..., str], template: str, home: Path
) -> None:
    from recall_sql.backup_databases import find_target, take_place

    other = new_database(template)
    target, before = find_target(other), databases(filled)
    with (
        scratch_database(other, "restore") as scratch,
        connect(other),
        pytest.raises(BusyError, match="is in use"),
    ):
        take_place(target, scratch, keep_as=None)
    assert databases(filled) == before
    assert count(other, "recall.session") == 0


def test_backup_of_a_newer_recall_is_refused_before_anything_is_touched(
    backup: Backup, filled: str, empty_database: str, recall: Run
) -> None:
    write_manifest(backup.folder, replace(backup.manifest, schema_version=9999))
    backup.dump.write_bytes(b"not even read")
    before = databases(filled)
    for what in ("--verify", "--into-empty"):
        done = recall(empty_database, "restore-backup", what)
        assert done.returncode == 69
        assert errors_of(done) == (
            "error: this backup was written by a newer Recall (schema 9999, this version knows "
            f"{latest_version()}) hint: upgrade recall"
        )
    assert databases(filled) == before
    assert fetch(empty_database, "select to_regnamespace('recall') is null") == [(True,)]


def test_server_that_is_too_old_is_refused(backup: Backup, filled: str) -> None:
    with pytest.raises(StoreError, match=r"is of PostgreSQL 99.1, and this server is 18"):
        check_server(filled, replace(backup.manifest, postgresql="99.1", postgresql_major=99))
    vector = Extension("vector", "99.0", "recall")
    with pytest.raises(StoreError, match=r"needs pgvector 99.0"):
        check_server(filled, replace(backup.manifest, extensions=(vector,)))
    with pytest.raises(StoreError, match=r"`pg_restore` .* is older"):
        check_server(filled, replace(backup.manifest, pg_dump="99.1"))
    check_server(filled, backup.manifest)


def test_one_of_three_purposes_has_to_be_named(filled: str, recall: Run) -> None:
    for arguments in ([], ["--verify", "--into-empty"], ["--into-empty", "--replace"]):
        done = recall(filled, "restore-backup", *arguments)
        assert done.returncode == 2
        assert "say what for: --verify, --into-empty or --replace" in errors_of(done)


def test_backup_that_is_not_there_is_told(filled: str, recall: Run) -> None:
    for name in ("latest", "recall-20200101T000000Z.dump", "/nowhere/x.dump"):
        assert recall(filled, "restore-backup", name, "--verify").returncode == 4


def test_vectors_that_were_left_out_are_made_again(
    filled: str, folder: Path, empty_database: str, recall: Run, home: Path
) -> None:
    backup = take_backup(filled, folder, Options(vectors=False)).backup
    proof = prove(settings_for(home, filled), backup)
    assert proof.skipped == {"semantic": "no vectors, or none of a text that stands only once"}
    done = recall(empty_database, "restore-backup", "--into-empty")
    assert done.returncode == 0, done.stderr
    assert "made again by the embedder" in done.stderr
    assert count(empty_database, "recall.passage") == 0
    drain(empty_database)
    assert passages(empty_database) == passages(filled) != []
    check_store(empty_database)


def test_restore_by_another_role_makes_the_roles_that_are_missing(
    backup: Backup, filled: str, empty_database: str, recall: Run
) -> None:
    """Dumps travel between servers whose administrators have other names."""
    suffix = os.urandom(4).hex()
    lost = Role(f"recall_lost_{suffix}", False, True, ("statement_timeout=9s",), ())
    member = Role(f"recall_a_{suffix}", True, False, (), (lost.name,))
    manifest = replace(backup.manifest, roles=(*backup.manifest.roles, member, lost))
    write_manifest(backup.folder, manifest)
    other = f"other_{suffix}"
    execute(filled, f"create role {other} superuser login")
    name = fetch(empty_database, "select current_database()")[0][0]
    execute(filled, f"alter database {name} owner to {other}")
    try:
        url = empty_database.replace("user=recall", f"user={other}")
        done = recall(url, "restore-backup", "--into-empty")
        assert done.returncode == 0, done.stderr
        assert everything(empty_database) == everything(filled)
        owners = fetch(
            empty_database,
            "select distinct pg_get_userbyid(relowner)::text from pg_class"
            " where relnamespace = 'recall'::regnamespace",
        )
        assert owners == [(other,)]
        assert fetch(
            filled,
            "select rolname::text, rolcanlogin, rolinherit, rolconfig from pg_roles"
            " where rolname = any(%s) order by 1",
            [lost.name, member.name],
        ) == [(member.name, True, False, None), (lost.name, False, True, ["statement_timeout=9s"])]
        assert fetch(filled, "select pg_has_role(%s, %s, 'member')", member.name, lost.name) == [
            (True,)
        ]
    finally:
        execute(filled, f"drop database {name} with (force)")
        execute(filled, f"drop role {other}")
        execute(filled, f"drop role {member.name}, {lost.name}")
        execute(filled, f"create database {name}")  # what made it also drops it


def test_role_without_the_right_to_make_databases_is_told_so(
    backup: Backup, filled: str, empty_database: str, recall: Run
) -> None:
    other = f"weak_{os.urandom(4).hex()}"
    execute(filled, f"create role {other} login")
    try:
        url = empty_database.replace("user=recall", f"user={other}")
        done = recall(url, "restore-backup", "--into-empty")
        assert done.returncode == 69
        assert "may not make databases" in errors_of(done)
    finally:
        execute(filled, f"drop role {other}")


def test_what_killed_restores_left_is_dropped_and_nothing_else(filled: str) -> None:
    left = f"recall_verify_{os.urandom(6).hex()}"
    used = f"recall_restore_{os.urandom(6).hex()}"
    lookalike = f"recall_verify_{os.urandom(6).hex()}"
    for name in (left, used, lookalike):
        execute(filled, f"create database {name}")
    for name in (left, used):
        execute(filled, f"comment on database {name} is 'scratch of recall restore-backup'")
    try:
        with connect(named(filled, used)), scratch_database(filled, "verify") as scratch:
            now = databases(filled)
            assert {used, lookalike, scratch.name} <= now
            assert left not in now
        assert scratch.name not in databases(filled)
    finally:
        for name in (used, lookalike):
            execute(filled, f"drop database {name} with (force)")


def test_killed_restore_changes_nothing_and_can_be_repeated(
    backup: Backup, filled: str, empty_database: str, recall: Run
) -> None:
    script = (
        "import os; from recall_sql import backup_restore\n"
        "backup_restore.compare = lambda *_: os.kill(os.getpid(), 9)"
    )
    before = databases(filled)
    done = recall(empty_database, "restore-backup", "--into-empty", script=script)
    assert done.returncode == -9
    (left,) = databases(filled) - before
    assert left.startswith("recall_restore_")
    assert fetch(empty_database, "select to_regnamespace('recall') is null") == [(True,)]
    # The server notices that the client is gone; the database is free then.
    execute(
        filled,
        "select pg_terminate_backend(pid, 60000) from pg_stat_activity where datname = %s",
        left,
    )
    assert recall(empty_database, "restore-backup", "--into-empty").returncode == 0
    assert databases(filled) == before
    assert everything(empty_database) == everything(filled)


def test_store_of_an_old_version_opens_under_this_one(
    empty_database: str, new_database: Callable[..., str], folder: Path, recall: Run
) -> None:
    old = empty_database
    assert migrate(old, packaged_migrations()[:OLD_SCHEMA]) == list(range(1, OLD_SCHEMA + 1))
    fill(old)
    before = everything(old)
    done = recall(old, "backup", "--verify", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["schema_version"], told["recorded"]) == (OLD_SCHEMA, False)
    with connect(old) as connection:
        assert current_version(connection) == OLD_SCHEMA
    new = new_database()
    done = recall(new, "restore-backup", "--into-empty")
    assert done.returncode == 0, done.stderr
    assert f"schema brought from version {OLD_SCHEMA} to {latest_version()}" in done.stderr
    after = everything(new)
    for table, rows in before.items():
        assert len(after[table]) == len(rows), table
    assert after["message"] == before["message"]
    assert after["raw_blob"] == before["raw_blob"]
    for mode in ("exact", "text", "hybrid"):
        done = recall(new, "search", RARE, "--mode", mode, "--json")
        assert json.loads(done.stdout)["hits"][0]["session_key"] == KEY, mode
    assert fetch(new, "select verified_at is not null from recall.backup") == [(True,)]


COMMANDS = [
    ["search", "x"],
    ["sessions"],
    ["show", "x"],
    ["status"],
    ["ledger"],
    ["memories"],
    ["ingest", "--once"],
    ["embedder", "--once"],
    ["reembed"],
    ["restore", "x"],
    ["verify"],
    ["reparse"],
    ["purge", "--source", "sample", "--yes"],
    ["backup"],
    ["db", "migrate"],
    ["db", "size"],
    ["token", "list"],
]


@pytest.mark.timeout(300)
def test_store_of_a_newer_version_is_refused_by_every_command(database: str, recall: Run) -> None:
    execute(database, "insert into recall.schema_version values (9999, 'later', 'x')")
    line = (
        "error: this database was written by a newer Recall (schema 9999, this version knows "
        f"{latest_version()}) hint: upgrade recall"
    )
    refused = {}
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for arguments in COMMANDS:
            done = recall(database, *arguments, RECALL_EMBED_LISTEN=taken)
            refused[" ".join(arguments)] = (done.returncode, done.stdout, errors_of(done))
    assert refused == {" ".join(arguments): (69, "", line) for arguments in COMMANDS}


def test_disk_without_room_for_the_restored_database_is_told(
    backup: Backup, tmp_path: Path
) -> None:
    require_room(tmp_path, backup.manifest)
    with pytest.raises(TargetError, match="the restored database needs about") as caught:
        require_room(tmp_path, replace(backup.manifest, database_bytes=1 << 60))
    assert caught.value.hint and "--scratch" in caught.value.hint


def test_server_without_room_for_the_scratch_database_is_told_before_it_is_made(
    backup: Backup, database: str, home: Path, tmp_path: Path
) -> None:
    huge = replace(backup.manifest, database_bytes=1 << 60)
    settings = replace(settings_for(home, database), database_volume=tmp_path)
    with (
        pytest.raises(TargetError, match="the restored database needs about") as caught,
        open_scratch(settings, huge),
    ):
        pytest.fail("it was made")
    assert caught.value.hint == "make room there"


def test_schema_error_is_what_a_newer_backup_raises(backup: Backup, home: Path) -> None:
    newer = write_manifest(backup.folder, replace(backup.manifest, schema_version=9999))
    with pytest.raises(SchemaError, match="newer Recall"):
        prove(settings_for(home, "postgresql://nobody.example/none"), newer)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_home_is_backed_up_lost_and_restored(home: Path, tmp_path: Path) -> None:
    """Without a server of its own: the embedded database, and a scratch cluster for the proof."""
    load_identity(home, host="laptop")
    server = EmbeddedServer(home)
    server.start()
    try:
        migrate(server.url)
        fill(server.url)
        before = everything(server.url)
    finally:
        server.stop()
    left = home / "recall-scratch"  # what a proof that was killed left: a server that still runs
    EmbeddedServer(left).start()
    env = {"RECALL_BACKUP_DIR": str(tmp_path / "backups")}
    done = command(home, ["backup", "--verify", "--json"], env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["proof"]["found"] == {"exact": 3, "text": 3, "semantic": 1}
    assert not left.exists()
    assert not server.is_running()
    new_home = tmp_path / "new"
    done = command(new_home, ["restore-backup", "--into-empty"], env)
    assert done.returncode == 0, done.stderr
    assert load_identity(new_home) == load_identity(home)
    restored = EmbeddedServer(new_home)
    restored.start()
    try:
        assert everything(restored.url) == before
    finally:
        restored.stop()
    done = command(new_home, ["search", RARE, "--json"], env)
    assert json.loads(done.stdout)["hits"][0]["session_key"] == KEY


def test_strength_fits_the_machine() -> None:
    own = own_strength()
    assert own.jobs >= 1
    assert 64 << 20 <= own.memory_bytes <= 2 << 30
    assert own.options()["max_parallel_maintenance_workers"] == "0"
