"""What is in the store, where it came from, what went wrong, and which parts are alive."""

from __future__ import annotations

from typing import Any

from recall_api.embedding import list_embedding
from recall_api.reading import Answer, Connection, fetch
from recall_sql.loader import load
from recall_sql.migrate import current_version, latest_version

#: A component that was not heard of for this long, and for three of its own intervals, is stale.
STALE_SECONDS = 180.0
#: From this many rows on, the number of rows is the planner's estimate and not counted.
_ESTIMATE_FROM = 500_000
_TABLES = {
    "sessions": "session",
    "messages": "message",
    "prompts": "prompt",
    "notes": "note",
    "retracted": "message_retracted",
}


def get_status(connection: Connection, *, interval_seconds: float, problems: int = 0) -> Answer:
    """Everything that ``recall status`` shows; ``problems`` is how many of each kind to list.

    ``interval_seconds`` is how often the ingester is expected where its heartbeat does not say.
    """
    sql = load("status")
    database = fetch(connection, sql["database"], {})[0]
    listed = {"limit": problems}
    totals = get_totals(connection)
    components = list_components(connection, interval_seconds=interval_seconds)
    return {
        "schema_version": current_version(connection),
        "schema_expected": latest_version(),
        "server_version": database["server_version"],
        "database_bytes": database["size_bytes"],
        "totals": totals,
        "components": components,
        "embedding": list_embedding(
            connection, entries=totals["messages"] + totals["notes"], components=components
        ),
        "sources": list_sources(connection),
        "problems": {
            **fetch(connection, sql["problem_totals"], {})[0],
            "quarantined_spans": fetch(connection, sql["quarantined"], listed),
            "unreadable_files": fetch(connection, sql["unreadable"], listed),
        },
    }


def list_sources(connection: Connection) -> list[Answer]:
    """One row per host and source; ``lines_add_up`` says that every line is accounted for."""
    rows = fetch(connection, load("status")["sources"], {})
    for row in rows:
        parts = ("lines_stored", "lines_merged", "lines_quarantined", "lines_skipped")
        row["lines_add_up"] = row["lines_seen"] == sum(row[part] for part in parts)
    return rows


def get_totals(connection: Connection) -> Answer:
    """Rows by table; ``estimated`` names those that are too many to count for a status line."""
    sql = load("status")
    known = {row["name"]: row["estimated_rows"] for row in fetch(connection, sql["estimates"], {})}
    totals: Answer = {}
    estimated = []
    for name, table in _TABLES.items():
        totals[name] = known.get(table, -1)
        if totals[name] >= _ESTIMATE_FROM:
            estimated.append(name)
        else:
            totals[name] = fetch(connection, sql[f"count_{table}"], {})[0]["exact_rows"]
    return {**totals, "estimated": estimated}


def list_components(connection: Connection, *, interval_seconds: float) -> list[Answer]:
    """Every heartbeat with its age, and whether it is older than it may be."""
    rows = fetch(connection, load("status")["components"], {})
    for row in rows:
        row["stale_after_seconds"] = _stale_after(row["detail"], interval_seconds)
        row["stale"] = row["age_seconds"] > row["stale_after_seconds"]
    return rows


def _stale_after(detail: Any, interval_seconds: float) -> float:
    own = detail.get("interval_seconds") if isinstance(detail, dict) else None
    if isinstance(own, int | float) and not isinstance(own, bool) and own > 0:
        interval_seconds = float(own)
    return max(STALE_SECONDS, 3 * interval_seconds)
