"""The sink that writes straight to PostgreSQL: COPY into staging tables, merge, one transaction."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from random import uniform
from typing import Any

import psycopg

from recall.errors import StoreUnavailableError, UsageError
from recall.hygiene import clean_json
from recall.identity import Identity
from recall.records import RawSpan
from recall_ingester.checkpoint import Checkpoint
from recall_ingester.sinks import Batch, Written
from recall_ingester.sinks.overtaken import CODE, OvertakenError, overtaken_paths
from recall_ingester.sinks.piece_objects import counts_of
from recall_ingester.sinks.postgres_checkpoints import checkpoint_of
from recall_ingester.sinks.postgres_rows import (
    copy_keys,
    send_documents,
    whole_batch,
    write_changed,
)
from recall_sql.connection import connect, translate_errors
from recall_sql.loader import load

_log = logging.getLogger(__name__)
_ATTEMPTS = 6
#: From this many bytes of logs on, an empty store gets its text index after the pass.
_BULK_BYTES = 20_000_000


class PostgresSink:
    """Rows of one host into one database, over one connection that is opened again if it breaks."""

    def __init__(self, url: str, identity: Identity) -> None:
        self._url = url
        self._identity = identity
        self._sql = load("ingest")
        self._connection: psycopg.Connection[Any] | None = None

    def register(self) -> None:
        """Claim this host's name. Raises :class:`UsageError` if another installation holds it."""
        values = {"host": self._identity.host, "install_id": self._identity.install_id}
        with translate_errors(), self._open() as connection:
            row = connection.execute(self._sql["register_host"], values).fetchone()
        if row is None or row[0] != self._identity.install_id:
            raise UsageError(
                f"the host name `{self._identity.host}` belongs to another installation",
                hint="set RECALL_HOST to another name before the first ingest of this home",
            )

    def checkpoints(self) -> dict[str, Checkpoint]:
        """How far every file of this host was read, by path."""
        with translate_errors(), self._open() as connection:
            rows = connection.execute(
                self._sql["checkpoints"], {"host": self._identity.host}
            ).fetchall()
        return {row[0]: checkpoint_of(row) for row in rows}

    def begin(self, expected_bytes: int) -> None:
        """Put off the text index if this pass fills an empty store; :meth:`finish` builds it.

        Until then searches read the table. A pass that dies leaves that to the next one.
        """
        if expected_bytes < _BULK_BYTES:
            return
        with translate_errors(), self._open() as connection:
            if self._tells(connection, "is_empty"):
                connection.execute(self._sql["drop_text_index"])

    def _tells(self, connection: psycopg.Connection[Any], question: str) -> bool:
        row = connection.execute(self._sql[question]).fetchone()
        return row is not None and bool(row[0])

    def write(self, batch: Batch) -> Written:
        """Store a batch in one transaction; what may succeed later is tried again with back-off."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with translate_errors(), self._open() as connection, _told_when_overtaken():
                    return self._write(connection, batch)
            except OvertakenError:
                raise
            except StoreUnavailableError:
                self._drop()
                if attempt == _ATTEMPTS:
                    raise
                _log.warning("batch sent again", extra={"attempt": attempt})
                time.sleep(uniform(0.5, 1.0) * min(0.1 * 2**attempt, 5.0))  # noqa: S311
        raise AssertionError("unreachable")

    def _write(self, connection: psycopg.Connection[Any], batch: Batch) -> Written:
        sql, whole = self._sql, whole_batch(batch, self._identity.host)
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute(sql["stage"])
            copy_keys(cursor, sql, batch)
            changed = {row[0] for row in cursor.execute(sql["begin_batch"], whole).fetchall()}
            write_changed(cursor, sql, batch, self._identity.host, changed)
            raw_bytes = self._store_blobs(cursor, batch.raw) if batch.raw else 0
            retired, replaced = cursor.execute(sql["finish_rows"], whole).fetchone() or (0, [])
            if batch.taken_back:
                retired += self._keep_taken_back(cursor, batch, whole)
            counts, written = cursor.execute(sql["end_batch"], whole).fetchone() or ([], 0)
        return Written(
            [counts_of(count) for count in counts],
            written,
            retired,
            raw_bytes,
            [bytes(digest) for digest in replaced],
        )

    def _store_blobs(self, cursor: psycopg.Cursor[Any], spans: list[RawSpan]) -> int:
        """Send the original bytes that the store does not have; the stored size of what is new."""
        by_hash = {span.hash: span for span in spans}
        cursor.execute(self._sql["known_blobs"], {"hashes": list(by_hash)})
        known = {bytes(row[0]) for row in cursor.fetchall()}
        new = [span for digest, span in by_hash.items() if digest not in known]
        if not new:
            return 0
        values = {
            "hashes": [span.hash for span in new],
            "lengths": [span.byte_length for span in new],
            "codecs": [span.codec for span in new],
            "data": [span.data for span in new],
        }
        row = cursor.execute(self._sql["store_blobs"], values).fetchone()
        return int(row[0]) if row else 0

    def _keep_taken_back(
        self, cursor: psycopg.Cursor[Any], batch: Batch, whole: Mapping[str, str]
    ) -> int:
        rows = {(row.id, row.content_hash): row for _, row in batch.taken_back}
        kept = cursor.execute(self._sql["keep_taken_back"], whole).fetchall()
        texts = [(row[0], rows[row[1], bytes(row[2])].content) for row in kept]
        send_documents(cursor, self._sql["index_taken_back"], texts)
        return len(kept)

    def mark(self, *, missing: Iterable[str], unreadable: Mapping[str, tuple[str, str]]) -> None:
        """Note files that are gone, and by path the source and reason of what cannot be read."""
        values = {
            "host": self._identity.host,
            "missing": list(missing),
            "unreadable": json.dumps(clean_json(dict(unreadable))),
        }
        with translate_errors(), self._open() as connection, connection.transaction():
            connection.execute(self._sql["mark"], values)

    def mark_present(self, paths: Iterable[str], *, readable: Iterable[str]) -> None:
        """Files that are back unchanged, and folders that can be listed again."""
        values = {
            "host": self._identity.host,
            "paths": list(paths),
            "readable": list(readable),
        }
        with translate_errors(), self._open() as connection, connection.transaction():
            connection.execute(self._sql["mark_present"], values)

    def raw_spans(self, path: str, generation: int) -> list[tuple[int, int, bytes]]:
        """Offset, length and hash of the original bytes that are kept of a path, by offset."""
        values = {"host": self._identity.host, "path": path, "generation": generation}
        with translate_errors(), self._open() as connection:
            rows = connection.execute(self._sql["raw_spans"], values).fetchall()
        return [(row[0], row[1], bytes(row[2])) for row in rows]

    def finish(
        self, session_keys: Iterable[str], *, wrote: int, replaced_raw: Iterable[bytes] = ()
    ) -> None:
        """Link new sessions that copy others, tidy the text index, refresh its statistics, drop
        original bytes that nothing points to any more."""
        with translate_errors(), self._open() as connection:
            keys = list(session_keys)
            if keys:
                connection.execute(self._sql["link_copies"], {"session_keys": keys})
                connection.commit()
            if hashes := list(replaced_raw):
                connection.execute(self._sql["drop_blobs"], {"hashes": hashes})
                connection.commit()
            if not self._tells(connection, "has_text_index"):
                connection.execute("set local maintenance_work_mem = '256MB'")
                connection.execute(self._sql["build_text_index"])
                connection.commit()
            if wrote:
                connection.execute(self._sql["clean_pending"])
                connection.commit()
            if wrote > 5_000:
                connection.autocommit = True
                connection.execute("analyze recall.message_text")
                connection.autocommit = False

    def beat(self, detail: Mapping[str, Any]) -> None:
        """Say that the ingester is alive and what its last pass did."""
        values = {
            "host": self._identity.host,
            "pid": os.getpid(),
            "detail": json.dumps(clean_json(detail)),
        }
        with translate_errors(), self._open() as connection, connection.transaction():
            connection.execute(self._sql["beat"], values)

    def close(self) -> None:
        """Give the connection back."""
        self._drop()

    def _open(self) -> _Kept:
        if self._connection is None or self._connection.closed:
            with translate_errors():
                self._connection = connect(self._url, application="recall ingest")
                self._connection.execute(self._sql["settings"])
                self._connection.commit()
        return _Kept(self._connection)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextmanager
def _told_when_overtaken() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate == CODE and (paths := overtaken_paths(error.diag.message_detail)):
            raise OvertakenError(paths) from None
        raise


class _Kept:
    """Lends a connection and leaves it open, without a transaction."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def __enter__(self) -> psycopg.Connection[Any]:
        return self._connection

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._connection.closed or self._connection.autocommit:
            return
        if kind is None:
            self._connection.commit()
        else:
            self._connection.rollback()
