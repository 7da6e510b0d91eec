"""The walk over originals, and the look for one string in what is held."""

from __future__ import annotations

import base64
import json
import sqlite3
import zipfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import zstandard

from ops.bench.fidelity_store import Held
from ops.bench.fidelity_strings import Text, read_file, strings
from recall_ingester.redact import redact
from recall_ingester.sources.toolinput import image_stub


def found(path: Path) -> list[tuple[str, str]]:
    return [(".".join(text.path), text.value) for text in read_file(path)]


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_every_string_of_json_with_its_path(tmp_path: Path) -> None:
    record = {"a": ["one", 2, {"b": "two", "n": "123"}], "c": None}
    whole = written(tmp_path, "whole", json.dumps(record, indent=1).encode())
    listed = written(tmp_path, "listed", json.dumps([record, record]).encode())
    assert found(whole) == [("a.0", "one"), ("a.2.b", "two")]
    assert found(listed) == found(whole) * 2


def test_key_counts_only_where_no_field_has_such_a_name() -> None:
    value = {"which one?": "this", "src/a.py": 1, "plain_name": "that"}
    assert [text.value for text in strings(value)] == ["which one?", "src/a.py", "this", "that"]


def test_lines_with_their_numbers_and_a_torn_one(tmp_path: Path) -> None:
    path = written(tmp_path, "log", b'{"a": "one"}\n\nno json\n{"a": "two"}\n{"a": "thr')
    texts = list(read_file(path))
    assert [(text.value, text.place, text.is_torn) for text in texts] == [
        ("one", 0, False),
        ("no json", 2, False),
        ("two", 3, False),
        ('{"a": "thr', 4, True),
    ]


def test_text_by_lines_and_bytes_not_at_all(tmp_path: Path) -> None:
    assert found(written(tmp_path, "note", b"# Title\n\n---\ntext\n")) == [
        ("", "# Title"),
        ("", "text"),
    ]
    assert found(written(tmp_path, "picture", b"\x89PNG\r\n\x00\xff\xfe text")) == []


def test_compressed_file_and_members_of_a_zip(tmp_path: Path) -> None:
    line = b'{"a": "inside"}\n'
    packed = written(tmp_path, "log.zst", zstandard.ZstdCompressor().compress(line))
    assert found(packed) == [("a", "inside")]
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("one.json", line)
        archive.writestr("folder/note.txt", "said")
    texts = list(read_file(tmp_path / "all.zip"))
    assert [(text.member, text.value) for text in texts] == [
        ("one.json", "inside"),
        ("folder/note.txt", "said"),
    ]


def test_rows_of_a_database_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma journal_mode = wal")
        database.execute("create table part (id text, data text, raw blob)")
        row = ("p one", '{"text": "from json"}', b"as bytes")
        database.execute("insert into part values (?, ?, ?)", row)
        database.commit()
        before = sorted(tmp_path.iterdir())
        assert found(path) == [
            ("part.id", "p one"),
            ("part.data.text", "from json"),
            ("part.raw", "as bytes"),
        ]
        assert sorted(tmp_path.iterdir()) == before


def test_json_inside_a_string_is_gone_into() -> None:
    (text,) = strings({"arguments": '{"cmd": ["ls", "-l"], "n": 3}'})
    inside = text.inside()
    assert inside is not None
    assert [(one.path, one.value) for one in inside] == [
        (("arguments", "cmd", "0"), "ls"),
        (("arguments", "cmd", "1"), "-l"),
    ]
    assert Text("{not json").inside() is None
    assert Text("plain").inside() is None


@pytest.mark.parametrize(
    ("stored", "text", "expected"),
    [
        ("the token", "ok", False),
        ("it is ok.", "ok", True),
        ("pre-commit", "commit", False),
        ("two\nlines of text", "lines of text", True),
        ("two\nlines of text", "lines of it", False),
        ('{"said":"a \\"quoted\\"\\nword"}', 'a "quoted"\nword', True),
        ("cut \ufffd here", "cut \x00 here", True),
        ("padded text", "  padded text \n", True),
    ],
)
def test_string_is_found_as_the_store_would_have_it(stored: str, text: str, expected: bool) -> None:
    held = Held()
    held.add_text(stored)
    assert held.holds(text) is expected


def test_secret_is_found_as_its_stub_also_where_only_its_key_tells() -> None:
    secret = "Bearer abcdefghijklmnop0123456789"
    held = Held()
    held.add_text(redact(f"authorization: {secret}")[0])
    assert held.holds(secret, "authorization")
    assert not held.holds(f"{secret}, no more", "authorization")


def test_picture_is_found_as_its_stub() -> None:
    data = base64.b64encode(bytes(range(256)) * 2).decode()
    held = Held()
    held.add_text(f"before {image_stub('image/png', data)} after")
    assert held.holds(data)
    assert held.holds(f"data:image/png;base64,{data}")
    assert not held.holds(data.replace("A", "B"))


def test_fields_hold_as_a_whole_and_times_in_any_notation() -> None:
    held = Held()
    held.add_values(["/home/dev/shop", datetime(2026, 8, 1, 9, tzinfo=UTC)])
    held.add_names(["mcp__files.read", "codex:host:some-id"])
    assert held.holds("/home/dev/shop") and held.holds("file:///home/dev/shop")
    assert not held.holds("/home/dev")
    assert held.holds("2026-08-01T11:00:00+02:00")
    assert not held.holds("2026-08-01T11:00:00Z")
    assert held.holds("read") and held.holds("some-id") and not held.holds("some")
