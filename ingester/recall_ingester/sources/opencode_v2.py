"""Messages of opencode's second generation: one row of ``session_message`` each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recall.records import Kind, Message, Role
from recall_ingester.sources.opencode_parts import (
    STRIDE,
    details,
    error_message,
    file_text,
    items,
    part_messages,
    word,
    words,
)
from recall_ingester.sources.toolinput import json_text

_SWITCHES = frozenset({"agent-switched", "model-switched"})
_SPOKEN: Mapping[str, tuple[Role, Kind]] = {
    "user": ("user", "text"),
    "synthetic": ("user", "meta"),
    "system": ("system", "meta"),
    "skill": ("system", "meta"),
    "assistant": ("assistant", "text"),
    "compaction": ("assistant", "summary"),
    "shell": ("user", "text"),
}
#: Short words and numbers of a message, and what the provider wants back with it.
_NOT_TEXT = frozenset(
    {"agent", "cost", "error", "finish", "metadata", "model", "snapshot", "time", "tokens"}
)
_BLOCKS = frozenset({"text", "content", "files", "agents"})
_TOLD = {
    "compaction": frozenset({"summary", "recent"}),
    "shell": frozenset({"command", "output", "callID"}),
}


def v2_messages(name: str | None, data: object) -> list[Message]:
    """The messages of one row; ``name`` is its type."""
    if not isinstance(data, Mapping):
        text = json_text(data) if data is not None else ""
        return [Message("system", "unknown", text)] if text else []
    if name in _SWITCHES:
        text = details(data, "", frozenset({"metadata"}))
        return [Message("system", "event", f"{name}\n{text}".strip())]
    if name is None or name not in _SPOKEN:
        return [Message("system", "unknown", json_text({"type": name, **data}))]
    messages = _blocks(name, data)
    shown = "\n".join(message.text for message in messages)
    told = _NOT_TEXT | _TOLD.get(name, _BLOCKS)
    rest = {key: value for key, value in data.items() if key not in told}
    if text := details(rest, shown):
        messages.append(Message("system", "meta", text, _next_part(messages)))
    if error := error_message(data.get("error")):
        error.part = _next_part(messages)
        messages.append(error)
    return messages


def _blocks(name: str, data: Mapping[str, Any]) -> list[Message]:
    role, kind = _SPOKEN[name]
    if name == "compaction":
        # Beside the summary it keeps the end of the conversation word for word.
        recent = _said("system", "meta", data.get("recent"))
        return _joined([[_said(role, kind, data.get("summary"))], [recent]])
    if name == "shell":
        return _shell(data)
    blocks = [[_said(role, kind, data["text"])]] if "text" in data else []
    blocks += [part_messages(part, role, kind, decode=True) for part in items(data.get("content"))]
    blocks += [[_file(role, kind, file)] for file in items(data.get("files"))]
    for agent in items(data.get("agents")):
        blocks.append([_said(role, "meta", details(agent, "") or json_text(agent))])
    return _joined(blocks)


def _said(role: Role, kind: Kind, value: object) -> Message:
    return Message(role, kind, words(value))


def _shell(data: Mapping[str, Any]) -> list[Message]:
    """A command that the person ran."""
    call = word(data.get("callID"))
    command, output = words(data.get("command")), words(data.get("output"))
    asked = Message("user", "tool_call", command, tool="shell", call_id=call)
    code = data.get("exit")
    failed = isinstance(code, int | float) and code != 0
    answered = Message(
        "tool", "tool_result", output, 1, tool="shell", call_id=call, is_error=failed
    )
    return _joined([[asked, answered]])


def _file(role: Role, kind: Kind, file: object) -> Message:
    if not isinstance(file, Mapping):
        return _said(role, kind, file)
    text = file_text(file, decode=True)
    more = details(file, text, frozenset({"data"}))
    return Message(role, kind, "\n".join(filter(None, (text, more))))


def _joined(blocks: list[list[Message]]) -> list[Message]:
    """The messages of blocks, numbered by the place of their block; empty ones are left out."""
    for index, block in enumerate(blocks):
        for message in block:
            message.part += index * STRIDE
    return [message for block in blocks for message in block if message.text.strip()]


def _next_part(messages: list[Message]) -> int:
    last = max((message.part for message in messages), default=-STRIDE)
    return last - last % STRIDE + STRIDE
