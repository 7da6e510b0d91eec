"""What both kinds of conversation have in common when they become a document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from recall.jsontext import MalformedLine, loads
from recall.records import Message, Parsed, SessionDraft
from recall.timestamps import parse_timestamp
from recall_ingester.exports.readable import one_line, readable
from recall_ingester.sources.base import Document, Unit

#: What stands in the text for a picture or a recording.
_STUB = re.compile(r"\[\w[^\[\]\n]*\]")
TITLE_RANK = 40
PROMPT_TITLE_RANK = 10


def load_value(data: bytes) -> Any:
    """The JSON value that the bytes are; :class:`MalformedLine` if they are none."""
    return loads(data)[0]


def load_object(data: bytes) -> Mapping[str, Any]:
    """The JSON object that the bytes are; :class:`MalformedLine` for anything else."""
    value = load_value(data)
    if not isinstance(value, Mapping):
        raise MalformedLine("not an object")
    return value


class Conversation:
    """A document while it is made: one call of :meth:`add` for each message of the export."""

    def __init__(self, external_id: str) -> None:
        self.session = SessionDraft(external_id)
        self.document = Document()
        self._ordinal = 0

    def add(
        self,
        messages: list[Message],
        *,
        ts: datetime | None,
        native_id: str | None,
        active: bool = True,
        skipped: str = "no text",
    ) -> None:
        """One message as its blocks. It takes a place in the conversation even without text."""
        ordinal, self._ordinal = self._ordinal, self._ordinal + 1
        if ts is not None:
            self._widen(ts)
        if not messages:
            self.document.skip(skipped)
            return
        for part, message in enumerate(messages):
            message.part = part
            message.native_id = message.copy_scope = native_id
            message.on_active_branch = active
            self._propose_title(message)
        self.document.units.append(Unit(ordinal, Parsed(messages, ts=ts)))

    def texts(self) -> list[str]:
        """What the messages so far say."""
        return [message.text for unit in self.document.units for message in unit.parsed.messages]

    def finish(
        self, title: object, about: Sequence[Message], created: object, updated: object
    ) -> Document:
        """The document, with what the export says about the conversation as a whole.

        That stands behind the first message, as further parts of it: a place of its own would move
        the messages when the client writes it later.
        """
        about = [*self._name(title), *about]
        if about:
            self._attach(about)
        for ts in (
            parse_timestamp(created),
            parse_timestamp(updated) if not self.session.ended_at else None,
        ):
            if ts is not None:
                self._widen(ts)
        return self.document

    def _name(self, given: object) -> list[Message]:
        title = readable(given).strip()
        if not title:
            return []
        self.session.title, self.session.title_rank = one_line(title), TITLE_RANK
        return [] if self.session.title == title else [Message("system", "summary", title)]

    def _attach(self, about: Sequence[Message]) -> None:
        units = self.document.units
        if not units:
            units.append(Unit(0, Parsed()))
        first = units[0].parsed.messages
        for message in about:
            message.part = len(first)
            message.native_id = self.session.external_id
            first.append(message)

    def _propose_title(self, message: Message) -> None:
        typed = message.role == "user" and message.kind == "text"
        if typed and self.session.title is None and not _STUB.fullmatch(message.text):
            self.session.title = one_line(message.text)
            self.session.title_rank = PROMPT_TITLE_RANK

    def _widen(self, ts: datetime) -> None:
        session = self.session
        session.started_at = min(session.started_at or ts, ts)
        session.ended_at = max(session.ended_at or ts, ts)
