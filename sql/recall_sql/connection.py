"""Connections: one set of session settings for every process, and errors without content."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool

from recall.errors import ConfigError, StoreError, StoreUnavailableError

#: What each session sets. A generic plan ignores how common a word is (75-145 times slower on
#: common words), a forgotten transaction stops vacuum, and a query whose client is gone should end.
_SESSION = {
    "search_path": "pg_catalog",
    "plan_cache_mode": "force_custom_plan",
    "jit": "off",
    "timezone": "UTC",
    "idle_in_transaction_session_timeout": "60s",
    "client_connection_check_interval": "500ms",
}

#: A peer that vanished is noticed within a minute, also by a connection that only waits.
_TRANSPORT = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
    "client_encoding": "UTF8",
}

#: SQLSTATE classes and codes after which the same call can succeed: connection failures, conflicts
#: between transactions, lack of resources, locks that were not granted, cancelled statements and
#: restarts of the server.
_RETRYABLE = re.compile(r"08...|40...|53...|55P03|57014|57P0[1-5]|58030")

_HINTS = {
    "53100": "free space on the volume of the database",
    "53300": "raise `max_connections` or stop other clients",
    "42501": "this needs the owner of the database; in the appliance: `docker compose exec backup"
    " recall ...`",
}


def connect(
    url: str,
    *,
    application: str = "recall",
    statement_timeout_seconds: float | None = None,
    lock_timeout_seconds: float | None = None,
    autocommit: bool = False,
) -> psycopg.Connection[tuple[Any, ...]]:
    """Open one connection; :class:`StoreUnavailableError` where the server cannot be reached.

    Names in statements are to be qualified: the search path holds ``pg_catalog`` only.
    """
    conninfo = _conninfo(
        url,
        application,
        {"statement_timeout": statement_timeout_seconds, "lock_timeout": lock_timeout_seconds},
    )
    try:
        return psycopg.connect(conninfo, autocommit=autocommit, prepare_threshold=None)
    except psycopg.OperationalError as error:
        raise StoreUnavailableError(
            f"the database cannot be reached: {_reason(error)}",
            hint="is the server running? `recall doctor` says what it finds",
        ) from None


def open_pool(
    url: str,
    *,
    max_size: int,
    application: str,
    statement_timeout_seconds: float | None = None,
    lock_timeout_seconds: float | None = None,
    autocommit: bool = False,
) -> ConnectionPool[psycopg.Connection[tuple[Any, ...]]]:
    """An open pool; each connection is checked before it is handed out.

    It does not wait for the server: :func:`translate_errors` around its use turns a pool that gets
    no connection into :class:`StoreUnavailableError`.
    """
    conninfo = _conninfo(
        url,
        application,
        {"statement_timeout": statement_timeout_seconds, "lock_timeout": lock_timeout_seconds},
    )
    return ConnectionPool(
        conninfo,
        min_size=min(1, max_size),
        max_size=max_size,
        kwargs={"autocommit": autocommit, "prepare_threshold": None},
        check=ConnectionPool.check_connection,
        name=application,
        timeout=10.0,
        open=True,
    )


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn errors of the driver into :class:`StoreError` or :class:`StoreUnavailableError`.

    What the server says about a row quotes the row, and what the driver says about a parameter
    quotes the parameter. The message therefore has the SQLSTATE, the name of the condition and the
    names of the objects only, and the driver's error is not chained to it.
    """
    try:
        yield
    except psycopg.Error as error:
        raise _translated(error) from None


def _conninfo(url: str, application: str, timeouts: dict[str, float | None]) -> str:
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise ConfigError(
            "the database URL is not valid",
            hint="it looks like `postgresql://user@host:5432/recall`",
        ) from None
    session = dict(_SESSION)
    for name, seconds in timeouts.items():
        if seconds is not None:
            session[name] = f"{max(1, round(seconds * 1000))}ms"
    options = [f"-c {name}={value}" for name, value in session.items()]
    if given.get("options"):
        options.append(str(given["options"]))
    merged: dict[str, Any] = {**_TRANSPORT, "application_name": application, **given}
    merged["options"] = " ".join(options)
    return make_conninfo(**merged)


def _translated(error: psycopg.Error) -> StoreError:
    state = error.sqlstate
    if state is None:
        if isinstance(error, psycopg.OperationalError):
            return StoreUnavailableError("the connection to the database was lost")
        return StoreError(f"the database driver refused a statement ({type(error).__name__})")
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", type(error).__name__).lower()
    message = f"database error {state} ({words}){_objects(error)}"
    if _RETRYABLE.fullmatch(state):
        return StoreUnavailableError(message, hint=_HINTS.get(state))
    return StoreError(message, hint=_HINTS.get(state))


def _objects(error: psycopg.Error) -> str:
    """Which table, column and constraint: names of the schema, never of data."""
    diagnostic = error.diag
    names = [diagnostic.table_name, diagnostic.column_name, diagnostic.constraint_name]
    found = [f"`{name}`" for name in names if name]
    return f" at {', '.join(found)}" if found else ""


def _reason(error: psycopg.OperationalError) -> str:
    """Why a connection failed, in the words of libpq; they name the server, never the password."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith("Is the server running")]
    return told[-1].removeprefix("connection failed: ") if told else type(error).__name__
