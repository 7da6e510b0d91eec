"""Reading databases that their clients write, without leaving a trace."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from recall.errors import SourceError
from recall_ingester.sqlite_reader import json_value, open_live

#: A client in a process of its own: runs the statements of each line, answers with their rows.
_CLIENT = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0.2)
for line in sys.stdin:
    try:
        rows = [connection.execute(sql).fetchall() for sql in line.split(";") if sql.strip()]
        print(rows[-1], flush=True)
    except sqlite3.Error as error:
        print("error", error, flush=True)
"""


class Client:
    """Another process that has a database open."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CLIENT, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, sql: str) -> str:
        assert self.process.stdin
        assert self.process.stdout
        print(sql, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        self.process.communicate(timeout=90)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=90)


Start = Callable[[Path], Client]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[Client] = []

    def make(path: Path) -> Client:
        running.append(Client(path))
        return running[-1]

    yield make
    for client in running:
        if client.process.poll() is None:
            client.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database in a folder whose name needs quoting in a URI."""
    folder = tmp_path / "a client's 100% #1? folder"
    folder.mkdir()
    return folder / "x.db"


def trace(folder: Path) -> dict[str, tuple[int, int, int, str]]:
    """Everything about a folder's files that a reader could change, and the client notice."""
    found = {}
    for file in folder.iterdir():
        status = file.stat()
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        found[file.name] = (status.st_ino, status.st_size, status.st_mtime_ns, digest)
    return found


def count(path: Path) -> int:
    with open_live(path) as database:
        (row,) = database.rows("select count(*) from t")
        return int(row[0])


def with_wal(client: Client, rows: int = 3) -> None:
    client.run("pragma journal_mode = wal; create table t(a)")
    for number in range(rows):
        client.run(f"insert into t values ({number})")


def test_wal_of_a_running_client_is_read_without_a_trace(path: Path, start: Start) -> None:
    client = start(path)
    with_wal(client)
    before = trace(path.parent)
    assert count(path) == 3
    assert trace(path.parent) == before
    assert client.run("insert into t values (1); select count(*) from t") == "[(4,)]"
    assert count(path) == 4


def test_wal_left_behind_by_a_killed_client_is_read_without_a_trace(
    path: Path, start: Start
) -> None:
    client = start(path)
    with_wal(client)
    client.kill()
    before = trace(path.parent)
    assert sorted(before) == ["x.db", "x.db-shm", "x.db-wal"]
    assert count(path) == 3
    assert trace(path.parent) == before


def test_wal_without_shm_is_read_from_a_copy_that_is_removed(
    path: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    client = start(path)
    with_wal(client)
    client.kill()
    path.with_name("x.db-shm").unlink()
    before = trace(path.parent)
    with open_live(path) as database:
        assert list(database.rows("select count(*) from t")) == [(3,)]
        assert list((tmp_path / "temporary").iterdir())
    assert trace(path.parent) == before
    assert not list((tmp_path / "temporary").iterdir())


def test_database_too_large_for_a_copy_says_what_to_do(path: Path, start: Start) -> None:
    client = start(path)
    with_wal(client)
    client.kill()
    path.with_name("x.db-shm").unlink()
    with (
        pytest.raises(SourceError, match="only be read from a copy") as caught,
        open_live(path, copy_limit=1000),
    ):
        pass
    assert caught.value.hint


def test_copy_is_made_again_if_the_client_writes_meanwhile(
    path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    client = start(path)
    with_wal(client)
    client.kill()
    path.with_name("x.db-shm").unlink()
    real, copied = shutil.copyfile, []

    def copy(source: Path, target: str) -> None:
        real(source, target)
        copied.append(source)
        if len(copied) == 1:
            os.utime(path, ns=(1, 1))

    monkeypatch.setattr(shutil, "copyfile", copy)
    assert count(path) == 3
    assert len(copied) == 4


def test_database_that_keeps_changing_while_it_is_copied_is_given_up(
    path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    client = start(path)
    with_wal(client)
    client.kill()
    path.with_name("x.db-shm").unlink()
    real, times = shutil.copyfile, iter(range(1, 100))

    def copy(source: Path, target: str) -> None:
        real(source, target)
        os.utime(path, ns=(1, next(times)))

    monkeypatch.setattr(shutil, "copyfile", copy)
    with pytest.raises(SourceError, match="keeps changing"):
        count(path)


def test_wal_database_whose_client_left_is_read_without_making_files(
    path: Path, start: Start
) -> None:
    client = start(path)
    with_wal(client)
    client.leave()
    before = trace(path.parent)
    assert sorted(before) == ["x.db"]
    assert count(path) == 3
    assert trace(path.parent) == before


@pytest.mark.parametrize("keep_shm", [True, False])
def test_empty_wal_is_read_without_a_trace(path: Path, start: Start, keep_shm: bool) -> None:
    client = start(path)
    with_wal(client)
    client.run("pragma wal_checkpoint(truncate)")
    client.kill()
    if not keep_shm:
        path.with_name("x.db-shm").unlink()
    before = trace(path.parent)
    assert before["x.db-wal"][1] == 0
    assert count(path) == 3
    assert trace(path.parent) == before


def test_client_that_comes_back_to_a_still_database_is_seen(path: Path, start: Start) -> None:
    client = start(path)
    with_wal(client)
    client.leave()
    with open_live(path) as database:
        assert list(database.rows("select count(*) from t")) == [(3,)]
        client = start(path)
        client.run("insert into t values (1)")
        assert list(database.rows("select count(*) from t")) == [(4,)]
        client.run("pragma wal_checkpoint(truncate)")
        client.run("insert into t values (1)")
        assert list(database.rows("select count(*) from t")) == [(5,)]


def test_read_of_a_still_database_that_changed_meanwhile_is_refused(
    path: Path, start: Start
) -> None:
    client = start(path)
    with_wal(client)
    client.leave()
    with (
        open_live(path) as database,
        pytest.raises(SourceError, match="changed while it was read"),
        database.snapshot(),
    ):
        list(database.rows("select count(*) from t"))
        start(path).run("insert into t values (1)")


def test_client_commits_and_checkpoints_between_our_reads(path: Path, start: Start) -> None:
    client = start(path)
    with_wal(client)
    with open_live(path) as database:
        assert list(database.rows("select count(*) from t")) == [(3,)]
        assert client.run("insert into t values (1)") == "[]"
        assert client.run("pragma wal_checkpoint(truncate)") == "[(0, 0, 0)]"
        assert list(database.rows("select count(*) from t")) == [(4,)]
        assert client.run("insert into t values (1)") == "[]"
        assert client.run("pragma wal_checkpoint(truncate)") == "[(0, 0, 0)]"


def test_snapshot_sees_one_state_and_does_not_stop_commits(path: Path, start: Start) -> None:
    client = start(path)
    with_wal(client)
    with open_live(path) as database:
        with database.snapshot():
            assert list(database.rows("select count(*) from t")) == [(3,)]
            assert client.run("insert into t values (1)") == "[]"
            assert list(database.rows("select count(*) from t")) == [(3,)]
        assert list(database.rows("select count(*) from t")) == [(4,)]


def test_transaction_ends_although_the_rows_are_not_all_taken(path: Path, start: Start) -> None:
    client = start(path)
    with_wal(client)
    with open_live(path) as database:
        rows = database.rows("select a from t order by a")
        assert next(rows) == (0,)
        assert client.run("pragma wal_checkpoint(truncate)") == "[(0, 0, 0)]"


def test_rollback_journal_database_is_read_without_a_trace(path: Path, start: Start) -> None:
    client = start(path)
    client.run("create table t(a); insert into t values (1)")
    before = trace(path.parent)
    with open_live(path) as database:
        assert list(database.rows("select count(*) from t")) == [(1,)]
        assert trace(path.parent) == before
        assert client.run("insert into t values (2)") == "[]"
        assert list(database.rows("select count(*) from t")) == [(2,)]


def test_journal_left_by_a_crash_is_rolled_back_in_a_copy_only(path: Path, start: Start) -> None:
    client = start(path)
    client.run("create table t(a); insert into t values (1)")
    client.run(
        "pragma cache_size = 1; begin; update t set a = 2; create table u(a);"
        "insert into u with recursive n(i) as (values (1) union all select i + 1 from n limit 50)"
        " select randomblob(3000) from n"
    )
    client.kill()
    before = trace(path.parent)
    assert "x.db-journal" in before
    with open_live(path) as database:
        assert list(database.rows("select a from t")) == [(1,)]
        assert database.tables() == {"t"}
    assert trace(path.parent) == before


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter. Those of pytest are shut for others, and each run of it
    shuts them again."""
    shared = Path(tempfile.gettempdir()).resolve()
    if not all(folder.stat().st_mode & stat.S_IXOTH for folder in (shared, *shared.parents)):
        pytest.skip("the folder for temporary files is not for everybody here")
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize("end", ["running", "killed", "left", "no shm"])
def test_unprivileged_reader_of_a_read_only_folder(
    open_folder: Path, start: Start, end: str
) -> None:
    path = open_folder / "client" / "x.db"
    path.parent.mkdir()
    client = start(path)
    with_wal(client)
    if end == "left":
        client.leave()
    elif end != "running":
        client.kill()
    if end == "no shm":
        path.with_name("x.db-shm").unlink()
    for file in path.parent.iterdir():
        file.chmod(0o644)
    path.parent.chmod(0o555)
    before = trace(path.parent)
    # The interpreter itself may be readable by nobody else: give up the rights after the imports.
    code = (
        "import os, sys, test_sqlite_reader as t;"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        "print(t.count(t.Path(sys.argv[1])))"
    )
    found = subprocess.run(
        [sys.executable, "-B", "-c", code, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.stdout.strip() == "3", found.stderr
    assert trace(path.parent) == before


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"these are no pages of a database" * 100, "not an SQLite database, or is encrypted"),
        (b"SQLite format 3\x00" + b"\x07" * 5000, "not an SQLite database|is damaged"),
    ],
)
def test_file_that_is_no_database_says_why(path: Path, content: bytes, reason: str) -> None:
    path.write_bytes(content)
    with pytest.raises(SourceError, match=reason):
        count(path)
    assert [file.name for file in path.parent.iterdir()] == ["x.db"]


def test_missing_database_says_so(path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        count(path)
    assert not list(path.parent.iterdir())


def test_damaged_page_says_so_when_it_is_read(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table t(a)")
        connection.executemany("insert into t values (?)", [("x" * 900,)] * 100)
        connection.commit()
    data = bytearray(path.read_bytes())
    data[8192:] = b"\xff" * (len(data) - 8192)
    path.write_bytes(data)
    with open_live(path) as database, pytest.raises(SourceError, match="is damaged"):
        list(database.rows("select a from t"))


def test_locked_database_says_so(path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recall_ingester.sqlite_reader.BUSY_TIMEOUT_SECONDS", 0.05)
    client = start(path)
    client.run("create table t(a); begin exclusive")
    with pytest.raises(SourceError, match="is locked by another process"):
        count(path)


def test_nothing_can_be_written(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table t(a)")
    with open_live(path) as database, pytest.raises(SourceError, match="readonly"):
        list(database.rows("insert into t values (1)"))


def test_secret_tables_are_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table Account_State(token)")
        connection.execute("create table t(a)")
        connection.execute("create view v as select token from account_state")
    with open_live(path, never_read=("account",)) as database:
        assert list(database.rows("select * from t")) == []
        for sql in ("select token from account_state", "select count(*) from account_state"):
            with pytest.raises(SourceError, match="never read"):
                list(database.rows(sql))
        with pytest.raises(SourceError, match="never read"):
            list(database.rows("select * from v"))


def test_text_that_is_not_utf8_and_blobs_come_as_base64(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table t(a, b, c, d, e)")
        connection.execute("insert into t values (cast(x'61ff' as text), x'00ff', 'é', 1, null)")
        connection.commit()
    with open_live(path) as database:
        (row,) = database.rows("select * from t")
    assert [json_value(value) for value in row] == [
        {"base64": "Yf8="},
        {"base64": "AP8="},
        "é",
        1,
        None,
    ]


def test_pages_give_every_row_once_in_short_transactions(path: Path, start: Start) -> None:
    client = start(path)
    with_wal(client, rows=7)
    sql = "select a from t where a > :after and a < :most order by a limit :limit"
    with open_live(path) as database:
        rows = database.pages(sql, {"most": 6}, after=-1, size=2)
        assert next(rows) == (0,)
        assert client.run("pragma wal_checkpoint(truncate)") == "[(0, 0, 0)]"
        assert [a for (a,) in rows] == [1, 2, 3, 4, 5]


def test_snapshot_gives_rows_of_more_than_one_batch(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table t(a)")
        connection.executemany("insert into t values (?)", [(number,) for number in range(1201)])
        connection.commit()
    with open_live(path) as database, database.snapshot():
        assert [a for (a,) in database.rows("select a from t order by a")] == list(range(1201))


def test_columns_come_in_order_and_are_none_for_a_missing_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table t(b, a)")
    with open_live(path) as database:
        assert database.columns("t") == ("b", "a")
        assert database.columns("other") == ()
