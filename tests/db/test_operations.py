"""What whoever runs the server sees: hosts and their lag, the state of the database, backups."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql

from recall.config import Settings
from recall_api import answers_status, metrics
from recall_api.app import create_app
from recall_api.metrics import STORE, Metrics, degraded_by
from recall_api.metrics_store import collect_store
from recall_api.search import SearchRequest, search
from recall_sql.connection import connect
from tests.db.embedding import Bench, say
from tests.db.serving import Store, running, serving

Samples = dict[tuple[str, ...], float | None]


@pytest.fixture
def store(database: str) -> Store:
    return Store(database)


@pytest.fixture
def api(database: str) -> Iterator[httpx.Client]:
    with serving(database) as client:
        yield client


def beat(
    url: str, host: str, *, seconds_ago: float = 0, component: str = "ingester", **detail: Any
) -> None:
    """A sign of life of a host among several."""
    with connect(url, application="tests") as connection:
        connection.execute(
            "insert into recall.worker_heartbeat (component, instance, host, pid, beat_at, detail)"
            " values (%s, %s, %s, 7, now() - make_interval(secs => %s), %s)"
            " on conflict (component, instance) do update"
            " set beat_at = excluded.beat_at, detail = excluded.detail",
            (component, host, host, seconds_ago, json.dumps(detail)),
        )


def register(url: str, host: str) -> None:
    with connect(url, application="tests") as connection:
        connection.execute(
            "insert into recall.host (host, install_id) values (%s, gen_random_uuid())", (host,)
        )


def read_ago(url: str, path: str, seconds: float) -> None:
    """Let a file have been read some time ago."""
    with connect(url, application="tests") as connection:
        connection.execute(
            "update recall.ingest_state set read_at = now() - make_interval(secs => %s)"
            " where path = %s",
            (seconds, path),
        )


def collect(url: str, settings: Settings | None = None) -> dict[str, Samples]:
    """What a scrape finds in the store, by metric and label values."""
    found: dict[str, Samples] = {}
    for name, values, number in collect_store(url, settings or Settings(database_url=url)):
        assert len(values) == len(STORE[name][0])
        assert values not in found.setdefault(name, {}), (name, values)
        found[name][values] = number
    return found


# Hosts


def test_a_host_that_reports_lags_by_its_last_whole_pass(store: Store, api: httpx.Client) -> None:
    store.add_file("/logs/a", lines=(1, 1, 0, 0, 0))
    read_ago(store.url, "/logs/a", 500)
    watched: dict[str, Any] = {"sources": {"claude-code": 1}, "version": "0.2.0"}
    beat(store.url, "laptop", seconds_ago=60, state="waiting", **watched)
    answer = api.get("/status").json()
    assert answers_status.StatusAnswer(**answer).model_dump() == answer
    (host,), (row,) = answer["hosts"], answer["sources"]
    told = (host["host"], host["silent"], host["version"], host["state"], host["sources"])
    assert told == ("laptop", False, "0.2.0", "waiting", ["claude-code"])
    assert 60 <= row["lag_seconds"] < 120
    assert row["newest_sync"] == host["beat_at"] > row["newest_read"]
    # In the middle of a pass nobody knows that everything was read.
    beat(store.url, "laptop", seconds_ago=1, state="reading", **watched)
    row = api.get("/status").json()["sources"][0]
    assert 500 <= row["lag_seconds"] < 560
    assert row["newest_sync"] == row["newest_read"]


def test_what_no_pass_reads_has_no_lag(store: Store, api: httpx.Client) -> None:
    store.add_file("/logs/a", lines=(1, 1, 0, 0, 0))
    store.add_file("/home/export.zip", source="chatgpt", lines=(1, 1, 0, 0, 0))
    store.add_file("/logs/b", host="old", lines=(1, 1, 0, 0, 0))
    beat(store.url, "laptop", state="waiting", sources={"claude-code": 1})
    rows = {(row["host"], row["source"]): row for row in api.get("/status").json()["sources"]}
    assert rows["laptop", "claude-code"]["lag_seconds"] is not None
    for imported in (("laptop", "chatgpt"), ("old", "claude-code")):
        assert rows[imported]["lag_seconds"] is None
        assert rows[imported]["newest_sync"] == rows[imported]["newest_read"]
    assert set(collect(store.url)["recall_ingest_lag_seconds"]) == {
        ("laptop", "claude-code"),
        ("laptop", "chatgpt"),
        ("old", "claude-code"),
    }


def test_hosts_are_told_apart_and_a_silent_one_is_marked(store: Store, api: httpx.Client) -> None:
    beat(store.url, "desk", seconds_ago=600, state="waiting")
    beat(store.url, "laptop", seconds_ago=901, state="waiting")
    beat(store.url, "watching", seconds_ago=901, interval_seconds=1_000)
    register(store.url, "new")
    silent = {row["host"]: row["silent"] for row in api.get("/status").json()["hosts"]}
    assert silent == {"desk": False, "laptop": True, "new": True, "watching": False}
    found = collect(store.url)
    assert found["recall_host_up"][("new",)] == 0
    assert found["recall_host_beat_age_seconds"][("new",)] is None
    assert 901 <= (found["recall_host_beat_age_seconds"][("laptop",)] or 0) < 960


def test_errors_of_the_clients_are_told_by_code_and_cannot_flood(store: Store) -> None:
    invented = {f"X{number:04}": 1 for number in range(100)}
    beat(store.url, "laptop", sink_errors={"PGRST003": 4, "23505": 0, "a text\nof a log": 2})
    beat(store.url, "rogue", sink_errors=invented, version="x" * 500, state={"a": 1}, sources=[1])
    beat(store.url, "odd", sink_errors=[1], version=3, interval_seconds="soon")
    found = collect(store.url)
    errors = found["recall_sink_errors"]
    assert errors["laptop", "PGRST003"] == 4
    assert errors["laptop", "other"] == 2
    assert sum(host == "laptop" for host, _ in errors) == 2
    assert errors["rogue", "other"] == 80
    assert sum(host == "rogue" for host, _ in errors) == 21
    assert ("rogue", "unknown") in found["recall_host_info"]
    assert ("odd", "unknown") in found["recall_host_info"]


def test_hosts_and_sources_that_a_client_invents_are_cut_off(store: Store) -> None:
    with connect(store.url, application="tests") as connection:
        connection.execute(
            "insert into recall.session (session_key, source, host, external_id)"
            " select 's' || n || ':rogue:x', 's' || n, 'rogue', 'x'"
            " from generate_series(1, 1000) n"
        )
    store.add_session("x", source="s" * 200)
    found = collect(store.url)
    assert len(found["recall_files"]) == 300
    assert max(len(value) for labels in found["recall_files"] for value in labels) < 10


# The state of the database


def test_an_idle_transaction_and_connections_are_seen(store: Store) -> None:
    calm = collect(store.url)
    assert calm["recall_database_idle_in_transaction_seconds"][()] == 0
    with psycopg.connect(store.url) as forgotten:
        row = forgotten.execute("select now()").fetchone()
        found = collect(store.url)
        assert found["recall_database_connections"][("idle_in_transaction",)] == 1
        assert (found["recall_database_idle_in_transaction_seconds"][()] or 0) > 0
        oldest = found["recall_database_oldest_transaction_seconds"][()] or 0
        assert row is not None
        elapsed = (datetime.now(UTC) - row[0]).total_seconds()
        assert 0 < oldest <= elapsed
    assert (found["recall_database_connections_limit"][()] or 0) >= 10


def test_dead_rows_are_counted_until_vacuum(store: Store) -> None:
    store.add_session("one", ["a", "b", "c"])
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute("delete from recall.message")
        connection.execute("select pg_stat_force_next_flush()")
        connection.execute("select 1")
        assert collect(store.url)["recall_table_dead_rows"][("message",)] == 3
        assert collect(store.url)["recall_table_vacuum_age_seconds"][("message",)] is None
        connection.execute("vacuum recall.message")
    found = collect(store.url)
    assert found["recall_table_dead_rows"][("message",)] == 0
    age = found["recall_table_vacuum_age_seconds"][("message",)]
    assert age is not None and age >= 0


BLOAT = sql.SQL("select size_bytes, expected_bytes from recall.index_bloat(8192) where name = {}")


@pytest.mark.parametrize("index", ["backup_pkey", "text_key", "expression_key", "packed"])
def test_bloat_of_an_index_is_near_what_rebuilding_it_gives_back(store: Store, index: str) -> None:
    statement = BLOAT.format(index)
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute("create index text_key on recall.backup (file, started_at)")
        connection.execute("create index expression_key on recall.backup (lower(file))")
        connection.execute("create index packed on recall.backup (file) with (fillfactor = 50)")
        connection.execute(
            "insert into recall.backup (started_at, bytes, file, schema_version)"
            " select now(), 1, md5(n::text), 16 from generate_series(1, 20000) n"
        )
        connection.execute(sql.SQL("reindex index recall.{}").format(sql.Identifier(index)))
        connection.execute("vacuum analyze recall.backup")
        size, expected = connection.execute(statement).fetchone() or (0, 0)
        assert expected <= size < 1.1 * expected
        connection.execute("delete from recall.backup where id % 4 > 0")
        connection.execute("vacuum analyze recall.backup")
        size, expected = connection.execute(statement).fetchone() or (0, 0)
        assert size > 3 * expected
        connection.execute(sql.SQL("reindex index recall.{}").format(sql.Identifier(index)))
        rebuilt, _ = connection.execute(statement).fetchone() or (0, 0)
        assert expected == pytest.approx(rebuilt, rel=0.15)


def test_an_index_without_statistics_is_not_guessed(store: Store) -> None:
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute("alter table recall.backup set (autovacuum_enabled = off)")
        connection.execute(
            "insert into recall.backup (started_at, bytes, file, schema_version)"
            " select now(), 1, md5(n::text), 16 from generate_series(1, 2000) n"
        )
        connection.execute("reindex index recall.backup_pkey")
        assert connection.execute(BLOAT.format("backup_pkey")).fetchall() == []
        connection.execute("analyze recall.backup")
        assert len(connection.execute(BLOAT.format("backup_pkey")).fetchall()) == 1


def test_backups_count_from_the_day_of_the_store_until_there_is_one(store: Store) -> None:
    def ages() -> tuple[float, float]:
        found = collect(store.url)
        names = ("recall_backup_age_seconds", "recall_backup_verified_age_seconds")
        first, second = (found[name][()] or 0.0 for name in names)
        return first, second

    day = timedelta(days=1).total_seconds()
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(
            "update recall.schema_version set applied_at = now() - interval '5 days'"
            " where version = 1"
        )
        assert ages() == pytest.approx((5 * day, 5 * day), abs=60)
        assert collect(store.url)["recall_backups"][()] == 0
        connection.execute(
            "insert into recall.backup (started_at, bytes, file, schema_version, verified_at)"
            " values (now() - interval '3 days', 300, 'a', 16, now() - interval '2 days'),"
            " (now() - interval '1 day', 100, 'b', 16, null)"
        )
    assert ages() == pytest.approx((day, 2 * day), abs=60)
    found = collect(store.url)
    assert (found["recall_backups"][()], found["recall_backup_size_bytes"][()]) == (2, 100)


FUNCTIONS = (
    "database_activity",
    "table_activity",
    "index_bloat",
    "text_index_pending_pages",
    "backup_state",
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_only_who_may_monitor_can_ask_for_the_state_of_the_database(
    store: Store, function: str
) -> None:
    call = sql.SQL("select * from recall.{}()").format(sql.Identifier(function))
    with psycopg.connect(store.url) as connection:
        connection.execute("create role watcher")
        connection.execute("grant usage on schema recall to watcher")
        connection.execute("set local role watcher")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute(call)
        connection.execute("reset role")
        connection.execute("grant pg_monitor to watcher")
        connection.execute("set local role watcher")
        assert connection.execute(call).description
        connection.rollback()


# Collecting


def test_a_part_that_cannot_be_collected_costs_that_part(store: Store) -> None:
    store.beat()
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute("drop function recall.database_activity()")
        found = collect(store.url)
    assert found["recall_database_up"][()] == 1
    parts = {name: number for (name,), number in found["recall_collector_up"].items()}
    assert parts.pop("activity") == 0
    assert set(parts.values()) == {1}
    assert "recall_database_connections" not in found
    assert found["recall_host_up"][("laptop",)] == 1


def test_a_locked_table_does_not_hold_up_the_rest(store: Store) -> None:
    with psycopg.connect(store.url) as connection:
        connection.execute("lock table recall.backup in access exclusive mode")
        found = collect(store.url)
        connection.rollback()
    assert found["recall_collector_up"][("backups",)] == 0
    assert found["recall_collector_up"][("rows",)] == 1
    assert found["recall_rows"][("sessions",)] == 0


def test_searches_that_hold_every_connection_are_no_dead_database(database: str) -> None:
    app = create_app(Settings(database_url=database), database)
    with running(app) as api, ExitStack() as held:
        for _ in range(app.state.service.pool.max_size):
            held.enter_context(app.state.service.pool.connection(timeout=60))
        assert "\nrecall_database_up 1.0\n" in api.get("/metrics").text


def test_free_space_is_told_also_of_a_database_that_is_down(tmp_path: Path) -> None:
    nowhere = "postgresql://127.0.0.1:9/nowhere"
    settings = Settings(
        home=tmp_path / "home",
        database_url=nowhere,
        database_volume=tmp_path,
        backup_dir=tmp_path / "not mounted",
    )
    found = collect(nowhere, settings)
    assert found["recall_database_up"][()] == 0
    size = os.statvfs(tmp_path)
    assert found["recall_volume_size_bytes"] == {("database",): size.f_blocks * size.f_frsize}
    assert (
        0
        < (found["recall_volume_free_bytes"][("database",)] or 0)
        <= size.f_blocks * (size.f_frsize)
    )


def test_the_embedded_database_is_measured_where_it_is(database: str, tmp_path: Path) -> None:
    (tmp_path / "pg").mkdir()
    assert ("database",) in collect(database, Settings(home=tmp_path))["recall_volume_free_bytes"]
    remote = Settings(home=tmp_path, database_url=database)
    assert "recall_volume_free_bytes" not in collect(database, remote)


def test_scrapes_within_the_time_of_the_cache_ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def ask() -> list[metrics.Sample]:
        asked.append(1)
        return [("recall_database_up", (), 1)]

    monkeypatch.setattr(metrics, "CACHE_SECONDS", 600.0)
    counted = Metrics(ask)
    assert asked == []
    counted.render()
    counted.render()
    assert len(asked) == 1
    monkeypatch.setattr(metrics, "CACHE_SECONDS", 0.0)
    counted.render()
    assert len(asked) == 2


# Degraded answers


def test_every_way_in_which_an_answer_is_degraded_has_a_word(
    store: Store, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(database)
    bench.begin()
    store.add_session("two", ["a needle", "a needle"])
    with connect(database, application="tests") as connection:
        late = search(connection, SearchRequest("eedle", mode="exact"), budget_seconds=0)
        assert late["degraded"]
        assert degraded_by(late["reasons"]) == "time_limit"
        monkeypatch.setattr("recall_api.search._GRACE_SECONDS", 0.2)
        with connect(database, application="tests") as other:
            other.execute("lock table recall.message_text in access exclusive mode")
            nothing = search(connection, SearchRequest("needle", mode="text"), budget_seconds=0.1)
        assert nothing["degraded"]
        assert degraded_by(nothing["reasons"]) == "time_limit"
        monkeypatch.undo()
        blind = search(connection, SearchRequest("needle", mode="semantic"), budget_seconds=60)
        assert blind["degraded"]
        assert degraded_by(blind["reasons"]) == "no_vectors"
    say(database, "claude-code:laptop:one", [f"needle {number}" for number in range(8)])
    while bench.cutter.cut_next():
        pass
    bench.worker.embed_next()
    with connect(database, application="tests") as connection:
        request = SearchRequest("needle", mode="semantic")
        vectors: Any = _Vectors(bench)
        early = search(connection, request, budget_seconds=60, vectors=vectors)
        assert early["degraded"]
        assert degraded_by(early["reasons"]) == "vectors_incomplete"
    bench.close()
    assert degraded_by(["something new"]) == "other"
    gravest = [*early["reasons"], *late["reasons"]]
    assert degraded_by(gravest) == "time_limit"


class _Vectors:
    """Vectors for queries from the model of a test."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def of(self, query: str, _model: str) -> list[float]:
        vector: list[float] = self._bench.model.embed([query])[0].tolist()
        return vector


def test_degraded_answers_are_counted_by_mode_and_reason(api: httpx.Client) -> None:
    answer = api.get("/search", params={"q": "needle", "mode": "semantic"}).json()
    assert answer["degraded"]
    text = api.get("/metrics").text
    assert 'recall_searches_degraded_total{mode="text",reason="no_vectors"} 1.0' in text
