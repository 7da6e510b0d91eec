"""Reading the store on behalf of a caller, and what every answer has in common.

The HTTP API and the command both call the functions of this room with a connection; what they
return is ready for JSON, so an answer does not depend on the door it came through.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from recall.errors import StoreUnavailableError, UsageError
from recall_sql.connection import translate_errors

Connection = psycopg.Connection[tuple[Any, ...]]
Answer = dict[str, Any]

#: How long a request waits for a connection of the pool before it is told to come back later.
_POOL_SECONDS = 5.0


class OutOfTimeError(StoreUnavailableError):
    """A statement ran into its time limit."""


@contextmanager
def reading(source: ConnectionPool[Connection] | Connection) -> Iterator[Connection]:
    """A connection in a transaction that can only read; errors of the driver are translated."""
    with translate_errors():
        if isinstance(source, psycopg.Connection):
            with _one_transaction(source), _time_limit():
                yield source
        else:
            with source.connection(_POOL_SECONDS) as pooled, _time_limit():
                pooled.execute("set transaction read only")
                yield pooled


@contextmanager
def _one_transaction(connection: Connection) -> Iterator[None]:
    connection.execute("set transaction read only")
    try:
        yield
    finally:
        if not connection.closed:
            connection.rollback()


@contextmanager
def _time_limit() -> Iterator[None]:
    try:
        yield
    except (psycopg.errors.QueryCanceled, StoreUnavailableError) as error:
        # Where it was translated already, the error of the driver is its context.
        cause = error.__context__ if isinstance(error, StoreUnavailableError) else error
        if not isinstance(cause, psycopg.errors.QueryCanceled):
            raise
        raise OutOfTimeError(
            "the database did not answer within the time limit",
            hint="narrow the request with filters, or raise RECALL_SEARCH_TIMEOUT_SECONDS",
        ) from None


def fetch(connection: Connection, statement: Any, values: dict[str, Any]) -> list[Answer]:
    """The rows of a statement as JSON-ready objects: times are ISO 8601 text in UTC."""
    cursor = connection.execute(statement, values)
    names = [column.name for column in cursor.description or ()]
    return [{name: _plain(value) for name, value in zip(names, row, strict=True)} for row in cursor]


def fetch_one(connection: Connection, statement: Any, values: dict[str, Any]) -> Answer | None:
    """The first row, or ``None``."""
    rows = fetch(connection, statement, values)
    return rows[0] if rows else None


def _plain(value: Any) -> Any:
    return utc_text(value) if isinstance(value, datetime) else value


def utc_text(moment: datetime) -> str:
    """``2026-01-31T12:00:00.123456Z``."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def encode_cursor(*place: Any) -> str:
    """A place in a list as one opaque word."""
    raw = json.dumps(place, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode_cursor(cursor: str, kinds: Sequence[tuple[type, ...]]) -> list[Any]:
    """The place that :func:`encode_cursor` wrote, each value of one of the kinds given for it."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        place = json.loads(raw)
    except (ValueError, binascii.Error, RecursionError):
        place = None
    if (
        not isinstance(place, list)
        or len(place) != len(kinds)
        or not all(type(value) in kind for value, kind in zip(place, kinds, strict=True))
    ):
        raise UsageError(
            "`cursor` is not one that this API gave",
            hint="pass `next_cursor` of an earlier answer unchanged, or leave it out",
        )
    return place


def with_times(value: Any) -> Any:
    """The same JSON with its times as every answer writes them."""
    if isinstance(value, list):
        return [with_times(item) for item in value]
    if not isinstance(value, dict):
        return value
    times = ("ts", "newest", "last_read")
    return {
        name: utc_text(datetime.fromisoformat(item))
        if name in times and item is not None
        else with_times(item)
        for name, item in value.items()
    }
