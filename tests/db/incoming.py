"""Requests as PostgREST makes them SQL: one transaction with the role and claims of a token."""

from __future__ import annotations

import json
import uuid
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any

import psycopg

from recall.document import documents
from recall.records import MessageRow
from recall_ingester.sinks import Batch, Written
from recall_ingester.sinks.piece_objects import piece_objects, written_of
from recall_ingester.sinks.postgres import PostgresSink
from recall_sql.connection import connect
from tests.db.ingesting import HOST, rows

Row = dict[str, Any]

KEY = (
    "session_key", "ordinal", "part", "id", "role", "kind", "ts", "content_hash", "copy_key",
    "project", "tool", "is_error", "on_active_branch",
)  # fmt: skip
SPAN = ("path", "generation", "byte_offset", "byte_length", "hash", "unfinished")
#: When something happened to be stored.
CLOCKS = ["stored_at", "retracted_at", "created_at", "read_at", "first_seen", "changed_at"]
TABLES = (
    "session", "message", "message_retracted", "message_text", "prompt", "note", "quarantine",
    "raw_blob", "raw_segment", "ingest_state", "embed_dirty",
)  # fmt: skip


class Door:
    """A host's requests over one connection, as of PostgREST's pool."""

    def __init__(self, url: str, host: str | None = HOST, role: str = "recall_writer") -> None:
        self.connection = connect(url, application="tests")
        self._role = role
        self._claims = json.dumps({"role": role} | ({"host": host} if host else {}))

    def close(self) -> None:
        """Give the connection back."""
        self.connection.close()

    @contextmanager
    def request(self) -> Iterator[psycopg.Connection[Any]]:
        with self.connection.transaction():
            self.connection.execute(
                "select set_config('role', %s, true), set_config('request.jwt.claims', %s, true),"
                " set_config('search_path', 'api, public', true)",
                (self._role, self._claims),
            )
            yield self.connection

    def upload(self, kind: str, objects: Iterable[Row]) -> int:
        """An upsert with ``columns=``; how many rows were sent."""
        body = [_wire(value) for value in objects]
        if not body:
            return 0
        names = ", ".join(body[0])
        values = ", ".join(f"{name} = excluded.{name}" for name in body[0])
        statement = (
            f"insert into api.incoming_{kind} ({names})"
            f" select {names} from json_populate_recordset(null::api.incoming_{kind}, %s::json)"
            f" on conflict (host, batch, n) do update set {values}"
        )
        with self.request() as connection:
            connection.execute(statement.encode(), (json.dumps(body),))
        return len(body)

    def call(self, name: str, **values: Any) -> Any:
        """A function; objects travel as JSON."""
        given = {
            key: json.dumps(value) if isinstance(value, dict) else value
            for key, value in values.items()
        }
        named = ", ".join(f"{key} => %({key})s" for key in given)
        with self.request() as connection:
            row = connection.execute(f"select api.{name}({named})".encode(), given).fetchone()
        assert row is not None
        return row[0]

    def send(self, batch: Batch) -> tuple[str, dict[str, Any]]:
        """Upload a batch under a new name; the name, and what to tell ``store_batch``."""
        name = str(uuid.uuid4())
        counts = {kind: self.upload(kind, _numbered(name, found)) for kind, found in _keys(batch)}
        changed = {row[0] for row in self.call("changed_rows", batch=name)}
        known = set(self.call("known_blobs", hashes=[f"\\x{s.hash.hex()}" for s in batch.raw]))
        for kind, found in _rows(batch, changed, known):
            counts[kind] = self.upload(kind, _numbered(name, found))
        return name, {"rows": counts, "pieces": piece_objects(batch)}

    def store(self, batch: Batch) -> Written:
        """Send a batch and have it stored."""
        name, body = self.send(batch)
        return written_of(self.call("store_batch", batch=name, body=body))


class IncomingSink(PostgresSink):
    """Batches by requests; all else as ever."""

    def write(self, batch: Batch) -> Written:
        with closing(Door(self._url, self._identity.host)) as door:
            return door.store(batch)


def everything_stored(url: str) -> dict[str, list[Any]]:
    """Every row of every table, but for when it was stored."""
    found = {
        table: rows(
            url,
            f"""
            select to_jsonb(t) - %s::text[] from recall.{table} t order by 1
            """,
            [*CLOCKS, "replaced_at"],
        )
        for table in TABLES
    }
    found["replaced"] = rows(url, "select id, replaced_at is not null from recall.note order by 1")
    return found


def _keys(batch: Batch) -> Iterator[tuple[str, list[Row]]]:
    yield "session", [asdict(batch.sessions[key]) for key in sorted(batch.sessions)]
    yield "key", [{"piece": at} | _some(row, KEY) for at, row in batch.messages]
    yield "prompt_key", [{"piece": at} | _some(row, ("id", "ordinal")) for at, row in batch.prompts]
    named = ("id", "ordinal", "path", "entry_key")
    yield "note_key", [{"piece": at} | _some(row, named) for at, row in batch.notes]


def _rows(batch: Batch, changed: set[int], known: set[str]) -> Iterator[tuple[str, list[Row]]]:
    messages = [asdict(row) for _, row in batch.messages if row.id in changed]
    prompts = [asdict(row) for _, row in batch.prompts if row.id in changed]
    notes = [asdict(row) for _, row in batch.notes if row.id in changed]
    yield "message", messages
    yield "prompt", prompts
    yield "note", notes
    texts = {row["id"]: _text(row) for row in reversed([*messages, *prompts, *notes])}
    found = [_document(at, n, text) for at, whole in texts.items() for n, text in _parts(whole)]
    for _, row in batch.taken_back:
        found += [_document(row.id, n, text, row) for n, text in _parts(row.content)]
    yield "document", found
    yield "taken_back", [asdict(row) for _, row in batch.taken_back]
    yield "quarantine", [asdict(row) for row in batch.quarantine]
    yield "span", [_some(span, SPAN) for span in batch.raw]
    new = {span.hash: span for span in batch.raw if f"\\x{span.hash.hex()}" not in known}
    yield (
        "blob",
        [
            _some(span, ("hash", "byte_length", "codec"))
            | {"data_base64": b64encode(span.data).decode()}
            for span in new.values()
        ],
    )


def _text(row: Row) -> str:
    return f"{row['title']}\n{row['content']}" if row.get("title") else str(row["content"])


def _parts(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(documents(text))


def _document(row_id: int, chunk: int, text: str, gone: MessageRow | None = None) -> Row:
    return {
        "id": row_id,
        "chunk": chunk,
        "taken_back": gone is not None,
        "content_hash": gone.content_hash if gone else None,
        "document": text,
    }


def _some(row: Any, names: Iterable[str]) -> Row:
    return {name: getattr(row, name) for name in names}


def _numbered(name: str, found: list[Row]) -> list[Row]:
    return [{"batch": name, "n": n, **row} for n, row in enumerate(found)]


def _wire(row: Row) -> Row:
    return {
        name: f"\\x{value.hex()}"
        if isinstance(value, bytes)
        else value.isoformat()
        if hasattr(value, "isoformat")
        else value
        for name, value in row.items()
        if name != "host"
    }
