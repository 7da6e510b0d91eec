"""Rows on their way into PostgreSQL: each once, and their documents in bounded statements."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import psycopg

from recall.document import documents
from recall.records import MessageRow, NoteRow, PromptRow

#: Characters of documents in one statement.
_INDEX_CHARS = 4_000_000

Row = TypeVar("Row", MessageRow, PromptRow, NoteRow)


def first_of_each(
    rows: Sequence[tuple[int, Row]], changed: Container[int]
) -> list[tuple[int, Row]]:
    """The rows to write, each once."""
    kept: dict[int, tuple[int, Row]] = {}
    for piece, row in rows:
        if row.id in changed:
            kept.setdefault(row.id, (piece, row))
    return list(kept.values())


def send_documents(
    cursor: psycopg.Cursor[Any], statement: Any, texts: Iterable[tuple[int, str]]
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
                cursor.execute(statement, {"ids": ids, "chunks": chunks, "documents": made})
                ids, chunks, made, size = [], [], [], 0
    if ids:
        cursor.execute(statement, {"ids": ids, "chunks": chunks, "documents": made})


def mark_dirty(
    cursor: psycopg.Cursor[Any], sql: Mapping[str, Any], places: Sequence[tuple[str, int]]
) -> None:
    """Say that the passages of sessions or notes are to be made again, each from an ordinal on."""
    cursor.execute(
        sql["mark_dirty"],
        {
            "keys": [key for key, _ in places],
            "ordinals": [max(0, ordinal) for _, ordinal in places],
            "counts": [1] * len(places),
            "times": [None] * len(places),
        },
    )
