"""Rows of a batch as JSON, in requests of bounded size."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

import orjson

from recall.document import documents
from recall.hygiene import clean_json
from recall.records import (
    Message,
    MessageRow,
    Note,
    NoteRow,
    Parsed,
    Prompt,
    PromptRow,
    RawSpan,
    SessionDraft,
)
from recall_ingester.pipeline import RowBuilder
from recall_ingester.sinks import Batch

#: Rows and bytes of one request; a row that is larger by itself travels alone.
MOST_ROWS = 500
MOST_BYTES = 4_000_000

_MESSAGE = (
    "session_key,ordinal,part,id,role,kind,ts,ts_origin,content,content_hash,copy_key,project,"
    "branch,tool,call_id,native_id,model,is_error,is_damaged,redactions,on_active_branch"
)
#: By kind: the columns between ``batch,n`` and the end.
COLUMNS: Mapping[str, str] = {
    "session": "session_key,source,external_id,parent_key,relation,title,title_rank,project,branch,"
    "model,client_version,started_at,ended_at,path",
    "key": "piece,session_key,ordinal,part,id,role,kind,ts,content_hash,copy_key,project,tool,"
    "is_error,on_active_branch",
    "message": _MESSAGE,
    "taken_back": _MESSAGE,
    "prompt_key": "piece,id,ordinal",
    "prompt": "id,source,ordinal,session_key,project,ts,content,content_hash",
    "note_key": "piece,id,ordinal,path,entry_key",
    "note": "shelf,id,source,path,entry_key,ordinal,session_id,project,title,ts,content,"
    "content_hash,fields",
    "document": "id,chunk,taken_back,content_hash,document",
    "quarantine": "path,generation,byte_offset,byte_length,ordinal,source,session_key,reason,"
    "sha256,raw,salvaged",
    "span": "path,generation,byte_offset,byte_length,hash,unfinished",
    "blob": "hash,byte_length,codec,data_base64",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """What a row was made of: a record of a piece, or a session; neither for bytes of a file."""

    piece: int | None = None
    ordinal: int = 0
    row: MessageRow | PromptRow | NoteRow | None = None
    session_key: str | None = None
    is_taken_back: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """One row as JSON, without ``batch`` and ``n``, and what it was made of."""

    body: bytes
    origin: Origin


def sessions(batch: Batch) -> Iterator[Item]:
    """What the files tell about sessions; the order decides how the store merges it."""
    for key in sorted(batch.sessions):
        row = batch.sessions[key]
        yield _item("session", row, Origin(session_key=row.session_key))


def keys(batch: Batch) -> Iterator[Item]:
    """Keys and hashes of all messages."""
    for piece, row in batch.messages:
        yield _item("key", row, _of(piece, row), piece=piece)


def prompt_keys(batch: Batch) -> Iterator[Item]:
    """Ids of all prompts."""
    for piece, row in batch.prompts:
        yield _item("prompt_key", row, _of(piece, row), piece=piece)


def note_keys(batch: Batch) -> Iterator[Item]:
    """Ids and places of all notes."""
    for piece, row in batch.notes:
        yield _item("note_key", row, _of(piece, row), piece=piece)


def messages(batch: Batch, changed: Container[int]) -> Iterator[Item]:
    """The messages to write."""
    for piece, row in first_of_each(batch.messages, changed):
        yield _item("message", row, _of(piece, row))


def prompts(batch: Batch, changed: Container[int]) -> Iterator[Item]:
    """The prompts to write."""
    for piece, row in first_of_each(batch.prompts, changed):
        yield _item("prompt", row, _of(piece, row))


def notes(batch: Batch, changed: Container[int]) -> Iterator[Item]:
    """The versions of notes to write."""
    for piece, row in first_of_each(batch.notes, changed):
        yield _item("note", row, _of(piece, row), fields=clean_json(row.fields))


def taken_back(batch: Batch) -> Iterator[Item]:
    """Messages that the files themselves say are gone."""
    for piece, row in batch.taken_back:
        yield _item("taken_back", row, _of(piece, row, is_taken_back=True))


def index_documents(batch: Batch, changed: Container[int]) -> Iterator[Item]:
    """What the text index gets of everything that is written, made as it is asked for."""
    for piece, message in first_of_each(batch.messages, changed):
        yield from _documents(message.id, message.content, _of(piece, message))
    for piece, prompt in first_of_each(batch.prompts, changed):
        yield from _documents(prompt.id, prompt.content, _of(piece, prompt))
    for piece, note in first_of_each(batch.notes, changed):
        text = f"{note.title}\n{note.content}" if note.title else note.content
        yield from _documents(note.id, text, _of(piece, note))
    unique = {(row.id, row.content_hash): (piece, row) for piece, row in batch.taken_back}
    for piece, row in unique.values():
        origin = _of(piece, row, is_taken_back=True)
        yield from _documents(row.id, row.content, origin, _hex(row.content_hash))


def _documents(
    row_id: int, text: str, origin: Origin, content_hash: str | None = None
) -> Iterator[Item]:
    for chunk, document in enumerate(documents(text)):
        values = {
            "id": row_id,
            "chunk": chunk,
            "taken_back": origin.is_taken_back,
            "content_hash": content_hash,
            "document": document,
        }
        yield Item(encode(values), origin)


def quarantine(batch: Batch) -> Iterator[Item]:
    """Spans that could not be read."""
    for row in batch.quarantine:
        yield _item("quarantine", row, Origin())


def spans(batch: Batch) -> Iterator[Item]:
    """Where original bytes stand."""
    for span in batch.raw:
        yield _item("span", span, Origin())


def blobs(batch: Batch, known: Container[bytes]) -> Iterator[Item]:
    """Original bytes that the store does not have."""
    new: dict[bytes, RawSpan] = {span.hash: span for span in batch.raw if span.hash not in known}
    for span in new.values():
        data = b64encode(span.data).decode()
        yield _item("blob", span, Origin(), data_base64=data)


def good_rows(kind: str, host: str) -> Iterator[Item]:
    """A row that every store takes, where rows of the kind are made of records."""
    builder = RowBuilder(source="probe", host=host, path="probe", redact_secrets=False)
    record = Parsed(messages=[Message("user", "text", "probe")])
    key = builder.key("probe")
    rows = builder.messages(record, session_key=key, ordinal=0, before=None, damaged=False)
    batch = Batch(
        sessions={(key, "probe"): builder.session(SessionDraft("probe"))},
        messages=[(0, row) for row in rows],
        taken_back=[(0, row) for row in rows],
        prompts=[(0, row) for row in builder.prompts([Prompt("probe", None)], ordinal=0)],
        notes=[(0, row) for row in builder.notes([Note("ledger", "probe", "probe")], ordinal=0)],
    )
    whole = {row.id for found in (batch.messages, batch.prompts, batch.notes) for _, row in found}
    made: dict[str, Iterator[Item]] = {
        "session": sessions(batch),
        "key": keys(batch),
        "prompt_key": prompt_keys(batch),
        "note_key": note_keys(batch),
        "message": messages(batch, whole),
        "prompt": prompts(batch, whole),
        "note": notes(batch, whole),
        "taken_back": taken_back(batch),
        "document": index_documents(batch, {rows[0].id}),
    }
    yield from islice(made.get(kind, iter(())), 1)


def _of(
    piece: int, row: MessageRow | PromptRow | NoteRow, *, is_taken_back: bool = False
) -> Origin:
    return Origin(piece, row.ordinal, row, is_taken_back=is_taken_back)


Row = TypeVar("Row", MessageRow, PromptRow, NoteRow)


def first_of_each(
    rows: Iterable[tuple[int, Row]], changed: Container[int]
) -> Iterator[tuple[int, Row]]:
    """The rows to write, each once."""
    seen: set[int] = set()
    for piece, row in rows:
        if row.id in changed and row.id not in seen:
            seen.add(row.id)
            yield piece, row


_NOT_OF_ROWS = frozenset({"piece", "data_base64", "fields"})


def _item(kind: str, row: Any, origin: Origin, **more: Any) -> Item:
    names = [name for name in COLUMNS[kind].split(",") if name not in _NOT_OF_ROWS]
    values = attrgetter(*names)(row)
    plain = {
        name: _hex(value) if isinstance(value, bytes) else value
        for name, value in zip(names, values, strict=True)
    }
    return Item(encode({**plain, **more}), origin)


def _hex(data: bytes) -> str:
    return f"\\x{data.hex()}"


def encode(value: Mapping[str, Any]) -> bytes:
    """JSON of a row. What orjson refuses goes out escaped, and the server says no to that row."""
    try:
        return orjson.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(value, default=str).encode()


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one request: their numbers and what they are."""

    rows: list[tuple[int, Item]]

    def body(self, batch_id: str) -> bytes:
        """An array of objects, each with the name of the batch and its number."""
        head = f'{{"batch":"{batch_id}","n":'.encode()
        return b"[" + b",".join(
            b"%b%d,%b" % (head, n, item.body[1:]) for n, item in self.rows
        ) + b"]"  # fmt: skip

    def halves(self) -> tuple[Part, Part]:
        """Both halves of more than one row."""
        middle = len(self.rows) // 2
        return Part(self.rows[:middle]), Part(self.rows[middle:])


def parts(items: Iterable[Item]) -> Iterator[Part]:
    """Numbered rows in requests of bounded size."""
    rows: list[tuple[int, Item]] = []
    size = 0
    for n, item in enumerate(items):
        length = len(item.body) + 64
        if rows and (len(rows) >= MOST_ROWS or size + length > MOST_BYTES):
            yield Part(rows)
            rows, size = [], 0
        rows.append((n, item))
        size += length
    if rows:
        yield Part(rows)
