"""The blocks, attachments and files of one message of a Claude.ai export."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from recall.records import Kind, Message, Role
from recall_ingester.exports.readable import (
    Shown,
    as_list,
    identifier,
    mapping,
    readable,
    remainder,
)
from recall_ingester.sources.toolinput import image_stub, json_text, render_input

Block = Mapping[str, Any]

_ID = "an id"
_TIME = "a time; those of messages and conversations are stored as times"
_STATE = "a state of the client, nothing that anybody wrote"
#: Keys whose strings are not kept as text, at any depth, and why.
SILENT = {
    "account": "personal data of the account",
    "account_uuid": "the id of the account",
    "approval_key": _ID,
    "approval_options": _STATE,
    "created_at": _TIME,
    "current_leaf_message_uuid": "kept as which messages are on the branch that is shown",
    "creator": "personal data of the account",
    "favicon_url": "the address of a small picture",
    "file_type": "a media type",
    "file_uuid": _ID,
    "icon_name": "the name of a small picture",
    "icon_url": "the address of a small picture",
    "id": _ID,
    "integration_icon_url": "the address of a small picture",
    "media_type": "a media type",
    "parent_message_uuid": "the tree of messages; kept as their order and branch",
    "sender": "kept as the role of the message",
    "signature": "a signature of the model's reasoning, not text",
    "start_timestamp": _TIME,
    "stop_timestamp": _TIME,
    "tool_use_id": _ID,
    "type": "the name of a record type; unknown types are kept whole",
    "updated_at": _TIME,
    "uuid": _ID,
}

_ROLES: dict[object, Role] = {
    "human": "user",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_MESSAGE_KEYS = frozenset({"text", "content", "attachments", "files"})
_PLACEHOLDER = re.compile(r"(?:```\s*)?This block is not supported[^\n]*(?:\s*```)?")


def message_parts(message: Block) -> list[Message]:
    """Everything readable in one message, each piece once."""
    sender = message.get("sender", message.get("role"))
    role = _ROLES.get(sender if isinstance(sender, str) else None, "system")
    kind: Kind = "meta" if role == "system" else "text"
    parts: list[Message] = []
    for block in as_list(message.get("content")):
        parts += _block(block, role, kind)
    parts += _flattened(message.get("text"), parts, role, kind)
    parts += [
        Message(role, "meta", _attachment(item)) for item in as_list(message.get("attachments"))
    ]
    shown = Shown([part.text for part in parts])
    rest = {key: item for key, item in message.items() if key not in _MESSAGE_KEYS}
    if role == "system":
        rest["from"] = sender
    else:
        rest.pop("role", None)
    for extra in (message.get("files"), rest):
        parts.append(Message(role, "meta", remainder(extra, SILENT, shown)))
    return [part for part in parts if part.text.strip()]


def _flattened(text: object, parts: list[Message], role: Role, kind: Kind) -> list[Message]:
    """The text beside the blocks, if it has words that they do not have."""
    flat = _PLACEHOLDER.sub(" ", readable(text)).strip()
    words = flat.split()
    known = [word for part in parts for word in part.text.split()]
    if "".join(words) in "".join(known) or set(words) <= set(known):
        return []
    return [Message(role, kind, flat)]


def _block(block: object, role: Role, kind: Kind) -> list[Message]:
    if not isinstance(block, Mapping):
        return [Message(role, kind, readable(block))] if isinstance(block, str) else _odd(block)
    name = block.get("type")
    reader = _READERS.get(name) if isinstance(name, str) else None
    if reader is None:
        return _unknown(block, role)
    main, used = reader(block, role, kind)
    rest = {key: item for key, item in block.items() if key not in used}
    extra = remainder(rest, SILENT, Shown([main.text.strip()]))
    return [main, Message(role, "meta", extra)]


def _odd(block: object) -> list[Message]:
    return [] if block is None else [Message("system", "unknown", json_text(block))]


def _unknown(block: Block, role: Role) -> list[Message]:
    """A block of a type this version does not know: whole, if there is anything to read in it."""
    if not remainder(block, SILENT, Shown()).strip():
        return []
    return [Message(role, "unknown", json_text(dict(block)))]


def _text(block: Block, role: Role, kind: Kind) -> tuple[Message, tuple[str, ...]]:
    return Message(role, kind, readable(block.get("text"))), ("text",)


def _thinking(block: Block, role: Role, kind: Kind) -> tuple[Message, tuple[str, ...]]:  # noqa: ARG001
    thought = readable(block.get("thinking"))
    summaries = remainder(block.get("summaries"), SILENT, Shown([thought.strip()]))
    text = "\n".join(part for part in (thought, summaries) if part.strip())
    return Message("assistant", "thinking", text), ("thinking", "summaries")


def _tool_use(block: Block, role: Role, kind: Kind) -> tuple[Message, tuple[str, ...]]:  # noqa: ARG001
    tool = readable(block.get("name")).strip() or "tool"
    text = render_input(block.get("input"))
    call = identifier(block.get("id"))
    message = Message("assistant", "tool_call", text if text.strip() else tool, tool=tool)
    message.call_id = call
    return message, ("name", "input")


def _tool_result(block: Block, role: Role, kind: Kind) -> tuple[Message, tuple[str, ...]]:  # noqa: ARG001
    texts = [_result_item(item) for item in as_list(block.get("content"))]
    text = "\n".join(text for text in texts if text.strip())
    message = Message("tool", "tool_result", text, is_error=block.get("is_error") is True)
    message.tool = readable(block.get("name")).strip() or None
    message.call_id = identifier(block.get("tool_use_id"))
    return message, ("name", "content")


def _result_item(item: object) -> str:
    if not isinstance(item, Mapping):
        return readable(item)
    if item.get("type") in ("image", "document"):
        return _media(item)
    head = [readable(item.get(key)) for key in ("title", "url", "text")]
    rest = {key: value for key, value in item.items() if key not in ("title", "url", "text")}
    shown = Shown([text.strip() for text in head])
    return "\n".join(text for text in (*head, remainder(rest, SILENT, shown)) if text.strip())


def _image(block: Block, role: Role, kind: Kind) -> tuple[Message, tuple[str, ...]]:
    return Message(role, kind, _media(block)), tuple(block)


def _media(block: Block) -> str:
    source = dict(mapping(block.get("source")))
    stub = ""
    if isinstance(source.get("data"), str) and source.get("type") != "text":
        stub = image_stub(readable(source.get("media_type")) or None, source.pop("data"))
        block = {**block, "source": source}
    text = remainder(block, SILENT, Shown())
    return "\n".join(part for part in (text, stub) if part) or "[image]"


def _flag(block: Block, role: Role, kind: Kind) -> tuple[Message, tuple[str, ...]]:  # noqa: ARG001
    return Message("system", "event", remainder(block, SILENT, Shown())), tuple(block)


def _voice_note(block: Block, role: Role, kind: Kind) -> tuple[Message, tuple[str, ...]]:
    texts = [readable(block.get(key)) for key in ("title", "text")]
    return Message(role, kind, "\n".join(text for text in texts if text.strip())), ("title", "text")


def _attachment(value: object) -> str:
    """The file's name as the first line, then what the client read out of the file."""
    if not isinstance(value, Mapping):
        return readable(value)
    head = [readable(value.get("file_name")), readable(value.get("extracted_content"))]
    rest = {k: v for k, v in value.items() if k not in ("file_name", "extracted_content")}
    texts = (*head, remainder(rest, SILENT, Shown([text.strip() for text in head])))
    return "\n".join(text for text in texts if text.strip())


_READERS: dict[str, Callable[[Block, Role, Kind], tuple[Message, tuple[str, ...]]]] = {
    "text": _text,
    "thinking": _thinking,
    "tool_use": _tool_use,
    "tool_result": _tool_result,
    "image": _image,
    "document": _image,
    "flag": _flag,
    "voice_note": _voice_note,
}
