"""`recall import`: exports of websites and the import format, into a real store."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from recall.cli import app
from recall.errors import SourceError, UsageError
from tests.db.ingesting import contents, everything, rows


@pytest.fixture
def store(home: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RECALL_DATABASE_URL", database)
    return database


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["import", *arguments])


def summary(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def conversation(number: int, *texts: str, updated: str = "2026-05-01T10:00:00Z") -> dict[str, Any]:
    return {
        "uuid": f"c{number}",
        "name": f"chat {number}",
        "created_at": "2026-05-01T09:00:00Z",
        "updated_at": updated,
        "chat_messages": [
            {
                "uuid": f"c{number}-m{at}",
                "sender": "assistant" if at % 2 else "human",
                "text": text,
                "content": [{"type": "text", "text": text}],
                "created_at": f"2026-05-01T09:00:{at:02}Z",
            }
            for at, text in enumerate(texts)
        ],
    }


def export(path: Path, *conversations: Any, **members: Any) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", json.dumps(list(conversations)))
        for name, value in members.items():
            archive.writestr(f"{name}.json", json.dumps(value))
    return str(path)


def test_same_export_twice_changes_nothing(store: str, tmp_path: Path) -> None:
    path = export(tmp_path / "e.zip", conversation(1, "hello", "good day"), conversation(2, "why"))
    first = summary(path)
    assert (first["conversations"], first["rows"]["messages"]) == (2, 3)
    before = everything(store)
    assert len(before["messages"]) == 3
    second = summary(path)
    assert (second["conversations"], second["unchanged"], second["rows"]["messages"]) == (0, 2, 0)
    assert everything(store) == before


def test_later_export_brings_what_is_new_and_keeps_what_is_gone(store: str, tmp_path: Path) -> None:
    summary(
        export(tmp_path / "1.zip", conversation(1, "hello", "good day"), conversation(2, "why"))
    )
    later = conversation(1, "hello", "good evening", "thanks", updated="2026-06-01T10:00:00Z")
    found = summary(export(tmp_path / "2.zip", later))
    assert (found["conversations"], found["rows"]["messages"]) == (1, 2)
    assert contents(store) == ["good evening", "hello", "thanks", "why"]
    assert rows(store, "select content from recall.message_retracted") == [("good day",)]


def test_older_export_after_a_later_one_changes_nothing(store: str, tmp_path: Path) -> None:
    later = conversation(1, "hello", "good evening", "thanks", updated="2026-06-01T10:00:00Z")
    summary(export(tmp_path / "2.zip", later))
    before = everything(store)
    found = summary(export(tmp_path / "1.zip", conversation(1, "hello", "good day")))
    assert (found["older"], found["conversations"]) == (1, 0)
    assert everything(store) == before


def test_same_conversation_twice_in_one_export_is_stored_in_its_later_form(
    store: str, tmp_path: Path
) -> None:
    old = conversation(1, "hello")
    new = conversation(1, "hello", "again", updated="2026-06-01T10:00:00Z")
    summary(export(tmp_path / "e.zip", new, old))
    assert contents(store) == ["again", "hello"]


def test_part_that_is_no_conversation_is_listed_and_the_others_are_stored(
    store: str, tmp_path: Path
) -> None:
    path = export(tmp_path / "e.zip", conversation(1, "hello"), 7, {"x": 1}, conversation(2, "why"))
    found = summary(path)
    assert (found["conversations"], found["problem_count"]) == (2, 2)
    assert contents(store) == ["hello", "why"]
    quarantined = (
        "select reason from recall.quarantine where source = 'claude-ai' order by byte_offset"
    )
    assert len(rows(store, quarantined)) == 2
    summary(path)
    assert len(rows(store, quarantined)) == 2


@pytest.mark.parametrize("damage", ["truncated", "crc", "parent", "not a zip"])
def test_damaged_or_hostile_zip_is_refused_and_changes_nothing(
    store: str, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "e.zip"
    export(path, *(conversation(n, f"text {n} " * 50) for n in range(20)))
    data = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "crc":
        path.write_bytes(data[:80] + bytes([data[80] ^ 0xFF]) + data[81:])
    elif damage == "parent":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("../../outside.txt", "x")
    else:
        path.write_text("hello")
    done = run(str(path))
    assert isinstance(done.exception, SourceError), done.output
    assert done.exception.hint
    for table in ("message", "session", "ingest_state", "raw_blob", "quarantine"):
        assert rows(store, f"select count(*) from recall.{table}") == [(0,)]


def test_import_format_is_stored_and_again_changes_nothing(store: str, tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    lines = [
        {"recall": 1, "source": "notebook"},
        {"type": "session", "id": "n1", "title": "first page"},
        {"type": "message", "session": "n1", "role": "user", "text": "what was decided"},
        {"type": "session", "id": "n2"},
        {"type": "message", "session": "n2", "role": "user", "text": "other"},
        {"type": "message", "session": "n1", "role": "assistant", "text": "to wait"},
        {"type": "prompt", "text": "an older prompt", "ts": "2026-05-01T10:00:00Z"},
        {"type": "note", "shelf": "memory", "key": "k", "text": "they like tabs"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert summary(str(path))["source"] == "notebook"
    before = everything(store)
    assert [(row[0].rsplit(":", 1)[1], row[1], row[8]) for row in before["messages"]] == [
        ("n1", 0, "what was decided"),
        ("n1", 1, "to wait"),
        ("n2", 0, "other"),
    ]
    assert [row[3] for row in before["sessions"]] == ["first page", None]
    assert rows(store, "select content from recall.note") == [("they like tabs",)]
    seen = "select lines_seen, lines_stored, lines_merged from recall.ingest_state"
    assert rows(store, seen) == [(8, 5, 3)]
    summary(str(path))
    assert everything(store) == before
    assert rows(store, seen) == [(8, 0, 8)]


def test_import_format_with_a_wrong_line_is_refused_as_a_whole(store: str, tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_text(
        '{"recall":1,"source":"notebook"}\n'
        '{"type":"message","session":"n1","role":"user","text":"fine"}\n'
        '{"type":"message","session":"n1","role":"robot","text":"wrong"}\n'
    )
    done = run(str(path))
    assert isinstance(done.exception, SourceError)
    assert "line 3" in done.stderr
    assert rows(store, "select count(*) from recall.message") == [(0,)]


def test_dry_run_stores_nothing(store: str, tmp_path: Path) -> None:
    path = export(tmp_path / "e.zip", conversation(1, "hello"))
    assert summary(path, "--dry-run")["conversations"] == 1
    assert rows(store, "select count(*) from recall.ingest_state") == [(0,)]


def test_wrong_format_or_file_is_a_clear_error(store: str, tmp_path: Path) -> None:
    path = export(tmp_path / "e.zip", conversation(1, "hello"))
    for arguments in ((path, "--format", "chatgpt"), (path, "--format", "x"), ("/absent.zip",)):
        assert isinstance(run(*arguments).exception, UsageError)
