"""Titles of any length: answers show their beginning, and nothing of them is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from recall.identity import write_identity
from recall_sql.connection import connect
from tests.db.ingesting import IDENTITY, ingest, rows
from tests.db.serving import serving
from tests.db.test_import import summary

KEY = "mine:testhost:main"
#: Many words: the text index is to hold all of them.
TITLE = " ".join(f"titleword{number}" for number in range(20_000)) + " lastwordoftitle"


@pytest.fixture
def api(
    home: Path, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[httpx.Client]:
    monkeypatch.setenv("RECALL_DATABASE_URL", database)
    write_identity(home, IDENTITY)
    records: list[dict[str, Any]] = [
        {"recall": 1, "source": "mine"},
        {"type": "session", "id": "main", "title": TITLE},
        {"type": "message", "session": "main", "role": "user", "text": "hello"},
        {"type": "session", "id": "child", "parent": "main", "title": "short"},
    ]
    path = tmp_path / "import.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    summary(str(path))
    notes = tmp_path / "notes" / "memory" / "memories.jsonl"
    notes.parent.mkdir(parents=True)
    notes.write_text(json.dumps({"id": "1", "title": TITLE, "text": "remembered"}) + "\n")
    ingest(database, tmp_path / "notes", "memory")
    with serving(database) as client:
        yield client


def titles(value: Any) -> list[str]:
    """All titles in an answer, however deep."""
    found = []
    if isinstance(value, dict):
        for name, item in value.items():
            if name in ("title", "session_title") and item is not None:
                found.append(item)
            found += titles(item)
    elif isinstance(value, list):
        for item in value:
            found += titles(item)
    return found


PATHS = [
    "/sessions",
    f"/sessions/{quote(KEY, safe='')}",
    f"/sessions/{quote('mine:testhost:child', safe='')}",
    "/search?q=hello",
    "/search?q=hello&mode=exact",
    "/memories",
    "/memories?q=remembered",
]


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_shows_the_beginning_of_a_title(api: httpx.Client, path: str) -> None:
    answer = api.get(path)
    assert answer.status_code == 200, answer.text
    found = titles(answer.json())
    long = [title for title in found if title.startswith("titleword0 ")]
    assert long
    assert {len(title) for title in long} == {500}
    assert all(title.endswith("…") for title in long)
    assert TITLE.startswith(long[0][:-1])


def test_a_note_by_itself_shows_no_more(api: httpx.Client) -> None:
    (entry,) = api.get("/memories").json()["entries"]
    answer = api.get(f"/messages/{entry['id']}")
    assert answer.status_code == 200, answer.text
    assert [len(title) for title in titles(answer.json())] == [500]


def test_what_a_message_says_of_its_session(api: httpx.Client) -> None:
    (hit,) = api.get("/search", params={"q": "hello"}).json()["hits"]
    answer = api.get(f"/messages/{hit['id']}")
    assert answer.status_code == 200, answer.text
    assert [len(title) for title in titles(answer.json())] == [500]


def test_the_whole_title_is_found(api: httpx.Client, database: str) -> None:
    found = api.get("/search", params={"q": "lastwordoftitle", "mode": "text"}).json()["hits"]
    assert {hit["kind"] for hit in found} == {"memory"}
    listed = api.get("/sessions", params={"q": "lastwordoftitle"}).json()["sessions"]
    assert [session["session_key"] for session in listed] == [KEY]
    stored = rows(database, "select title from recall.session where session_key = %s", KEY)
    assert stored == [(TITLE,)]


def test_the_view_of_sessions_shows_the_beginning(api: httpx.Client, database: str) -> None:
    found = rows(database, "select max(length(title)) from api.sessions")
    assert found == [(500,)]


@pytest.mark.parametrize("length", [0, 1, 499, 500, 501, 502])
def test_what_fits_is_shown_whole(database: str, length: int) -> None:
    text = "ä" * length
    with connect(database, application="tests") as connection:
        row = connection.execute("select recall.shown(%s)", (text,)).fetchone()
    assert row == (text if length <= 500 else "ä" * 499 + "…",)
