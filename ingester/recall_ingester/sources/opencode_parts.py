"""What the parts of an opencode message say.

Every function takes values of any shape. A part gives up to three messages: what it says, what
came back, and what else of it is text. Each has a number of its own, so that a result that arrives
later moves no other part.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from recall.records import Kind, Message, Role
from recall_ingester.sources.toolinput import image_stub, json_text, render_input, stub_images

#: Numbers that one part has for its messages.
STRIDE = 4
_RESULT, _DETAILS = 1, 2

#: Parts that steer the client: the bounds of a step, and the git trees before and after it.
SILENT = frozenset({"step-start", "step-finish", "snapshot", "patch"})
_EVENTS = frozenset({"compaction", "retry"})
#: Keys whose values are no text of the conversation, or repeat one (see ``LEAVES_OUT``).
_NOT_TEXT = frozenset(
    {
        "after", "before", "callID", "diagnostics", "diff", "diffs", "encrypted", "filediff",
        "id", "messageID", "mime", "patch", "preview", "providerMetadata", "sessionID", "signature",
        "snapshot", "time", "tokens", "type",
    }
)  # fmt: skip
_TEXT_KEYS = frozenset({"text", "synthetic", "ignored", "metadata"})
_TOOL_KEYS = frozenset({"state", "tool", "name", "metadata", "provider"})
_CALL_KEYS = frozenset({"toolInvocation"})
_STATE_KEYS = frozenset({"status", "input", "output", "content", "error", "attachments"})
_FILE_KEYS = frozenset({"filename", "name", "mediaType", "url", "uri"})


def part_messages(part: object, role: Role, kind: Kind, *, decode: bool = False) -> list[Message]:
    """The messages of one part. ``kind`` is what its text is in this message (text, summary);
    ``decode`` asks for the text inside of attached files."""
    if not isinstance(part, Mapping):
        text = words(part)
        return [Message(role, "unknown", text)] if text.strip() else []
    name = part.get("type")
    if not isinstance(name, str):
        return [Message(role, "unknown", json_text(dict(part)))] if part else []
    if name in SILENT:
        return []
    if name in _EVENTS:
        return [Message("system", "event", f"{name}\n{_rendered(part)}".strip())]
    if name == "file":
        text = file_text(part, decode=decode)
        found = [Message(role, kind, text)] if text else []
        return found + _details(part, found, role, _FILE_KEYS)
    reader = _READERS.get(name)
    if reader is None:
        return [Message(role, "unknown", json_text(dict(part)))]
    return reader(part, role, kind)


def words(value: object) -> str:
    """The text of a value that ought to be a string."""
    if isinstance(value, str):
        return stub_images(value)
    return "" if value is None else render_input(value)


def details(value: object, shown: str, skip: frozenset[str] = frozenset()) -> str:
    """The strings inside a value that ``shown`` does not have, one ``key: text`` a line."""
    lines: dict[str, None] = {}
    for key, text in _strings(value, skip):
        text = stub_images(text)
        if text.strip() and text not in shown:
            lines[f"{key}: {text}" if key else text] = None
    return "\n".join(lines)


def file_text(file: Mapping[str, Any], *, decode: bool = False) -> str:
    """What stands for an attached file: its name, and its address or a stub for its bytes."""
    media = word(file.get("mime")) or word(file.get("mediaType"))
    name = word(file.get("filename")) or word(file.get("name"))
    address = words_raw(file.get("url")) or words_raw(file.get("uri"))
    data = words_raw(file.get("data"))
    if not data and address.startswith("data:"):
        data, address = address, ""
    lines = [name or ""]
    if data:
        lines.append(_media_stub(media, data))
        if decode and (media or "").startswith("text/"):
            lines.append(_decoded(data))
    elif media and not address:
        lines.append(f"[file {media}]")
    if address:
        lines.append(address)
    return "\n".join(line for line in lines if line)


def error_message(error: object) -> Message | None:
    """What went wrong with a message as a whole."""
    if not error:
        return None
    shown = details(error, "", frozenset({"responseHeaders", "isRetryable"})) or words(error)
    return Message("system", "event", shown, is_error=True) if shown.strip() else None


def word(value: object) -> str | None:
    """A short string, or nothing."""
    return value[:1000] if isinstance(value, str) and value else None


def words_raw(value: object) -> str:
    """A string as it stands; empty for anything else."""
    return value if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, Any]:
    """A mapping; empty for anything else."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> Sequence[Any]:
    """A list; a value that ought to be in a list counts as a list of one."""
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def _text(part: Mapping[str, Any], role: Role, kind: Kind) -> list[Message]:
    if part.get("synthetic") or part.get("ignored"):
        kind = "meta"
    text = words(part.get("text"))
    found = [Message(role, kind, text)] if text.strip() else []
    return found + _details(part, found, role, _TEXT_KEYS)


def _reasoning(part: Mapping[str, Any], role: Role, kind: Kind) -> list[Message]:
    del role, kind
    text = words(part.get("text"))
    found = [Message("assistant", "thinking", text)] if text.strip() else []
    return found + _details(part, found, "assistant", _TEXT_KEYS)


def _tool(part: Mapping[str, Any], role: Role, kind: Kind) -> list[Message]:
    """A call and its result. ``callID`` and ``tool`` are of v1, ``id`` and ``name`` of v2."""
    del role, kind
    state = mapping(part.get("state"))
    tool = word(part.get("tool")) or word(part.get("name"))
    call = word(part.get("callID")) or word(part.get("id"))
    arguments = words(state.get("input")) or words(state.get("raw"))
    outcome = [words(state.get("output")), *map(_output, items(state.get("content")))]
    error = state.get("error")
    if error:
        outcome.append(words(error) if isinstance(error, str) else details(error, ""))
    outcome += [_output(file) for file in items(state.get("attachments"))]
    found = _exchange(tool, call, arguments, outcome, failed=_failed(state))
    if not isinstance(part.get("state"), Mapping):
        return found + _details(part, found, "tool", _TOOL_KEYS - {"state"})
    skip = _STATE_KEYS | ({"summary"} if tool == "task" else frozenset())
    extra = {"state": {key: value for key, value in state.items() if key not in skip}}
    rest = {key: value for key, value in part.items() if key not in _TOOL_KEYS}
    return found + _details({**rest, **extra}, found, "tool", skip - _STATE_KEYS)


def _invocation(part: Mapping[str, Any], role: Role, kind: Kind) -> list[Message]:
    """A call and its result as the first versions wrote them."""
    del role, kind
    call = mapping(part.get("toolInvocation"))
    found = _exchange(
        word(call.get("toolName")),
        word(call.get("toolCallId")),
        words(call.get("args")),
        [words(call.get("result"))],
        failed=False,
    )
    known = frozenset({"toolName", "toolCallId", "args", "result", "state"})
    return found + _details(part, found, "tool", known if call else frozenset())


def _exchange(
    tool: str | None, call: str | None, arguments: str, outcome: Sequence[str], *, failed: bool
) -> list[Message]:
    text = arguments if arguments.strip() else tool or "tool"
    found = [Message("assistant", "tool_call", text, tool=tool or "tool", call_id=call)]
    result = "\n".join(line for line in outcome if line.strip())
    if result:
        found.append(
            Message(
                "tool", "tool_result", result, _RESULT,
                tool=tool, call_id=call, is_error=failed,
            )
        )  # fmt: skip
    return found


def _output(item: object) -> str:
    if not isinstance(item, Mapping):
        return words(item)
    if item.get("type") == "text":
        return words(item.get("text"))
    if item.get("type") in ("file", "media", "image"):
        text = file_text(item)
        return "\n".join(filter(None, (text, details(item, text, _FILE_KEYS | {"data"}))))
    return json_text(dict(item))


def _failed(state: Mapping[str, Any]) -> bool:
    if state.get("status") == "error":
        return True
    structured = mapping(state.get("structured"))
    for holder in (mapping(state.get("metadata")), structured, mapping(structured.get("metadata"))):
        code = holder.get("exit")
        if isinstance(code, int | float) and code != 0:
            return True
    return False


def _subtask(part: Mapping[str, Any], role: Role, kind: Kind) -> list[Message]:
    del kind
    text = _rendered(part)
    return [Message(role, "meta", text)] if text else []


def _source(part: Mapping[str, Any], role: Role, kind: Kind) -> list[Message]:
    text = "\n".join(filter(None, (words(part.get("title")), words(part.get("url")))))
    found = [Message(role, kind, text)] if text else []
    return found + _details(part, found, role, frozenset({"title", "url"}))


def _rendered(part: Mapping[str, Any]) -> str:
    """All of a part but its ids and times."""
    dropped = ("id", "messageID", "sessionID", "type", "time")
    return render_input({key: value for key, value in part.items() if key not in dropped})


def _details(
    part: Mapping[str, Any], found: Sequence[Message], role: Role, skip: frozenset[str]
) -> list[Message]:
    shown = "\n".join(message.text for message in found)
    text = details(part, shown, skip)
    return [Message(role, "meta", text, _DETAILS)] if text else []


def _strings(value: object, skip: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Strings with the nearest key above each, in order; a stack, because logs may nest deeply."""
    stack: list[tuple[str, object]] = [("", value)]
    while stack:
        key, current = stack.pop()
        if isinstance(current, str):
            yield key, current
        elif isinstance(current, Mapping):
            kept = [
                (str(name), item)
                for name, item in current.items()
                if name not in _NOT_TEXT and name not in skip
            ]
            stack.extend(reversed(kept))
        elif isinstance(current, list):
            stack.extend((key, item) for item in reversed(current))


def _media_stub(media: str | None, data: str) -> str:
    stub = image_stub(media, data)
    return stub if (media or "image/").startswith("image/") else stub.replace("[image", "[file", 1)


def _decoded(data: str) -> str:
    _, marker, rest = data.partition(";base64,")
    try:
        return base64.b64decode(rest if marker else data).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""


_READERS: Mapping[str, Callable[[Mapping[str, Any], Role, Kind], list[Message]]] = {
    "text": _text,
    "reasoning": _reasoning,
    "tool": _tool,
    "tool-invocation": _invocation,
    "subtask": _subtask,
    "agent": _subtask,
    "source-url": _source,
}
