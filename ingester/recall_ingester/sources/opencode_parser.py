"""The parser of opencode sessions: lines made from rows, or from the files of before the database.

The first line is ``{"session": row, "project": row}``. Each further line is one message:
``{"message": row, "parts": [rows]}``, or ``{"session_message": row}`` of the second generation.
What the client keeps as JSON text is text in a row too, below ``data``.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from recall.jsontext import MalformedLine, loads
from recall.records import Kind, Message, Parsed, Role, SessionDraft
from recall.timestamps import parse_timestamp
from recall_ingester.sources.base import BadSpan, Document, Unit
from recall_ingester.sources.opencode_parts import (
    STRIDE,
    error_message,
    items,
    mapping,
    part_messages,
    word,
    words,
)
from recall_ingester.sources.opencode_v2 import v2_messages
from recall_ingester.sources.toolinput import json_text

#: A name that the client or a person gave; the first words of the first prompt; a placeholder.
TITLE_RANK, PROMPT_RANK, PLACEHOLDER_RANK = 50, 10, 1
TITLE_CHARS = 120
#: Messages about a whole message are numbered from here, behind those of its parts.
EXTRA_PART = 1_000_000

_Names = Counter[tuple[str, str, str]]
_PLACEHOLDER = re.compile(r"(?:New|Child) session - \d{4}-")
_NOT_JSON = "a JSON text inside is not JSON"
#: What a message says about itself besides its text; short words and numbers.
_MESSAGE_KEYS = frozenset(
    {
        "agent", "cost", "error", "finish", "format", "id", "metadata", "mode", "model", "modelID",
        "parentID", "parts", "path", "providerID", "role", "sessionID", "structured", "summary",
        "system", "time", "tokens", "tools", "variant",
    }
)  # fmt: skip


class SessionParser:
    """Makes the messages of one session from its lines."""

    def __init__(self, external_id: str) -> None:
        self._external_id = external_id
        self._start()

    @property
    def session(self) -> SessionDraft:
        """The session, as far as it was read."""
        return self._draft

    def document(self, data: bytes) -> Document:
        """Every message under its index among the messages."""
        if not data.strip():
            raise MalformedLine("empty")
        self._start()
        document = Document()
        ordinal = offset = 0
        for number, line in enumerate(data.split(b"\n")):
            if line or offset < len(data):
                ordinal += self._line(document, line, offset, ordinal, first=number == 0)
            offset += len(line) + 1
        return document

    def _start(self) -> None:
        self._draft = SessionDraft(self._external_id)
        self._systems: set[str] = set()
        # What each generation told that the other one has not yet repeated.
        self._told: tuple[_Names, _Names] = (Counter(), Counter())
        self._reverted_from: tuple[str | None, str | None] = (None, None)
        self._is_reverted = False

    def _line(
        self, document: Document, line: bytes, offset: int, ordinal: int, *, first: bool
    ) -> int:
        """Read one line; gives how many messages it stands for."""
        try:
            value, _ = loads(line)
        except MalformedLine as error:
            document.bad.append(BadSpan(offset, line, ordinal, error.reason))
            return 0 if first else 1
        if not isinstance(value, Mapping):
            document.bad.append(BadSpan(offset, line, ordinal, "not an object"))
            return 0 if first else 1
        slot = _Slot()
        if first and "session" in value:
            self._header(value, slot)
            if slot.is_torn:
                document.bad.append(BadSpan(offset, line, 0, _NOT_JSON))
            else:
                document.merged += 1
            return 0
        parsed = self._message(value, slot)
        if slot.is_torn:
            document.bad.append(BadSpan(offset, line, ordinal, _NOT_JSON))
        if parsed.messages:
            document.units.append(Unit(ordinal, parsed))
        elif not slot.is_torn:
            document.skip(slot.reason)
        return 1

    def _header(self, value: Mapping[str, Any], slot: _Slot) -> None:
        row, project = mapping(value.get("session")), mapping(value.get("project"))
        data, place = slot.json(row.get("data")), slot.json(project.get("data"))
        session: dict[str, Any] = {**_legacy_columns(mapping(data)), **row}
        model = slot.json(session.get("model")) if isinstance(session.get("model"), str) else None
        draft = self._draft
        worktree = word(project.get("worktree")) or word(mapping(place).get("worktree"))
        draft.cwd = word(session.get("directory")) or worktree
        draft.client_version = word(session.get("version"))
        draft.model = word(mapping(model).get("id")) or word(mapping(model).get("modelID"))
        draft.started_at = parse_timestamp(session.get("time_created"))
        draft.ended_at = parse_timestamp(session.get("time_updated"))
        if parent := word(session.get("parent_id")):
            draft.parent_id, draft.relation = parent, "subagent"
        elif origin := word(session.get("fork_session_id")):
            draft.parent_id, draft.relation = origin, "fork"
        if title := one_line(words(session.get("title"))):
            is_placeholder = _PLACEHOLDER.match(title) is not None
            draft.title = title
            draft.title_rank = PLACEHOLDER_RANK if is_placeholder else TITLE_RANK
        revert = session.get("revert")
        revert = mapping(slot.json(revert) if isinstance(revert, str) else revert)
        self._reverted_from = word(revert.get("messageID")), word(revert.get("partID"))

    def _message(self, value: Mapping[str, Any], slot: _Slot) -> Parsed:
        second = "session_message" in value
        row = mapping(value.get("session_message" if second else "message"))
        data = slot.json(row.get("data"))
        info = mapping(data)
        native = word(row.get("id")) or word(info.get("id"))
        if second:
            messages, times = (
                v2_messages(word(row.get("type")) or word(info.get("type")), data),
                info,
            )
        else:
            messages, times = self._v1(value, row, data, slot), mapping(info.get("metadata"))
        model = _model(info)
        if second and native is not None and native == self._reverted_from[0]:
            self._is_reverted = True
        self._finish(messages, native, model)
        for message in messages:
            message.on_active_branch = message.on_active_branch and not (
                second and self._is_reverted
            )
        messages = self._new(messages, slot, second=second)
        stamp = mapping(info.get("time")) or mapping(times.get("time"))
        ts = parse_timestamp(stamp.get("created")) or parse_timestamp(row.get("time_created"))
        return Parsed(messages=messages, ts=ts)

    def _v1(
        self, value: Mapping[str, Any], row: Mapping[str, Any], data: object, slot: _Slot
    ) -> list[Message]:
        info = mapping(data)
        role = _role(info)
        kind: Kind = "summary" if info.get("summary") is True else "text"
        starts = word(row.get("id")) is not None and row.get("id") == self._reverted_from[0]
        whole = starts and self._reverted_from[1] is None
        self._is_reverted = self._is_reverted or whole
        messages: list[Message] = []
        for index, (part_id, part) in enumerate(_parts(value, info, slot)):
            if starts and part_id is not None and part_id == self._reverted_from[1]:
                self._is_reverted = True
            made = part_messages(part, role, kind) if part is not None else []
            for message in made:
                message.part += index * STRIDE
                message.copy_scope = part_id
                message.on_active_branch = not self._is_reverted
            messages += made
        if starts:  # a revert to a part that is not there reverts what follows the message
            self._is_reverted = True
        if data is not None and not isinstance(data, Mapping):
            messages.append(Message("system", "unknown", json_text(data), EXTRA_PART))
        return messages + self._extras(info, messages)

    def _extras(self, info: Mapping[str, Any], shown: list[Message]) -> list[Message]:
        """What a message says beside its parts: system prompt, summary, error, and such."""
        known = "\n".join(message.text for message in shown)
        extras: list[Message] = []
        metadata = mapping(info.get("metadata"))
        prompts = [info.get("system"), *items(mapping(metadata.get("assistant")).get("system"))]
        for prompt in prompts:
            text = words(prompt)
            if text.strip() and text not in self._systems:  # it comes again with every message
                self._systems.add(text)
                extras.append(Message("system", "meta", text))
        summary = mapping(info.get("summary"))
        summed = dict.fromkeys((words(summary.get("title")), words(summary.get("body"))))
        extras += [Message("system", "meta", text) for text in summed if text not in known]
        if info.get("structured") is not None:
            extras.append(Message("assistant", "text", words(info["structured"])))
        errors = map(error_message, (info.get("error"), metadata.get("error")))
        extras += [error for error in errors if error is not None]
        other = {key: item for key, item in info.items() if key not in _MESSAGE_KEYS}
        if other and any(isinstance(item, str | list | Mapping) for item in other.values()):
            extras.append(Message("system", "unknown", json_text(other)))
        for number, message in enumerate(extras):
            message.part = EXTRA_PART + 1 + number
            message.on_active_branch = not self._is_reverted
        return [message for message in extras if message.text.strip()]

    def _finish(self, messages: list[Message], native: str | None, model: str | None) -> None:
        """Fill in what all messages of one record share, and learn from them."""
        draft = self._draft
        if model and draft.model is None:
            draft.model = model
        for message in messages:
            message.native_id = native
            if message.role == "assistant":
                message.model = model
            if message.copy_scope is None and native is not None:
                message.copy_scope = f"{native}/{message.part}"
            if message.role == "user" and message.kind == "text" and draft.title_rank < PROMPT_RANK:
                title = one_line(message.text)
                if title:
                    draft.title, draft.title_rank = title, PROMPT_RANK

    def _new(self, messages: list[Message], slot: _Slot, *, second: bool) -> list[Message]:
        """Without what the other generation told already: some versions write both."""
        mine, others = self._told[second], self._told[not second]
        kept = []
        for message in messages:
            name = message.role, message.kind, message.text
            if others[name] > 0:
                others[name] -= 1
                slot.reason = "repeats a message of the other generation"
            else:
                mine[name] += 1
                kept.append(message)
        return kept


class _Slot:
    """What one line turned out to be, besides its messages."""

    def __init__(self) -> None:
        self.is_torn = False
        self.reason = "no text"

    def json(self, value: object) -> Any:
        """The value of a JSON column. One that is no JSON marks the slot and comes as ``None``."""
        text = _column(value)
        if text is None:
            return None
        try:
            return loads(text)[0]
        except MalformedLine:
            self.is_torn = True
            return None


def one_line(text: str) -> str | None:
    """The start of a text as a title."""
    return " ".join(text[: TITLE_CHARS * 20].split())[:TITLE_CHARS].rstrip() or None


def _column(value: object) -> bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    encoded = mapping(value).get("base64")
    if isinstance(encoded, str):
        try:
            return base64.b64decode(encoded)
        except (binascii.Error, ValueError):
            return None
    return None


def _parts(
    value: Mapping[str, Any], info: Mapping[str, Any], slot: _Slot
) -> Iterator[tuple[str | None, object]]:
    """The id and value of each part; one whose text is no JSON comes as what can be read of it."""
    for row in items(value.get("parts")):
        row = mapping(row)
        was_torn, slot.is_torn = slot.is_torn, False
        part = slot.json(row.get("data"))
        if slot.is_torn:
            raw = _column(row.get("data")) or b""
            # A string is no part: it becomes a message of unknown kind, so that it is found.
            part = raw.decode("utf-8", "replace")
        slot.is_torn = slot.is_torn or was_torn
        yield word(row.get("id")), part
    for part in items(info.get("parts")):
        yield None, part


def _legacy_columns(data: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a session's JSON under the names of the columns."""
    times = mapping(data.get("time"))
    columns = {key: data.get(key) for key in ("directory", "title", "version", "revert")}
    columns["parent_id"] = data.get("parentID")
    columns["time_created"] = times.get("created")
    columns["time_updated"] = times.get("updated")
    return columns


def _role(info: Mapping[str, Any]) -> Role:
    role = info.get("role")
    if role == "user":
        return "user"
    return "assistant" if role == "assistant" else "system"


def _model(info: Mapping[str, Any]) -> str | None:
    """The model that answered, in any generation."""
    assistant = mapping(mapping(info.get("metadata")).get("assistant"))
    model = info.get("model")
    named = mapping(model)
    return (
        word(info.get("modelID"))
        or word(named.get("modelID"))
        or word(named.get("id"))
        or word(model)
        or word(assistant.get("modelID"))
    )
