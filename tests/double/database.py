"""Connections at the level of libpq, so that bodies reach the server byte for byte."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import psycopg
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, PGconn
from psycopg.pq.abc import PGresult

from tests.double.refusal import DatabaseError, Refusal, no_connection, pool_exhausted

Row = tuple[bytes | None, ...]
_JSON_OID = 114


class Statement:
    """SQL text and its parameters, numbered in the order in which they are added."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.types: list[int] = []

    def value(self, value: str | None) -> str:
        """A placeholder for a text whose type its place in the statement decides."""
        return self._add(None if value is None else value.encode(), 0)

    def json(self, body: bytes) -> str:
        """A placeholder for a body that PostgreSQL parses as it is."""
        return self._add(body, _JSON_OID)

    def _add(self, value: bytes | None, kind: int) -> str:
        self.values.append(value)
        self.types.append(kind)
        return f"${len(self.values)}"


class Connection:
    """One connection; not shared between threads."""

    def __init__(self, uri: str) -> None:
        self._ending: DatabaseError | None = None
        self._libpq = PGconn.connect(uri.encode())
        if self._libpq.status != ConnStatus.OK:
            reason = self._libpq.get_error_message("UTF8")
            raise DatabaseError(None, f"{reason}\n", lost=True)
        self._libpq.notice_handler = self._notice
        self.run("set client_encoding to 'UTF8'")
        self.run("set application_name to 'postgrest'")

    @property
    def lost(self) -> bool:
        """Whether it is of no more use."""
        return self._libpq.status != ConnStatus.OK or self._ending is not None

    @property
    def socket(self) -> int:
        """What becomes readable when something is announced or the connection ends."""
        return self._libpq.socket

    def check(self) -> None:
        """Raise what the server said where it ended the connection while nothing ran."""
        if select.select([self.socket], [], [], 0)[0]:
            with suppress(psycopg.Error):
                self._libpq.consume_input()
            # takes apart what has come
            self._libpq.is_busy()
            if self._ending is not None:
                raise self._ending

    def notified(self) -> list[bytes]:
        """The payloads announced since the last call; raises where the connection ended."""
        try:
            self._libpq.consume_input()
        except psycopg.Error as error:
            raise DatabaseError(None, str(error), lost=True) from None
        payloads = []
        while (found := self._libpq.notifies()) is not None:
            payloads.append(found.extra)
        return payloads

    def run(self, sql: str, statement: Statement | None = None) -> list[Row]:
        """The rows of one statement."""
        given = statement or Statement()
        # libpq takes a text to its first NUL, and a JSON body with its length
        formats = [1 if kind == _JSON_OID else 0 for kind in given.types]
        try:
            result = self._libpq.exec_params(sql.encode(), given.values, given.types, formats)
        except psycopg.Error as error:
            raise DatabaseError(None, str(error), lost=True) from None
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise _told(result, lost=self.lost)
        return [
            tuple(result.get_value(row, column) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def _notice(self, result: PGresult) -> None:
        if result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) == b"FATAL":
            self._ending = _told(result, lost=True)

    def close(self) -> None:
        """End it."""
        self._libpq.finish()

    def cancel(self) -> None:
        """Ask the server to end the running statement; from another thread."""
        with suppress(psycopg.Error):
            self._libpq.get_cancel().cancel()


class Pool:
    """At most ``size`` connections; who waits longer than ``timeout`` for one is refused."""

    def __init__(self, uri: str, size: int, timeout: float) -> None:
        self._uri = uri
        self._free = threading.Semaphore(size)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()

    def take(self) -> Connection:
        """A connection, which :meth:`give` takes back."""
        if not self._free.acquire(timeout=self._timeout):
            raise pool_exhausted()
        try:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            connection = connection or Connection(self._uri)
        except DatabaseError as error:
            self._free.release()
            raise no_connection(error.message) from None
        with self._lock:
            self._busy.add(connection)
        return connection

    def give(self, connection: Connection) -> None:
        """Put it back; one that is lost takes the idle ones with it, as they have the same fate."""
        with self._lock:
            self._busy.discard(connection)
            dropped = [connection] if connection.lost else []
            if connection.lost:
                dropped += self._idle
                self._idle = []
            else:
                self._idle.append(connection)
        for one in dropped:
            one.close()
        self._free.release()

    def close(self) -> None:
        """End the idle ones, and what the busy ones are doing."""
        with self._lock:
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for connection in idle:
            connection.close()
        for connection in busy:
            connection.cancel()


def in_transaction(
    pool: Pool,
    begin: str,
    work: Callable[[Connection], Row],
    *,
    end: str,
    before_end: Callable[[], None],
    lost: Callable[[], Refusal],
) -> Row:
    """Run ``work`` between ``begin`` and ``end``; whatever fails rolls back.

    A connection that was dead before the transaction began tells how it died. One that dies during
    it is ``lost``: the real server learns the reason and then fails to roll back.
    """
    connection = pool.take()
    try:
        connection.check()
        connection.run(begin)
        try:
            row = work(connection)
            before_end()
            connection.run(end)
        except BaseException as error:
            with suppress(DatabaseError):
                connection.run("rollback")
            if isinstance(error, DatabaseError) and error.lost:
                raise lost() from None
            raise
        return row
    finally:
        pool.give(connection)


def _told(result: PGresult, *, lost: bool) -> DatabaseError:
    fields = [
        result.error_field(field)
        for field in (
            DiagnosticField.SQLSTATE,
            DiagnosticField.MESSAGE_PRIMARY,
            DiagnosticField.MESSAGE_DETAIL,
            DiagnosticField.MESSAGE_HINT,
        )
    ]
    state, message, details, hint = [
        None if field is None else field.decode(errors="replace") for field in fields
    ]
    whole = result.error_message.decode(errors="replace")
    return DatabaseError(state, message or whole, details, hint, lost=lost)


def quoted(*names: str) -> str:
    """A name, with each part in double quotes."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """A text constant."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def listed(parts: Sequence[str]) -> str:
    """SQL parts with commas between them."""
    return ", ".join(parts)
