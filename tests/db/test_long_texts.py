"""Texts that no index holds, through both sinks: they cost nobody anything."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from recall_ingester.file_keys import bounded, note_place
from recall_ingester.sinks.postgres import PostgresSink
from recall_sql.embedded import EmbeddedServer
from tests.db.copies import Copies, newest
from tests.db.ingesting import IDENTITY, contents, rows
from tests.db.over_http import copy_of, empty, join, serve
from tests.double.fixtures import Served

#: Nothing that compression makes short: no index holds it.
LETTERS = "".join(chr(code) for code in range(0x4E00, 0x9000))
NAME = "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f"


def long_text(seed: int, length: int = 5_000) -> str:
    return "".join(random.Random(seed).choices(LETTERS, k=length))


def long_folder(root: Path, length: int = 3_000) -> Path:
    """A folder with a path of that length."""
    names = random.Random(length)
    path = root
    while len(os.fsencode(path)) < length:
        path = path / "".join(names.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=200))
    path.mkdir(parents=True)
    return path


@pytest.fixture(scope="module")
def _served(server: EmbeddedServer, template: str) -> Iterator[tuple[str, Served]]:
    with copy_of(server, template) as url, serve(url) as served:
        yield url, served


@pytest.fixture(params=["embedded", "http"])
def copies(request: pytest.FixtureRequest, _served: tuple[str, Served], tmp_path: Path) -> Copies:
    url, served = _served
    empty(url)
    root = tmp_path / "root"
    root.mkdir()
    if request.param == "embedded":
        return Copies(url, lambda: PostgresSink(url, IDENTITY), root)
    return Copies(url, join(served, url).sink, root)


def line(text: str, **more: Any) -> bytes:
    record = {
        "type": "user",
        "uuid": f"u-{text}",
        "timestamp": "2026-05-01T10:00:00Z",
        "message": {"role": "user", "content": text},
        **more,
    }
    return json.dumps(record).encode() + b"\n"


def beside(copies: Copies) -> None:
    """Another log, which must be stored whatever stands in the first one."""
    path = copies.root / "projects" / "z" / f"{NAME}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(line("beside"))


def test_every_field_of_a_log(copies: Copies) -> None:
    beside(copies)
    folder = copies.root / "projects" / "a"
    folder.mkdir(parents=True)
    call = {"type": "tool_use", "id": long_text(1), "name": long_text(2), "input": {"a": "b"}}
    answer = {"role": "assistant", "model": long_text(3), "content": [call]}
    more = {name: long_text(n) for n, name in enumerate(
        ("sessionId", "cwd", "gitBranch", "version", "agentId", "parentUuid", "uuid"), 10
    )}  # fmt: skip
    (folder / "agent-7.jsonl").write_bytes(
        line("asked", isSidechain=True, **more)
        + line("called", **more | {"type": "assistant", "message": answer, "isSidechain": True})
        + line("", type="summary", summary="short", leafUuid=long_text(4))
        + line("", type="custom-title", customTitle=long_text(5), sessionId=more["sessionId"])
    )
    summary = copies.read()
    assert (summary.unreadable, summary.quarantined) == ({}, 0)
    assert {"asked", "beside"} <= set(contents(copies.database))
    assert copies.read().files_opened == 0


def test_prompts_and_notes(copies: Copies) -> None:
    beside(copies)
    prompt = {"display": "prompted", "timestamp": 1, "project": long_text(1),
              "sessionId": long_text(2)}  # fmt: skip
    (copies.root / "history.jsonl").write_text(json.dumps(prompt) + "\n")
    assert copies.read().unreadable == {}
    assert rows(copies.database, "select content from recall.prompt") == [("prompted",)]
    assert "beside" in contents(copies.database)


@pytest.mark.parametrize("length", [1_700, 2_200, 3_300])
def test_keys_of_memories_in_a_long_path(copies: Copies, length: int) -> None:
    copies.source = "memory"
    folder = long_folder(copies.root, length)
    entry = {"id": long_text(1), "title": long_text(2), "text": "remembered", "project": "p"}
    folder = folder / "memory"
    folder.mkdir()
    (folder / "memories.jsonl").write_text(json.dumps(entry) + "\n")
    (folder / "short.md").write_text("# Short\n\nremembered too\n")
    summary = copies.read()
    assert (summary.unreadable, summary.quarantined) == ({}, 0)
    found = rows(copies.database, "select content from recall.note order by 1")
    assert ("remembered",) in found
    again = copies.read()
    assert (again.files_opened, again.messages) == (0, 0)


@pytest.fixture
def far_log(copies: Copies) -> Path:
    beside(copies)
    return long_folder(copies.root / "projects") / "7c1f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f.jsonl"


def test_a_log_in_a_long_path_grows_and_is_written_over(copies: Copies, far_log: Path) -> None:
    key = bounded(str(far_log))
    assert len(key.encode()) <= 2_000 < len(str(far_log))
    data = b""
    for text in ("one", "two"):
        data += line(text)
        far_log.write_bytes(data + b'{"torn')
        assert copies.read().unreadable == {}
        assert newest(copies.database, key) == data + b'{"torn'
    assert contents(copies.database) == ["beside", "one", "two"]
    assert copies.read().files_opened == 0
    far_log.write_bytes(line("written over") + b"no record\n")
    assert copies.read().quarantined == 1
    assert newest(copies.database, key) == line("written over") + b"no record\n"


def test_a_log_in_a_long_path_is_there_until_it_is_gone(copies: Copies, far_log: Path) -> None:
    """A copy of it elsewhere takes its session over only then."""
    gone = "select path from recall.ingest_state where source_missing_at is not null"
    far_log.write_bytes(line("one"))
    copies.read()
    copy = copies.root / "projects" / "b" / far_log.name
    copy.parent.mkdir()
    copy.write_bytes(line("one"))
    copies.read()
    assert rows(copies.database, gone) == []
    sessions = "select count(*) from recall.session where external_id like %s"
    assert rows(copies.database, sessions, f"{far_log.stem}%") == [(2,)]
    far_log.unlink()
    copies.read()
    assert rows(copies.database, gone) == [(bounded(str(far_log)),)]


def test_a_log_in_a_long_path_that_cannot_be_read_is_named(copies: Copies, far_log: Path) -> None:
    far_log.write_bytes(line("one"))
    copies.read()
    far_log.unlink()
    os.mkfifo(far_log)
    summary = copies.read()
    assert list(summary.unreadable) == [bounded(str(far_log))]
    found = "select path from recall.ingest_state where unreadable is not null"
    assert rows(copies.database, found) == [(bounded(str(far_log)),)]


def test_sessions_of_a_database(copies: Copies) -> None:
    copies.source = "opencode"
    path = copies.root / "opencode.db"
    with closing(sqlite3.connect(path)) as client:
        client.executescript("""
            create table project (id text primary key, worktree text, time_updated integer);
            create table session (id text primary key, project_id text, parent_id text, title text,
                directory text, version text, time_created integer, time_updated integer);
            create table message (id text primary key, session_id text, time_created integer,
                time_updated integer, data text);
            create table part (id text primary key, message_id text, session_id text,
                time_created integer, time_updated integer, data text);
        """)
        for session in (long_text(1, 450), "short"):
            client.execute(
                "insert into session values (?, ?, ?, 't', ?, '1', 1, 1)",
                (session, long_text(2), long_text(3), long_text(4)),
            )
            client.execute(
                'insert into message values (?, ?, 1, 1, \'{"role":"user"}\')',
                (f"m{session}", session),
            )
            client.execute(
                'insert into part values (?, ?, ?, 1, 1, \'{"type":"text","text":"hi"}\')',
                (f"p{session}", f"m{session}", session),
            )
        client.commit()
    assert copies.read().unreadable == {}
    assert contents(copies.database) == ["hi", "hi"]
    far = long_folder(copies.root) / path.name
    path.rename(far)
    copies.root = far.parent
    # SQLite itself opens no path of this length: a copy is read.
    assert copies.read().unreadable == {}
    assert contents(copies.database) == ["hi", "hi"]
    found = "select path from recall.ingest_state where container = %s order by length(path)"
    paths = [row[0] for row in rows(copies.database, found, bounded(str(far)))]
    assert len(paths) == 2
    assert all(len(path.encode()) <= 2_000 for path in paths)
    assert any(b'"id":"short"' in newest(copies.database, path) for path in paths)
    assert copies.read().messages == 0


def test_folders_in_folders_without_end(copies: Copies) -> None:
    beside(copies)
    folder = copies.root / "projects"
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    try:
        summary = copies.read()
    finally:
        _remove_chain(folder)
    assert "beside" in contents(copies.database)
    assert summary.unreadable
    assert all(len(path.encode()) <= 2_000 for path in summary.unreadable)


def _remove_chain(folder: Path) -> None:
    """From the outside in; `rmtree` calls itself for each folder."""
    while (inner := folder / "d").exists():
        deeper = inner / "d"
        if deeper.exists():
            spare = folder / "e"
            deeper.rename(spare)
            inner.rmdir()
            spare.rename(inner)
        else:
            inner.rmdir()


@pytest.mark.parametrize("length", [10, 1_999, 2_000, 2_001, 4_000])
def test_keys_of_files(length: int) -> None:
    path = ("/" + long_text(length, 60)) * 30
    path = path.encode()[:length].decode(errors="ignore") + "/name.jsonl"
    key = bounded(path)
    assert len(key.encode()) <= 2_000
    assert bounded(key) == key
    assert (key == path) == (len(path.encode()) <= 2_000)
    assert key.endswith("/name.jsonl")
    place = note_place(path, long_text(1, 500))
    assert sum(len(part.encode()) for part in place) <= 2_400


def test_keys_tell_long_paths_apart() -> None:
    path = ("/" + long_text(1, 60)) * 20
    assert len({bounded(f"{path}/{n}/name") for n in range(9)}) == 9
    assert len({note_place(path, long_text(1, 500) + str(n))[1] for n in range(9)}) == 9
