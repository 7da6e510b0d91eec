"""The API as HTTP: errors in one form, shut doors, bounded time, equal answers by any door."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from recall.client import RecallClient
from recall.config import Settings
from recall.errors import NotFoundError, RecallError, StoreError, UsageError
from recall.log import JsonFormatter
from recall_api.answers import ProblemDocument, SearchAnswer
from recall_api.local import LocalBackend
from recall_api.reading import reading
from recall_sql.connection import connect
from tests.db.serving import Line, Store, serving
from tests.double.stage import until


@pytest.fixture
def store(database: str) -> Store:
    return Store(database)


@pytest.fixture
def api(database: str) -> Iterator[httpx.Client]:
    with serving(database) as client:
        yield client


REFUSED: list[tuple[str, str, dict[str, str], int]] = [
    ("GET", "/nothing", {}, 404),
    ("GET", "/docs", {}, 404),
    ("GET", "/redoc", {}, 404),
    ("GET", "/sessions/", {}, 404),
    ("GET", "/search", {}, 400),
    ("GET", "/search?q=", {}, 400),
    ("GET", "/search?q=x&mode=guess", {}, 400),
    ("GET", "/search?q=x&limit=201", {}, 400),
    ("GET", "/search?q=x&projet=y", {}, 400),
    ("GET", "/search?q=x&since=whenever", {}, 400),
    ("GET", "/search?q=a%00b", {}, 400),
    ("GET", "/sessions/a%00b", {}, 400),
    ("GET", f"/search?q={'x' * 9_000}", {}, 414),
    ("GET", "/sessions", {"x-long": "x" * 20_000}, 431),
    ("POST", "/search?q=x", {}, 405),
    ("DELETE", "/sessions/x", {}, 405),
    ("OPTIONS", "/search", {"origin": "http://localhost:7717"}, 403),
    ("GET", "/sessions", {"host": "evil.example"}, 403),
    ("GET", "/health", {"host": "evil.example"}, 403),
    ("GET", "/sessions", {"x-forwarded-for": "127.0.0.1"}, 403),
    ("GET", "/sessions", {"forwarded": "for=127.0.0.1"}, 403),
    ("GET", "/sessions", {"origin": "http://evil.example"}, 403),
]


def test_every_refusal_is_a_problem_document(api: httpx.Client, subtests: pytest.Subtests) -> None:
    for method, path, headers, status in REFUSED:
        with subtests.test(f"{method} {path[:40]} {list(headers)}"):
            answer = api.request(method, path, headers=headers)
            assert answer.status_code == status
            assert answer.headers["content-type"] == "application/problem+json"
            assert ProblemDocument(**answer.json()).status == status
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_refusal_does_not_repeat_what_was_sent(api: httpx.Client) -> None:
    for path in ("/search?q=x&mode=canary", "/search?q=x&limit=canary", "/canary"):
        assert "canary" not in api.get(path).text


def test_a_body_is_refused(api: httpx.Client) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x"

    for method, path, content in (
        ("GET", "/sessions", b"x" * 100),
        ("GET", "/sessions", pieces()),
        ("POST", "/join", b"x" * 5_000),
    ):
        answer = api.request(method, path, content=content)
        assert answer.status_code == 413
        assert answer.json()["type"] == "urn:recall:problem:too-long"


def test_every_answer_is_protected_and_open_to_no_other_site(
    store: Store, api: httpx.Client, subtests: pytest.Subtests
) -> None:
    store.add_session("0b7f2c9e", ["hello"])
    for path in ("/sessions", "/search?q=hello", "/health", "/metrics", "/openapi.json", "/none"):
        with subtests.test(path=path):
            headers = api.get(path, headers={"origin": str(api.base_url).rstrip("/")}).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["content-security-policy"].startswith("default-src 'none'")
            assert headers["cache-control"] == "no-store"
            assert not [name for name in headers if name.startswith("access-control-")]


def test_head_has_the_headers_of_get_and_no_body(store: Store, api: httpx.Client) -> None:
    store.add_session("0b7f2c9e", ["hello"])
    for path in ("/sessions", "/sessions/0b7f2c9e", "/none"):
        get, head = api.get(path), api.head(path)
        assert (head.status_code, head.content) == (get.status_code, b"")
        assert head.headers["content-length"] == str(len(get.content))


def test_an_unexpected_error_tells_the_caller_and_the_log_no_content(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("canary")

    monkeypatch.setattr("recall_api.app.list_sessions", fail)
    with caplog.at_level(logging.DEBUG):
        answer = api.get("/sessions?q=canary-query")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "canary" not in answer.text
    lines = [JsonFormatter().format(record) for record in caplog.records if ours(record)]
    assert len(lines) == 1
    assert "canary" not in lines[0]
    entry = json.loads(lines[0])
    assert (entry["event"], entry["route"]) == ("request failed", "/sessions")
    assert entry["error"] == "RuntimeError"


def ours(record: logging.LogRecord) -> bool:
    return record.name.startswith("recall")


def test_a_statement_that_takes_too_long_is_a_timeout(
    store: Store, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recall_api.app._GRACE_SECONDS", 0)
    with (
        serving(database, Settings(search_timeout_seconds=1)) as api,
        psycopg.connect(database) as blocker,
    ):
        blocker.execute("lock table recall.session in access exclusive mode")
        answer = api.get("/sessions")
        assert (answer.status_code, answer.json()["type"]) == (504, "urn:recall:problem:timeout")
        blocker.rollback()
        # the limit still holds, and a slow machine may need more than one try
        until(lambda: api.get("/sessions").status_code == 200)


def test_a_database_that_is_away_is_a_503_that_says_when_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("recall_api.reading._POOL_SECONDS", 0.1)
    with serving("postgresql://127.0.0.1:9/nowhere") as api:
        answer = api.get("/sessions")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["type"] == "urn:recall:problem:store-unavailable"


def test_requests_cannot_write_and_leave_no_transaction_open(
    store: Store, database: str, api: httpx.Client
) -> None:
    api.get("/sessions")
    with psycopg.connect(database) as other:
        row = other.execute(
            "select count(*) from pg_stat_activity where application_name = 'recall api'"
            " and datname = current_database() and state like 'idle in transaction%'"
        ).fetchone()
    assert row == (0,)
    with (
        connect(database) as connection,
        pytest.raises(StoreError, match="25006"),
        reading(connection) as reader,
    ):
        reader.execute("delete from recall.session")


def test_search_is_answered_as_described(store: Store, api: httpx.Client) -> None:
    store.add_session("0b7f2c9e", ["could not resize shared memory segment", "other"])
    answer = api.get("/search", params={"q": "shared memory"}).json()
    assert [hit["session_key"] for hit in answer["hits"]] == store.keys
    assert SearchAnswer(**answer).model_dump() == answer


def test_the_description_of_the_api_is_complete(api: httpx.Client) -> None:
    document = api.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/search", "/sessions", "/sessions/{key}", "/sessions/{key}/messages",
        "/ledger", "/memories", "/messages/{message_id}", "/status", "/health", "/metrics",
        "/join",
    }  # fmt: skip
    for path, operations in document["paths"].items():
        method = "post" if path == "/join" else "get"
        assert set(operations) == {method}
        assert operations[method]["description"], path
        assert "422" not in operations[method]["responses"], path
    query = document["paths"]["/search"]["get"]["parameters"]
    assert {"q", "mode", "since", "exclude_session"} <= {item["name"] for item in query}


CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("search", ({"q": "hello", "role": ["user"], "limit": 5},)),
    ("sessions", ({"limit": 1, "source": ["claude-code"], "include_spills": True},)),
    ("sessions", ({"q": None, "relation": []},)),
    ("session", ("0b7f2c9e",)),
    ("session", ("claude-code:laptop:a/../b/.",)),
    ("messages", ("0b7f2c9e", {"limit": 1})),
    ("messages", ("0b7f2c9e", {"around": 1, "context": 1})),
    ("ledger", ({"q": "hello", "session": ["0b7f2c9e"], "limit": 1},)),
    ("memories", ({"include_replaced": True, "path": ["MEMORY.md"]},)),
    ("status", ({"problems": 3},)),
]
FAILING: list[tuple[str, tuple[Any, ...], type[RecallError]]] = [
    ("session", ("unknown-session",), NotFoundError),
    ("session", ("",), NotFoundError),
    ("message", ("abc", {}), UsageError),
    ("message", ("1", {}), NotFoundError),
    ("sessions", ({"limit": 0},), UsageError),
    ("sessions", ({"projet": "x"},), UsageError),
    ("sessions", ({"cursor": "nonsense"},), UsageError),
    ("search", ({"q": "x", "mode": "guess"},), UsageError),
]


def without_clock(answer: Any) -> Any:
    """The answer without what differs from call to call."""
    if isinstance(answer, dict):
        moving = {"took_ms", "age_seconds", "database_bytes"}
        return {name: without_clock(item) for name, item in answer.items() if name not in moving}
    return [without_clock(item) for item in answer] if isinstance(answer, list) else answer


def test_answers_and_errors_do_not_depend_on_the_door(
    store: Store, database: str, api: httpx.Client, subtests: pytest.Subtests
) -> None:
    store.add_session("0b7f2c9e", ["hello", Line("there", copy=3), "hello you"], title="T")
    store.add_session("a/../b/.", ["dots"])
    store.add_quarantine("/logs/a.jsonl", 50)
    store.beat()
    settings = Settings(url=str(api.base_url))
    with RecallClient(settings) as remote, connect(database) as connection:
        local = LocalBackend(settings, connection)
        for name, arguments in CALLS:
            with subtests.test(f"{name} {arguments}"):
                ours = getattr(local, name)(*arguments)
                theirs = getattr(remote, name)(*arguments)
                assert without_clock(ours) == without_clock(theirs)
        for name, arguments, kind in FAILING:
            with subtests.test(f"{name} {arguments}"):
                with pytest.raises(kind) as ours_failed:
                    getattr(local, name)(*arguments)
                with pytest.raises(kind) as theirs_failed:
                    getattr(remote, name)(*arguments)
                assert type(ours_failed.value).exit_code == type(theirs_failed.value).exit_code
