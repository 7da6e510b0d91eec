"""Ledger entries and memories in a database, as the sink stores them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from recall.document import documents
from recall.keys import content_hash, stable_id
from recall.records import Shelf

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Entry:
    """One version of a note; ``age`` is in minutes before :data:`NOW`, ``None`` for no time."""

    content: str
    key: str = "one"
    shelf: Shelf = "ledger"
    age: float | None = 0
    title: str | None = None
    session: str | None = None
    source: str = "ledger"
    host: str = "laptop"
    project: str | None = "/home/dev/shop"
    path: str = "/home/dev/ledger.db"
    ordinal: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ts(self) -> datetime | None:
        return None if self.age is None else NOW - timedelta(minutes=self.age)


def memory(content: str, **more: Any) -> Entry:
    """A memory of an agent."""
    path = "/home/dev/.claude/projects/shop/memory/MEMORY.md"
    return replace(Entry(content, shelf="memory", source="claude-code", path=path), **more)


def add_note(
    connection: psycopg.Connection[Any], entry: Entry, *, replaced_at: datetime | None = None
) -> str:
    """Store a version of a note, an earlier one if ``replaced_at`` is given; its id as text."""
    number = stable_id("note", entry.host, entry.path, entry.key, entry.content)
    connection.execute(
        "insert into recall.note (id, shelf, source, host, path, entry_key, ordinal, session_id,"
        " project, title, ts, content, content_hash, fields, is_current, stored_at, replaced_at)"
        " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            number, entry.shelf, entry.source, entry.host, entry.path, entry.key, entry.ordinal,
            entry.session, entry.project, entry.title, entry.ts, entry.content,
            content_hash(entry.content), json.dumps(entry.fields), replaced_at is None,
            replaced_at or NOW, replaced_at,
        ),
    )  # fmt: skip
    row = connection.execute(
        "select recall.note_text(%s::text, %s::text)", (entry.title, entry.content)
    ).fetchone()
    assert row is not None
    for chunk, document in enumerate(documents(row[0])):
        connection.execute(
            "insert into recall.message_text (id, chunk, ts, source, host, project, role, kind,"
            " retracted, tsv)"
            " values (%s, %s, %s, %s, %s, %s, 'assistant', %s, %s, recall.index_document(%s))",
            (
                number, chunk, entry.ts, entry.source, entry.host, entry.project, entry.shelf,
                replaced_at is not None, document,
            ),
        )  # fmt: skip
    return str(number)
