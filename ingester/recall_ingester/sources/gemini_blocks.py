"""One entry of a Gemini conversation as messages, and the parts that its content is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recall.records import Kind, Message, Role
from recall_ingester.sources.toolinput import image_stub, json_text, leaves, render_input

Fields = Mapping[str, Any]

#: Who speaks, by the type of an entry or, in older files, its role.
_VOICES: dict[str, tuple[Role, Kind]] = {
    "user": ("user", "text"),
    **dict.fromkeys(("gemini", "model", "assistant", "tabnine"), ("assistant", "text")),
    **dict.fromkeys(("info", "warning", "error"), ("system", "event")),
    **dict.fromkeys(("function", "tool"), ("tool", "tool_result")),
}
_ENTRY_KEYS = frozenset(
    {
        "content", "displayContent", "id", "model", "parts", "role", "thoughts", "timestamp",
        "tokens", "toolCalls", "ts", "type",
    }
)  # fmt: skip
_CALL_KEYS = frozenset(
    {
        "agentId", "args", "description", "displayName", "id", "name", "renderOutputAsMarkdown",
        "result", "resultDisplay", "status", "timestamp",
    }
)  # fmt: skip
_RESPONSE_KEYS = frozenset({"id", "name", "parts", "response"})
_FAILURES = frozenset({"error", "cancelled"})
#: How a user's text begins that the client wrote by itself.
_META_OPENINGS = (
    "<session_context>",
    "<loaded_context>",
    "<hook_context>",
    "This is the Gemini CLI. We are setting up the context",
    "System: Please continue.",
)
_SUMMARY_OPENING = "<state_snapshot>"
_CELL_KEYS = frozenset(
    {"text", "bold", "italic", "underline", "dim", "inverse", "isUninitialized", "fg", "bg"}
)


def entry_messages(entry: object) -> list[Message]:
    """The messages of one entry, one a block; none if it holds no text."""
    if not isinstance(entry, Mapping):
        return _numbered([Message("system", "unknown", _loose(entry))])
    name = text_of(entry.get("type")) or text_of(entry.get("role"))
    voice = _VOICES.get(name or "")
    if voice is None:
        messages = [Message("system", "unknown", json_text(dict(entry)) if entry else "")]
    else:
        messages = _spoken(entry, *voice)
    return _settle(entry, name, _numbered(messages))


def _spoken(entry: Fields, role: Role, kind: Kind) -> list[Message]:
    thoughts = [_thought(thought) for thought in _items(entry.get("thoughts"))]
    content = part_messages(entry.get("content"), role, kind)
    content += part_messages(entry.get("parts"), role, kind)
    tools: list[Message] = []
    for call in _items(entry.get("toolCalls")):
        tools += _tool_call(call)
    # A checkpoint of the client repeats calls and results in the content.
    told = {(message.kind, message.call_id, message.text) for message in tools}
    content = [item for item in content if (item.kind, item.call_id, item.text) not in told]
    shown = [message.text for message in content]
    for item in part_messages(entry.get("displayContent"), role, kind):
        if not _is_shown(item.text, shown):
            content.append(item)
    return [*thoughts, *content, *tools, *_rest(entry, _ENTRY_KEYS)]


def _settle(entry: Fields, name: str | None, messages: list[Message]) -> list[Message]:
    native, model = text_of(entry.get("id")), text_of(entry.get("model"))
    for message in messages:
        message.native_id = native
        message.model = model if message.role == "assistant" else None
        message.is_error = message.is_error or (name == "error" and message.kind == "event")
        if native and not native.isdigit():  # a bare number names nothing across sessions
            message.copy_scope = f"{native}/{message.part}"
    return messages


def _numbered(messages: Sequence[Message]) -> list[Message]:
    kept = [message for message in messages if message.text.strip()]
    for part, message in enumerate(kept):
        message.part = part
    return kept


def _thought(thought: object) -> Message:
    if isinstance(thought, Mapping):
        named = (text_of(thought.get("subject")), text_of(thought.get("description")))
        rest = _rest(thought, frozenset({"subject", "description", "timestamp"}))
        text = "\n".join([part for part in named if part] + [item.text for item in rest])
    else:
        text = _loose(thought)
    return Message("assistant", "thinking", text)


def part_messages(content: object, role: Role, kind: Kind) -> list[Message]:
    """The messages of a content: a text, one part, or a list of both."""
    messages: list[Message] = []
    for item in _items(content):
        if isinstance(item, str):
            messages.append(_text(item, role, kind))
        elif isinstance(item, Mapping):
            messages += _part(item, role, kind)
        else:
            messages.append(Message(role, "unknown", _loose(item)))
    return messages


def _text(text: str, role: Role, kind: Kind) -> Message:
    if role == "user" and kind == "text":
        opening = text.lstrip()
        if opening.startswith(_META_OPENINGS):
            kind = "meta"
        elif opening.startswith(_SUMMARY_OPENING):
            kind = "summary"
    return Message(role, kind, text)


def _part(part: Fields, role: Role, kind: Kind) -> Iterator[Message]:
    rest = dict(part)
    if isinstance(rest.get("text"), str):
        thought = rest.get("thought") is True
        text = rest.pop("text")
        yield Message("assistant", "thinking", text) if thought else _text(text, role, kind)
    if isinstance(media := rest.get("inlineData"), Mapping) and isinstance(media.get("data"), str):
        del rest["inlineData"]
        yield Message(role, kind, _media(media))
    if isinstance(file := rest.get("fileData"), Mapping):
        del rest["fileData"]
        yield Message(role, kind, render_input(dict(file)))
    if isinstance(call := rest.get("functionCall"), Mapping):
        del rest["functionCall"]
        yield _call(call)
        yield from _rest(call, frozenset({"args", "id", "name"}))
    if isinstance(response := rest.get("functionResponse"), Mapping):
        del rest["functionResponse"]
        yield _response(response)
    if isinstance(code := rest.get("executableCode"), Mapping):
        del rest["executableCode"]
        yield Message("assistant", "tool_call", render_input(dict(code)), tool="code_execution")
    if isinstance(output := rest.get("codeExecutionResult"), Mapping):
        del rest["codeExecutionResult"]
        yield Message("tool", "tool_result", render_input(dict(output)), tool="code_execution")
    yield from _rest(rest, frozenset({"thought", "thoughtSignature"}))


def _media(media: Fields) -> str:
    stub = image_stub(text_of(media.get("mimeType")), media["data"])
    name = text_of(media.get("displayName"))
    return f"{name}\n{stub}" if name else stub


def _call(call: Fields) -> Message:
    tool = text_of(call.get("name")) or "tool"
    text = render_input(call.get("args"))
    return Message(
        "assistant", "tool_call", text if text.strip() else tool,
        tool=tool, call_id=text_of(call.get("id")),
    )  # fmt: skip


def _response(response: Fields) -> Message:
    """A ``functionResponse``: ``output`` or ``error`` as they are, anything else by key."""
    body = response.get("response")
    texts: list[str] = []
    failed = False
    if isinstance(body, Mapping):
        rest = dict(body)
        for name in ("output", "error"):
            if isinstance(rest.get(name), str):
                failed = failed or (name == "error" and bool(rest[name].strip()))
                texts.append(render_input(rest.pop(name)))
        texts.append(render_input(rest))
    else:
        texts.append(render_input(body))
    texts += [item.text for item in part_messages(response.get("parts"), "tool", "tool_result")]
    texts += [item.text for item in _rest(response, _RESPONSE_KEYS)]
    text = "\n".join(text for text in texts if text)
    tool, call = text_of(response.get("name")), text_of(response.get("id"))
    return Message("tool", "tool_result", text, tool=tool, call_id=call, is_error=failed)


def _tool_call(value: object) -> list[Message]:
    """A tool call with its result, and what only the screen showed of it."""
    if not isinstance(value, Mapping):
        return [Message("assistant", "unknown", _loose(value))]
    call = _call(value)
    results = part_messages(value.get("result"), "tool", "tool_result")
    failed = text_of(value.get("status")) in _FAILURES
    messages = [call]
    result = "\n".join(item.text for item in results if item.text)
    if result.strip():
        failed_result = failed or any(item.is_error for item in results)
        messages.append(_of_call(call, result, is_error=failed_result))
    shown = [*leaves(value.get("args")), call.text, result]
    display = _display(value.get("resultDisplay"), shown)
    if display.strip():
        messages.append(_of_call(call, display, is_error=failed))
    return messages + _rest(value, _CALL_KEYS)


def _of_call(call: Message, text: str, *, is_error: bool) -> Message:
    return Message(
        "tool", "tool_result", text, tool=call.tool, call_id=call.call_id, is_error=is_error
    )


def _display(value: object, shown: list[str]) -> str:
    """What the screen showed of a result and neither the result nor the arguments hold."""
    if (screen := _screen_text(value)) is not None:
        value = screen
    if isinstance(value, str):
        return "" if _is_shown(value, shown) else render_input(value)
    if isinstance(value, Mapping):
        new = {
            key: item
            for key, item in value.items()
            if any(not _is_shown(leaf, shown) for leaf in leaves(item))
        }
        return render_input(new)
    return render_input(value) if _has_text(value) else ""


def _screen_text(value: object) -> str | None:
    """The text of a coloured terminal screen: a list of lines, each a list of cells."""
    if not isinstance(value, list) or not value:
        return None
    lines = []
    for line in value:
        if not isinstance(line, list):
            return None
        cells = [cell for cell in line if isinstance(cell, Mapping) and cell.keys() <= _CELL_KEYS]
        texts = [cell["text"] for cell in cells if isinstance(cell.get("text"), str)]
        if len(texts) != len(line):
            return None
        lines.append("".join(texts).rstrip())
    return "\n".join(lines).strip("\n")


def _is_shown(text: str, shown: Sequence[str]) -> bool:
    wanted = text.strip()
    return not wanted or any(wanted in known for known in shown)


def _rest(value: Fields, known: frozenset[str]) -> list[Message]:
    """The fields that this version does not know, if any of them holds text."""
    rest = {key: item for key, item in value.items() if key not in known}
    return [Message("system", "unknown", json_text(rest))] if _has_text(rest) else []


def _loose(value: object) -> str:
    """The text of a value that stands where an object should."""
    if isinstance(value, str):
        return render_input(value)
    return json_text(value) if _has_text(value) else ""


def _has_text(value: object) -> bool:
    return any(leaf.strip() for leaf in leaves(value))


def _items(value: object) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def text_of(value: object) -> str | None:
    """A string with something in it, else ``None``."""
    return value if isinstance(value, str) and value.strip() else None
