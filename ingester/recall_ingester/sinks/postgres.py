"""The sink that writes straight to PostgreSQL: COPY into staging tables, merge, one transaction."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from random import uniform
from typing import Any

import psycopg

from recall.errors import StoreUnavailableError, UsageError
from recall.identity import Identity
from recall.records import MessageRow, PromptRow
from recall_ingester.checkpoint import Checkpoint
from recall_ingester.sinks import Batch, Written
from recall_ingester.sinks.postgres_checkpoints import as_json, checkpoint_of, states_of
from recall_ingester.sinks.postgres_notes import NoteWriter
from recall_ingester.sinks.postgres_raw import RawWriter
from recall_ingester.sinks.postgres_rows import first_of_each, mark_dirty, send_documents
from recall_sql.connection import connect, translate_errors
from recall_sql.loader import load

_log = logging.getLogger(__name__)
_ATTEMPTS = 6
#: From this many bytes of logs on, an empty store gets its text index after the pass.
_BULK_BYTES = 20_000_000
_MESSAGE_COLUMNS = (
    "session_key", "ordinal", "part", "id", "role", "kind", "ts", "ts_origin", "content",
    "content_hash", "copy_key", "project", "branch", "tool", "call_id", "native_id", "model",
    "is_error", "is_damaged", "redactions", "on_active_branch",
)  # fmt: skip
_KEY_COLUMNS = (
    "session_key", "ordinal", "part", "id", "role", "kind", "ts", "content_hash", "copy_key",
    "project", "tool", "is_error", "on_active_branch",
)  # fmt: skip
_PROMPT_COLUMNS = (
    "id", "source", "host", "ordinal", "session_key", "project", "ts", "content", "content_hash",
)  # fmt: skip


class PostgresSink:
    """Rows of one host into one database, over one connection that is opened again if it breaks."""

    def __init__(self, url: str, identity: Identity) -> None:
        self._url = url
        self._identity = identity
        self._sql = load("ingest")
        self._connection: psycopg.Connection[Any] | None = None
        self._raw = RawWriter(self._sql, identity.host)
        self._notes = NoteWriter(self._sql, identity.host)

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
                with translate_errors(), self._open() as connection:
                    return self._write(connection, batch)
            except StoreUnavailableError:
                self._drop()
                if attempt == _ATTEMPTS:
                    raise
                _log.warning("batch sent again", extra={"attempt": attempt})
                time.sleep(uniform(0.5, 1.0) * min(0.1 * 2**attempt, 5.0))  # noqa: S311
        raise AssertionError("unreachable")

    def _write(self, connection: psycopg.Connection[Any], batch: Batch) -> Written:
        sql = self._sql
        with connection.transaction(), connection.cursor() as cursor:
            sessions = [asdict(batch.sessions[key]) for key in sorted(batch.sessions)]
            if sessions:
                cursor.executemany(sql["upsert_session"], sessions)
            stored = self._write_rows(cursor, batch)
            retired = self._retire(cursor, batch)
            if batch.quarantine:
                entries = [asdict(row) for row in batch.quarantine]
                cursor.executemany(sql["upsert_quarantine"], entries)
            raw_bytes, replaced = self._raw.write(cursor, batch)
            if batch.taken_back:
                retired += self._keep_taken_back(cursor, batch)
            counts = [
                piece.settled(stored.get(number, (0, 0))[0])
                for number, piece in enumerate(batch.pieces)
            ]
            if states := states_of(batch.pieces, counts, self._identity.host):
                cursor.executemany(sql["upsert_checkpoint"], states)
        written = sum(rows for _, rows in stored.values())
        return Written(counts, written, retired, raw_bytes, replaced)

    def _write_rows(self, cursor: psycopg.Cursor[Any], batch: Batch) -> dict[int, tuple[int, int]]:
        sql = self._sql
        if batch.messages:
            _copy(cursor, sql["copy_keys"], _KEY_COLUMNS, batch.messages, with_piece=True)
            cursor.execute(sql["find_changed"])
        if batch.prompts:
            cursor.execute(
                sql["find_new_prompts"],
                {
                    "ids": [row.id for _, row in batch.prompts],
                    "pieces": [piece for piece, _ in batch.prompts],
                    "ordinals": [row.ordinal for _, row in batch.prompts],
                },
            )
        if batch.notes:
            self._notes.stage(cursor, batch)
        changed: dict[int, bool] = {}
        if batch.messages or batch.prompts or batch.notes:
            changed = dict(cursor.execute(sql["changed"]).fetchall())
        self._notes.replace(cursor, batch)
        if not changed:
            return {}
        rewritten = any(changed.values())
        if rewritten:
            self._make_room(cursor, batch)
        messages = first_of_each(batch.messages, changed)
        prompts = first_of_each(batch.prompts, changed)
        _copy(cursor, sql["copy_messages"], _MESSAGE_COLUMNS, messages)
        if prompts:
            cursor.execute(sql["stage_prompts"])
            _copy(cursor, sql["copy_prompts"], _PROMPT_COLUMNS, prompts)
            cursor.execute(sql["insert_prompts"])
        send_documents(
            cursor, sql["index_messages"], ((row.id, row.content) for _, row in messages)
        )
        send_documents(cursor, sql["index_prompts"], ((row.id, row.content) for _, row in prompts))
        self._notes.write(cursor, first_of_each(batch.notes, changed))
        if messages:
            cursor.execute(sql["mark_dirty_messages"])
        if rewritten:
            cursor.execute(sql["drop_outgrown"], {"ids": [row.id for _, row in messages]})
        return {
            piece: (lines, rows)
            for piece, lines, rows in cursor.execute(sql["stored_lines"]).fetchall()
        }

    def _make_room(self, cursor: psycopg.Cursor[Any], batch: Batch) -> None:
        """Keep the texts that are about to be written over, and take their rows away."""
        generations = [piece.generation for piece in batch.pieces]
        cursor.execute(self._sql["retract_rewritten"], {"generations": generations})
        cursor.execute(self._sql["retract_index"])
        cursor.execute(self._sql["drop_replaced"])

    def _retire(self, cursor: psycopg.Cursor[Any], batch: Batch) -> int:
        sql = self._sql
        retired = 0
        ended: set[str] = set()
        for piece in batch.pieces:
            if piece.retire is None or piece.session_key is None:
                continue
            first, last = piece.retire
            cursor.execute(
                sql["retire"],
                {
                    "session_key": piece.session_key,
                    "first": first,
                    "last": last,
                    "generation": piece.generation,
                },
            )
            retired += cursor.rowcount
            if cursor.rowcount:
                mark_dirty(cursor, sql, [(piece.session_key, first)])
            if last is None:
                ended.add(piece.session_key)
        if ended:
            cursor.execute(sql["drop_moved"], {"session_keys": sorted(ended)})
        return retired

    def _keep_taken_back(self, cursor: psycopg.Cursor[Any], batch: Batch) -> int:
        sql = self._sql
        cursor.execute(sql["stage_taken_back"])
        unique = {(row.id, row.content_hash): (piece, row) for piece, row in batch.taken_back}
        rows = list(unique.values())
        _copy(cursor, sql["copy_taken_back"], _MESSAGE_COLUMNS, rows)
        # One generation for the batch: these rows are told apart by their text.
        generation = max(piece.generation for piece in batch.pieces)
        kept = cursor.execute(sql["keep_taken_back"], {"generation": generation}).fetchall()
        texts = [(row[0], unique[row[1], bytes(row[2])][1].content) for row in kept]
        send_documents(cursor, sql["index_taken_back"], texts)
        return len(kept)

    def mark(self, *, missing: Iterable[str], unreadable: Mapping[str, tuple[str, str]]) -> None:
        """Note files that are gone, and by path the source and reason of what cannot be read."""
        host = self._identity.host
        with translate_errors(), self._open() as connection, connection.transaction():
            connection.execute(self._sql["mark_missing"], {"host": host, "paths": list(missing)})
            for path, (source, reason) in unreadable.items():
                connection.execute(
                    self._sql["mark_unreadable"],
                    {"host": host, "path": path, "source": source, "reason": reason, "empty": b""},
                )

    def mark_present(self, paths: Iterable[str], *, readable: Iterable[str]) -> None:
        """Files that are back unchanged, and folders that can be listed again."""
        host = self._identity.host
        with translate_errors(), self._open() as connection, connection.transaction():
            connection.execute(self._sql["mark_present"], {"host": host, "paths": list(paths)})
            connection.execute(self._sql["clear_folder"], {"host": host, "paths": list(readable)})

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
        values = {"host": self._identity.host, "pid": os.getpid(), "detail": as_json(detail)}
        with translate_errors(), self._open() as connection, connection.transaction():
            connection.execute(self._sql["beat"], values)

    def close(self) -> None:
        """Give the connection back."""
        self._drop()

    def _open(self) -> _Kept:
        if self._connection is None or self._connection.closed:
            with translate_errors():
                self._connection = connect(self._url, application="recall ingest")
                self._connection.execute(self._sql["stage"])
                self._connection.commit()
        return _Kept(self._connection)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


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


def _copy(
    cursor: psycopg.Cursor[Any],
    statement: Any,
    columns: tuple[str, ...],
    rows: Sequence[tuple[int, MessageRow]] | Sequence[tuple[int, PromptRow]],
    *,
    with_piece: bool = False,
) -> None:
    if not rows:
        return
    values = attrgetter(*columns)
    with cursor.copy(statement) as copy:
        for piece, row in rows:
            copy.write_row((piece, *values(row)) if with_piece else values(row))
