"""The types of lines in the import format: what each may hold, and what it becomes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast, get_args

from recall.hygiene import clean
from recall.records import Kind, Message, Note, Parsed, Prompt, Relation, Role, SessionDraft, Shelf
from recall_ingester.sources.notes import plain_fields
from recall_ingester.sources.toolinput import json_text, stub_images

#: Parts of a message are below this; its own fields stand in a part of their own above it.
MAX_PARTS = 10_000
#: A title that a person or script gives beats one that is made of a message.
_TITLE_RANK = 50
_SHOWN_CHARS = 100
_MAX_ORDINAL = (1 << 62) - 1
_EXTRA = "x_"
_SOURCE = re.compile(r"[a-z0-9-]{1,100}")

Check = Callable[[object], str | None]
Fields = Mapping[str, Any]


class Invalid(Exception):
    """A line that is not as the format says, with everything that is wrong with it."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__(*messages)
        self.messages = messages


def _is_text(value: object) -> str | None:
    return None if isinstance(value, str) else "must be a text"


def _is_word(value: object) -> str | None:
    return None if isinstance(value, str) and value.strip() else "must be a text that is not empty"


def _is_flag(value: object) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _is_object(value: object) -> str | None:
    return None if isinstance(value, dict) else "must be an object"


def _is_time(value: object) -> str | None:
    return None if _time(value) else "must be a time with a zone, such as 2026-03-02T10:00:00Z"


def _is_whole(most: int) -> Check:
    def check(value: object) -> str | None:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
            return None
        return f"must be a whole number from 0 to {most}"

    return check


def _is_one_of(words: tuple[str, ...]) -> Check:
    message = f"must be one of {', '.join(words)}"
    return lambda value: None if isinstance(value, str) and value in words else message


_REQUIRED: dict[str, tuple[str, ...]] = {
    "session": ("id",),
    "message": ("session", "role", "text"),
    "prompt": ("text",),
    "note": ("shelf", "key", "text"),
}
_TYPES: dict[str, dict[str, Check]] = {
    "session": {
        "id": _is_word, "title": _is_text, "project": _is_text, "branch": _is_text,
        "model": _is_text, "parent": _is_word, "relation": _is_one_of(get_args(Relation)),
        "started_at": _is_time, "ended_at": _is_time,
    },
    "message": {
        "session": _is_word, "role": _is_one_of(get_args(Role)),
        "kind": _is_one_of(get_args(Kind)), "text": _is_text, "ts": _is_time, "tool": _is_text,
        "call_id": _is_text, "id": _is_text, "ordinal": _is_whole(_MAX_ORDINAL),
        "part": _is_whole(MAX_PARTS - 1), "model": _is_text, "is_error": _is_flag,
    },
    "prompt": {
        "text": _is_word, "ts": _is_time, "session": _is_word, "project": _is_text,
    },
    "note": {
        "shelf": _is_one_of(get_args(Shelf)), "key": _is_word, "text": _is_word,
        "title": _is_text, "ts": _is_time, "session": _is_word, "project": _is_text,
        "fields": _is_object,
    },
}  # fmt: skip


class LineReader:
    """Reads the lines of one file in order. Remembers each session's line and last message."""

    def __init__(self) -> None:
        self._declared: dict[str, int] = {}
        self._last: dict[str, tuple[int, int]] = {}

    def header(self, value: Fields, version: int) -> str:
        """The source of the first line."""
        wrong = []
        if isinstance(value.get("recall"), bool) or value.get("recall") != version:
            wrong.append(f'"recall" must be {version}, the version of the format')
        source = value.get("source")
        if not isinstance(source, str) or not _SOURCE.fullmatch(source):
            wrong.append('"source" must be a name made of a-z, 0-9 and -')
        if "host" in value:
            wrong.append('"host" cannot be given: it is the machine that imports')
        wrong += _unknown(set(value) - {"recall", "source", "host"})
        if wrong:
            raise Invalid(wrong)
        return cast(str, source)

    def record(
        self, value: Fields, number: int
    ) -> tuple[str | None, SessionDraft | Parsed, int]:  # fmt: skip
        """The session of any other line, what it holds, and its ordinal.

        ``number`` is the line's, from 0. Nulls count as not given.
        """
        given = {key: item for key, item in value.items() if item is not None}
        kind = given.pop("type", None)
        if not isinstance(kind, str) or kind not in _TYPES:
            raise Invalid([f'"type" must be one of {", ".join(_TYPES)}'])
        if wrong := _wrong(kind, given):
            if kind == "session" and isinstance(given.get("id"), str):
                # Its messages are not wrong because of it.
                self._declared.setdefault(given["id"], number + 1)
            raise Invalid(wrong)
        if kind == "session":
            return given["id"], self._session(given, number), number
        if kind == "message":
            ordinal = self._place(given)
            return given["session"], _message(given), ordinal
        return given.get("session"), _prompt(given) if kind == "prompt" else _note(given), number

    def _session(self, given: Fields, number: int) -> SessionDraft:
        wrong = []
        name = given["id"]
        if name in self._declared:
            wrong.append(f'session "{_shown(name)}" was declared on line {self._declared[name]}')
        if "relation" in given and "parent" not in given:
            wrong.append('"relation" needs "parent"')
        if given.get("parent") == name:
            wrong.append('"parent" must be another session')
        started, ended = _time(given.get("started_at")), _time(given.get("ended_at"))
        if started and ended and ended < started:
            wrong.append('"ended_at" must not be before "started_at"')
        self._declared.setdefault(name, number + 1)
        if wrong:
            raise Invalid(wrong)
        return SessionDraft(
            name,
            parent_id=given.get("parent"),
            relation=given.get("relation"),
            title=given.get("title"),
            title_rank=_TITLE_RANK if given.get("title") else 0,
            cwd=given.get("project"),
            branch=given.get("branch"),
            model=given.get("model"),
            started_at=started,
            ended_at=ended,
        )

    def _place(self, given: Fields) -> int:
        """The ordinal of a message; the next free one, unless it says another."""
        session = given["session"]
        if session not in self._declared:
            name = _shown(session)
            raise Invalid([f'session "{name}" has no line of type session before this one'])
        last, last_part = self._last.get(session, (-1, 0))
        part = given.get("part", 0)
        ordinal: int = given.get("ordinal", last if part and last >= 0 else last + 1)
        if (ordinal, part) <= (last, last_part) and session in self._last:
            place = f"{last}, {last_part}"
            raise Invalid(
                [f'"ordinal" and "part" must be above those of the message before, {place}']
            )
        self._last[session] = (ordinal, part)
        return ordinal


def _wrong(kind: str, given: Fields) -> list[str]:
    checks = _TYPES[kind]
    found = [f'"{key}" is missing' for key in _REQUIRED[kind] if key not in given]
    for key, check in checks.items():
        if key in given and (message := check(given[key])):
            found.append(f'"{key}" {message}')
    others = {key for key in given if key not in checks}
    if kind == "message":
        others = {key for key in others if not key.startswith(_EXTRA)}
        if not found and not given["text"].strip() and given.get("kind") != "tool_call":
            found.append('"text" must not be empty')
    return found + _unknown(others)


def _unknown(names: set[str]) -> list[str]:
    return [f'"{_shown(name)}" is not a field of this line' for name in sorted(names)]


def _message(given: Fields) -> Parsed:
    role: Role = given["role"]
    kind: Kind = given.get("kind", "tool_result" if role == "tool" else "text")
    part = given.get("part", 0)
    ts = _time(given.get("ts"))
    text = stub_images(given["text"])
    message = Message(
        role,
        kind,
        text if text.strip() else given.get("tool") or kind,
        part=part,
        tool=given.get("tool"),
        call_id=given.get("call_id"),
        native_id=given.get("id"),
        model=given.get("model"),
        is_error=given.get("is_error", False),
    )
    messages = [message]
    if extra := {key: item for key, item in given.items() if key.startswith(_EXTRA)}:
        messages.append(Message("system", "meta", json_text(extra), part=MAX_PARTS + part))
    return Parsed(messages=messages, ts=ts)


def _prompt(given: Fields) -> Parsed:
    ts = _time(given.get("ts"))
    prompt = Prompt(stub_images(given["text"]), ts, given.get("session"), given.get("project"))
    return Parsed(prompts=[prompt], ts=ts)


def _note(given: Fields) -> Parsed:
    ts = _time(given.get("ts"))
    note = Note(
        given["shelf"],
        given["key"],
        stub_images(given["text"]),
        title=given.get("title"),
        ts=ts,
        session_id=given.get("session"),
        project=given.get("project"),
        fields=plain_fields(given.get("fields", {})),
    )
    return Parsed(notes=[note], ts=ts)


def _time(value: object) -> datetime | None:
    """A time of a text that says its zone."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
        return found.astimezone(UTC) if found.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _shown(name: str) -> str:
    """A name as a message can show it."""
    return clean(name)[0] if len(name) <= _SHOWN_CHARS else clean(name[:_SHOWN_CHARS])[0] + "..."
