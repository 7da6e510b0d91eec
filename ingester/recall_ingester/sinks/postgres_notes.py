"""Ledger entries and memories on their way into PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import psycopg

from recall.hygiene import clean_json
from recall.records import NoteRow
from recall_ingester.sinks import Batch
from recall_ingester.sinks.postgres_rows import mark_dirty, send_documents


class NoteWriter:
    """Writes versions of notes; the one that came last under a key is the current one."""

    def __init__(self, sql: Mapping[str, Any], host: str) -> None:
        self._sql = sql
        self._host = host

    def stage(self, cursor: psycopg.Cursor[Any], batch: Batch) -> None:
        """Find out which versions are new."""
        cursor.execute(
            self._sql["find_new_notes"],
            {
                "ids": [row.id for _, row in batch.notes],
                "pieces": [piece for piece, _ in batch.notes],
                "ordinals": [row.ordinal for _, row in batch.notes],
            },
        )

    def replace(self, cursor: psycopg.Cursor[Any], batch: Batch) -> None:
        """Mark what the batch replaces, and what did not come again in a file read whole."""
        came: dict[int, list[NoteRow]] = {}
        for number, row in batch.notes:
            came.setdefault(number, []).append(row)
        for number, piece in enumerate(batch.pieces):
            rows = came.get(number, [])
            if not rows and (piece.retire is None or piece.session_key is not None):
                continue
            first, last = piece.retire or (None, None)
            cursor.execute(
                self._sql["replace_notes"],
                {
                    "host": self._host,
                    # Notes of an import stand under its source, whatever file they came in.
                    "path": rows[0].path if rows else piece.path,
                    "ids": [row.id for row in rows],
                    "entry_keys": [row.entry_key for row in rows],
                    "first": first,
                    "last": last,
                },
            )
            if gone := {f"note:{row[0]}" for row in cursor.fetchall()}:
                mark_dirty(cursor, self._sql, [(key, 0) for key in sorted(gone)])

    def write(self, cursor: psycopg.Cursor[Any], rows: Sequence[tuple[int, NoteRow]]) -> None:
        """Store versions and their documents: the title, then the text."""
        for _, row in rows:
            values = {**asdict(row), "fields": json.dumps(clean_json(row.fields))}
            cursor.execute(self._sql["upsert_note"], values)
        texts = (
            (row.id, f"{row.title}\n{row.content}" if row.title else row.content) for _, row in rows
        )
        send_documents(cursor, self._sql["index_notes"], texts)
        if rows:
            mark_dirty(cursor, self._sql, [(f"note:{row.id}", 0) for _, row in rows])
