"""The data export of ChatGPT: a zip with one ``conversations.json``, or with shards of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from recall.keys import stable_id
from recall.records import Message, Note, SessionDraft
from recall.timestamps import parse_timestamp
from recall_ingester.exports.chatgpt_content import SILENT, is_hidden, message_parts
from recall_ingester.exports.conversation import Conversation, load_object
from recall_ingester.exports.members import base_name, conversation_names, note_names
from recall_ingester.exports.readable import (
    Shown,
    identifier,
    items,
    mapping,
    readable,
    remainder,
)
from recall_ingester.exports.tree import depth_first, path_to
from recall_ingester.sources.base import Document, LeavesOut, Reads
from recall_ingester.sources.toolinput import json_text

_NOTE_NAMES = re.compile(
    r"(?:.*/)?(?:user_settings|memories|memory|group_chats|message_feedback)\.json"
)
_TELLTALES = frozenset(
    {
        "chat.html", "export_manifest.json", "message_feedback.json", "shared_conversations.json",
        "user.json", "user_settings.json",
    }
)  # fmt: skip
#: Settings that a person writes; the others count only if they have several words.
_WRITTEN = re.compile(r"about|instruction|trait|nickname|occupation")
#: Where programs that record ChatGPT's own answers put the conversation.
_WRAPPED = "raw_provider_payload"
_CONVERSATION_KEYS = frozenset({"title", "mapping", "current_node", _WRAPPED})
_NODE_KEYS = frozenset({"message", "parent", "children"})


class ChatGpt:
    """Conversations of ChatGPT with their branches, and what people told it about themselves."""

    name = "chatgpt"
    title = "ChatGPT data export"
    reads: tuple[Reads, ...] = (
        Reads("conversations*.json", "conversations, also inside a zip", "document"),
        Reads("user_settings.json", "custom instructions, as notes", "whole"),
        Reads("memories.json", "what the client remembers about the person, as notes", "whole"),
        Reads("group_chats.json", "conversations of several people, each as a note", "whole"),
        Reads("message_feedback.json", "what people wrote about answers, as notes", "whole"),
    )
    leaves_out: tuple[LeavesOut, ...] = (
        LeavesOut("user.json", "personal data of the account: name, mail address, phone number"),
        LeavesOut("user_settings.json", "switches; texts that a person wrote are kept as notes"),
        LeavesOut("chat.html", "the same conversations as a page"),
        LeavesOut("shared_conversations.json", "ids and titles of conversations that were shared"),
        LeavesOut("export_manifest.json", "names of the export's files; a missing one is reported"),
        LeavesOut("conversations.json.index", "byte offsets into the conversations"),
        LeavesOut("**/file-*", "uploaded and generated files; the messages name them"),
        LeavesOut("dalle-generations/**", "generated pictures; the messages name them"),
        LeavesOut("**/audio/**", "recordings; their transcripts are in the messages"),
        LeavesOut("**.mapping.*.parent", "the tree of messages; kept as their order and branch"),
        LeavesOut("**.mapping.*.children", "the tree of messages; kept as their order and branch"),
        LeavesOut("current_node", "kept as which messages are on the branch that is shown"),
        *(LeavesOut(f"**.{key}", why) for key, why in SILENT.items()),
    )

    def recognises(self, names: Sequence[str], first: Mapping[str, Any] | None) -> bool:
        """Whether an export with these members, and this first conversation, is of ChatGPT."""
        if first is not None:
            return self.is_conversation(first)
        return any(base_name(name) in _TELLTALES for name in names)

    def member_names(self, names: Sequence[str]) -> list[str]:
        """The members that hold conversations, shards in order."""
        return conversation_names(names)

    def note_names(self, names: Sequence[str]) -> list[str]:
        """The members that hold notes."""
        return note_names(names, _NOTE_NAMES)

    def is_conversation(self, value: Mapping[str, Any]) -> bool:
        """Whether an element of a conversations file is one."""
        return "mapping" in _unwrapped(value)

    def external_id(self, value: Mapping[str, Any]) -> str | None:
        """The conversation's id, as its address in the client has it."""
        inner = _unwrapped(value)
        return identifier(inner.get("conversation_id")) or identifier(inner.get("id"))

    def watermark(self, value: Mapping[str, Any]) -> datetime | None:
        """When the conversation was last changed."""
        return parse_timestamp(_unwrapped(value).get("update_time"))

    def document_parser(self, external_id: str) -> ChatGptParser:
        """A parser for one conversation."""
        return ChatGptParser(external_id)

    def notes(self, name: str, value: object, projects: dict[str, str]) -> Iterator[Note]:  # noqa: ARG002
        """The notes of one element of a notes member."""
        label = base_name(name).removesuffix(".json")
        if label == "user_settings":
            yield from _settings(value)
            return
        chats = mapping(value).get("chats")
        if isinstance(chats, list):
            for chat in chats:
                yield from _loose(label, chat)
            value = {key: item for key, item in mapping(value).items() if key != "chats"}
        yield from _loose(label, value)


class ChatGptParser:
    """One conversation of an export."""

    def __init__(self, external_id: str) -> None:
        self.session = SessionDraft(external_id)

    def document(self, data: bytes) -> Document:
        """Every node on every branch, depth first; see docs/sources.md."""
        outer = load_object(data)
        value = _unwrapped(outer)
        made = Conversation(self.session.external_id)
        self.session = made.session
        made.session.model = readable(value.get("default_model_slug")).strip() or None
        nodes = _nodes(value.get("mapping"))
        parents = _parents(nodes)
        active = _active(value, parents)
        for key in depth_first(list(nodes), parents, _children(nodes)):
            _add(made, key, nodes[key], active=active is None or key in active)
        times = value.get("create_time"), value.get("update_time")
        return made.finish(value.get("title"), _about(outer, value, made.texts()), *times)


def _add(made: Conversation, key: str, node: object, *, active: bool) -> None:
    if not isinstance(node, Mapping):
        node = {"message": node}
    message = node.get("message")
    beside = {name: item for name, item in node.items() if name not in _NODE_KEYS}
    extra = Message("system", "meta", remainder(beside, SILENT, Shown([key])))
    if message is None and not extra.text:
        made.document.merged += 1
        return
    skipped, ts = "no text", None
    if isinstance(message, Mapping):
        parts = message_parts(message)
        ts = parse_timestamp(message.get("create_time")) or parse_timestamp(
            message.get("update_time")
        )
        skipped = "hidden, no text" if is_hidden(message) else skipped
    else:
        text = "" if message is None else json_text(message)
        parts = [Message("system", "unknown", text)] if text.strip() else []
    if extra.text:
        parts.append(extra)
    made.session.model = made.session.model or next(
        (part.model for part in parts if part.model), None
    )
    made.add(parts, ts=ts, native_id=key, active=active, skipped=skipped)


def _unwrapped(value: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = value.get(_WRAPPED)
    if "mapping" not in value and isinstance(inner, Mapping) and "mapping" in inner:
        return inner
    return value


def _nodes(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    nodes: dict[str, Any] = {}
    for place, node in enumerate(items(value)):
        key = identifier(mapping(node).get("id")) or f"#{place}"
        nodes[key if key not in nodes else f"#{place}"] = node
    return nodes


def _parents(nodes: Mapping[str, Any]) -> dict[str, str | None]:
    return {key: identifier(mapping(node).get("parent")) for key, node in nodes.items()}


def _children(nodes: Mapping[str, Any]) -> dict[str, list[str]]:
    listed = {}
    for key, node in nodes.items():
        children = mapping(node).get("children")
        if isinstance(children, list):
            listed[key] = [child for child in children if isinstance(child, str)]
    return listed


def _active(value: Mapping[str, Any], parents: Mapping[str, str | None]) -> set[str] | None:
    """The nodes on the branch that is shown; ``None``, all of them, if the export does not say."""
    leaf = identifier(value.get("current_node"))
    return path_to(leaf, parents) if leaf is not None and leaf in parents else None


def _about(outer: Mapping[str, Any], value: Mapping[str, Any], said: list[str]) -> list[Message]:
    rest = {key: item for key, item in value.items() if key not in _CONVERSATION_KEYS}
    shown = Shown([readable(value.get("title")).strip(), *said])
    texts = [remainder(rest, SILENT, shown)]
    if outer is not value:
        beside = {key: item for key, item in outer.items() if key != _WRAPPED}
        texts.append(remainder(beside, SILENT, shown))
    text = "\n".join(text for text in texts if text)
    return [Message("system", "meta", text)] if text else []


def _settings(value: object) -> Iterator[Note]:
    stack: list[tuple[str, object]] = [("", value)]
    while stack:
        path, current = stack.pop()
        if isinstance(current, Mapping):
            deeper = [(f"{path}/{key}", item) for key, item in current.items() if key not in SILENT]
            stack.extend(reversed(deeper))
        elif isinstance(current, list):
            stack.extend((f"{path}/{at}", item) for at, item in reversed(list(enumerate(current))))
        elif isinstance(current, str) and current.strip():
            key = path.rpartition("/")[2]
            if " " in current.strip() or _WRITTEN.search(key):
                yield Note("memory", f"user_settings{path}", readable(current), title=key)


def _loose(label: str, value: object) -> Iterator[Note]:
    """Something whose layout is not known well enough to be more than its strings."""
    fields = mapping(value)
    text = remainder(value, SILENT, Shown())
    if text:
        key = identifier(fields.get("id")) or str(stable_id(text))
        ts = parse_timestamp(fields.get("create_time")) or parse_timestamp(fields.get("created_at"))
        title = readable(fields.get("title")).strip() or label.replace("_", " ")
        yield Note("memory", f"{label}/{key}", text, title=title, ts=ts)
