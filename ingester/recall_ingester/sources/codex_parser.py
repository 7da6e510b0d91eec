"""The parsers of Codex files: rollouts of every era, the prompt history and the title index."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from recall.records import Message, Parsed, SessionDraft
from recall_ingester.sources.codex_events import event
from recall_ingester.sources.codex_families import (
    FileMemory,
    TurnMemory,
    body_name,
    call_name,
    joined_name,
    name_of,
)
from recall_ingester.sources.codex_header import (
    FIRST_MESSAGE_RANK,
    NAME_RANK,
    adopt,
    header_id,
    history_entry,
    index_entry,
    is_bare_header,
    moment,
    one_line,
    restore_session,
    session_state,
    widen,
    word,
)
from recall_ingester.sources.codex_records import (
    Drafts,
    Payload,
    from_agent,
    mapping,
    response_item,
    string,
    texts,
    unknown,
)

#: The reason that stands for "this told something about the session".
_SESSION_INFO = "session_info"
#: Records that only steer the client, with the word under which they are counted.
_SILENT_RECORDS = {
    "world_state": "world_state",
    "inter_agent_communication_metadata": "metadata",
    "token_usage_record": "token_count",
}
# Families of record types that tell the same texts (see codex_families).
_CONTEXT, _EVENT, _COMPACTION, _AGENTS, _HEADER = "r", "e", "c", "a", "m"
_EVENT_FAMILIES = {
    "item_completed": "i",
    "dynamic_tool_call_request": "q",
    "task_complete": "f",
    "turn_complete": "f",
    "context_compacted": "f",
}
_INSTRUCTIONS = re.compile(
    r"# AGENTS\.md[^\n]*\n\s*(?:<INSTRUCTIONS>\s*)?(.*?)(?:\s*</INSTRUCTIONS>.*)?", re.DOTALL
)
_WORKING_DIRECTORY = re.compile(r"<cwd>([^<>\n]+)</cwd>|^Current working directory: (.+)$", re.M)


class IndexParser:
    """``history.jsonl`` gives prompts, ``session_index.jsonl`` gives names of other sessions."""

    session: SessionDraft | None = None

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        # The index is appended to, and the last name of a thread is its name.
        self._names: dict[str, str] = dict((state or {}).get("names", ()))

    def record(self, value: Mapping[str, Any], ordinal: int) -> Parsed:
        """A prompt, or a name that :meth:`labels` gives out."""
        del ordinal  # the position in these files means nothing
        if prompt := history_entry(value):
            return Parsed(prompts=[prompt], ts=prompt.ts)
        if entry := index_entry(value):
            self.name(entry)
            return Parsed(session_info=True)
        return Parsed(skipped="no text")

    def text(self, content: str) -> Parsed:
        """These files are lines; there is no other text."""
        return Parsed(skipped="not JSON" if content.strip() else "empty")

    def name(self, entry: SessionDraft) -> None:
        """Remember the name of a session until :meth:`labels` is called."""
        self._names.pop(entry.external_id, None)
        self._names[entry.external_id] = entry.title or ""

    def labels(self) -> list[SessionDraft]:
        """The names read since the last call."""
        names, self._names = self._names, {}
        return [
            SessionDraft(thread, title=title, title_rank=NAME_RANK)
            for thread, title in names.items()
        ]

    def state(self) -> dict[str, Any]:
        """The names that were not given out yet."""
        return {"names": [list(item) for item in self._names.items()]} if self._names else {}


class RolloutParser:
    """One rollout. Remembers the current turn and what was said in it."""

    session: SessionDraft | None

    def __init__(
        self,
        external_id: str,
        state: Mapping[str, Any] | None = None,
        *,
        reverted_from: str | None = None,
    ) -> None:
        self._draft = SessionDraft(external_id)
        self.session = self._draft
        if reverted_from:
            self._draft.parent_id, self._draft.relation = reverted_from, "fork"
        given = state or {}
        if given:
            restore_session(self._draft, given["session"])
        self._owner: str | None = given.get("owner")
        self._agent_path: str = given.get("agent_path", "/root")
        self._cwd: str | None = given.get("cwd")
        self._turn: str | None = given.get("turn")
        self._told = TurnMemory(given.get("told", ()))
        self._file = FileMemory(given.get("said", ()))
        self._index = IndexParser(given)

    def state(self) -> dict[str, Any]:
        """The session so far, the current turn, and digests of what was said."""
        return {
            "session": session_state(self._draft),
            "owner": self._owner,
            "agent_path": self._agent_path,
            "cwd": self._cwd,
            "turn": self._turn,
            "told": self._told.entries(),
            "said": self._file.entries(),
            **self._index.state(),
        }

    def labels(self) -> list[SessionDraft]:
        """Names of other threads, where this turned out to be an index file or mentions one."""
        return self._index.labels()

    def text(self, content: str) -> Parsed:
        """An old rollout is one JSON document; text that is none was caught while being written."""
        return Parsed(skipped="not JSON" if content.strip() else "empty")

    def record(self, value: Mapping[str, Any], ordinal: int) -> Parsed:
        """The messages of one line, without those that another family told already."""
        if history_entry(value) or index_entry(value):
            return self._index.record(value, ordinal)
        payload = mapping(value.get("payload"))
        ts = _time(value, payload)
        widen(self._draft, ts)
        family, drafts = self._read(value, payload)
        parsed = Parsed(ts=ts)
        if drafts is None:
            known = value.get("type") in ("response_item", "request_item", "event_msg")
            drafts = [unknown(payload if known and payload else value)]
        if drafts == _SESSION_INFO:
            parsed.session_info = True
        elif isinstance(drafts, str):
            parsed.skipped = drafts
        else:
            parsed.messages = self._settle(family, drafts, _turn_of(payload) or self._turn)
            if not parsed.messages:
                told = "already stored" if family == _COMPACTION else "duplicate family"
                parsed.skipped = told if drafts else "empty"
        parsed.cwd, parsed.branch = self._cwd or self._draft.cwd, self._draft.branch
        return parsed

    def _read(self, value: Payload, payload: Payload) -> tuple[str, Drafts]:
        kind = value.get("type")
        if not payload:
            return _CONTEXT, self._bare(value)
        if kind == "session_meta":
            return _HEADER, self._header(payload)
        if kind in ("response_item", "request_item"):
            return _CONTEXT, response_item(payload, self._agent_path)
        if kind == "event_msg":
            return self._event(payload)
        if kind == "turn_context":
            self._enter_turn(payload)
            self._settings(payload)
            return _HEADER, self._instructions(payload) or _SESSION_INFO
        if kind == "world_state" and (told := self._instructions(mapping(payload.get("state")))):
            return _HEADER, told
        if kind == "compacted":
            return _COMPACTION, self._compacted(payload)
        if kind == "inter_agent_communication":
            return _AGENTS, from_agent(payload, self._agent_path)
        return _HEADER, _SILENT_RECORDS.get(kind) if isinstance(kind, str) else None

    def _bare(self, value: Payload) -> Drafts:
        """A record of the eras before every line was wrapped."""
        session, items = value.get("session"), value.get("items")
        if isinstance(session, Mapping) and isinstance(items, list):
            return self._whole(session, items)
        if is_bare_header(value):
            return self._header(value)
        if "record_type" in value and "type" not in value:
            return "state record"
        self._draft.model = word(value.get("model")) or self._draft.model
        if value.get("type") == "error":
            return event(value)
        return response_item(value, self._agent_path)

    def _whole(self, session: Payload, items: list[Any]) -> Drafts:
        header = self._header(session)
        messages = header if isinstance(header, list) else []
        for item in items:
            drafts = response_item(mapping(item), self._agent_path)
            if drafts is None:
                messages.append(unknown(item))
            elif isinstance(drafts, list):
                messages.extend(drafts)
        return messages

    def _header(self, header: Payload) -> Drafts:
        """The first header owns the file; a fork copies its parent's after its own."""
        thread = header_id({"type": "session_meta", "payload": header})
        if self._owner is not None and thread != self._owner:
            return "copied session_meta"
        first = self._owner is None
        self._owner = thread or ""
        adopt(self._draft, header)
        self._agent_path = word(header.get("agent_path")) or self._agent_path
        instructions = texts(header.get("instructions")) if first else []
        return [Message("system", "meta", text) for text in instructions] or _SESSION_INFO

    def _event(self, payload: Payload) -> tuple[str, Drafts]:
        name = string(payload.get("type")) or ""
        if name in ("task_started", "turn_started"):
            self._enter_turn(payload)
        elif name == "thread_settings_applied":
            settings = mapping(payload.get("thread_settings"))
            self._settings(settings)
            return _EVENT, self._instructions(settings) or _SESSION_INFO
        elif name == "thread_name_updated":
            return _EVENT, self._renamed(payload)
        return _EVENT_FAMILIES.get(name, _EVENT), event(payload)

    def _renamed(self, payload: Payload) -> Drafts:
        thread = payload.get("thread_id") or self._owner or self._draft.external_id
        entry = index_entry({"id": thread, "thread_name": payload.get("thread_name")})
        if entry is None:
            return "empty"
        if entry.external_id in (self._owner, self._draft.external_id):
            self._draft.title, self._draft.title_rank = entry.title, NAME_RANK
        else:
            self._index.name(entry)
        return _SESSION_INFO

    def _enter_turn(self, payload: Payload) -> None:
        turn = _turn_of(payload)
        if turn and turn != self._turn:
            self._turn = turn
            self._told.clear()

    def _settings(self, payload: Payload) -> None:
        self._cwd = word(payload.get("cwd")) or self._cwd
        self._draft.cwd = self._draft.cwd or self._cwd
        self._draft.model = word(payload.get("model")) or self._draft.model

    def _instructions(self, holder: Payload) -> list[Message]:
        """What a person told the client to tell the model; each turn repeats it."""
        mode = mapping(mapping(holder.get("collaboration_mode")).get("settings"))
        given = [
            holder.get("user_instructions"),
            holder.get("developer_instructions"),
            mode.get("developer_instructions"),
            mapping(holder.get("agents_md")).get("text"),
        ]
        new = [text for value in given for text in texts(value) if self._file.add(text)]
        return [Message("system", "meta", text) for text in new]

    def _compacted(self, payload: Payload) -> Drafts:
        """The summary, and those texts of the new history that the file does not have yet."""
        messages: list[Message] = []
        history = payload.get("replacement_history")
        for item in history if isinstance(history, list) else ():
            drafts = response_item(mapping(item), self._agent_path)
            if drafts is None:
                messages.append(unknown(item))
            elif isinstance(drafts, list):
                messages.extend(drafts)
        for message in messages:
            if message.kind not in ("meta", "unknown"):
                message.kind = "summary"
        summary = "\n".join(texts(payload.get("message")))
        if summary.strip() and not any(summary in message.text for message in messages):
            messages.insert(0, Message("assistant", "summary", summary))
        return messages

    def _settle(self, family: str, drafts: list[Message], turn: str | None) -> list[Message]:
        """Number the drafts, drop the twins, and complete the rest."""
        plain = [item for item in drafts if item.kind == "text" and not _is_picture(item)]
        joined = joined_name(plain)
        told_as_one = joined is not None and self._told.is_twin(family, joined)
        kept = []
        for part, message in enumerate(drafts):
            message.part = part
            if told_as_one and any(message is item for item in plain):
                continue
            if self._is_twin(family, message):
                continue
            new = message.kind not in ("text", "meta", "summary") or self._file.add(message.text)
            if family == _COMPACTION and not new:
                continue
            self._complete(message, turn)
            kept.append(message)
        return kept

    def _is_twin(self, family: str, message: Message) -> bool:
        name, called = name_of(message), call_name(message)
        twin = name is not None and self._told.is_twin(family, name)
        # An event with the id of a call that another family told is about that call.
        if called is not None and self._told.is_twin(family, called):
            twin = True
        if not twin and (body := body_name(message)) is not None:
            self._told.is_twin(family, body)
        return twin

    def _complete(self, message: Message, turn: str | None) -> None:
        if message.role == "assistant":
            message.model = self._draft.model
        # Old versions numbered their turns from 0, which names nothing across sessions.
        if turn and not turn.isdigit():
            scope = f"{turn}/{message.call_id or ''}/{message.role}/{message.kind}"
            name = name_of(message)
            times = self._told.times(name) if name else 1
            message.copy_scope = scope if times < 2 else f"{scope}/{times}"
        if message.role == "user":
            self._learn(message)

    def _learn(self, message: Message) -> None:
        """Title, working directory and instructions, as far as the user's texts tell them."""
        if message.kind == "meta" and (given := _INSTRUCTIONS.fullmatch(message.text.strip())):
            self._file.add(given[1])  # the settings of a turn repeat them without their wrapping
        if message.kind == "meta" and self._draft.cwd is None:
            found = _WORKING_DIRECTORY.search(message.text[:2000])
            self._draft.cwd = word((found[1] or found[2]).strip()) if found else None
        if message.kind != "text" or _is_picture(message) or self._draft.title_rank > 0:
            return
        if title := one_line(message.text):
            self._draft.title, self._draft.title_rank = title, FIRST_MESSAGE_RANK


def _is_picture(message: Message) -> bool:
    return message.text.startswith("[image ")


def _time(value: Payload, payload: Payload) -> datetime | None:
    inner = payload or mapping(value.get("session"))
    stamps = (value.get("timestamp"), value.get("created_at"), inner.get("timestamp"))
    return next((ts for ts in map(moment, stamps) if ts), None)


def _turn_of(payload: Payload) -> str | None:
    """The turn that a record names itself."""
    passed = mapping(payload.get("internal_chat_message_metadata_passthrough"))
    for holder in (payload, passed, mapping(payload.get("metadata"))):
        if turn := word(holder.get("turn_id")) or word(holder.get("turnId")):
            return turn
    return None
