"""Status, health and metrics: what the API says about the store and about its neighbours."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from recall.config import Settings
from recall_api import answers_status, metrics
from recall_api.app import create_app
from recall_api.health import check_health
from recall_sql.migrate import latest_version
from tests.db.serving import Line, Store, running, serving


@pytest.fixture
def store(database: str) -> Store:
    return Store(database)


@pytest.fixture
def api(database: str) -> Iterator[httpx.Client]:
    with serving(database) as client:
        yield client


def fill(store: Store) -> None:
    key = store.add_session("0b7f2c9e", ["a", Line("b", role="assistant")])
    store.add_session("1c", source="codex", host="server")
    store.add_prompt("typed")
    store.add_file("/logs/a.jsonl", key=key, lines=(10, 4, 3, 1, 2))
    store.add_file("/logs/gone.jsonl", lines=(5, 5, 0, 0, 0), missing=True)
    store.add_file("/logs/locked.jsonl", unreadable="permission denied")
    store.add_quarantine("/logs/a.jsonl", 100)
    store.add_quarantine("/logs/a.jsonl", 50)
    store.beat()


def test_status_says_what_came_from_where_and_that_lines_add_up(
    store: Store, api: httpx.Client
) -> None:
    fill(store)
    answer = api.get("/status").json()
    assert answers_status.StatusAnswer(**answer).model_dump() == answer
    laptop, server = answer["sources"]
    sizes = ("read", "kept", "quarantined")
    assert [laptop[f"bytes_{name}"] for name in sizes] == [30, 0, 14]
    assert (laptop["host"], laptop["source"]) == ("laptop", "claude-code")
    numbers = ("files", "missing_files", "unreadable_files", "sessions", "quarantined")
    assert [laptop[name] for name in numbers] == [3, 1, 1, 1, 2]
    lines = ("seen", "stored", "merged", "quarantined", "skipped")
    assert [laptop[f"lines_{name}"] for name in lines] == [15, 9, 3, 1, 2]
    assert laptop["lines_add_up"] is True
    assert laptop["newest_message"] == "2026-03-01T12:01:00Z"
    assert (server["host"], server["sessions"], server["newest_message"]) == ("server", 1, None)
    totals = answer["totals"]
    assert (totals["sessions"], totals["messages"], totals["prompts"]) == (2, 2, 1)
    assert answer["schema_version"] == answer["schema_expected"] == latest_version()


def test_status_lists_problems_only_when_asked(store: Store, api: httpx.Client) -> None:
    fill(store)
    few = api.get("/status").json()["problems"]
    assert (few["quarantined"], few["unreadable"], few["missing"]) == (2, 1, 1)
    assert few["quarantined_spans"] == few["unreadable_files"] == []
    one = api.get("/status", params={"problems": 1}).json()["problems"]
    assert [span["byte_offset"] for span in one["quarantined_spans"]] == [50]
    span = one["quarantined_spans"][0]
    assert (span["path"], span["line"], span["byte_length"]) == ("/logs/a.jsonl", 4, 7)
    assert (span["reason"], span["salvaged"], span["sha256"]) == ("not JSON", False, "00" * 32)
    assert [file["reason"] for file in one["unreadable_files"]] == ["permission denied"]


def test_status_of_an_empty_store(api: httpx.Client) -> None:
    answer = api.get("/status").json()
    assert (answer["sources"], answer["components"], answer["hosts"]) == ([], [], [])


def test_large_tables_are_estimated_and_said_to_be(store: Store, api: httpx.Client) -> None:
    fill(store)
    with psycopg.connect(store.url) as connection:
        connection.execute(
            "select pg_restore_relation_stats('schemaname', 'recall', 'relname', 'message',"
            " 'relpages', 90000, 'reltuples', 7000000::real)"
        )
    totals = api.get("/status").json()["totals"]
    assert totals["estimated"] == ["messages"]
    assert (totals["messages"], totals["sessions"]) == (7_000_000, 2)


HEARTBEATS = [
    # seconds ago, detail, the limit, healthy
    (100, "{}", 900, True),
    (901, "{}", 900, False),
    (100, '{"interval_seconds": 5}', 180, True),
    (181, '{"interval_seconds": 5}', 180, False),
    (2_000, '{"interval_seconds": 1000}', 3_000, True),
    (100, '{"interval_seconds": "soon"}', 900, True),
    (100, "[]", 900, True),
]


def test_health_turns_red_when_the_ingester_is_not_heard_of(
    store: Store, api: httpx.Client, subtests: pytest.Subtests
) -> None:
    for age, detail, limit, healthy in HEARTBEATS:
        with subtests.test(age=age, detail=detail):
            store.beat(seconds_ago=age, detail=detail)
            answer = api.get("/health")
            assert answer.status_code == (200 if healthy else 503)
            ingester = answer.json()["components"]["ingester"]
            assert (ingester["ok"], ingester["stale_after_seconds"]) == (healthy, limit)


def test_health_waits_for_an_ingester_that_never_reported_but_not_for_ever(database: str) -> None:
    for running_seconds, healthy in ((0.0, True), (899.0, True), (901.0, False)):
        answer = check_health(database, interval_seconds=300, running_seconds=running_seconds)
        assert answer["ok"] is healthy
        assert answer["components"]["database"]["ok"] is True


def test_a_server_that_others_feed_does_not_wait_for_their_ingesters(store: Store) -> None:
    def check() -> dict[str, Any]:
        return check_health(
            store.url, interval_seconds=300, running_seconds=9_000, ingests_here=False
        )

    assert check()["ok"] is True
    store.beat(seconds_ago=50_000)
    answer = check()
    assert answer["ok"] is True
    assert answer["components"]["ingester"]["age_seconds"] >= 50_000


def test_health_is_red_without_a_schema(empty_database: str) -> None:
    with serving(empty_database) as api:
        answer = api.get("/health")
    assert answer.status_code == 503
    assert answer.json()["components"]["schema"]["ok"] is False


def test_health_is_red_for_a_newer_schema(store: Store, api: httpx.Client) -> None:
    store.beat()
    assert api.get("/health").status_code == 200
    with psycopg.connect(store.url) as connection:
        connection.execute("insert into recall.schema_version values (9999, 'later', 'x')")
    answer = api.get("/health")
    assert answer.status_code == 503
    assert "newer" in answer.json()["components"]["schema"]["detail"]


def test_health_is_red_without_a_database_and_does_not_tell_where_it_is() -> None:
    with serving("postgresql://somebody:secret@127.0.0.1:9/nowhere") as api:
        answer = api.get("/health")
    assert answer.status_code == 503
    assert answer.json()["components"] == {
        "database": {"ok": False, "detail": "the database cannot be reached"}
    }


def test_health_answers_while_the_pool_is_exhausted(
    store: Store, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.beat()
    app = create_app(Settings(), database)
    with running(app) as api, ExitStack() as held:
        assert api.get("/sessions").status_code == 200
        for _ in range(app.state.service.pool.max_size):
            held.enter_context(app.state.service.pool.connection(timeout=60))
        monkeypatch.setattr("recall_api.reading._POOL_SECONDS", 0.1)
        refused = api.get("/sessions")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert api.get("/health").status_code == 200


def scrape(api: httpx.Client) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by sample name and label values."""
    text = api.get("/metrics").text
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_metrics_tell_what_the_store_holds(store: Store, api: httpx.Client) -> None:
    fill(store)
    found = scrape(api)
    here = ("laptop", "claude-code")
    assert found["recall_database_up"] == {(): 1}
    assert found["recall_ingest_lines"]["laptop", "merged", "claude-code"] == 3
    assert found["recall_ingest_lines"]["laptop", "quarantined", "claude-code"] == 1
    assert found["recall_ingest_bytes"]["laptop", "read", "claude-code"] == 30
    assert found["recall_ingest_bytes"]["laptop", "quarantined", "claude-code"] == 14
    assert found["recall_quarantined_spans"][here] == 2
    assert found["recall_files_missing"][here] == 1
    assert found["recall_newest_message_age_seconds"][here] > 0
    assert ("server", "codex") not in found["recall_newest_message_age_seconds"]
    assert found["recall_rows"][("messages",)] == 2
    assert found["recall_component_up"] == {("ingester",): 1}
    assert found["recall_relation_size_bytes"]["message_text_tsv", "index"] > 0
    assert found["recall_schema_version"] == {(): latest_version()}


def test_metrics_count_by_route_and_never_by_path(store: Store, api: httpx.Client) -> None:
    store.add_session("0b7f2c9e", ["needle"])
    for path in ("/sessions/0b7f2c9e", "/sessions/secret-one", "/secret-two", "/messages/1"):
        api.get(path)
    api.post("/sessions")
    api.head("/sessions")
    api.get("/search", params={"q": "needle", "mode": "exact"})
    counted = scrape(api)
    assert counted["recall_http_requests_total"] == {
        ("/sessions/{key:path}", "200"): 1,
        ("/sessions/{key:path}", "404"): 1,
        ("/messages/{message_id}", "404"): 1,
        ("/sessions", "200"): 1,
        ("/search", "200"): 1,
        ("none", "404"): 1,
        ("none", "405"): 1,
    }
    assert counted["recall_search_duration_seconds_count"] == {("exact",): 1}
    text = api.get("/metrics").text
    assert "secret" not in text
    assert "needle" not in text


def test_scrapes_that_follow_closely_ask_the_store_once(
    store: Store, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "CACHE_SECONDS", 600.0)
    store.add_session("one")
    assert scrape(api)["recall_rows"][("sessions",)] == 1
    store.add_session("two")
    assert scrape(api)["recall_rows"][("sessions",)] == 1
    monkeypatch.setattr(metrics, "CACHE_SECONDS", 0.0)
    assert scrape(api)["recall_rows"][("sessions",)] == 2


def test_metrics_say_that_the_database_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recall_api.reading._POOL_SECONDS", 0.1)
    with serving("postgresql://127.0.0.1:9/nowhere") as api:
        found = scrape(api)
    assert found["recall_database_up"] == {(): 0}
    assert "recall_rows" not in found


def test_the_pending_list_is_measured_where_the_extension_is(
    store: Store, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "CACHE_SECONDS", 0.0)
    store.add_session("one", ["words"])
    with psycopg.connect(store.url, autocommit=True) as connection:
        known = connection.execute(
            "select from pg_available_extensions where name = 'pgstattuple'"
        ).fetchone()
        if known is None:
            pytest.skip("this PostgreSQL comes without pgstattuple")
        assert scrape(api)["recall_text_index_pending_pages"][()] >= 1
        connection.execute("drop extension pgstattuple")
    found = scrape(api)
    assert "recall_text_index_pending_pages" not in found
    assert found["recall_collector_up"][("text_index",)] == 1


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_metrics(store: Store, api: httpx.Client) -> None:
    fill(store)
    api.get("/sessions")
    api.get("/search", params={"q": "a"})
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=api.get("/metrics").content,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
