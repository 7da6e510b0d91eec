"""Which database a command works with, and for how long the embedded one runs."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from recall.config import Settings
from recall.errors import StoreError
from recall_sql.connection import connect, translate_errors
from recall_sql.embedded import EmbeddedServer
from recall_sql.migrate import migrate as apply_migrations

#: The server still counts a client for a moment after it left.
_CLOSING_SECONDS = 1.0
_CLOSING_CHECKS = 20


@contextmanager
def open_store(settings: Settings, *, migrate: bool = True) -> Iterator[str]:
    """The URL of the database of these settings, with its schema up to date.

    Without ``database_url`` it is the embedded server of the home, which is started where needed.
    A server that a call of this function started is stopped by the last call to leave, unless other
    clients are connected; one that was running before stays up.
    """
    if settings.database_url:
        if migrate:
            apply_migrations(settings.database_url)
        yield settings.database_url
        return
    server = EmbeddedServer(settings.home)
    with _running(server):
        if migrate:
            apply_migrations(server.url)
        yield server.url


@contextmanager
def _running(server: EmbeddedServer) -> Iterator[None]:
    """Share the server. Users hold a shared lock on a file that names the process they started."""
    server.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    users = os.open(server.home / "server.users", flags, 0o600)
    try:
        fcntl.flock(users, fcntl.LOCK_SH)
        before = server.process_id() if server.is_running() else None
        server.start()
        if before is None:
            _write_number(users, server.process_id())
        try:
            yield
        finally:
            _stop_if_last(server, users)
    finally:
        os.close(users)


def _stop_if_last(server: EmbeddedServer, users: int) -> None:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if server.is_running() and server.process_id() == _read_number(users):
        try:
            alone = _is_alone(server)
        except StoreError:
            alone = False
        if alone:
            server.stop()


def _is_alone(server: EmbeddedServer) -> bool:
    """Whether nobody else is connected, not counting connections that are just being closed."""
    for _ in range(_CLOSING_CHECKS):
        if _other_clients(server) == 0:
            return True
        time.sleep(_CLOSING_SECONDS / _CLOSING_CHECKS)
    return False


def _other_clients(server: EmbeddedServer) -> int:
    with connect(server.url, application="recall stop") as conn, translate_errors():
        row = conn.execute(
            "select count(*) from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> pg_backend_pid()"
        ).fetchone()
    return int(row[0]) if row else 0


def _write_number(fd: int, number: int | None) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(number or 0).encode(), 0)


def _read_number(fd: int) -> int | None:
    try:
        return int(os.pread(fd, 32, 0))
    except ValueError:
        return None
