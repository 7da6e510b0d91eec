"""A Gemini chat file as a document, and the prompt history beside the chats."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from recall.jsontext import MalformedLine, loads
from recall.records import Message, Parsed, Prompt, SessionDraft
from recall.timestamps import parse_timestamp
from recall_ingester.reader import trim
from recall_ingester.sources.base import Document, Unit
from recall_ingester.sources.gemini_blocks import entry_messages, text_of
from recall_ingester.sources.gemini_replay import Replay, entry_id, read_conversation, read_log
from recall_ingester.sources.toolinput import json_text, leaves

_SUMMARY_RANK = 30
_PROMPT_RANK = 10
_TITLE_CHARS = 120
#: Parts from here on are not of the message: metadata that has no place in the session.
_EXTRA_PART = 1000
#: Metadata that names or dates the session, or that the source's ``leaves_out`` names.
_PLACED = frozenset(
    {
        "kind", "lastUpdated", "memoryScratchpad", "projectHash", "sessionId", "startTime",
        "start_time",
    }
)  # fmt: skip


class ChatParser:
    """One session file, a log (``.jsonl``) or a conversation (``.json``).

    ``project`` is the folder that the place of the file tells; the file's own word wins.
    ``parent_id`` is the session whose folder of subagents the file lies in.
    """

    def __init__(
        self, external_id: str, *, is_log: bool, project: str | None, parent_id: str | None
    ) -> None:
        self._external_id = external_id
        self._is_log = is_log
        self._project = project
        self._parent_id = parent_id
        self.session = SessionDraft(external_id)

    def document(self, data: bytes) -> Document:
        """The conversation as the client would show it, and what its log took back."""
        document = Document()
        replay = read_log(data, document) if self._is_log else read_conversation(data)
        if not (replay.messages or replay.metadata or replay.merged or document.bad) and trim(
            data, 0
        ):
            raise MalformedLine("no complete record")
        document.merged = replay.merged
        self.session = self._described(replay.metadata)
        rendered = [entry_messages(entry) for entry in replay.messages]
        self._add_units(document, replay, rendered)
        document.taken_back = self._taken_back(replay, rendered)
        self._add_metadata(document, replay)
        return document

    def _described(self, metadata: Mapping[str, Any]) -> SessionDraft:
        session = SessionDraft(self._external_id)
        if self._parent_id is not None or metadata.get("kind") == "subagent":
            session.parent_id, session.relation = self._parent_id, "subagent"
        session.cwd = next(iter(_folders(metadata)), None) or self._project
        if title := _one_line(text_of(metadata.get("summary"))):
            session.title, session.title_rank = title, _SUMMARY_RANK
        about = metadata.get("meta")
        session.model = text_of(about.get("model")) if isinstance(about, Mapping) else None
        for name in ("startTime", "start_time", "lastUpdated"):
            _widen(session, parse_timestamp(metadata.get(name)))
        return session

    def _add_units(self, document: Document, replay: Replay, rendered: list[list[Message]]) -> None:
        results: set[tuple[str, str]] = set()
        pairs = zip(replay.messages, rendered, strict=True)
        for ordinal, (entry, messages) in enumerate(pairs):
            new = _without_repeated_results(messages, results)
            if new:
                parsed = Parsed(messages=new, ts=_time(entry), cwd=self.session.cwd)
                self._learn(entry, parsed)
                document.units.append(Unit(ordinal, parsed))
            else:
                document.skip("repeats a tool result" if messages else _empty(entry))

    def _learn(self, entry: object, parsed: Parsed) -> None:
        session = self.session
        _widen(session, parsed.ts)
        for message in parsed.messages:
            session.model = session.model or message.model
        if session.title_rank >= _PROMPT_RANK:
            return
        typed = [m for m in parsed.messages if m.role == "user" and m.kind == "text"]
        if isinstance(entry, Mapping) and isinstance(shown := entry.get("displayContent"), str):
            typed = [m for m in typed if m.text.strip() == shown.strip()] or typed
        for message in typed:
            title = None if message.text.lstrip().startswith("<") else _one_line(message.text)
            if title:
                session.title, session.title_rank = title, _PROMPT_RANK
                return

    def _taken_back(self, replay: Replay, rendered: list[list[Message]]) -> list[Unit]:
        """What no entry of the same id, or of the same place without one, still begins with."""
        known: dict[str | int, list[Message]] = {}
        for ordinal, entry in enumerate(replay.messages):
            known[_key(entry, ordinal)] = rendered[ordinal]
        units = []
        for ordinal, entry in reversed(replay.gone):
            key = _key(entry, ordinal)
            kept = known.get(key, [])
            lost = [item for item in entry_messages(entry) if not _goes_on_in(item, kept)]
            if lost:
                known[key] = [*kept, *lost]
                parsed = Parsed(messages=lost, ts=_time(entry), cwd=self.session.cwd)
                units.append(Unit(ordinal, parsed))
        units.reverse()
        return sorted(units, key=lambda unit: unit.ordinal)

    def _add_metadata(self, document: Document, replay: Replay) -> None:
        """Metadata with text that the session has no field for goes with the first message."""
        now = _unplaced(replay.metadata)
        before = [text for item in replay.earlier for text in _earlier(*item, replay.metadata)]
        if now:
            message = Message("system", "unknown", json_text(now), _EXTRA_PART)
            if not document.units:
                document.units.append(Unit(0, Parsed(cwd=self.session.cwd)))
                # The record of a log that told it is a message now.
                document.merged = max(document.merged - 1, 0)
            document.units[0].parsed.messages.append(message)
        if before:
            ordinal = document.units[0].ordinal if document.units else 0
            messages = [
                Message("system", "summary", text, _EXTRA_PART + 1 + number)
                for number, text in enumerate(dict.fromkeys(before))
            ]
            unit = Unit(ordinal, Parsed(messages=messages, cwd=self.session.cwd))
            document.taken_back.insert(0, unit)


class PromptsParser:
    """``logs.json``: ``[{sessionId, messageId, type, message, timestamp}]``."""

    session: SessionDraft | None = None

    def __init__(self, project: str | None) -> None:
        self._project = project

    def document(self, data: bytes) -> Document:
        """Each entry is a prompt."""
        value, _damaged = loads(trim(data, 0))
        document = Document()
        for ordinal, entry in enumerate(value if isinstance(value, list) else [value]):
            if prompt := self._prompt(entry):
                document.units.append(Unit(ordinal, Parsed(prompts=[prompt], ts=prompt.ts)))
            else:
                document.skip("no prompt text")
        return document

    def _prompt(self, entry: object) -> Prompt | None:
        if not isinstance(entry, Mapping):
            return None
        message = entry.get("message")
        text = text_of(message)
        if text is None and any(leaf.strip() for leaf in leaves(message)):
            text = json_text(message)
        if text is None:
            return None
        session, at = text_of(entry.get("sessionId")), parse_timestamp(entry.get("timestamp"))
        return Prompt(text, at, session, self._project)


def session_id(value: Mapping[str, Any]) -> str | None:
    """The session id in a metadata record or a whole conversation, never that of a message."""
    if isinstance(value.get("id"), str):
        return None
    patch = value.get("$set")
    return text_of((patch if isinstance(patch, Mapping) else value).get("sessionId"))


def _without_repeated_results(
    messages: list[Message], results: set[tuple[str, str]]
) -> list[Message]:
    """Leave out the turn that carries results back to the model, where the calls have them."""
    new = []
    own = any(message.kind == "tool_call" for message in messages)
    for message in messages:
        name = (message.call_id or "", message.text)
        if message.kind == "tool_result" and message.call_id:
            if not own and name in results:
                continue
            results.add(name)
        new.append(message)
    return new


def _goes_on_in(message: Message, kept: list[Message]) -> bool:
    """Whether a kept text, or several in a row, begin with this message's text."""
    texts = [
        item.text
        for item in kept
        if (item.role, item.kind, item.call_id) == (message.role, message.kind, message.call_id)
    ]
    joined = "".join(texts)
    start = 0
    for text in texts:
        if joined.startswith(message.text, start):
            return True
        start += len(text)
    return False


def _unplaced(metadata: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in metadata.items() if key not in _PLACED}
    summary = rest.get("summary")
    if isinstance(summary, str) and summary == _one_line(summary):
        del rest["summary"]
    if len(_folders(metadata)) == len(list(leaves(rest.get("directories")))) <= 1:
        rest.pop("directories", None)
    about = rest.get("meta")
    if isinstance(about, Mapping) and not about.keys() - {"model"} and text_of(about.get("model")):
        del rest["meta"]
    return {key: item for key, item in rest.items() if any(leaf.strip() for leaf in leaves(item))}


def _earlier(key: str, value: object, now: Mapping[str, Any]) -> list[str]:
    """The texts of a replaced metadata value that the new value does not hold."""
    if key in _PLACED:
        return []
    held = set(leaves(now.get(key)))
    return [leaf for leaf in leaves(value) if leaf.strip() and leaf not in held]


def _folders(metadata: Mapping[str, Any]) -> list[str]:
    folders = metadata.get("directories")
    items = folders if isinstance(folders, list) else [folders]
    return [item for item in items if isinstance(item, str) and item.strip()]


def _key(entry: object, ordinal: int) -> str | int:
    name = entry_id(entry)
    return ordinal if name is None else name


def _time(entry: object) -> datetime | None:
    if not isinstance(entry, Mapping):
        return None
    return parse_timestamp(entry.get("timestamp")) or parse_timestamp(entry.get("ts"))


def _empty(entry: object) -> str:
    if not isinstance(entry, Mapping):
        return "not an object"
    return "no text" if entry else "empty record"


def _widen(session: SessionDraft, ts: datetime | None) -> None:
    if ts is not None:
        session.started_at = min(session.started_at or ts, ts)
        session.ended_at = max(session.ended_at or ts, ts)


def _one_line(text: str | None) -> str | None:
    if text is None:
        return None
    line = " ".join(text[: 4 * _TITLE_CHARS].split())
    return line if len(line) <= _TITLE_CHARS else line[: _TITLE_CHARS - 1] + "…"
