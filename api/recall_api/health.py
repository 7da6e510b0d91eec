"""``/health``: does what search depends on work now, part by part.

The check opens a connection of its own with short time limits, so that neither an exhausted pool
nor a database that hangs can make it lie or wait.
"""

from __future__ import annotations

import time
from itertools import groupby
from operator import itemgetter

from psycopg.conninfo import make_conninfo

from recall import disk
from recall.errors import RecallError, SchemaError, StoreError
from recall_api.embedding import is_well, reasons
from recall_api.reading import Answer, Connection
from recall_api.status import STALE_SECONDS, list_components, tell_room
from recall_sql.connection import connect, translate_errors
from recall_sql.migrate import latest_version, require_current

_CONNECT_SECONDS = 2
_STATEMENT_SECONDS = 2.0
#: The part that every machine with logs has; its absence is an error once it had time to start.
_EXPECTED = "ingester"


def check_health(
    database_url: str,
    *,
    interval_seconds: float,
    running_seconds: float,
    ingests_here: bool = True,
    room: disk.Room | None = None,
) -> Answer:
    """The state of every component; ``ok`` is true only if each of them is.

    An ingester that has never reported is waited for as long as a silent one: ``running_seconds``
    is how long this API has been running. On a server that other machines feed, ``ingests_here`` is
    false: their ingesters are told of and not waited for, because laptops sleep. ``room`` is the
    free space, where it is known.
    """
    components: dict[str, Answer] = {}
    if room is not None:
        components["disk"] = tell_room(room)
    started = time.monotonic()
    try:
        with translate_errors():
            url = make_conninfo(database_url, connect_timeout=_CONNECT_SECONDS)
            with connect(
                url,
                application="recall health",
                statement_timeout_seconds=_STATEMENT_SECONDS,
                autocommit=True,
            ) as connection:
                _check_schema(connection, components)
                components["database"] = _database(started)
                if components["schema"]["ok"]:
                    _check_workers(
                        connection, components, interval_seconds, running_seconds, ingests_here
                    )
    except StoreError as error:
        components["database"] = {"ok": False, "detail": _public(error)}
    return {"ok": all(part["ok"] for part in components.values()), "components": components}


def _database(started: float) -> Answer:
    return {"ok": True, "milliseconds": round((time.monotonic() - started) * 1000, 1)}


def _check_schema(connection: Connection, components: dict[str, Answer]) -> None:
    try:
        require_current(connection)
        components["schema"] = {"ok": True, "version": latest_version()}
    except SchemaError as error:
        components["schema"] = {"ok": False, "detail": error.message, "hint": error.hint}


def _check_workers(
    connection: Connection,
    components: dict[str, Answer],
    interval_seconds: float,
    running_seconds: float,
    ingests_here: bool,
) -> None:
    rows = list_components(connection, interval_seconds=interval_seconds)
    for name, group in groupby(rows, key=itemgetter("component")):
        components[name] = _component(list(group))
    if not ingests_here:
        if _EXPECTED in components:
            components[_EXPECTED]["ok"] = True
    elif _EXPECTED not in components:
        patience = max(STALE_SECONDS, 3 * interval_seconds)
        components[_EXPECTED] = {
            "ok": running_seconds <= patience,
            "detail": "has not reported yet",
            "stale_after_seconds": patience,
        }


def _component(rows: list[Answer]) -> Answer:
    """The processes of one component, the one that was heard of last in front.

    One that was killed and replaced is silent for a while and does no harm; one that says itself
    that it does not get on does.
    """
    newest = rows[0]
    heard = [row for row in rows if not row["stale"]]
    answer: Answer = {
        "ok": bool(heard) and all(is_well(row) for row in heard),
        "age_seconds": newest["age_seconds"],
        "stale_after_seconds": newest["stale_after_seconds"],
        "host": newest["host"],
        "pid": newest["pid"],
    }
    if wrong := [reason for row in heard for reason in reasons(row)]:
        answer["reasons"] = wrong
    if len(rows) > 1:
        answer["processes"] = len(heard)
    return answer


def _public(error: RecallError) -> str:
    """Why the database does not answer, without its address: `/health` may be read by others."""
    return error.message.partition(":")[0]
