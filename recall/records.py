"""The record types that travel from a source to the store.

A source turns one record of a client's log into :class:`Message` and :class:`Prompt` drafts. The
ingest pipeline cleans and redacts their text, gives them keys, and hands the resulting rows to a
sink. Rows hold only plain values, so they can go by COPY or as JSON over HTTP unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Role = Literal["user", "assistant", "tool", "system"]

Kind = Literal[
    "text",  # what a person or the model said
    "thinking",  # reasoning that the client kept
    "tool_call",  # name and arguments
    "tool_result",  # what the tool gave back
    "summary",  # a compaction summary or a summary record
    "meta",  # text that the client put into the conversation by itself
    "event",  # an error or a state change worth finding again
    "unknown",  # a record type this version does not know; kept as JSON
]

Relation = Literal["subagent", "fork", "resume", "spill"]

#: Where a note stands: in the work ledger, or in an agent's memory.
Shelf = Literal["ledger", "memory"]

#: Where a message's time comes from: its own record, or the record before it in the file.
TimeOrigin = Literal["record", "previous"]


@dataclass(slots=True)
class Message:
    """One block of one record, as a source read it. ``part`` is its place inside the record.

    ``copy_scope`` names the message across sessions where the client gives it a global identity
    (a record uuid, a turn id). Equal scope and equal text make two messages copies of each other;
    ``None`` means that the message is never treated as a copy.
    """

    role: Role
    kind: Kind
    text: str
    part: int = 0
    tool: str | None = None
    call_id: str | None = None
    native_id: str | None = None
    model: str | None = None
    is_error: bool = False
    copy_scope: str | None = None
    #: False for a message on a branch that the conversation left (a regenerated answer, an edited
    #: question). It stays an ordinary message, and readers are told.
    on_active_branch: bool = True


@dataclass(slots=True)
class Prompt:
    """One entry of a prompt history. ``session_id`` is the client's own id, if it wrote one."""

    text: str
    ts: datetime | None
    session_id: str | None = None
    project: str | None = None


@dataclass(slots=True)
class Note:
    """One entry of a work ledger or of an agent's memory.

    ``key`` names the entry inside its file or table; a changed text under the same key is a new
    version of it. ``fields`` holds what else the client keeps about it, as small JSON.
    """

    shelf: Shelf
    key: str
    text: str
    title: str | None = None
    ts: datetime | None = None
    session_id: str | None = None
    project: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class SessionDraft:
    """What a source knows about a session so far. A higher ``title_rank`` wins over a lower one."""

    external_id: str
    parent_id: str | None = None
    relation: Relation | None = None
    title: str | None = None
    title_rank: int = 0
    cwd: str | None = None
    branch: str | None = None
    model: str | None = None
    client_version: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(slots=True)
class Parsed:
    """What one record became.

    At least one of these holds: it gave messages, prompts or notes; it told something about the
    session (``session_info``, as a title does besides being a message); or ``skipped`` names why it
    holds nothing to store.
    """

    messages: list[Message] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    session_info: bool = False
    skipped: str | None = None
    ts: datetime | None = None
    cwd: str | None = None
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One row of ``recall.session``. The store merges it with what it has (see the migration)."""

    session_key: str
    source: str
    host: str
    external_id: str
    parent_key: str | None
    relation: str | None
    title: str | None
    title_rank: int
    project: str | None
    branch: str | None
    model: str | None
    client_version: str | None
    started_at: datetime | None
    ended_at: datetime | None
    path: str | None


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One row of ``recall.message``; ``content_hash`` is 16 bytes of BLAKE2b over the cleaned text.

    What the text index sees of it is made from ``content`` (:mod:`recall.document`), by the sink
    and only for rows that the store does not have yet.
    """

    session_key: str
    ordinal: int
    part: int
    id: int
    role: str
    kind: str
    ts: datetime | None
    ts_origin: str | None
    content: str
    content_hash: bytes
    copy_key: int | None
    project: str | None
    branch: str | None
    tool: str | None
    call_id: str | None
    native_id: str | None
    model: str | None
    is_error: bool
    is_damaged: bool
    redactions: int
    on_active_branch: bool = True


@dataclass(frozen=True, slots=True)
class NoteRow:
    """One version of a ledger entry or memory; its id comes from its place and its content.

    ``session_id`` is the client's own id: a ledger does not say which client's session it means.
    """

    shelf: Shelf
    id: int
    source: str
    host: str
    path: str
    entry_key: str
    ordinal: int
    session_id: str | None
    project: str | None
    title: str | None
    ts: datetime | None
    content: str
    content_hash: bytes
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One row of ``recall.prompt``; its id comes from its content, so a trimmed file loses none."""

    id: int
    source: str
    host: str
    ordinal: int
    session_key: str | None
    project: str | None
    ts: datetime | None
    content: str
    content_hash: bytes


@dataclass(frozen=True, slots=True)
class QuarantineRow:
    """One span of a file that could not be read as a record, with the bytes themselves if small."""

    host: str
    path: str
    generation: int
    byte_offset: int
    byte_length: int
    ordinal: int
    source: str
    session_key: str | None
    reason: str
    sha256: bytes
    raw: bytes | None
    salvaged: bool


@dataclass(frozen=True, slots=True)
class RawSpan:
    """Original bytes ``[byte_offset, byte_offset + byte_length)`` of one file, compressed.

    ``hash`` is 32 bytes of BLAKE2b over the original bytes and names them in the store, where equal
    spans are kept once. ``codec`` is ``zstd``, or ``none`` where compressing gained nothing.
    ``unfinished`` marks bytes behind the last complete line: the next read brings them again.
    """

    path: str
    generation: int
    byte_offset: int
    byte_length: int
    hash: bytes
    codec: str
    data: bytes
    unfinished: bool = False
