"""The data export of Claude.ai: one zip, or several of one export with a manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from recall.keys import stable_id
from recall.records import Message, Note, SessionDraft
from recall.timestamps import parse_timestamp
from recall_ingester.exports.claude_ai_blocks import SILENT, message_parts
from recall_ingester.exports.conversation import Conversation, load_object
from recall_ingester.exports.members import base_name, conversation_names, note_names
from recall_ingester.exports.readable import (
    Shown,
    as_list,
    identifier,
    items,
    mapping,
    readable,
    remainder,
)
from recall_ingester.exports.tree import depth_first, path_to
from recall_ingester.sources.base import Document, LeavesOut, Reads
from recall_ingester.sources.toolinput import json_text

_NO_PARENT = "00000000-0000-4000-8000-000000000000"
_NOTE_NAMES = re.compile(
    r"(?:.*/)?(?:projects|memories)(?:[-_]\d+)?\.json|(?:.*/)?projects/[^/]+\.json"
)
_TELLTALES = frozenset({"users.json", "projects.json", "memories.json"})
_CONVERSATION_KEYS = frozenset({"uuid", "name", "title", "summary", "model", "chat_messages"})


class ClaudeAi:
    """Conversations of Claude.ai with their branches, and projects and memories as notes."""

    name = "claude-ai"
    title = "Claude.ai data export"
    reads: tuple[Reads, ...] = (
        Reads("conversations*.json", "conversations, also inside zips", "document"),
        Reads("projects.json", "names, instructions and documents of projects, as notes", "whole"),
        Reads("projects/*.json", "the same, one project a file", "whole"),
        Reads("memories.json", "what the client remembers about the person, as notes", "whole"),
    )
    leaves_out: tuple[LeavesOut, ...] = (
        LeavesOut("users.json", "personal data of the account: name, mail address, phone number"),
        LeavesOut("manifest*.json", "names of the export's own files; a missing one is reported"),
        LeavesOut("chat_messages.*.text", "repeats the blocks; kept where it says more than they"),
        LeavesOut("**.source.data", "bytes of a picture; its type, size and hash are kept"),
        *(LeavesOut(f"**.{key}", why) for key, why in SILENT.items()),
    )

    def recognises(self, names: Sequence[str], first: Mapping[str, Any] | None) -> bool:
        """Whether an export with these members, and this first conversation, is of Claude.ai."""
        if first is not None:
            return "chat_messages" in first
        return any(base_name(name) in _TELLTALES or "projects/" in name for name in names)

    def member_names(self, names: Sequence[str]) -> list[str]:
        """The members that hold conversations, in the order to read them."""
        return conversation_names(names)

    def note_names(self, names: Sequence[str]) -> list[str]:
        """The members that hold notes; projects first, because memories name them by id."""
        found = note_names(names, _NOTE_NAMES)
        return sorted(found, key=lambda name: "memories" in base_name(name))

    def is_conversation(self, value: Mapping[str, Any]) -> bool:
        """Whether an element of a conversations file is one."""
        return "chat_messages" in value

    def external_id(self, value: Mapping[str, Any]) -> str | None:
        """The conversation's uuid."""
        return identifier(value.get("uuid"))

    def watermark(self, value: Mapping[str, Any]) -> datetime | None:
        """When the conversation was last changed."""
        return parse_timestamp(value.get("updated_at"))

    def document_parser(self, external_id: str) -> ClaudeAiParser:
        """A parser for one conversation."""
        return ClaudeAiParser(external_id)

    def notes(self, name: str, value: object, projects: dict[str, str]) -> Iterator[Note]:
        """The notes of one element of a notes member; ``projects`` collects names by id."""
        if not isinstance(value, Mapping):
            text = readable(value)
            yield from _note(f"{base_name(name)}/{stable_id(text)}", text, None, None, None)
        elif "memories" in base_name(name):
            yield from _memories(value, projects)
        else:
            yield from _project(value, projects)


class ClaudeAiParser:
    """One conversation of an export."""

    def __init__(self, external_id: str) -> None:
        self.session = SessionDraft(external_id)

    def document(self, data: bytes) -> Document:
        """Every message on every branch, depth first; see docs/sources.md."""
        value = load_object(data)
        made = Conversation(self.session.external_id)
        self.session = made.session
        made.session.model = readable(value.get("model")).strip() or None
        messages = items(value.get("chat_messages"))
        order, active = _arrange(value, messages)
        for place in order:
            _add(made, messages[place], active=active is None or place in active)
        updated = value.get("updated_at")
        return made.finish(_title(value), _about(value), value.get("created_at"), updated)


def _add(made: Conversation, message: object, *, active: bool) -> None:
    if isinstance(message, Mapping):
        ts = parse_timestamp(message.get("created_at")) or parse_timestamp(
            message.get("updated_at")
        )
        native = identifier(message.get("uuid"))
        made.add(message_parts(message), ts=ts, native_id=native, active=active)
        return
    text = "" if message is None else json_text(message)
    parts = [Message("system", "unknown", text)] if text.strip() else []
    made.add(parts, ts=None, native_id=None, active=active, skipped="not a message")


def _arrange(value: Mapping[str, Any], messages: list[Any]) -> tuple[list[int], set[int] | None]:
    """The order of messages, and which are on the branch shown; ``None``: there are no branches."""
    places: dict[str, int] = {}
    for place, message in enumerate(messages):
        if uuid := identifier(mapping(message).get("uuid")):
            places.setdefault(uuid, place)
    parents: dict[int, int | None] = {}
    has_tree = False
    for place, message in enumerate(messages):
        parent = identifier(mapping(message).get("parent_message_uuid"))
        has_tree = has_tree or parent is not None
        known = parent is None or parent == _NO_PARENT
        parents[place] = None if known else places.get(parent or "", -1)
    order = depth_first(list(range(len(messages))), parents)
    if not has_tree:
        return order, None
    leaf = places.get(identifier(value.get("current_leaf_message_uuid")) or "", len(messages) - 1)
    return order, path_to(leaf, parents)


def _title(value: Mapping[str, Any]) -> object:
    return readable(value.get("name")).strip() or value.get("title")


def _about(value: Mapping[str, Any]) -> list[Message]:
    summary = readable(value.get("summary"))
    rest = {key: item for key, item in value.items() if key not in _CONVERSATION_KEYS}
    if value.get("name") != value.get("title") and readable(value.get("name")).strip():
        rest["title"] = value.get("title")
    extra = remainder(rest, SILENT, Shown([summary.strip()]))
    texts = [Message("system", "summary", summary), Message("system", "meta", extra)]
    return [message for message in texts if message.text.strip()]


def _memories(value: Mapping[str, Any], projects: Mapping[str, str]) -> Iterator[Note]:
    for key, item in value.items():
        if key in SILENT:
            continue
        if key == "project_memories" and isinstance(item, Mapping):
            for project, memory in item.items():
                name = projects.get(project)
                title = f"Memory of project {name or project}"
                yield from _note(f"memory/project/{project}", memory, title, None, name)
        else:
            yield from _note(f"memory/{key}", item, key.replace("_", " "), None, None)


def _project(value: Mapping[str, Any], projects: dict[str, str]) -> Iterator[Note]:
    uuid = identifier(value.get("uuid")) or "unknown"
    name = readable(value.get("name")).strip() or None
    if name:
        projects[uuid] = name
    key, ts = f"project/{uuid}", parse_timestamp(value.get("updated_at"))
    known = {"uuid", "name", "description", "prompt_template", "docs"}
    rest = {item: value[item] for item in value if item not in known}
    about = [name or "", readable(value.get("description")), remainder(rest, SILENT, Shown())]
    yield from _note(key, "\n\n".join(filter(None, about)), name, ts, name)
    template = value.get("prompt_template")
    yield from _note(f"{key}/instructions", template, f"Instructions of {name}", ts, name)
    for place, doc in enumerate(as_list(value.get("docs"))):
        fields = doc if isinstance(doc, Mapping) else {"content": doc}
        filename = readable(fields.get("filename")).strip()
        content = readable(fields.get("content"))
        loose = {k: v for k, v in fields.items() if k not in {"uuid", "filename", "content"}}
        text = "\n".join(filter(None, (filename, content, remainder(loose, SILENT, Shown()))))
        made = parse_timestamp(fields.get("created_at")) or ts
        doc_key = identifier(fields.get("uuid")) or str(place)
        yield from _note(f"{key}/{doc_key}", text, filename or None, made, name)


def _note(
    key: str, value: object, title: str | None, ts: datetime | None, project: str | None
) -> Iterator[Note]:
    text = readable(value)
    if text.strip():
        yield Note("memory", key, text, title=title, ts=ts, project=project)
