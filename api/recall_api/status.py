"""What is in the store, where it came from, what went wrong, and which parts are alive."""

from __future__ import annotations

import re
from typing import Any

from recall import disk
from recall_api.embedding import list_embedding
from recall_api.reading import Answer, Connection, fetch
from recall_sql.loader import load
from recall_sql.migrate import current_version, latest_version

#: A component that was not heard of for this long, and for three of its own intervals, is stale.
STALE_SECONDS = 180.0
#: A host that says it comes more seldom is as silent as one that is gone.
_LONGEST_INTERVAL_SECONDS = 604_800
#: From this many rows on, the number of rows is the planner's estimate and not counted.
_ESTIMATE_FROM = 500_000
#: What an ingester says that it does.
_STATES = ("reading", "waiting")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,31}")
#: SQLSTATE, a code of PostgREST, a status of HTTP, or a word for what never got an answer.
_CODE = re.compile(r"[A-Za-z0-9_-]{1,24}")
_MOST_CODES = 20
_TABLES = {
    "sessions": "session",
    "messages": "message",
    "prompts": "prompt",
    "notes": "note",
    "retracted": "message_retracted",
}


def get_status(
    connection: Connection,
    *,
    interval_seconds: float,
    problems: int = 0,
    room: disk.Room | None = None,
) -> Answer:
    """Everything that ``recall status`` shows; ``problems`` is how many of each kind to list.

    ``interval_seconds`` is how often the ingester is expected where its heartbeat does not say,
    ``room`` the free space where it can be seen.
    """
    sql = load("status")
    database = fetch(connection, sql["database"], {})[0]
    listed = {"limit": problems}
    totals = get_totals(connection)
    components = list_components(connection, interval_seconds=interval_seconds)
    hosts = list_hosts(connection, interval_seconds=interval_seconds)
    return {
        "schema_version": current_version(connection),
        "schema_expected": latest_version(),
        "server_version": database["server_version"],
        "database_bytes": database["size_bytes"],
        "disk": None if room is None else tell_room(room),
        "totals": totals,
        "components": components,
        "embedding": list_embedding(
            connection, entries=totals["messages"] + totals["notes"], components=components
        ),
        "hosts": hosts,
        "sources": list_sources(connection, hosts),
        "problems": {
            **fetch(connection, sql["problem_totals"], {})[0],
            "quarantined_spans": fetch(connection, sql["quarantined"], listed),
            "unreadable_files": fetch(connection, sql["unreadable"], listed),
        },
    }


def tell_room(room: disk.Room) -> Answer:
    """The free space on the volume of the database, and whether something can be stored."""
    return {
        "ok": not room.is_short,
        "free_bytes": room.free,
        "reserve_bytes": room.reserve,
        "detail": room.told if room.is_short else None,
    }


def list_hosts(connection: Connection, *, interval_seconds: float) -> list[Answer]:
    """Every machine that stores something here, and how it is by the last beat of its ingester.

    One that never reported is ``silent`` as well.
    """
    rows = fetch(connection, load("status")["hosts"], {})
    for row in rows:
        detail = row.pop("detail")
        detail = detail if isinstance(detail, dict) else {}
        row["stale_after_seconds"] = _stale_after(detail, interval_seconds)
        age = row["age_seconds"]
        row["silent"] = age is None or age > row["stale_after_seconds"]
        row["version"] = _version(detail.get("version"))
        row["state"] = detail["state"] if detail.get("state") in _STATES else None
        row["sources"] = _names(detail.get("sources"))
        row["sink_errors"] = _sink_errors(detail.get("sink_errors"))
    return rows


def list_sources(connection: Connection, hosts: list[Answer]) -> list[Answer]:
    """One row per host and source; ``lines_add_up`` says that every line is accounted for.

    ``newest_sync`` is when the source was last known to be read to its end: at the end of a pass of
    its host, or when a file was last read. ``lag_seconds`` is how long ago that is; it is null for
    what no pass reads, such as imports, and for a source that its host does not have any more.
    """
    rows = fetch(connection, load("status")["sources"], {})
    by_name = {host["host"]: host for host in hosts}
    for row in rows:
        parts = ("lines_stored", "lines_merged", "lines_quarantined", "lines_skipped")
        row["lines_add_up"] = row["lines_seen"] == sum(row[part] for part in parts)
        row["newest_sync"], row["lag_seconds"] = _freshness(row, by_name.get(row["host"]))
    return rows


def _freshness(row: Answer, host: Answer | None) -> tuple[str | None, float | None]:
    read_age = row.pop("read_age_seconds")
    moments = [] if read_age is None else [(read_age, row["newest_read"])]
    is_read = host is not None and row["source"] in host["sources"]
    if host is not None and is_read and host["state"] == "waiting":
        moments.append((host["age_seconds"], host["beat_at"]))
    age, moment = min(moments, default=(None, None))
    return moment, round(age, 3) if age is not None and is_read else None


def get_totals(connection: Connection, *, estimate_from: int = _ESTIMATE_FROM) -> Answer:
    """Rows by table; ``estimated`` names those that are too many to count for a status line."""
    sql = load("status")
    known = {row["name"]: row["estimated_rows"] for row in fetch(connection, sql["estimates"], {})}
    totals: Answer = {}
    estimated = []
    for name, table in _TABLES.items():
        totals[name] = known.get(table, -1)
        if totals[name] >= estimate_from:
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
        interval_seconds = float(min(own, _LONGEST_INTERVAL_SECONDS))
    return max(STALE_SECONDS, 3 * interval_seconds)


def _version(given: Any) -> str | None:
    """A version as a client said it; nothing else that it may have sent becomes a label."""
    return given if isinstance(given, str) and _VERSION.fullmatch(given) else None


def _names(given: Any) -> list[str]:
    return sorted(given) if isinstance(given, dict) else []


def _sink_errors(given: Any) -> dict[str, int]:
    """Errors by code, of which a client may invent few: the rest is ``other``."""
    errors: dict[str, int] = {}
    for code, number in sorted(given.items()) if isinstance(given, dict) else ():
        if isinstance(number, int) and not isinstance(number, bool) and number > 0:
            known = _CODE.fullmatch(code) is not None and len(errors) < _MOST_CODES
            name = code if known else "other"
            errors[name] = errors.get(name, 0) + number
    return errors
