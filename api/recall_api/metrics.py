"""Prometheus metrics: what they are, and what this process counts itself.

Labels are names of routes, hosts, sources and tables; never a query, a path or any other content.
Their number is bounded, whatever a client sends. What the store is asked for is collected in
:mod:`recall_api.metrics_store`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from recall_api.reading import Answer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Scrapes closer together than this get the same answer from the store.
CACHE_SECONDS = 15.0
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

#: A metric, the values of its labels, and its value; without a value there is no sample.
Sample = tuple[str, tuple[str, ...], float | None]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric as it is documented."""

    name: str
    kind: str
    labels: tuple[str, ...]
    about: str


_SOURCE = ("host", "source")
_MODEL = ("generation", "model")
#: By name: everything that is measured in the store or on its volume, with its labels.
STORE: dict[str, tuple[tuple[str, ...], str]] = {
    "recall_database_up": ((), "Whether the store answered this scrape."),
    "recall_collector_up": (
        ("collector",),
        "Whether a part of the metrics of the store could be collected.",
    ),
    "recall_host_up": (("host",), "Whether a machine was heard of within its time limit."),
    "recall_host_beat_age_seconds": (
        ("host",),
        "Time since the ingester of a machine last reported.",
    ),
    "recall_host_info": (("host", "version"), "Version of Recall on a machine; always 1."),
    "recall_sink_errors": (
        ("host", "code"),
        "Errors of the last pass of a machine when it stored what it had read, by code.",
    ),
    "recall_ingest_lag_seconds": (
        _SOURCE,
        "Time since a source was last known to be read to its end; only of what passes read.",
    ),
    "recall_newest_message_age_seconds": (
        _SOURCE,
        "Age of the newest message; it grows while nobody works, too.",
    ),
    "recall_last_read_age_seconds": (_SOURCE, "Time since a file was last read."),
    "recall_ingest_lines": (
        (*_SOURCE, "outcome"),
        "Lines of the session logs as they are now, by what became of them; less after a log was "
        "rewritten.",
    ),
    "recall_ingest_bytes": (
        (*_SOURCE, "outcome"),
        "Bytes of the session logs as they are now: read, kept as they were written, quarantined.",
    ),
    "recall_files": (_SOURCE, "Session log files known."),
    "recall_files_missing": (
        _SOURCE,
        "Session log files that are gone from their machine; what was read is kept.",
    ),
    "recall_files_unreadable": (
        _SOURCE,
        "Files and folders that could not be read the last time.",
    ),
    "recall_quarantined_spans": (
        _SOURCE,
        "Spans of session logs that could not be read as a record.",
    ),
    "recall_component_heartbeat_age_seconds": (
        ("component",),
        "Time since a component last said that it is alive.",
    ),
    "recall_component_up": (
        ("component",),
        "Whether a component was heard of within its time limit.",
    ),
    "recall_component_processes": (
        ("component",),
        "Processes of a component that were heard of within their time limit.",
    ),
    "recall_passages": (
        (*_MODEL, "state"),
        "Passages by whether they have a vector; large numbers are the planner's estimate.",
    ),
    "recall_passages_embedded_share": (
        _MODEL,
        "Of all passages, those that have a vector; an estimate.",
    ),
    "recall_uncut_entries": (_MODEL, "Entries that are not cut into passages yet."),
    "recall_embedding_failed_sessions": (_MODEL, "Sessions that could not be cut into passages."),
    "recall_embedding_passages_per_minute": (
        (),
        "Passages that all embedders together store in a minute, as they report it.",
    ),
    "recall_rows": (
        ("entity",),
        "Rows in the store; large numbers are the planner's estimate.",
    ),
    "recall_schema_version": ((), "Version of the schema."),
    "recall_database_size_bytes": ((), "Size of the database."),
    "recall_relation_size_bytes": (
        ("relation", "type"),
        "Size of a table with its out-of-line values, or of an index.",
    ),
    "recall_index_bloat_bytes": (
        ("relation",),
        "What a btree index of over 10 MiB takes beyond a new one; an estimate.",
    ),
    "recall_text_index_pending_pages": ((), "Pages of the pending list of the text index."),
    "recall_table_live_rows": (("relation",), "Rows of a table by the statistics."),
    "recall_table_dead_rows": (("relation",), "Rows of a table that vacuum has to remove yet."),
    "recall_table_vacuum_age_seconds": (
        ("relation",),
        "Time since a table was vacuumed; nothing for one that never was.",
    ),
    "recall_database_connections": (("state",), "Connections of clients by what they do."),
    "recall_database_connections_limit": ((), "Connections that the server allows."),
    "recall_database_oldest_transaction_seconds": (
        (),
        "Age of the oldest open transaction; vacuum removes nothing that it can see.",
    ),
    "recall_database_idle_in_transaction_seconds": (
        (),
        "Time for which a connection has held a transaction open and done nothing.",
    ),
    "recall_backups": ((), "Backups that are kept."),
    "recall_backup_age_seconds": (
        (),
        "Time since the newest backup began; without one, since the store was made.",
    ),
    "recall_backup_verified_age_seconds": (
        (),
        "Time since a backup was last restored for a test; without that, since the store was made.",
    ),
    "recall_backup_size_bytes": ((), "Size of the newest backup."),
    "recall_volume_free_bytes": (
        ("volume",),
        "Free space where the database or its backups are, for users other than root.",
    ),
    "recall_volume_size_bytes": (("volume",), "Size of the volume of the database or backups."),
    "recall_volume_reserve_bytes": (
        ("volume",),
        "Free space below which nothing more is stored.",
    ),
}


class Metrics:
    """The metrics of one API process, in a registry of its own."""

    def __init__(self, collect: Callable[[], Iterable[Sample]]) -> None:
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
            "Searches that answered with less than they were asked for, by the gravest reason.",
            ("mode", "reason"),
            registry=self._registry,
        )
        self._registry.register(_Cached(collect))

    def count_request(self, route: str, status: int) -> None:
        """One answer; ``route`` is the template of the path."""
        self._requests.labels(route, str(status)).inc()

    def observe_search(self, answer: Answer, seconds: float) -> None:
        """One search that was answered."""
        mode = answer["mode_used"]
        self._searches.labels(mode).observe(seconds)
        if answer["degraded"]:
            self._degraded.labels(mode, degraded_by(answer["reasons"])).inc()

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)

    def families(self) -> list[Family]:
        """Every metric that can be shown, by name."""
        own = [
            Family(
                _exposed(item._name, item._type), item._type, item._labelnames, item._documentation
            )
            for item in (self._requests, self._searches, self._degraded)
        ]
        stored = [Family(name, "gauge", labels, about) for name, (labels, about) in STORE.items()]
        return sorted([*own, *stored], key=lambda family: family.name)


def _exposed(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


#: How the reasons in an answer of a search begin or go on, the gravest first.
_DEGRADED = (
    ("time_limit", ("searched back to ", "the time was over ")),
    ("no_vectors", ("by words only: ",)),
    ("vectors_incomplete", (" of the passages have vectors ",)),
)


def degraded_by(reasons: Iterable[str]) -> str:
    """The gravest reason of a degraded answer as one word; the text itself is no label."""
    told = list(reasons)
    for word, parts in _DEGRADED:
        if any(part in reason for part in parts for reason in told):
            return word
    return "other"


class _Cached(Collector):
    """What a function collected, kept for a moment; one thread asks and the others wait."""

    def __init__(self, collect: Callable[[], Iterable[Sample]]) -> None:
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
                self._kept = _gauges(self._collect())
                self._kept_at = time.monotonic()
            return iter(self._kept)


def _gauges(samples: Iterable[Sample]) -> list[Metric]:
    families: dict[str, GaugeMetricFamily] = {}
    for name, values, number in samples:
        if number is None:
            continue
        if name not in families:
            labels, about = STORE[name]
            families[name] = GaugeMetricFamily(name, about, labels=labels)
        families[name].add_metric(values, float(number))
    return list(families.values())
