"""What the store, its server and its volume are asked for the metrics.

A scrape must neither wait for a store that hangs nor be refused because searches hold every
connection of the pool, so it has a connection and time limits of its own. A part that cannot be
collected costs that part.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter

from psycopg.conninfo import make_conninfo

from recall import disk
from recall.config import Settings
from recall.errors import StoreError
from recall_api.embedding import list_embedding
from recall_api.metrics import Sample
from recall_api.reading import Answer, Connection, fetch, reading
from recall_api.status import get_totals, list_components, list_hosts, list_sources
from recall_sql.connection import connect, translate_errors
from recall_sql.loader import load
from recall_sql.migrate import current_version

_log = logging.getLogger(__name__)

_CONNECT_SECONDS = 2
_STATEMENT_SECONDS = 3.0
#: No further part is begun after this; Prometheus waits 10 s by default.
_MOST_SECONDS = 5.0
#: From this many rows on they are not counted for a scrape.
_ESTIMATE_FROM = 100_000
#: Pairs of host and source, and hosts; a client that invents names fills no time series database.
_MOST_SERIES = 300
_MOST_NAME_CHARS = 100
_OUTCOMES = ("stored", "merged", "quarantined", "skipped")
_BYTES = ("read", "kept", "quarantined")
_PASSAGES = ("embedded", "waiting", "failed")
_STATES = ("active", "idle", "idle_in_transaction", "other")


def collect_store(database_url: str, settings: Settings) -> list[Sample]:
    """Ask everything. If the store does not answer, ``recall_database_up`` is 0 and what only it
    knows is missing; the free space of its volume is not."""
    samples = list(_volumes(settings))
    try:
        with translate_errors():
            url = make_conninfo(database_url, connect_timeout=_CONNECT_SECONDS)
            with connect(
                url,
                application="recall metrics",
                statement_timeout_seconds=_STATEMENT_SECONDS,
                lock_timeout_seconds=1.0,
            ) as connection:
                samples += _collect_parts(connection, settings)
    except StoreError as error:
        _log.warning("store not measured", extra={"reason": error.message})
        return [*samples, ("recall_database_up", (), 0)]
    return [*samples, ("recall_database_up", (), 1)]


def _collect_parts(connection: Connection, settings: Settings) -> list[Sample]:
    samples: list[Sample] = []
    until = time.monotonic() + _MOST_SECONDS
    interval = settings.ingest_every_seconds
    for name, collect in _PARTS.items():
        try:
            if time.monotonic() >= until:
                raise StoreError("no time was left")
            with reading(connection):
                samples += list(collect(connection, interval))
            is_up = 1
        except StoreError as error:
            if connection.closed:  # lost, and every other part with it
                raise
            _log.warning("metrics not collected", extra={"part": name, "reason": error.message})
            is_up = 0
        samples.append(("recall_collector_up", (name,), is_up))
    return samples


def _volumes(settings: Settings) -> Iterator[Sample]:
    """Free space where this process can see it: beside the database, or where it is mounted."""
    for name, folder in (
        ("database", disk.database_folder(settings)),
        ("backups", settings.backup_dir or settings.home / "backups"),
    ):
        if folder and (found := disk.read_space(folder)):
            yield "recall_volume_free_bytes", (name,), found.free
            yield "recall_volume_size_bytes", (name,), found.total
    if room := disk.look(settings):
        yield "recall_volume_reserve_bytes", ("database",), room.reserve


def _ingest(connection: Connection, interval_seconds: float) -> Iterator[Sample]:
    hosts = list_hosts(connection, interval_seconds=interval_seconds)
    for host in [host for host in hosts if len(host["host"]) <= _MOST_NAME_CHARS][:_MOST_SERIES]:
        here = (host["host"],)
        yield "recall_host_up", here, not host["silent"]
        yield "recall_host_beat_age_seconds", here, host["age_seconds"]
        yield "recall_host_info", (*here, host["version"] or "unknown"), 1
        for code, number in host["sink_errors"].items():
            yield "recall_sink_errors", (*here, code), number
    sources = list_sources(connection, hosts)
    for row in [row for row in sources if _is_short(row)][:_MOST_SERIES]:
        yield from _source(row)


def _is_short(row: Answer) -> bool:
    return max(len(row["host"]), len(row["source"])) <= _MOST_NAME_CHARS


def _source(row: Answer) -> Iterator[Sample]:
    here = (row["host"], row["source"])
    for outcome in _OUTCOMES:
        yield "recall_ingest_lines", (*here, outcome), row[f"lines_{outcome}"]
    for outcome in _BYTES:
        yield "recall_ingest_bytes", (*here, outcome), row[f"bytes_{outcome}"]
    for name, value in (
        ("recall_files", row["files"]),
        ("recall_files_missing", row["missing_files"]),
        ("recall_files_unreadable", row["unreadable_files"]),
        ("recall_quarantined_spans", row["quarantined"]),
        ("recall_newest_message_age_seconds", _age(row["newest_message"])),
        ("recall_last_read_age_seconds", _age(row["newest_read"])),
        ("recall_ingest_lag_seconds", row["lag_seconds"]),
    ):
        yield name, here, value


def _age(moment: str | None) -> float | None:
    if moment is None:
        return None
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())


def _components(connection: Connection, interval_seconds: float) -> Iterator[Sample]:
    rows = list_components(connection, interval_seconds=interval_seconds)
    for name, group in groupby(rows, key=itemgetter("component")):
        found = list(group)
        alive = sum(not row["stale"] for row in found)
        age = min(row["age_seconds"] for row in found)
        yield "recall_component_heartbeat_age_seconds", (name,), age
        yield "recall_component_up", (name,), alive > 0
        yield "recall_component_processes", (name,), alive


def _rows(connection: Connection, interval_seconds: float) -> Iterator[Sample]:
    """Rows, and how far they are embedded, which is told from their number."""
    totals = get_totals(connection, estimate_from=_ESTIMATE_FROM)
    totals.pop("estimated")
    for entity, number in totals.items():
        yield "recall_rows", (entity,), number
    yield "recall_schema_version", (), current_version(connection)
    components = list_components(connection, interval_seconds=interval_seconds)
    entries = totals["messages"] + totals["notes"]
    rows = list_embedding(connection, entries=entries, components=components)
    for row in rows:
        which = (str(row["number"]), row["model"])
        for state in _PASSAGES:
            yield "recall_passages", (*which, state), row[state]
        yield "recall_passages_embedded_share", which, row["share"]
        yield "recall_uncut_entries", which, row["uncut_entries"]
        yield "recall_embedding_failed_sessions", which, row["failed_sessions"]
    if rows:
        yield "recall_embedding_passages_per_minute", (), rows[0]["passages_per_minute"]


def _sizes(connection: Connection, _interval: float) -> Iterator[Sample]:
    size = fetch(connection, load("status")["database"], {})[0]["size_bytes"]
    yield "recall_database_size_bytes", (), size
    for row in fetch(connection, load("operations")["relations"], {}):
        yield "recall_relation_size_bytes", (row["name"], row["kind"]), row["size_bytes"]


def _bloat(connection: Connection, _interval: float) -> Iterator[Sample]:
    for row in fetch(connection, load("operations")["bloat"], {}):
        beyond = row["size_bytes"] - row["expected_bytes"]
        yield "recall_index_bloat_bytes", (row["name"],), beyond


def _pending(connection: Connection, _interval: float) -> Iterator[Sample]:
    for row in fetch(connection, load("operations")["pending"], {}):
        yield "recall_text_index_pending_pages", (), row["pages"]


def _tables(connection: Connection, _interval: float) -> Iterator[Sample]:
    for row in fetch(connection, load("operations")["tables"], {}):
        table = (row["name"],)
        yield "recall_table_live_rows", table, row["live_rows"]
        yield "recall_table_dead_rows", table, row["dead_rows"]
        yield "recall_table_vacuum_age_seconds", table, row["vacuum_age_seconds"]


def _activity(connection: Connection, _interval: float) -> Iterator[Sample]:
    found = fetch(connection, load("operations")["activity"], {})[0]
    for state in _STATES:
        yield "recall_database_connections", (state,), found[state]
    yield "recall_database_connections_limit", (), found["connection_limit"]
    for name in ("oldest_transaction_seconds", "idle_in_transaction_seconds"):
        yield f"recall_database_{name}", (), found[name]


def _backups(connection: Connection, _interval: float) -> Iterator[Sample]:
    found = fetch(connection, load("operations")["backups"], {})[0]
    yield "recall_backups", (), found["backups"]
    yield "recall_backup_age_seconds", (), found["age_seconds"]
    yield "recall_backup_verified_age_seconds", (), found["verified_age_seconds"]
    yield "recall_backup_size_bytes", (), found["bytes"]


#: The cheap ones and those that alerts need first.
_PARTS: dict[str, Callable[[Connection, float], Iterator[Sample]]] = {
    "activity": _activity,
    "components": _components,
    "backups": _backups,
    "tables": _tables,
    "text_index": _pending,
    "ingest": _ingest,
    "sizes": _sizes,
    "rows": _rows,
    "index_bloat": _bloat,
}
