"""The content blocks of a Claude API message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recall.jsontext import compact
from recall.records import Kind, Message, Role
from recall_ingester.sources.toolinput import image_stub, render_input

#: How a text begins that the client put in front of the model by itself.
_META_OPENINGS = (
    "<system-reminder>",
    "<local-command-stdout>",
    "<local-command-stderr>",
    "<local-command-caveat>",
    "<ide_opened_file>",
    "<ide_selection>",
    "<task-notification>",
    "Caveat: The messages below were generated",
)
#: Parts from here on come from beside the content blocks of a record.
_EXTRA_PART = 1000
_FILE_PART = 1010
_TOOL_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})


def opens_as_meta(text: str) -> bool:
    """Whether the text is one that the client writes, not the person."""
    return text.lstrip().startswith(_META_OPENINGS)


def block_messages(content: object, *, role: Role, kind: Kind) -> list[Message]:
    """The messages of a content: one a block, with the block's place as its part."""
    if isinstance(content, str):
        return _typed(content, role, kind, 0)
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, Sequence):
        return []
    messages: list[Message] = []
    for part, block in enumerate(content):
        if isinstance(block, str):
            messages += _typed(block, role, kind, part)
        elif isinstance(block, Mapping):
            messages += _block(block, role, kind, part)
    return messages


def _typed(text: str, role: Role, kind: Kind, part: int) -> list[Message]:
    if not text.strip():
        return []
    if kind == "text" and role == "user" and opens_as_meta(text):
        kind = "meta"
    return [Message(role, kind, text, part)]


def _block(block: Mapping[str, Any], role: Role, kind: Kind, part: int) -> list[Message]:
    name = _string(block.get("type"))
    if name == "text":
        return _typed(_string(block.get("text")), role, kind, part)
    if name == "thinking":
        thinking = _string(block.get("thinking"))
        return [Message("assistant", "thinking", thinking, part)] if thinking.strip() else []
    if name == "redacted_thinking":  # encrypted; nobody can read it
        return []
    if name in _TOOL_CALLS:
        return [_tool_call(block, part)]
    if name == "tool_result" or name.endswith("_tool_result"):
        return _tool_result(block, part)
    if name in {"image", "document"}:
        return [Message(role, kind, _media_text(block), part)]
    return [Message(role, "unknown", compact(dict(block)), part)]


def _tool_call(block: Mapping[str, Any], part: int) -> Message:
    tool = _string(block.get("name")) or "tool"
    text = render_input(block.get("input")) or tool
    call = _string(block.get("id")) or None
    return Message("assistant", "tool_call", text, part, tool=tool, call_id=call)


def _tool_result(block: Mapping[str, Any], part: int) -> list[Message]:
    text = _result_text(block.get("content"))
    if not text.strip():
        return []
    call = _string(block.get("tool_use_id")) or None
    failed = block.get("is_error") is True
    return [Message("tool", "tool_result", text, part, call_id=call, is_error=failed)]


def _result_text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, Sequence):
        return ""
    texts = []
    for item in content:
        if isinstance(item, str):
            texts.append(item)
        elif isinstance(item, Mapping):
            texts.append(_item_text(item))
    return "\n".join(texts)


def _item_text(item: Mapping[str, Any]) -> str:
    if _string(item.get("type")) in {"image", "document"}:
        return _media_text(item)
    text = item.get("text")
    return text if isinstance(text, str) else render_input(dict(item))


def _media_text(block: Mapping[str, Any]) -> str:
    source = block.get("source")
    source = source if isinstance(source, Mapping) else {}
    data, media = source.get("data"), _string(source.get("media_type")) or None
    title = _string(block.get("title"))
    if source.get("type") == "text" and isinstance(data, str):
        return "\n".join(part for part in (title, data) if part)
    if isinstance(data, str):
        stub = image_stub(media, data)
        return f"{title}\n{stub}" if title else stub
    return compact(dict(block))


def extra_outputs(result: object, messages: Sequence[Message]) -> list[Message]:
    """Output texts of ``toolUseResult`` that the content blocks do not hold.

    The structured twin mostly repeats the block. Where the block was shortened for the model, the
    full standard output, standard error or answer is only here.
    """
    if isinstance(result, str):
        result = {"content": result}
    if not isinstance(result, Mapping):
        return []
    shown = [message.text for message in messages]
    calls = {message.call_id for message in messages if message.call_id}
    call = calls.pop() if len(calls) == 1 else None
    extra: list[Message] = []
    for place, name in enumerate(("stdout", "stderr", "content", "result")):
        text = _string(result.get(name))
        if text.strip() and not any(text.strip() in known for known in shown):
            part = _EXTRA_PART + place
            extra.append(Message("tool", "tool_result", text, part, call_id=call))
            shown.append(text)
    file = result.get("file")
    text = _string(file.get("content")) if isinstance(file, Mapping) else ""
    if text.strip() and not _has_lines(shown, text):
        extra.append(Message("tool", "tool_result", text, _FILE_PART, call_id=call))
    return extra


def _has_lines(shown: Sequence[str], text: str) -> bool:
    """Whether each line of a file is in what was shown of it, where it has its number before it."""
    lines = {line.strip() for whole in shown for line in whole.split("\n")}
    lines |= {line.partition("→")[2].strip() for line in lines}
    return all(line.strip() in lines for line in text.split("\n") if line.strip())


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""
