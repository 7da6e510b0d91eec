"""What the store holds of one file, in a form that a string can be looked for in."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import psycopg

from recall.hygiene import clean
from recall.jsontext import compact
from recall.timestamps import parse_timestamp
from recall_ingester.redact import redact
from recall_ingester.sources.toolinput import image_stub, stub_images

#: A word stands by itself in a text, or it is not there: `ok` is no part of `token`.
_WORD = re.compile(r"[\w-]+")
_BASE64 = re.compile(r"(?:data:[^,]{0,200};base64,)?[A-Za-z0-9+/_=\s-]{256,}")
_FILE_URL = "file://"
_SEPARATORS = re.compile(r"__|[/.:]")
#: What the store cuts a field of a session or message to.
_FIELD_CHARS = 500

_SESSIONS_OF = """
    select session_key from recall.ingest_state
    where session_key is not null and (path = %s or container = %s)
"""
_MESSAGES = """
    select ordinal, content, tool, ts, role, call_id, native_id, model, branch, project
    from (
        select session_key, ordinal, part, content, ts, role, tool, call_id, native_id, model,
            branch, project
        from recall.message
        union all
        select session_key, ordinal, part, content, ts, role, tool, call_id, native_id, model,
            branch, project
        from recall.message_retracted
    ) m
    where session_key = any(%s)
    order by session_key, ordinal, part
"""
_SESSION_FIELDS = """
    select external_id, parent_key, title, started_at, ended_at, project, branch, model,
        client_version
    from recall.session where session_key = any(%s)
"""
_SESSION_KEYS = "select session_key from recall.session where source = %s"
_IDS = "select external_id from recall.session where source = %s"
_PROMPTS = "select content, session_key, ts, project from recall.prompt where source = %s"
_NOTES = """
    select content, title, fields, entry_key, session_id, ts, project from recall.note
    where source = %s
"""
_QUARANTINE = """
    select raw from recall.quarantine where source = %s and (path = %s or %s::text is null)
"""


class Held:
    """Texts, short values and times. Each string is looked for as the store would have changed it:
    cleaned, redacted, its inline images as stubs, or escaped inside JSON that is kept whole."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._by_place: defaultdict[int, list[str]] = defaultdict(list)
        self._values: set[str] = set()
        self._times: set[datetime] = set()
        self._known: dict[str, bool] = {}

    def add_text(self, text: str | None, place: int | None = None) -> None:
        """A content; ``place`` is the number of the line that it came from."""
        if text:
            self._texts.append(text)
            if place is not None:
                self._by_place[place].append(text)

    def add_values(self, values: Iterable[object]) -> None:
        """Fields, which hold as a whole."""
        for value in values:
            if isinstance(value, datetime):
                self._times.add(value)
            elif isinstance(value, str):
                self._values.add(value)

    def add_names(self, names: Iterable[str | None]) -> None:
        """Ids and names of tools, of which each part holds too."""
        for name in names:
            if name:
                self._values.update((name, *filter(None, _SEPARATORS.split(name))))

    @property
    def has_texts(self) -> bool:
        """Whether there is any text."""
        return bool(self._texts)

    def holds(self, text: str, key: str = "", place: int | None = None) -> bool:
        """Whether a string, which stood under a key in a line, is here."""
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._holds(text, key, place)
        return known

    def _holds(self, text: str, key: str, place: int | None) -> bool:
        cleaned = clean(text)[0].strip()
        if cleaned[:_FIELD_CHARS] in self._values or self._is_time(cleaned):
            return True
        if cleaned.startswith(_FILE_URL):
            cleaned = unquote(cleaned.removeprefix(_FILE_URL))
            if cleaned in self._values:
                return True
        shown = redact(stub_images(cleaned))[0]
        if _WORD.fullmatch(shown) and not _BASE64.fullmatch(shown):
            return shown in self._words or cleaned in self._words
        near = "\n".join(self._by_place.get(place, ())) if place is not None else ""
        forms = [form for written in dict.fromkeys((shown, cleaned)) for form in _forms(written)]
        if any(form in near or form in self._joined for form in forms):
            return True
        if (under := _redacted_under(key, cleaned)) is not None and under in self._joined:
            return True
        return self._has_stub(cleaned)

    def _is_time(self, text: str) -> bool:
        if not text[:1].isdigit() or len(text) > 40:
            return False
        time = parse_timestamp(text)
        return time is not None and time in self._times

    def _has_stub(self, text: str) -> bool:
        if not _BASE64.fullmatch(text):
            return False
        digest = image_stub(None, text).rpartition(" ")[2]
        return digest in self._joined

    @cached_property
    def _joined(self) -> str:
        return "\n\0\n".join(self._texts)

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(_WORD.findall(self._joined))


def _forms(text: str) -> list[str]:
    escaped = compact(text)[1:-1]
    pure_ascii = json.dumps(text)[1:-1]
    return list(dict.fromkeys((text, escaped, pure_ascii)))


def _redacted_under(key: str, text: str) -> str | None:
    """A secret that is only recognised beside its key."""
    head = f"{key}: "
    shown, count = redact(head + text)
    return shown.removeprefix(head) if count and shown.startswith(head) else None


class Store:
    """The rows of one source in a database."""

    def __init__(self, connection: psycopg.Connection[Any], source: str) -> None:
        self._connection = connection
        self._source = source

    def of_file(self, path: str) -> Held:
        """What came from one file: its sessions, or everything if it has no session of its own, or
        none with a message (a prompt history under another name)."""
        keys = [row[0] for row in self._rows(_SESSIONS_OF, path, path)]
        held = Held()
        self._add_sessions(held, keys)
        if not held.has_texts:
            return self.everything
        self._add_quarantine(held, path)
        held.add_names(row[0] for row in self._rows(_IDS, self._source))
        return held

    @cached_property
    def everything(self) -> Held:
        """All sessions, prompts and notes of the source."""
        held = Held()
        self._add_sessions(held, [row[0] for row in self._rows(_SESSION_KEYS, self._source)])
        self._add_quarantine(held, None)
        for content, session, *fields in self._rows(_PROMPTS, self._source):
            held.add_text(content)
            held.add_names((session,))
            held.add_values(fields)
        for content, title, kept, *fields in self._rows(_NOTES, self._source):
            for text in (content, title, compact(kept)):
                held.add_text(text)
            held.add_values(fields)
        return held

    def _add_sessions(self, held: Held, keys: list[str]) -> None:
        for place, content, tool, *fields in self._rows(_MESSAGES, keys):
            held.add_text(content, place)
            held.add_names((tool,))
            held.add_values(fields)
        for name, parent, title, *fields in self._rows(_SESSION_FIELDS, keys):
            held.add_names((name, parent))
            held.add_text(title)
            held.add_values(fields)

    def _add_quarantine(self, held: Held, path: str | None) -> None:
        for (raw,) in self._rows(_QUARANTINE, self._source, path, path):
            held.add_text(raw.decode("utf-8", "replace") if raw else None)

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement.encode(), values).fetchall()
