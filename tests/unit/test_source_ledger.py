"""A work ledger: which rows come, as what, and what is said about a table that does not fit."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.errors import SourceError
from recall.hygiene import clean_json
from recall.records import Note, Parsed
from recall_ingester.sources.ledger import Ledger, LedgerTable

USUAL = """
create table ledger (
    id integer primary key, session_id text, created_at text, project text, title text,
    summary text, outcome text, cost real
)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def opened(path: Path, table: str = "ledger", *columns: str) -> Iterator[tuple[Ledger, Any]]:
    source = Ledger(path, table, columns)
    (file,) = source.discover(path)
    with source.open_table(file) as found:
        yield source, found


def rows(path: Path, table: str = "ledger", *columns: str) -> list[tuple[int, bytes]]:
    for _, found in opened(path, table, *columns):
        assert isinstance(found, LedgerTable)
        return found.rows(None, 100)
    raise AssertionError


def parse(value: dict[str, Any], *columns: str) -> Parsed:
    source = Ledger(Path("x.db"), "ledger", columns)
    (file,) = source.discover(Path("x.db"))
    return source.parser(file, "", None).record(value, 3)


def note(value: dict[str, Any], *columns: str) -> Note:
    (found,) = parse(value, *columns).notes
    return found


def failure(path: Path, table: str = "ledger", *columns: str) -> SourceError:
    with pytest.raises(SourceError) as error:
        rows(path, table, *columns)
    return error.value


def test_row_becomes_an_entry(path: Path) -> None:
    execute(
        path,
        USUAL,
        "insert into ledger values (7, 's1', '2026-03-02T10:00:00Z', '/src/app', 'Cache', "
        "'Made the cache\nfaster', 'merged', 1.5)",
    )
    ((number, line),) = rows(path)
    assert number == 7
    assert line.endswith(b"\n")
    found = note(json.loads(line))
    assert found == Note(
        "ledger",
        "7",
        "Made the cache\nfaster",
        title="Cache",
        ts=datetime(2026, 3, 2, 10, tzinfo=UTC),
        session_id="s1",
        project="/src/app",
        fields={"outcome": "merged", "cost": 1.5},
    )


def test_rows_come_in_pages_by_id_from_the_lowest_on(path: Path) -> None:
    execute(
        path, USUAL,
        *(f"insert into ledger (id, summary) values ({n}, 'x{n}')" for n in (5, -3, 0, 9)),
    )  # fmt: skip
    for _, table in opened(path):
        assert table.max_id() == 9
        assert [number for number, _ in table.rows(None, 3)] == [-3, 0, 5]
        assert [number for number, _ in table.rows(5, 3)] == [9]
        assert table.rows(9, 3) == []


def test_empty_table_has_no_highest_id(path: Path) -> None:
    execute(path, USUAL)
    for _, table in opened(path):
        assert table.max_id() is None
        assert table.columns[:2] == ("id", "session_id")


def test_row_that_is_not_committed_is_not_read(path: Path) -> None:
    execute(path, "pragma journal_mode = wal", USUAL, "insert into ledger (summary) values ('a')")
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("insert into ledger (summary) values ('b')")
        assert [number for number, _ in rows(path)] == [1]
        writer.commit()
        assert [number for number, _ in rows(path)] == [1, 2]


def test_names_of_table_and_columns_are_quoted(path: Path) -> None:
    execute(
        path,
        'create table "my ""log; drop" ("the ""id" integer primary key, "what, when" text)',
        'insert into "my ""log; drop" values (1, \'did it\')',
    )
    table, columns = 'my "log; drop', ('id=the "id', "summary=what, when")
    ((_, line),) = rows(path, table, *columns)
    assert note(json.loads(line), *columns).text == "did it"


def test_columns_are_found_whatever_their_case(path: Path) -> None:
    execute(path, "create table Ledger (ID integer primary key, Summary text, Author text)",
            "insert into Ledger values (1, 'done', 'me')")  # fmt: skip
    ((_, line),) = rows(path)
    found = note(json.loads(line))
    assert (found.key, found.text, found.fields) == ("1", "done", {"Author": "me"})


def test_missing_table_is_named_with_its_setting(path: Path) -> None:
    execute(path, USUAL)
    error = failure(path, "work")
    assert "`work`" in error.message
    assert "ledger_table" in error.message


def test_missing_columns_are_named_with_their_setting(path: Path) -> None:
    execute(path, "create table ledger (id integer primary key, notes text)")
    assert "`summary`" in failure(path).message
    error = failure(path, "ledger", "summary=notes", "title=headline")
    assert "`headline`" in error.message
    assert "ledger_columns" in error.message
    assert error.hint == "its columns: id, notes"
    assert rows(path, "ledger", "summary=notes") == []


@pytest.mark.parametrize("values", [("'a'",), ("null",), ("1", "1"), ("1.5",)])
def test_ids_that_give_no_order_are_refused(path: Path, values: tuple[str, ...]) -> None:
    execute(path, "create table ledger (id, summary text)",
            *(f"insert into ledger values ({value}, 'x')" for value in values))  # fmt: skip
    assert "`id`" in failure(path).message


def test_file_that_is_no_database_is_an_error(path: Path) -> None:
    path.write_bytes(b"hello, this is text" * 100)
    failure(path)


def test_folder_is_reported(tmp_path: Path) -> None:
    source = Ledger(tmp_path)
    assert list(source.discover(tmp_path)) == []
    assert "ledger_path" in source.unreadable[tmp_path]


def test_no_setting_no_root(tmp_path: Path) -> None:
    assert Ledger().roots({}, tmp_path) == []
    assert Ledger(tmp_path / "l.db").roots({}, tmp_path) == [tmp_path / "l.db"]


def test_write_ahead_log_is_a_companion(path: Path) -> None:
    execute(path, USUAL)
    (file,) = Ledger(path).discover(path)
    assert file.companions == (path.with_name("work.db-wal"),)
    assert (file.shape, file.owns_session) == ("table", False)


def test_binary_columns_keep_their_text_and_their_bytes(path: Path) -> None:
    execute(
        path,
        "create table ledger (id integer primary key, summary text, data blob, note blob, "
        "odd text)",
        "insert into ledger values "
        "(1, 'x', x'00ff00fe', cast('{\"a\":\"ü\"}' as blob), "
        "cast(x'6f6464ff6f6464206f6464206f6464' as text))",
    )
    ((_, line),) = rows(path)
    assert json.loads(line)["data"] == {"base64": "AP8A/g=="}
    fields = note(json.loads(line)).fields
    assert fields["data"].startswith("[binary, 4 bytes, sha256 ")
    assert fields["note"] == '{"a":"ü"}'
    assert fields["odd"] == "odd\ufffdodd odd odd"


def test_entry_without_summary_shows_what_else_it_says() -> None:
    found = note({"id": 1, "summary": None, "title": "T", "outcome": "merged", "cost": 2})
    assert (found.text, found.title) == ("outcome: merged", "T")
    assert note({"id": 1, "summary": "", "title": "Only this"}).text == "Only this"
    assert parse({"id": 1, "summary": " ", "cost": 2}).skipped == "no text"


def test_time_that_is_none_is_kept_as_it_was_written() -> None:
    found = note({"id": 1, "summary": "x", "created_at": "last Tuesday"})
    assert (found.ts, found.fields) == (None, {"created_at": "last Tuesday"})


def test_role_can_be_switched_off() -> None:
    found = note({"id": 1, "summary": "x", "title": "y"}, "title=")
    assert (found.title, found.fields) == (None, {"title": "y"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(["id", "summary", "title", "created_at", "session_id", "project", "more"])


@given(st.dictionaries(NAMES, JSON | st.builds(lambda v: {"base64": v}, JSON)))
def test_any_row_gives_entries_that_the_store_accepts(value: dict[str, Any]) -> None:
    for found in parse(value).notes:
        assert found.text.strip()
        json.dumps(clean_json(found.fields), allow_nan=False)


CELLS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary()


@given(st.lists(CELLS, min_size=6, max_size=6))
def test_any_cell_can_be_read_the_same_way_twice(cells: list[Any]) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create table t (id integer primary key, a, b, c, d, e, f)")
        try:
            connection.execute("insert into t values (1, ?, ?, ?, ?, ?, ?)", cells)
        except UnicodeEncodeError:  # a lone surrogate, which SQLite cannot hold
            return
        image = connection.serialize()
    assert_same_lines(image)


def assert_same_lines(image: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.db"
        path.write_bytes(image)
        first = rows(path, "t", "summary=a")
        assert first == rows(path, "t", "summary=a")
        parse(json.loads(first[0][1]), "summary=a")
