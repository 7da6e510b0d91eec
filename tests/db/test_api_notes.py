"""Notes over HTTP and by command: lists, one note in full, status, and purge."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from recall.cli import app
from recall_api import answers, answers_status
from recall_sql.connection import connect
from tests.db.note_store import NOW, Entry, add_note, memory
from tests.db.serving import Store, serving


@pytest.fixture
def store(database: str) -> Store:
    return Store(database)


@pytest.fixture
def api(database: str) -> Iterator[httpx.Client]:
    with serving(database) as client:
        yield client


def put(store: Store, *entries: Entry, **more: Any) -> list[str]:
    with connect(store.url, application="tests", autocommit=True) as connection:
        return [add_note(connection, entry, **more) for entry in entries]


def get(api: httpx.Client, path: str, /, **params: Any) -> Any:
    answer = api.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_ledger_over_http(store: Store, api: httpx.Client) -> None:
    key = store.add_session("0b7f2c9e-5d1a", title="Deadlocks")
    number = put(store, Entry("found the deadlock", title="Day one", session="0b7f2c9e-5d1a"))[0]
    put(store, Entry("other work", key="two", age=9))
    answer = get(api, "/ledger", q="deadlock", session="0b7f2c")
    assert answers.NotesAnswer(**answer).model_dump() == answer
    assert answer["stored"] == 2
    (entry,) = answer["entries"]
    assert (entry["id"], entry["title"], entry["entry_key"]) == (number, "Day one", "one")
    assert (entry["session_key"], entry["session_title"]) == (key, "Deadlocks")
    assert entry["ts"] == "2026-06-01T12:00:00Z"
    assert "<mark>deadlock</mark>" in entry["snippet"]

    first = get(api, "/ledger", limit=1)
    second = get(api, "/ledger", limit=1, cursor=first["next_cursor"])
    assert [one["entries"][0]["content"] for one in (first, second)] == [
        "found the deadlock", "other work",
    ]  # fmt: skip
    assert second["next_cursor"] is None


def test_memories_over_http(store: Store, api: httpx.Client) -> None:
    put(store, memory("old rule"), replaced_at=NOW)
    put(store, memory("new rule"), memory("far", key="2", path="/b.md", project="/srv/api"))
    answer = get(api, "/memories", include_replaced=True, path="MEMORY.md")
    assert answers.NotesAnswer(**answer).model_dump() == answer
    (entry,) = answer["entries"]
    assert entry["content"] == "new rule"
    assert [version["content"] for version in entry["versions"]] == ["old rule"]
    assert [one["content"] for one in get(api, "/memories", project="api")["entries"]] == ["far"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/ledger?limit=0", 400),
        ("/ledger?limit=201", 400),
        ("/ledger?path=x", 400),
        ("/ledger?since=whenever", 400),
        ("/ledger?cursor=nonsense", 400),
        ("/ledger?q=a%00b", 400),
        ("/ledger?max_chars=20001", 400),
        (f"/ledger?q={'x' * 2_001}", 400),
        ("/ledger?session=0b7f2c", 409),
        ("/memories?session=x", 400),
        ("/memories?include_replaced=perhaps", 400),
    ],
)
def test_what_cannot_be_is_a_problem_document(
    store: Store, api: httpx.Client, path: str, status: int
) -> None:
    store.add_session("0b7f2c9e-1")
    store.add_session("0b7f2c9e-2")
    answer = api.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answers.ProblemDocument(**answer.json()).status == status


def test_both_lists_are_described(api: httpx.Client) -> None:
    paths = api.get("/openapi.json").json()["paths"]
    for path, parameter in (("/ledger", "session"), ("/memories", "include_replaced")):
        described = paths[path]["get"]
        assert parameter in {item["name"] for item in described["parameters"]}
        schema = described["responses"]["200"]["content"]["application/json"]["schema"]
        assert schema["$ref"].endswith("/NotesAnswer")


def test_a_note_is_read_in_full_by_its_id(store: Store, api: httpx.Client) -> None:
    key = store.add_session("0b7f2c9e", title="Deadlocks")
    old = put(store, Entry("first text", session="0b7f2c9e"), replaced_at=NOW)[0]
    text = "second text " * 3_000
    new = put(store, Entry(text, title="Day one", session="0b7f2c9e", fields={"state": "done"}))[0]
    answer = get(api, f"/messages/{new}", context=3)
    assert answers.MessageAnswer(**answer).model_dump() == answer
    assert (answer["content"], answer["kind"], answer["role"]) == (text, "ledger", "assistant")
    assert answer["session_key"] is None
    assert answer["session"]["session_key"] == key
    assert answer["note"] == {
        "shelf": "ledger", "entry_key": "one", "path": "/home/dev/ledger.db", "title": "Day one",
        "session_id": "0b7f2c9e", "fields": {"state": "done"}, "is_current": True,
        "replaced_at": None,
    }  # fmt: skip
    assert [version["id"] for version in answer["versions"]] == [old]

    answer = get(api, f"/messages/{old}")
    assert answers.MessageAnswer(**answer).model_dump() == answer
    assert (answer["current_id"], answer["retracted_at"]) == (new, "2026-06-01T12:00:00Z")
    assert answer["versions"] == []
    assert api.get("/messages/5").status_code == 404


def test_status_counts_notes(store: Store, api: httpx.Client) -> None:
    store.add_session("0b7f2c9e")
    put(store, Entry("old"), replaced_at=NOW)
    put(store, Entry("new"), Entry("another", key="two"), memory("rule"))
    answer = get(api, "/status")
    assert answers_status.StatusAnswer(**answer).model_dump() == answer
    assert answer["totals"]["notes"] == 3
    found = {row["source"]: (row["sessions"], row["notes"]) for row in answer["sources"]}
    assert found == {"claude-code": (1, 1), "ledger": (0, 2)}
    newest = {row["source"]: row["newest_message"] for row in answer["sources"]}
    assert newest["ledger"] == "2026-06-01T12:00:00Z"
    assert 'recall_rows{entity="notes"} 3' in api.get("/metrics").text


@pytest.fixture
def command(home: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command reads the database of this test."""
    monkeypatch.setenv("RECALL_DATABASE_URL", database)


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env=environment)


LISTS = [
    ["ledger"],
    ["ledger", "deadlock"],
    ["ledger", "--json"],
    ["ledger", "--session", "0b7f2c9e"],
    ["ledger", "absentword"],
    ["memories"],
    ["memories", "rule", "--include-replaced"],
    ["memories", "--path", "MEMORY.md", "--project", "shop", "--json"],
]


@pytest.mark.parametrize("arguments", LISTS, ids=" ".join)
def test_the_commands_say_the_same_over_http(
    store: Store, api: httpx.Client, command: None, arguments: list[str]
) -> None:
    store.add_session("0b7f2c9e", title="Deadlocks")
    put(store, Entry("found the deadlock", title="Day one", session="0b7f2c9e"))
    put(store, Entry("other work", key="two", age=9), memory("rule"))
    put(store, memory("older rule"), replaced_at=NOW)
    local = run(*arguments)
    remote = run(*arguments, RECALL_URL=str(api.base_url))
    assert (local.exit_code, local.stdout) == (remote.exit_code, remote.stdout)
    assert local.exit_code == (1 if "absentword" in arguments else 0), local.output
    assert bool(local.stdout) == (local.exit_code == 0)


def test_an_entry_says_where_it_is_and_how_to_open_it(store: Store, command: None) -> None:
    key = store.add_session("0b7f2c9e", title="Deadlocks")
    number = put(store, Entry("found the \x1b[31mdeadlock", title="Day", session="0b7f2c9e"))[0]
    done = run("ledger", "deadlock")
    header, snippet, about = done.stdout.splitlines()[:3]
    assert header.split("  ")[1:] == ["ledger laptop shop", number, "Day"]
    assert "«deadlock»" in snippet
    assert about == f"about session {key}  Deadlocks"
    assert "\x1b" not in done.output
    assert f"open one: recall show {number}" in done.stderr


def test_a_memory_says_its_file_and_its_earlier_texts(store: Store, command: None) -> None:
    old = put(store, memory("older rule"), replaced_at=NOW)[0]
    put(store, memory("rule"))
    done = run("memories", "--include-replaced")
    assert "/home/dev/.claude/projects/shop/memory/MEMORY.md" in done.stdout.splitlines()[0]
    assert f"{old}  older rule" in done.stdout
    assert old not in run("memories").stdout


def test_nothing_found_says_how_much_was_searched(store: Store, command: None) -> None:
    put(store, Entry("something"))
    done = run("ledger", "absentword")
    assert done.exit_code == 1
    assert "nothing found for `absentword`" in done.stderr
    assert "1 ledger entries in the store" in done.stderr


def test_words_that_look_like_options_are_searched_for(store: Store, command: None) -> None:
    put(store, Entry("raised --shm-size for it"))
    assert "«shm-size»" in run("ledger", "--shm-size", "--limit", "1").stdout


def test_show_prints_a_note(store: Store, command: None) -> None:
    key = store.add_session("0b7f2c9e", title="Deadlocks")
    old = put(store, Entry("first text", session="0b7f2c9e"), replaced_at=NOW)[0]
    new = put(store, Entry("second text", title="Day one", session="0b7f2c9e"))[0]
    done = run("show", new)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "Day one"
    assert lines[1] == "ledger entry  ledger  laptop  /home/dev/shop  /home/dev/ledger.db"
    assert lines[2] == f"about session {key}  Deadlocks"
    assert "second text" in done.stdout
    assert f"earlier texts of this message: {old}" in done.stderr
    assert "first text" in run("show", old).stdout
    lost = put(store, memory("rule", session="gone-77"))[0]
    assert "about session gone-77, which is not stored" in run("show", lost).stdout


def test_search_says_how_many_notes_it_saw(store: Store, command: None) -> None:
    store.add_session("0b7f2c9e", ["hello"])
    assert "notes" not in run("search", "absentword").stderr
    number = put(store, Entry("found the deadlock"))[0]
    assert number in run("search", "deadlock", "--kind", "ledger").stdout
    done = run("search", "deadlock", "--kind", "memory")
    assert done.exit_code == 1
    assert "1 messages, 0 prompts, 1 notes" in done.stderr


def test_purge_counts_and_deletes_notes(store: Store, command: None) -> None:
    put(store, memory("rule"))
    put(store, Entry("old"), replaced_at=NOW)
    put(store, Entry("new"))
    missing = run("purge", "--source", "nothing", "--yes")
    assert "claude-code, ledger" in str(getattr(missing.exception, "hint", ""))
    done = run("purge", "--source", "ledger", "--yes", "--json")
    assert done.exit_code == 0, done.output
    deleted = json.loads(done.stdout)["deleted"]
    assert (deleted["notes"], deleted["text_index_rows"], deleted["sessions"]) == (2, 2, 0)
    with connect(store.url, application="tests") as connection:
        left = connection.execute("select source from recall.note").fetchall()
        indexed = connection.execute("select source from recall.message_text").fetchall()
    assert left == indexed == [("claude-code",)]
