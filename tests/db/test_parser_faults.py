"""A fault in the code that reads a client's logs costs the record or the file where it shows."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from recall.records import Parsed
from recall_ingester import faults, loop
from recall_ingester.read_file import FileReader
from recall_ingester.sources.base import Document, SourceFile
from recall_ingester.sources.claude_code import ClaudeCode
from recall_ingester.sources.claude_transcript import TranscriptParser
from recall_ingester.sources.opencode_parser import SessionParser
from tests.db.ingesting import contents, ingest, rows
from tests.db.test_reparse import reparse

SECRET = "the word that only this record has"
REASON = "Recall failed on it (KeyError)"


def line(text: str, number: int) -> bytes:
    record = {
        "type": "user",
        "uuid": f"00000000-0000-4000-8000-{number:012d}",
        "timestamp": f"2026-08-01T09:00:{number:02d}.000Z",
        "message": {"role": "user", "content": text},
    }
    return json.dumps(record).encode() + b"\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "logs" / "projects" / "-srv-shop").mkdir(parents=True)
    return tmp_path / "logs"


def log(root: Path, number: int) -> Path:
    name = f"1111111{number}-2222-4333-8444-555555555555.jsonl"
    return root / "projects" / "-srv-shop" / name


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A parser of transcripts that fails on some records, after it remembered something of them."""
    whole = TranscriptParser.record

    def record(self: TranscriptParser, value: Mapping[str, Any], ordinal: int) -> Parsed:
        parsed = whole(self, value, ordinal)
        if SECRET in str(value):
            raise KeyError(SECRET)
        return parsed

    monkeypatch.setattr(TranscriptParser, "record", record)
    faults._log_once.cache_clear()
    yield
    faults._log_once.cache_clear()


@pytest.mark.usefixtures("broken")
def test_one_record_is_quarantined_and_all_others_are_stored(
    database: str, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log(root, 1).write_bytes(line("one", 1) + line(SECRET, 2) + line("three", 3) + line(SECRET, 4))
    log(root, 2).write_bytes(line("another file", 5))
    with caplog.at_level(logging.INFO):
        summary = ingest(database, root)
    assert contents(database) == ["another file", "one", "three"]
    assert (summary.lines_seen, summary.stored, summary.quarantined) == (5, 3, 2)
    assert summary.unreadable == {}
    assert rows(database, "select ordinal, reason, salvaged from recall.quarantine order by 1") == [
        (1, REASON, False),
        (3, REASON, False),
    ]
    told = [record for record in caplog.records if record.getMessage() == "a fault in reading"]
    assert [vars(record)["error"] for record in told] == ["KeyError"], "once, not for each record"
    assert SECRET not in "".join(str(vars(record)) for record in caplog.records)
    assert ingest(database, root).files_opened == 0


@pytest.mark.usefixtures("broken")
def test_reparse_reads_what_failed_once_the_parser_is_repaired(
    database: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log(root, 1).write_bytes(line("one", 1) + line(SECRET, 2) + line("three", 3))
    assert ingest(database, root).quarantined == 1
    monkeypatch.undo()
    assert reparse(database)["failed"] == {}
    assert contents(database) == ["one", SECRET, "three"]
    assert rows(database, "select count(*) from recall.quarantine") == [(0,)]
    asked = "select lines_seen, lines_stored, lines_quarantined from recall.ingest_state"
    assert rows(database, asked) == [(3, 1, 0)], "what had been read is merged"


def test_a_file_on_which_reparse_fails_keeps_what_was_read_of_it(
    database: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        log(root, number).write_bytes(line(f"file {number}", number))
    ingest(database, root)
    monkeypatch.setattr("recall_ingester.read_file.FileReader._next", fails_for(str(log(root, 2))))
    result = reparse(database)
    assert result["failed"] == {str(log(root, 2)): REASON}
    assert contents(database) == ["file 1", "file 2", "file 3"]


def fails_for(path: str) -> Any:
    whole = FileReader._next

    def following(self: FileReader, *values: Any, **named: Any) -> Any:
        if self._writer.known.path == path:
            raise KeyError(SECRET)
        return whole(self, *values, **named)

    return following


@pytest.mark.usefixtures("broken")
def test_a_last_line_that_is_not_finished_waits(database: str, root: Path) -> None:
    log(root, 1).write_bytes(line("one", 1) + line(SECRET, 2).rstrip(b"\n"))
    assert ingest(database, root).quarantined == 0
    with log(root, 1).open("ab") as file:
        file.write(b"\n" + line("three", 3))
    assert ingest(database, root).quarantined == 1
    assert contents(database) == ["one", "three"]


@pytest.mark.usefixtures("broken")
def test_of_a_damaged_line_nothing_is_salvaged_then(database: str, root: Path) -> None:
    torn = line(SECRET, 2)
    log(root, 1).write_bytes(line("one", 1) + b'{"x": "' + torn + line("three", 3))
    assert ingest(database, root).quarantined == 1
    assert contents(database) == ["one", "three"]
    assert rows(database, "select salvaged from recall.quarantine") == [(False,)]


def test_a_file_of_which_no_parser_can_be_made_costs_itself(
    database: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ClaudeCode.parser

    def parser(
        self: ClaudeCode, file: SourceFile, external_id: str, state: Mapping[str, Any] | None
    ) -> Any:
        if file.path == log(root, 2):
            raise KeyError(SECRET)
        return whole(self, file, external_id, state)

    for number in (1, 2, 3):
        log(root, number).write_bytes(line(f"file {number}", number))
    with monkeypatch.context() as patch:
        patch.setattr(ClaudeCode, "parser", parser)
        summary = ingest(database, root)
    assert contents(database) == ["file 1", "file 3"]
    assert summary.unreadable == {str(log(root, 2)): REASON}
    assert ingest(database, root).unreadable == {}
    assert contents(database) == ["file 1", "file 2", "file 3"]


def test_a_root_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    database: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log(root, 1).write_bytes(line("one", 1))
    ingest(database, root)

    def discover(_self: ClaudeCode, _root: Path) -> Iterator[SourceFile]:
        raise KeyError(SECRET)

    monkeypatch.setattr(ClaudeCode, "discover", discover)
    summary = ingest(database, root)
    assert summary.unreadable == {str(root): REASON}
    assert rows(database, "select count(source_missing_at) from recall.ingest_state") == [(0,)]


def opencode(path: Path, *sessions: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(
            "create table session (id text primary key, title text, directory text,"
            " time_created int, time_updated int);"
            "create table message (id text primary key, session_id text, time_created int,"
            " time_updated int, data text);"
            "create table part (id text primary key, message_id text, session_id text,"
            " time_created int, time_updated int, data text);"
        )
        for name in sessions:
            database.execute("insert into session values (?, 'A title', '/srv', 1, 1)", (name,))
            said = json.dumps({"role": "user", "time": {"created": 1}})
            database.execute("insert into message values (?, ?, 1, 1, ?)", ("m" + name, name, said))
            part = json.dumps({"type": "text", "text": f"said in {name}"})
            database.execute(
                "insert into part values (?, ?, ?, 1, 1, ?)", ("p" + name, "m" + name, name, part)
            )


def test_one_session_of_a_database_costs_itself(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    opencode(tmp_path / "logs" / "opencode.db", "ses_1", "ses_2", "ses_3")
    whole = SessionParser.document

    def document(self: SessionParser, data: bytes) -> Document:
        if b"ses_2" in data:
            raise KeyError(SECRET)
        return whole(self, data)

    monkeypatch.setattr(SessionParser, "document", document)
    summary = ingest(database, tmp_path / "logs", "opencode")
    assert summary.quarantined == 1
    found = [text for text in contents(database) if text.startswith("said")]
    assert found == ["said in ses_1", "said in ses_3"]


def test_a_fault_in_storing_is_none_of_the_file(
    database: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store(*_: object) -> None:
        raise KeyError(SECRET)

    log(root, 1).write_bytes(line("one", 1))
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_store", store)
        with pytest.raises(KeyError):
            ingest(database, root)
    assert ingest(database, root).stored == 1
