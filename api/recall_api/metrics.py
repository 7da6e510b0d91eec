"""Prometheus metrics: what this process counts, and what the store says when it is asked.

Labels are names of routes, hosts, sources and tables; never a query, a path or any other content.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from psycopg import sql
from psycopg_pool import ConnectionPool

from recall.errors import StoreError
from recall_api.embedding import list_embedding
from recall_api.reading import Answer, Connection, fetch, reading
from recall_api.status import get_totals, list_components, list_sources
from recall_sql.loader import load
from recall_sql.migrate import current_version

_log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Scrapes closer together than this get the same answer from the store.
CACHE_SECONDS = 5.0
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_PER_SOURCE = ("host", "source")
_OUTCOMES = ("stored", "merged", "quarantined", "skipped")


class Metrics:
    """The metrics of one API process, in a registry of its own."""

    def __init__(self, collect: Callable[[], list[Metric]]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "recall_http_requests",
            "Answered requests by route and status.",
            ("route", "status"),
            registry=self._registry,
        )
        self._searches = Histogram(
            "recall_search_duration_seconds",
            "Time that searches took, by the mode that was used.",
            ("mode",),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._degraded = Counter(
            "recall_searches_degraded",
            "Searches that answered with less than they were asked for.",
            ("mode",),
            registry=self._registry,
        )
        self._registry.register(_Cached(collect))

    def count_request(self, route: str, status: int) -> None:
        """One answer; ``route`` is the template of the path."""
        self._requests.labels(route, str(status)).inc()

    def observe_search(self, mode: str, seconds: float, *, degraded: bool) -> None:
        """One search that was answered."""
        self._searches.labels(mode).observe(seconds)
        if degraded:
            self._degraded.labels(mode).inc()

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class _Cached(Collector):
    """What a function collected, kept for a moment; one thread asks and the others wait."""

    def __init__(self, collect: Callable[[], list[Metric]]) -> None:
        self._collect = collect
        self._lock = threading.Lock()
        self._kept: list[Metric] = []
        self._kept_at = float("-inf")

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not ask the store."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of the store, at most ``CACHE_SECONDS`` old."""
        with self._lock:
            if time.monotonic() - self._kept_at >= CACHE_SECONDS:
                self._kept = self._collect()
                self._kept_at = time.monotonic()
            return iter(self._kept)


def collect_store(pool: ConnectionPool[Connection], *, interval_seconds: float) -> list[Metric]:
    """Ask the store. If it does not answer, ``recall_database_up`` is 0 and the rest is missing."""
    up = GaugeMetricFamily("recall_database_up", "Whether the store answered this scrape.")
    try:
        with reading(pool) as connection:
            components = list_components(connection, interval_seconds=interval_seconds)
            metrics = [
                *_sources(list_sources(connection)),
                *_components(components),
                *_sizes(connection, components),
            ]
        with reading(pool) as connection:
            metrics += _pending(connection)
    except StoreError as error:
        _log.warning("store not measured", extra={"reason": error.message})
        up.add_metric((), 0)
        return [up]
    up.add_metric((), 1)
    return [up, *metrics]


def _gauge(
    name: str, about: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], Any]]
) -> Metric:
    family = GaugeMetricFamily(name, about, labels=labels)
    for values, number in rows:
        if number is not None:
            family.add_metric(values, float(number))
    return family


def _sources(rows: list[Answer]) -> Iterator[Metric]:
    lines = CounterMetricFamily(
        "recall_ingest_lines",
        "Lines read from session logs by what became of them.",
        labels=(*_PER_SOURCE, "outcome"),
    )
    for row in rows:
        for outcome in _OUTCOMES:
            lines.add_metric((row["host"], row["source"], outcome), row[f"lines_{outcome}"])
    yield lines
    for name, about, measure in (
        ("recall_files", "Session log files known.", lambda row: row["files"]),
        (
            "recall_files_missing",
            "Session log files that are gone from their machine; what was read is kept.",
            lambda row: row["missing_files"],
        ),
        (
            "recall_files_unreadable",
            "Files and folders that could not be read the last time.",
            lambda row: row["unreadable_files"],
        ),
        (
            "recall_quarantined_spans",
            "Spans of session logs that could not be read as a record.",
            lambda row: row["quarantined"],
        ),
        (
            "recall_newest_message_age_seconds",
            "Age of the newest message; it grows while nobody works, too.",
            lambda row: _age(row["newest_message"]),
        ),
        (
            "recall_last_read_age_seconds",
            "Time since a file was last read.",
            lambda row: _age(row["newest_read"]),
        ),
    ):
        values = [((row["host"], row["source"]), measure(row)) for row in rows]
        yield _gauge(name, about, _PER_SOURCE, values)


def _age(moment: str | None) -> float | None:
    if moment is None:
        return None
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())


def _components(rows: list[Answer]) -> Iterator[Metric]:
    by_name = [(name, list(group)) for name, group in groupby(rows, key=itemgetter("component"))]
    yield _gauge(
        "recall_component_heartbeat_age_seconds",
        "Time since a component last said that it is alive.",
        ("component",),
        [((name,), min(row["age_seconds"] for row in group)) for name, group in by_name],
    )
    yield _gauge(
        "recall_component_up",
        "Whether a component was heard of within its time limit.",
        ("component",),
        [((name,), not all(row["stale"] for row in group)) for name, group in by_name],
    )
    yield _gauge(
        "recall_component_processes",
        "Processes of a component that were heard of within their time limit.",
        ("component",),
        [((name,), sum(not row["stale"] for row in group)) for name, group in by_name],
    )


_PASSAGES = ("embedded", "waiting", "failed")


def _embedding(rows: list[Answer]) -> Iterator[Metric]:
    labels = ("generation", "model")
    passages = GaugeMetricFamily(
        "recall_passages",
        "Passages by whether they have a vector; large numbers are the planner's estimate.",
        labels=(*labels, "state"),
    )
    for row in rows:
        for state in _PASSAGES:
            passages.add_metric((str(row["number"]), row["model"], state), row[state])
    yield passages
    yield _gauge(
        "recall_passages_embedded_share",
        "Of all passages, those that have a vector; an estimate.",
        labels,
        [((str(row["number"]), row["model"]), row["share"]) for row in rows],
    )


def _sizes(connection: Connection, components: list[Answer]) -> Iterator[Metric]:
    statements = load("status")
    size = fetch(connection, statements["database"], {})[0]["size_bytes"]
    yield _gauge("recall_database_size_bytes", "Size of the database.", (), [((), size)])
    yield _gauge(
        "recall_relation_size_bytes",
        "Size of a table with its out-of-line values, or of an index.",
        ("relation", "type"),
        [
            ((row["name"], row["kind"]), row["size_bytes"])
            for row in fetch(connection, statements["relations"], {})
        ],
    )
    totals = get_totals(connection)
    totals.pop("estimated")
    entries = totals["messages"] + totals["notes"]
    yield from _embedding(list_embedding(connection, entries=entries, components=components))
    yield _gauge(
        "recall_rows",
        "Rows in the store; large numbers are the planner's estimate.",
        ("entity",),
        [((name,), number) for name, number in totals.items()],
    )
    version = current_version(connection)
    yield _gauge("recall_schema_version", "Version of the schema.", (), [((), version)])


def _pending(connection: Connection) -> list[Metric]:
    """Pages of the text index that a search still has to read one by one; needs pgstattuple."""
    schemas = fetch(connection, load("status")["pgstattuple"], {})
    if not schemas:
        return []
    statement = sql.SQL(
        "select p.pending_pages from to_regclass('recall.message_text_tsv') i (name)"
        " cross join lateral {}.pgstatginindex(i.name) p where i.name is not null"
    ).format(sql.Identifier(schemas[0]["name"]))
    found = fetch(connection, statement, {})  # a first large pass has no text index yet
    about = "Pages of the pending list of the text index."
    samples = [((), row["pending_pages"]) for row in found]
    return [_gauge("recall_text_index_pending_pages", about, (), samples)]
