"""Rebuilding messages from kept bytes, when the client's files are gone."""

from __future__ import annotations

import shutil
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recall.cli import app
from recall.errors import StoreError
from recall_ingester.sinks.postgres import PostgresSink
from recall_sql.connection import connect
from tests.db.ingesting import HOST, IDENTITY, everything, ingest, rows

CLAUDE = (
    '{"type":"user","uuid":"u-1","timestamp":"2026-05-01T10:00:00Z","cwd":"/srv/shop","message":'
    '{"role":"user","content":"why does the cart forget its items"}}\n'
    '{"type":"assistant","uuid":"a-1","timestamp":"2026-05-01T10:00:05Z","message":{"role":'
    '"assistant","model":"claude-x","content":[{"type":"text","text":"the cookie expires"}]}}\n'
    '{"type":"user","uuid":"u-2","timestamp":"2026-05-01T10:01:00Z","message":'
    '{"role":"user","content":"then keep it longer"}}'  # no newline: the client still writes
)
GEMINI = (
    '{"sessionId":"7b7b7b7b-1111-4222-8333-444444444444","projectHash":"x",'
    '"startTime":"2026-05-01T10:00:00Z","lastUpdated":"2026-05-01T10:00:00Z"}\n'
    '{"id":"m1","timestamp":"2026-05-01T10:00:00Z","type":"user","content":"list the routes"}\n'
    '{"id":"m2","timestamp":"2026-05-01T10:00:09Z","type":"gemini","content":"there are four"}\n'
    '{"$rewindTo":"m2"}\n'
    '{"id":"m3","timestamp":"2026-05-01T10:00:30Z","type":"gemini","content":"there are five"}\n'
)
IMPORT = (
    '{"recall":1,"source":"notebook"}\n'
    '{"type":"session","id":"n1","title":"a page"}\n'
    '{"type":"message","session":"n1","role":"user","text":"what was decided","ts":'
    '"2026-05-01T10:00:00Z"}\n'
    '{"type":"message","session":"n1","role":"assistant","text":"to wait","ts":'
    '"2026-05-01T10:00:07Z"}\n'
)
CONVERSATION = (
    '[{"uuid":"c1","name":"a chat","created_at":"2026-05-01T10:00:00Z","updated_at":'
    '"2026-05-01T10:05:00Z","chat_messages":[{"uuid":"x1","sender":"human","text":"hello there",'
    '"created_at":"2026-05-01T10:00:00Z"}]}]'
)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    root = tmp_path / "logs"
    claude = root / "claude" / "projects" / "p" / "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f.jsonl"
    claude.parent.mkdir(parents=True)
    claude.write_text(CLAUDE)
    (claude.parents[2] / "history.jsonl").write_text(
        '{"display":"an older prompt","timestamp":1770000000000}\n'
    )
    gemini = root / "gemini" / "tmp" / "shop" / "chats" / "session-2026-05-01T10-00-7b7b7b7b.jsonl"
    gemini.parent.mkdir(parents=True)
    gemini.write_text(GEMINI)
    (root / "opencode").mkdir()
    path = root / "opencode" / "opencode.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript("""
            create table project (id text primary key, worktree text, time_updated integer);
            create table session (id text primary key, project_id text, parent_id text, title text,
                directory text, version text, time_created integer, time_updated integer);
            create table message (id text primary key, session_id text, time_created integer,
                time_updated integer, data text);
            create table part (id text primary key, message_id text, session_id text,
                time_created integer, time_updated integer, data text);
            insert into project values ('p1', '/srv/shop', 1);
            insert into session values ('ses_1', 'p1', null, 'a talk', '/srv/shop', '1', 1, 2);
            insert into message values ('msg_1', 'ses_1', 1, 2, '{"role":"user"}');
            insert into part values ('prt_1', 'msg_1', 'ses_1', 1, 2,
                '{"type":"text","text":"rename the column"}');
        """)
    return root


@pytest.fixture
def store(
    home: Path, database: str, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Something of each kind, and then no file is left of any."""
    monkeypatch.setenv("RECALL_DATABASE_URL", database)
    monkeypatch.setenv("RECALL_HOST", HOST)
    for source, folder in (
        ("claude-code", "claude"), ("gemini-cli", "gemini"), ("opencode", "opencode"),
    ):  # fmt: skip
        ingest(database, logs / folder, source)
    shutil.rmtree(logs)
    return database


def reparse(url: str, *sources: str) -> dict[str, object]:
    from recall.cli.reparse import KeptInStore
    from recall_ingester.exports import SOURCES
    from recall_ingester.reparse import Reparser
    from recall_ingester.run_state import Options
    from recall_ingester.sources import all_sources

    sink = PostgresSink(url, IDENTITY)
    result = Reparser(
        sink,
        Options(HOST, 33_554_432, redact=True),
        all_sources(),
        {export.name: export for export in SOURCES},
        KeptInStore(url, HOST),
    ).run(wanted=lambda known: not sources or known.source in sources, progress=None)
    sink.close()
    return {"files": result.files, "failed": result.failed, "messages": result.rows.messages}


def state(url: str) -> list[tuple[object, ...]]:
    return rows(
        url,
        """
        select path, session_key, size, mtime_ns, byte_offset, lines, head_hash, tail_hash,
            generation, rereading, parser_state, lines_seen, raw_bytes, unfinished_length,
            unfinished_hash, described, container
        from recall.ingest_state order by path
        """,
    )


def kept(url: str) -> list[tuple[object, ...]]:
    return rows(
        url, "select path, generation, byte_offset, hash from recall.raw_segment order by 1, 3"
    )


def test_reparse_changes_nothing_where_the_parsers_read_the_same(store: str) -> None:
    before, checkpoints, raw = everything(store), state(store), kept(store)
    retracted = rows(store, "select * from recall.message_retracted order by id")
    result = reparse(store)
    assert result == {"files": 4, "failed": {}, "messages": 0}
    assert everything(store) == before
    assert state(store) == checkpoints
    assert kept(store) == raw
    assert rows(store, "select * from recall.message_retracted order by id") == retracted


def test_reparse_restores_what_an_older_parser_left_out_or_read_differently(store: str) -> None:
    before = everything(store)
    with connect(store, application="tests") as connection:
        connection.execute("delete from recall.message where content like 'the cookie%'")
        connection.execute("delete from recall.message_text t where not exists"
                           " (select from recall.entry e where e.id = t.id)")  # fmt: skip
        connection.execute(
            "update recall.message set content = 'RENAME', content_hash = '\\x00'"
            " where content = 'rename the column'"
        )
    assert reparse(store)["messages"] == 2
    after = everything(store)
    assert after["messages"] == before["messages"]
    assert after["index"] == before["index"]
    assert rows(store, "select content from recall.message_retracted where content = 'RENAME'")


def test_next_pass_goes_on_where_the_file_had_ended(store: str, logs: Path) -> None:
    reparse(store)
    claude = logs / "claude" / "projects" / "p" / "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f.jsonl"
    claude.parent.mkdir(parents=True)
    claude.write_text(CLAUDE + "\n" + CLAUDE.split("\n")[0].replace("u-1", "u-3") + "\n")
    summary = ingest(store, logs / "claude")
    assert summary.lines_seen == 2
    statement = "select generation from recall.ingest_state where path = %s"
    assert rows(store, statement, str(claude)) == [(1,)]


def test_damaged_bytes_cost_their_own_file(store: str) -> None:
    before = everything(store)
    with connect(store, application="tests") as connection:
        connection.execute(
            "update recall.raw_blob b set data = '\\x00' from recall.raw_segment s"
            " where s.hash = b.hash and s.path like '%history.jsonl'"
        )
    result = reparse(store)
    assert result["files"] == 3
    assert [Path(path).name for path in result["failed"]] == ["history.jsonl"]  # type: ignore[attr-defined]
    assert everything(store) == before


def test_command_reads_imports_again_and_says_what_it_did(
    home: Path, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALL_DATABASE_URL", database)
    (tmp_path / "notebook.jsonl").write_text(IMPORT)
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        archive.writestr("conversations.json", CONVERSATION)
    run = CliRunner()
    for name in ("notebook.jsonl", "export.zip"):
        done = run.invoke(app, ["import", str(tmp_path / name)])
        assert done.exit_code == 0, done.output
        (tmp_path / name).unlink()
    before = everything(database)
    assert len(before["messages"]) == 3
    with connect(database, application="tests") as connection:
        connection.execute("delete from recall.message")
        connection.execute("delete from recall.message_text")
    done = run.invoke(app, ["reparse"])
    assert done.exit_code == 0, done.output
    assert "2 files read from their kept bytes: 3 messages written" in done.output
    assert everything(database) == before
    with connect(database, application="tests") as connection:
        connection.execute("update recall.raw_blob set data = '\\x00'")
    done = run.invoke(app, ["reparse", "--source", "claude-ai"])
    assert isinstance(done.exception, StoreError)
    assert done.exception.hint == "`recall verify` tells what is damaged"
