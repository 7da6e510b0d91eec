"""The chat logs of Gemini CLI and its relatives: records that change one conversation.

A ``.jsonl`` log is replayed as the client does when it resumes a session. A ``.json`` file is the
conversation itself. Both give the same :class:`Replay`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from recall.jsontext import MalformedLine, loads
from recall_ingester.reader import trim
from recall_ingester.sources.base import BadSpan, Document

#: What a file with one JSON object is, if it has none of these: something else.
_CONVERSATION_KEYS = ("messages", "history", "sessionId")
#: Metadata that every record sets anew; earlier values are of no interest.
_CLOCKS = frozenset({"lastUpdated", "startTime"})
#: How one JSON object over several lines begins; a record of a log never does.
_OBJECT_OVER_LINES = re.compile(rb'(\xef\xbb\xbf)?\s*\{[ \t\r]*\n\s*"')


@dataclass(slots=True)
class Replay:
    """A conversation, and what its log says that it was before.

    ``messages`` are the entries that the client would show, in order; usually JSON objects.
    ``gone`` are entries that were dropped or replaced, with the place they had, oldest first.
    ``earlier`` are metadata values that were replaced. ``merged`` counts the records that left no
    entry of their own: changes of metadata, and entries that are gone.
    """

    messages: list[object] = field(default_factory=list)
    gone: list[tuple[int, object]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    earlier: list[tuple[str, object]] = field(default_factory=list)
    merged: int = 0
    _places: dict[str, int] = field(default_factory=dict)

    def apply(self, record: object) -> None:
        """Replay one record. One of no known form becomes an entry of the conversation."""
        if not isinstance(record, Mapping):
            self._put(record)
        elif isinstance(target := record.get("$rewindTo"), str):
            self._rewind(target)
        elif isinstance(record.get("id"), str):
            self._put(record)
        elif isinstance(patch := record.get("$set"), Mapping):
            self._patch(patch, empty_list_counts=True)
        elif is_metadata(record):
            self._patch(record, empty_list_counts=False)
        else:
            self._put(record)

    def _put(self, entry: object) -> None:
        name = entry_id(entry)
        place = self._places.get(name) if name is not None else None
        if place is not None:
            self._drop(place, self.messages[place], entry)
            self.messages[place] = entry
            return
        if name is not None:
            self._places[name] = len(self.messages)
        self.messages.append(entry)

    def _rewind(self, target: str) -> None:
        """Drop an entry and all behind it; everything, as the client does, if it is unknown."""
        self.merged += 1
        first = self._places.get(target, 0)
        for place in range(first, len(self.messages)):
            self._drop(place, self.messages[place], None)
        del self.messages[first:]
        self._places = {name: at for name, at in self._places.items() if at < first}

    def _patch(self, patch: Mapping[str, Any], *, empty_list_counts: bool) -> None:
        self.merged += 1
        entries = patch.get("messages")
        if isinstance(entries, list) and (entries or empty_list_counts):
            self._replace_all(entries)
        for key, value in patch.items():
            if key == "messages" and isinstance(value, list):
                continue
            if key not in _CLOCKS and key in self.metadata and not same(self.metadata[key], value):
                self.earlier.append((key, self.metadata[key]))
            self.metadata[key] = value

    def _replace_all(self, entries: list[Any]) -> None:
        before = self.messages
        self.messages, self._places = [], {}
        for entry in entries:
            self._put(entry)
        for place, entry in enumerate(before):
            name = entry_id(entry)
            new = self._places.get(name) if name is not None else None
            self._drop(place, entry, None if new is None else self.messages[new])

    def _drop(self, place: int, entry: object, successor: object) -> None:
        self.merged += 1
        if successor is None or not same(entry, successor):
            self.gone.append((place, entry))


def entry_id(entry: object) -> str | None:
    """The id of an entry; entries without one are never replaced."""
    name = entry.get("id") if isinstance(entry, Mapping) else None
    return name if isinstance(name, str) else None


def is_metadata(record: Mapping[str, Any]) -> bool:
    """Whether a record tells about the session; it may do so anywhere in a log."""
    return isinstance(record.get("sessionId"), str) and not record.keys() & {"type", "content"}


def same(one: object, other: object) -> bool:
    """Equality that answers no for what is nested too deeply to be compared."""
    try:
        return one == other
    except RecursionError:
        return False


def read_log(data: bytes, document: Document) -> Replay:
    """Replay a ``.jsonl`` log. Blank and unreadable lines are noted in ``document``.

    A last line that was cut off is left out: the client writes it again or goes on behind it. A
    file that holds one JSON object over several lines is read as such; some tools name it so.
    """
    if _OBJECT_OVER_LINES.match(data):
        return read_conversation(data)
    replay = Replay()
    for ordinal, (offset, line, terminated) in enumerate(_lines(data)):
        record = trim(line, ordinal)
        if not record:
            if terminated:
                document.skip("blank line")
            continue
        try:
            value, _damaged = loads(record)
        except MalformedLine as error:
            if terminated:
                document.bad.append(BadSpan(offset, line, ordinal, error.reason))
            continue
        replay.apply(value)
    return replay


def read_conversation(data: bytes) -> Replay:
    """A ``.json`` file: one object with its list of messages, or the list alone."""
    value, _damaged = loads(trim(data, 0))
    if isinstance(value, list):
        return Replay(messages=value)
    if not isinstance(value, dict) or not any(key in value for key in _CONVERSATION_KEYS):
        raise MalformedLine("not a conversation")
    key = next((key for key in ("messages", "history") if isinstance(value.get(key), list)), None)
    messages = value[key] if key else []
    return Replay(messages=messages, metadata={k: v for k, v in value.items() if k != key})


def _lines(data: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Byte offset and bytes of each line, and whether a newline ends it."""
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        yield start, data[start:end], True
        start = end + 1
    if start < len(data):
        yield start, data[start:], False
