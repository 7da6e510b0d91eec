"""The entries of an agent's memory, from Markdown and from every usual shape of JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from recall.hygiene import clean
from recall.jsontext import MalformedLine, loads
from recall.keys import content_hash
from recall.records import Note, Parsed, SessionDraft
from recall.timestamps import parse_timestamp
from recall_ingester.reader import trim
from recall_ingester.sources.base import BadSpan, Document, Unit
from recall_ingester.sources.notes import has_text, plain_fields
from recall_ingester.sources.toolinput import json_text, render_input, stub_images

#: Where an entry has its text, its key, its title and its time; the first that is there counts.
_TEXTS = (
    "text", "content", "memory", "value", "observations", "observation", "body", "note", "fact",
    "summary",
)  # fmt: skip
_KEYS = ("id", "key", "name", "title")
_TITLES = ("title", "name")
_TIMES = ("created_at", "updated_at", "timestamp", "createdAt", "updatedAt", "created", "updated")
_PROJECTS = ("project", "cwd")
_SESSIONS = ("session_id", "sessionId", "session")
#: Lists of entries inside an object.
_LISTS = frozenset({"memories", "entities", "relations", "entries"})
_RELATION = ("from", "relationType", "to")
_TITLE_CHARS = 200

_FRONT = re.compile(r"---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_FRONT_FIELD = re.compile(r"^(\w+):(.*)$", re.MULTILINE)
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(\S.*)")
_FENCE = re.compile(r" {0,3}(```|~~~)")


class MarkdownParser:
    """A file that is one note. Its key is its place, so an edit is a new version of it."""

    session: SessionDraft | None = None

    def __init__(self, key: str, fields: Mapping[str, Any]) -> None:
        self._key = key
        self._fields = fields

    def document(self, data: bytes) -> Document:
        """The whole text as one entry; one without any text gives none."""
        text = data.decode("utf-8", "replace").removeprefix("\ufeff")
        found = Document()
        if not text.strip("\x00 \t\r\n"):
            found.skip("empty")
            return found
        front = _front_matter(text)
        title = front.get("title") or front.get("name") or _heading(text)
        times = (parse_timestamp(front.get(name)) for name in (*_TIMES, "date"))
        ts = next((time for time in times if time), None)
        note = Note(
            "memory", self._key, stub_images(text),
            title=title, ts=ts, fields=dict(self._fields),
        )  # fmt: skip
        found.units.append(Unit(0, Parsed(notes=[note], ts=ts)))
        return found


def _front_matter(text: str) -> dict[str, str]:
    """The plain fields of the YAML block at the start; nested ones are left to the text."""
    block = _FRONT.match(text)
    found = _FRONT_FIELD.findall(block[1]) if block else []
    fields = {name: value.strip().strip("\"'").strip()[:_TITLE_CHARS] for name, value in found}
    return {name: value for name, value in fields.items() if value not in ("", "|", ">")}


def _heading(text: str) -> str | None:
    fence: str | None = None
    for line in text.split("\n"):
        if opening := _FENCE.match(line):
            fence = opening[1] if fence is None else (None if opening[1] == fence else fence)
        elif fence is None and (match := _HEADING.match(line)):
            title = match[1].rstrip()
            bare = title.rstrip("#")  # `# Title #`, but not `# C#`
            title = bare.rstrip() if bare.endswith((" ", "\t")) else title
            return title[:_TITLE_CHARS]
    return None


class EntriesParser:
    """A JSON file of entries: an array, ``{"memories": [...]}``, an object of name and text.

    Or JSON Lines, as the MCP memory server writes them, whatever the suffix; ``lines`` says that
    they are to be expected.
    """

    session: SessionDraft | None = None

    def __init__(self, *, lines: bool = False) -> None:
        self._lines_first = lines

    def document(self, data: bytes) -> Document:
        """Every entry, under its index in the file."""
        found = Document()
        if not trim(data, 0).strip():
            found.skip("empty")
            return found
        if self._lines_first and (read := self._from_lines(data)):
            return read
        try:
            return self._from_value(data)
        except MalformedLine:
            read = self._from_lines(data)
            if (
                self._lines_first or read is None or read.bad
            ):  # half of a document, which has some lines by chance
                raise
            return read

    def _from_value(self, data: bytes) -> Document:
        value, _ = loads(trim(data, 0))
        found = _Collector()
        for index, (name, entry) in enumerate(_entries(value)):
            found.add(index, name, entry)
        return found.document

    def _from_lines(self, data: bytes) -> Document | None:
        """The lines as entries, ``None`` if no line is one. A torn last one is left out."""
        found = _Collector()
        objects = offset = 0
        lines = data.split(b"\n")
        for index, line in enumerate(lines):
            at, offset = offset, offset + len(line) + 1
            record = trim(line, index)
            if not record:
                continue
            try:
                value, _ = loads(record)
            except MalformedLine as error:
                if index < len(lines) - 1:
                    found.document.bad.append(BadSpan(at, line + b"\n", index, error.reason))
                continue
            if isinstance(value, Mapping):
                objects += 1
                if len(lines) <= 2 and any(isinstance(value.get(name), list) for name in _LISTS):
                    return None  # one document that stands on one line
            found.add(index, None, value)
        return found.document if objects else None


class _Collector:
    """Builds the document. Keys stay unique: a second entry of a key gets a number behind it."""

    def __init__(self) -> None:
        self.document = Document()
        self._seen: set[tuple[Any, ...]] = set()
        self._times: Counter[str] = Counter()

    def add(self, index: int, name: str | None, entry: object) -> None:
        note = _note(name, entry)
        if note is None:
            self.document.skip("no text")
            return
        told = (note.key, note.title, note.text, note.ts, json_text(note.fields))
        if told in self._seen:
            self.document.merged += 1
            return
        self._seen.add(told)
        self._times[note.key] += 1
        if (times := self._times[note.key]) > 1:
            note.key = f"{note.key}#{times}"
        self.document.units.append(Unit(index, Parsed(notes=[note], ts=note.ts)))


def _entries(value: object) -> Iterator[tuple[str | None, object]]:
    """Each entry of a file, with its name where an object gives one."""
    if isinstance(value, list):
        for item in value:
            yield None, item
    elif isinstance(value, Mapping) and not _is_entry(value):
        for name, item in value.items():
            if name in _LISTS and isinstance(item, Mapping):
                yield from item.items()
            elif name in _LISTS and isinstance(item, list):
                yield from ((None, entry) for entry in item)
            else:
                yield name, item
    else:
        yield None, value


def _is_entry(value: Mapping[str, Any]) -> bool:
    """Whether an object is one entry, and not a collection of them by name."""
    if all(isinstance(value.get(key), str) for key in _RELATION):
        return True
    told = any(isinstance(value.get(key), str | list) for key in _TEXTS)
    return told and any(isinstance(value.get(key), str | int) for key in (*_KEYS, *_TIMES))


def _note(name: str | None, entry: object) -> Note | None:
    """One entry; ``None`` if there is nothing to read in it."""
    if isinstance(entry, Mapping):
        return _from_mapping(name, dict(entry))
    text = render_input(entry)
    if not text.strip():
        return None
    return Note("memory", name or _digest(text), text, title=name or None)


def _from_mapping(name: str | None, rest: dict[str, Any]) -> Note | None:
    ts = _take_time(rest)
    whole = dict(rest)
    body = next((key for key in _TEXTS if has_text(rest.get(key))), None)
    text = _body(rest.pop(body)) if body else _without_body(whole)
    title = name or next((word for word in map(_word, map(whole.get, _TITLES)) if word), None)
    key = name or next((word for word in map(_word, map(whole.get, _KEYS)) if word), None)
    if not text.strip():
        return None
    for field in {*_KEYS, *_TITLES}:
        if (word := _word(rest.get(field))) and word in (key, title):
            del rest[field]
    return Note(
        "memory",
        key or _digest(text),
        text,
        title=title,
        ts=ts,
        session_id=next((word for word in map(_word, map(rest.get, _SESSIONS)) if word), None),
        project=next((word for word in map(_word, map(rest.get, _PROJECTS)) if word), None),
        fields=plain_fields(rest),
    )


def _take_time(rest: dict[str, Any]) -> datetime | None:
    for key in _TIMES:
        if ts := parse_timestamp(rest.get(key)):
            del rest[key]
            return ts
    return None


def _body(value: object) -> str:
    parts = value if isinstance(value, list) else [value]
    return "\n".join(filter(None, map(render_input, parts)))


def _without_body(entry: Mapping[str, Any]) -> str:
    """The text of an entry that has no field for it: a relation, or whatever it holds."""
    if not has_text(entry):
        return ""
    parts = [entry.get(key) for key in _RELATION]
    if all(isinstance(part, str) for part in parts):
        return " ".join(map(str, parts))
    return render_input(entry)


def _word(value: object) -> str | None:
    """A text or number that can name something."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value).strip() or None


def _digest(text: str) -> str:
    return content_hash(clean(text)[0]).hex()
