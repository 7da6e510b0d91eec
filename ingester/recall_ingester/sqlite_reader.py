"""Reading an SQLite database that its client may be writing at the same time.

Nothing of the client's changes: not the database, not its ``-wal`` and ``-shm``, not the folder.
How a database is opened therefore depends on what lies beside it:

- a rollback journal database, or one in WAL mode with both ``-wal`` and ``-shm``: where it is. With
  ``readonly_shm`` SQLite maps the ``-shm`` for reading only; if no client is running, it builds its
  index of the WAL in memory. Without that parameter it would write to the ``-shm``.
- in WAL mode without a WAL (the client left): where it is, ``immutable``, because any other way
  makes SQLite create a ``-wal`` and a ``-shm``. Immutable takes no locks, so each read is followed
  by a check that the client did not come back meanwhile.
- a WAL without a ``-shm``, a journal left by a crash, a ``-shm`` that cannot be used: from a copy.
"""

from __future__ import annotations

import base64
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from recall.errors import SourceError
from recall_ingester.reader import open_regular

#: What is copied at most: database and WAL together.
COPY_LIMIT_BYTES = 1 << 30
#: How long a read waits for the client to finish a commit.
BUSY_TIMEOUT_SECONDS = 5.0
BATCH_ROWS = 500

Parameters = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]
_Way = Literal["shared", "still", "copy"]
_Signature = tuple[tuple[int, int, int] | None, ...]

_MAGIC = b"SQLite format 3\x00"
_WAL_VERSION = 2
_ATTEMPTS = 3
_QUERY = {"shared": "mode=ro&readonly_shm=1", "still": "mode=ro&immutable=1", "copy": "mode=rw"}
#: What SQLite says when a database cannot be read where it is, although a copy of it can.
_NEEDS_COPY = ("SQLITE_CANTOPEN", "SQLITE_READONLY")
_REASONS = {
    "SQLITE_NOTADB": "is not an SQLite database, or is encrypted",
    "SQLITE_CORRUPT": "is damaged",
    "SQLITE_BUSY": "is locked by another process",
    "SQLITE_LOCKED": "is locked by another process",
    "SQLITE_CANTOPEN": "cannot be opened",
    "SQLITE_IOERR": "gives read errors",
    "SQLITE_AUTH": "has secrets in that table, which is never read",
    "SQLITE_FULL": "needs more room in the temporary folder",
}


class LiveDatabase:
    """An open database; made by :func:`open_live`. To be used by one thread."""

    def __init__(self, path: Path, copy_limit: int, never_read: tuple[str, ...]) -> None:
        self.path = path
        self._copy_limit = copy_limit
        self._never_read = never_read
        self._copied: tempfile.TemporaryDirectory[str] | None = None
        self._way: _Way = "shared"
        self._signature: _Signature = ()
        self._connection: sqlite3.Connection
        try:
            self._open()
        except BaseException:
            self._discard_copy()
            raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """One read transaction: every read inside sees the same state.

        Keep it short, and give nothing to a caller from inside: while it lasts, the client cannot
        reset its WAL. Raises :class:`SourceError` at its end if what was read may be torn.
        """
        if self._way == "still" and self._now() != self._signature:
            self._connection.close()
            self._open()
        with self._told():
            self._connection.execute("begin")
            try:
                yield
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("rollback")
        if self._way == "still" and self._now() != self._signature:
            raise SourceError(
                f"`{self.path}` changed while it was read", hint="the next pass reads it again"
            )

    def rows(self, sql: str, parameters: Parameters = ()) -> Iterator[Row]:
        """The rows of one query.

        Inside a snapshot they come in batches. Outside, the query is a transaction of its own, over
        before the first row is given out: bound its result, or use :meth:`pages`.
        """
        if self._connection.in_transaction:
            with self._told():
                cursor = self._connection.execute(sql, parameters)
            while batch := self._batch(cursor):
                yield from batch
            return
        with self.snapshot():
            fetched = self._connection.execute(sql, parameters).fetchall()
        yield from fetched

    def pages(
        self, sql: str, parameters: Mapping[str, Any], *, after: Any, size: int = BATCH_ROWS
    ) -> Iterator[Row]:
        """The rows of a query in short transactions of ``size`` rows.

        The query takes ``:after`` and ``:limit`` and gives rows in rising order of its first
        column, beginning behind ``:after``.
        """
        while True:
            page = list(self.rows(sql, {**parameters, "after": after, "limit": size}))
            yield from page
            if len(page) < size:
                return
            after = page[-1][0]

    def tables(self) -> frozenset[str]:
        """The names of its tables."""
        sql = "select name from sqlite_master where type = 'table'"
        return frozenset(name for (name,) in self.rows(sql))

    def columns(self, table: str) -> tuple[str, ...]:
        """The names of a table's columns, in order; none if there is no such table."""
        sql = "select name from pragma_table_info(?) order by cid"
        return tuple(name for (name,) in self.rows(sql, (table,)))

    def close(self) -> None:
        """Close the database and remove its copy, if one was made."""
        self._connection.close()
        self._discard_copy()

    def _discard_copy(self) -> None:
        if self._copied is not None:
            self._copied.cleanup()
            self._copied = None

    def _open(self) -> None:
        """Connect the way that fits what lies beside the database; a copy is the last resort."""
        for attempt in range(_ATTEMPTS):
            self._signature = self._now()
            self._way = self._choose()
            if self._way == "copy" or attempt == _ATTEMPTS - 1:
                break
            try:
                self._connection = self._connect(self.path)
                return
            except sqlite3.Error as error:
                if not _name(error).startswith(_NEEDS_COPY):
                    raise self._error(error) from error
                if self._now() == self._signature:  # else the client just came or left: look again
                    break
        self._way = "copy"
        with self._told():
            self._connection = self._connect(self._copy())

    def _choose(self) -> _Way:
        wal = self._signature[1]
        # Closing a file drops the locks that this process holds on it. While a client is running,
        # the database is therefore opened by SQLite alone, which knows of this.
        if wal and self._beside("-shm").exists():
            return "shared"
        try:
            with open_regular(self.path) as file:
                header = file.read(100)
        except OSError as error:
            raise SourceError(f"`{self.path}` cannot be read: {error.strerror}") from error
        if not header:
            raise SourceError(f"`{self.path}` is empty")
        if not header.startswith(_MAGIC):
            raise SourceError(f"`{self.path}` is not an SQLite database, or is encrypted")
        if _WAL_VERSION not in header[18:20]:
            return "shared"
        return "copy" if wal and wal[1] else "still"

    def _connect(self, path: Path) -> sqlite3.Connection:
        """A connection that has read the schema once, so that what is wrong shows here."""
        # A path of two leading slashes would name a host in a URI.
        address = f"file:///{quote(path.absolute().as_posix().lstrip('/'))}?{_QUERY[self._way]}"
        connection = sqlite3.connect(
            address, uri=True, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None
        )
        try:
            connection.text_factory = _text
            connection.execute("pragma query_only = on")
            connection.execute("select count(*) from sqlite_master").fetchone()
            connection.set_authorizer(self._allow if self._never_read else None)
        except BaseException:
            connection.close()
            raise
        return connection

    def _allow(self, action: int, table: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_READ and (table or "").lower().startswith(self._never_read):
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _copy(self) -> Path:
        """A copy of the database and its WAL or journal, of one moment."""
        if self._copied is None:
            self._copied = tempfile.TemporaryDirectory(prefix="recall-")
        target = Path(self._copied.name) / "copy.db"
        for _ in range(_ATTEMPTS):
            before = self._now()
            self._check_room(sum(part[1] for part in before if part), target.parent)
            try:
                for suffix in ("", "-wal", "-journal"):
                    Path(f"{target}{suffix}").unlink(missing_ok=True)
                    if self._beside(suffix).exists():
                        shutil.copyfile(self._beside(suffix), f"{target}{suffix}")
            except OSError as error:
                if self._now() == before:
                    reason = error.strerror or type(error).__name__
                    raise SourceError(f"`{self.path}` cannot be copied: {reason}") from error
            if self._now() == before:
                return target
        raise SourceError(
            f"`{self.path}` keeps changing while it is copied", hint="the next pass tries again"
        )

    def _check_room(self, needed: int, folder: Path) -> None:
        hint = "start and close its client once, so that it can be read where it is"
        if needed > self._copy_limit:
            raise SourceError(
                f"`{self.path}` can only be read from a copy, and has {needed} bytes", hint=hint
            )
        if needed > shutil.disk_usage(folder).free:
            raise SourceError(
                f"`{folder.parent}` has no room for a copy of `{self.path}`", hint=hint
            )

    def _now(self) -> _Signature:
        """What identifies the state of the database, its WAL and its journal."""
        return tuple(_stat(self._beside(suffix)) for suffix in ("", "-wal", "-journal"))

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _batch(self, cursor: sqlite3.Cursor) -> list[Row]:
        with self._told():
            return cursor.fetchmany(BATCH_ROWS)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of SQLite as errors that say what is wrong with which file."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(error) from error
        except UnicodeEncodeError as error:
            raise SourceError(f"`{self.path}` has an id that is not UTF-8") from error

    def _error(self, error: sqlite3.Error) -> SourceError:
        name = _name(error)
        for prefix, reason in _REASONS.items():
            if name.startswith(prefix):
                return SourceError(f"`{self.path}` {reason}")
        return SourceError(f"`{self.path}` cannot be read: {error}")


@contextmanager
def open_live(
    path: Path, *, copy_limit: int = COPY_LIMIT_BYTES, never_read: tuple[str, ...] = ()
) -> Iterator[LiveDatabase]:
    """Open a database for reading without leaving a trace in its folder.

    Between reads no transaction is open, so the client commits and checkpoints as it likes. Reading
    a table whose name starts with one of ``never_read`` is refused. Text that is not UTF-8 comes as
    a string with surrogate escapes (:func:`json_value`). Raises :class:`SourceError` for a file
    that is missing, encrypted, damaged or no database.
    """
    database = LiveDatabase(path, copy_limit, never_read)
    try:
        yield database
    finally:
        database.close()


def json_value(value: Any) -> Any:
    """A column as JSON can carry it: bytes, and text that is not UTF-8, as ``{"base64": ...}``."""
    if isinstance(value, str):
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            value = value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return value


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _name(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", "") or "")
