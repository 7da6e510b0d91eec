"""Rows of a batch on their way into PostgreSQL: by COPY where there are many, else as JSON."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeVar

import psycopg

from recall.document import documents
from recall.hygiene import clean_json
from recall.records import MessageRow, NoteRow, PromptRow, RawSpan
from recall_ingester.sinks import Batch
from recall_ingester.sinks.piece_objects import bytes_text, piece_objects

#: Characters of documents in one statement.
_INDEX_CHARS = 4_000_000

_message = attrgetter(
    "session_key", "ordinal", "part", "id", "role", "kind", "ts", "ts_origin", "content",
    "content_hash", "copy_key", "project", "branch", "tool", "call_id", "native_id", "model",
    "is_error", "is_damaged", "redactions", "on_active_branch",
)  # fmt: skip
_key = attrgetter(
    "session_key", "ordinal", "part", "id", "role", "kind", "ts", "content_hash", "copy_key",
    "project", "tool", "is_error", "on_active_branch",
)  # fmt: skip

Row = TypeVar("Row", MessageRow, PromptRow, NoteRow)
Cursor = psycopg.Cursor[Any]
Statements = Mapping[str, Any]


def whole_batch(batch: Batch, host: str) -> dict[str, str]:
    """What the statements of a batch take besides messages, prompts and notes."""
    prompt_keys = (
        {"piece": piece, "id": row.id, "ordinal": row.ordinal} for piece, row in batch.prompts
    )
    note_keys = (
        {
            "piece": piece,
            "id": row.id,
            "ordinal": row.ordinal,
            "path": row.path,
            "entry_key": row.entry_key,
        }
        for piece, row in batch.notes
    )
    return {
        "host": host,
        "pieces": json.dumps(piece_objects(batch)),
        "sessions": _json(asdict(batch.sessions[key]) for key in sorted(batch.sessions)),
        "prompt_keys": _json(prompt_keys),
        "note_keys": _json(note_keys),
        "quarantine": _json(asdict(row) for row in batch.quarantine),
        "spans": _json(map(_span_object, batch.raw)),
        "taken_back": _json(asdict(row) for _, row in batch.taken_back),
    }


def copy_keys(cursor: Cursor, sql: Statements, batch: Batch) -> None:
    """Send what identifies the messages: their text follows where it is needed."""
    if batch.messages:
        with cursor.copy(sql["copy_keys"]) as copy:
            for n, (piece, row) in enumerate(batch.messages):
                copy.write_row((n, piece, *_key(row)))


def write_changed(
    cursor: Cursor, sql: Statements, batch: Batch, host: str, changed: Container[int]
) -> None:
    """Store the messages, prompts and notes that are to be written, and their documents."""
    if messages := first_of_each(batch.messages, changed):
        with cursor.copy(sql["copy_messages"]) as copy:
            for row in messages:
                copy.write_row(_message(row))
        texts = ((row.id, row.content) for row in messages)
        send_documents(cursor, sql["index_messages"], texts)
    if prompts := first_of_each(batch.prompts, changed):
        found = _json(asdict(row) for row in prompts)
        cursor.execute(sql["store_prompts"], {"host": host, "prompts": found})
        texts = ((row.id, row.content) for row in prompts)
        send_documents(cursor, sql["index_prompts"], texts, host=host)
    if notes := first_of_each(batch.notes, changed):
        found = _json({**asdict(row), "fields": clean_json(row.fields)} for row in notes)
        cursor.execute(sql["store_notes"], {"host": host, "notes": found})
        texts = ((row.id, note_text(row)) for row in notes)
        send_documents(cursor, sql["index_notes"], texts, host=host)


def note_text(row: NoteRow) -> str:
    """What the text index holds of a note: the title, then the text."""
    return f"{row.title}\n{row.content}" if row.title else row.content


def first_of_each(rows: Sequence[tuple[int, Row]], changed: Container[int]) -> list[Row]:
    """The rows to write, each once."""
    kept: dict[int, Row] = {}
    for _, row in rows:
        if row.id in changed:
            kept.setdefault(row.id, row)
    return list(kept.values())


def send_documents(
    cursor: Cursor, statement: Any, texts: Iterable[tuple[int, str]], **more: str
) -> None:
    """Send the documents of texts, a bounded number of characters at a time."""
    ids: list[int] = []
    chunks: list[int] = []
    made: list[str] = []
    size = 0
    for row_id, text in texts:
        for chunk, document in enumerate(documents(text)):
            ids.append(row_id)
            chunks.append(chunk)
            made.append(document)
            size += len(document)
            if size >= _INDEX_CHARS:
                values = {"ids": ids, "chunks": chunks, "documents": made}
                cursor.execute(statement, {**values, **more})
                ids, chunks, made, size = [], [], [], 0
    if ids:
        values = {"ids": ids, "chunks": chunks, "documents": made}
        cursor.execute(statement, {**values, **more})


def _span_object(span: RawSpan) -> dict[str, Any]:
    return {
        "path": span.path,
        "generation": span.generation,
        "byte_offset": span.byte_offset,
        "byte_length": span.byte_length,
        "hash": span.hash,
        "unfinished": span.unfinished,
    }


def _json(objects: Iterable[dict[str, Any]]) -> str:
    """Rows as the functions of the store take them, each with its place in the batch."""
    return json.dumps([{"n": n, **row} for n, row in enumerate(objects)], default=_text)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return bytes_text(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(type(value).__name__)
