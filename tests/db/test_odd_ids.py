"""Ids and times as no client should write them: nothing is refused, through neither sink."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.db.incoming import everything_stored
from tests.db.ingesting import ingest, rows
from tests.db.over_http import join, read, serve
from tests.db.test_import import conversation, export, summary

NewDatabase = Callable[..., str]
_TIME = "2026-08-01T09:00:00.000Z"
_ENDLESS = "".join(random.Random(3).choices("abcdefghijklmnop0123456789", k=9000))


def _gemini(session: str) -> dict[str, object]:
    message = {"id": "m1", "timestamp": _TIME, "type": "user", "content": "hello"}
    return {
        "sessionId": session, "projectHash": "p", "startTime": _TIME, "lastUpdated": _TIME,
        "messages": [message],
    }  # fmt: skip


def _vscode(session: str) -> dict[str, object]:
    request = {"requestId": "r1", "message": {"text": "why"}, "response": [{"value": "because"}]}
    return {"version": 3, "sessionId": session, "requests": [request]}


def _claude(session: str, time: str = _TIME) -> dict[str, object]:
    said = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    return {
        "type": "user", "isSidechain": True, "sessionId": session, "agentId": "7", "uuid": "u",
        "timestamp": time, "message": said,
    }  # fmt: skip


_SOURCES = {
    "gemini-cli": ("tmp/p/chats/session-x.json", _gemini),
    "vscode-copilot": ("User/workspaceStorage/w/chatSessions/x.json", _vscode),
    "claude-code": ("projects/-h/agent-7.jsonl", _claude),
}


@pytest.fixture
def both(
    new_database: NewDatabase, template: str, tmp_path: Path
) -> Callable[[str, str, dict[str, object]], str]:
    """Stores a file through each sink, compares the stores, and gives one."""

    def store(source: str, name: str, value: dict[str, object]) -> str:
        path = tmp_path / "logs" / name
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(value) + "\n")
        direct, served = new_database(template), new_database(template)
        with serve(served) as server:
            over_http = read(join(server, served), tmp_path / "logs", source)
        summary = ingest(direct, tmp_path / "logs", source)
        assert (summary.quarantined, over_http.quarantined) == (0, 0)
        assert everything_stored(direct) == everything_stored(served)
        again = ingest(direct, tmp_path / "logs", source)
        assert (again.files_opened, again.messages) == (0, 0)
        return direct

    return store


@pytest.mark.parametrize("session", ["a\0b", "a\ud800b", _ENDLESS], ids=["nul", "half", "endless"])
@pytest.mark.parametrize("source", _SOURCES)
def test_odd_session_ids(
    both: Callable[[str, str, dict[str, object]], str], source: str, session: str
) -> None:
    name, make = _SOURCES[source]
    database = both(source, name, make(session))
    found = rows(database, "select external_id from recall.session")
    assert len(found) == 1
    assert rows(database, "select count(*) > 0 from recall.message") == [(True,)]


@pytest.mark.parametrize(
    ("time", "stored"),
    [
        ("2026-08-01T00:00:00+20:00", "2026-07-31 04:00:00"),
        ("2026-08-01T00:00:00+01:02:03.5", "2026-07-31 22:57:56.5"),
        ("2026-08-01T00:00:00+14:00", "2026-07-31 10:00:00"),
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59-14:00", None),
    ],
)
def test_odd_times(
    both: Callable[[str, str, dict[str, object]], str], time: str, stored: str | None
) -> None:
    database = both("claude-code", "projects/-h/agent-7.jsonl", _claude("s", time))
    found = rows(database, "select (ts at time zone 'utc')::text from recall.message")
    assert found == [(stored,)]


def test_a_name_that_is_no_text(
    both: Callable[[str, str, dict[str, object]], str],
) -> None:
    both("claude-code", "projects/-h/odd\udcff\udcfe.jsonl", _claude("s") | {"isSidechain": False})


def test_what_a_subagent_was_started_for_is_told_of_its_session(
    database: str, tmp_path: Path
) -> None:
    name = "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f"
    folder = tmp_path / "projects" / "-h" / name / "subagents"
    folder.mkdir(parents=True)
    (folder / "agent-7.meta.json").write_text('{"agentType": "Explore", "description": "look"}')
    (folder / "agent-7.jsonl").write_text(json.dumps(_claude(name)) + "\n")
    ingest(database, tmp_path)
    found = rows(database, "select external_id, title from recall.session")
    assert found == [(f"{name}/agent-7", "look")]


@pytest.mark.parametrize("session", ["a\0b", "a\ud800b", _ENDLESS], ids=["nul", "half", "endless"])
@pytest.mark.parametrize("form", ["export", "jsonl"])
def test_odd_ids_of_what_is_imported(
    home: Path,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    session: str,
) -> None:
    monkeypatch.setenv("RECALL_DATABASE_URL", database)
    if form == "export":
        one = conversation(1, "hello") | {"uuid": session}
        path = export(tmp_path / "e.zip", one)
    else:
        records = [
            {"recall": 1, "source": "mine"},
            {"type": "session", "id": session, "title": "odd"},
            {"type": "message", "session": session, "role": "user", "text": "hello"},
        ]
        path = str(tmp_path / "e.jsonl")
        Path(path).write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert summary(path)["rows"]["messages"] == 1
    found = """
        select count(*) from recall.session s join recall.message m using (session_key)
        where s.title is not null
    """
    assert rows(database, found) == [(1,)]
    assert summary(path)["rows"]["messages"] == 0
