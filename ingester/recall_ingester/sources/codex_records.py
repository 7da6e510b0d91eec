"""What the items of the model's context in a Codex rollout say.

Each function here and in ``codex_events`` turns a payload into message drafts without part numbers,
scopes or models; those are the parser's. ``None`` means a record of a type this version does not
know, a string names why a record holds nothing to store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from recall.records import Kind, Message, Role
from recall_ingester.sources.toolinput import image_stub, json_text, render_input, stub_images

Payload = Mapping[str, Any]
Drafts = list[Message] | str | None

#: How a text begins that Codex put into the user's role by itself.
INJECTED = (
    "<environment_context>",
    "# AGENTS.md",
    "<permissions instructions>",
    "<skills_instructions>",
    "<user_instructions>",
    "<turn_aborted>",
    "<environment-change>",
    "<heartbeat>",
    "<INSTRUCTIONS>",
    "<skill>",
    "<subagent_notification>",
    "<hook_prompt",
    "The following is the Codex agent history",
)
_IMAGE_TAG = re.compile(r"</?image\b[^<>]*>")

#: Items of the model's context that no person can read or that only steer the client.
_SILENT_ITEMS = {
    "additional_tools": "tool definitions",
    "compaction": "encrypted",
    "compaction_summary": "encrypted",
    "compaction_trigger": "compaction trigger",
    "context_compaction": "encrypted",
    "ghost_snapshot": "ghost_snapshot",
}
#: Keys that name or encrypt a record and say nothing themselves.
_HOUSEKEEPING = frozenset(
    {
        "type", "id", "call_id", "name", "namespace", "status", "role", "phase", "function",
        "timestamp", "created_at", "ordinal", "execution", "metadata", "encrypted_content",
        "internal_chat_message_metadata_passthrough",
    }
)  # fmt: skip
_UNNAMED = {"function_call": "tool", "custom_tool_call": "tool", "tool_call": "tool"}
_ARGUMENTS = ("arguments", "parameters", "input")
_RESULTS = ("output", "result", "content", "tools")
_EXIT_LINE = re.compile(r"^(?:Exit code: |Process exited with code )(-?\d+)$", re.MULTILINE)
_OUTPUT_LINE = re.compile(r"^(?:Final )?[Oo]utput:\n", re.MULTILINE)


def string(value: object) -> str | None:
    """A non-empty string, else ``None``."""
    return value if isinstance(value, str) and value else None


def mapping(value: object) -> Payload:
    """A mapping, empty for anything else."""
    return value if isinstance(value, Mapping) else {}


def is_injected(text: str) -> bool:
    """Whether the client and not a person wrote a text of the user's role."""
    return text.lstrip().startswith(INJECTED) or _IMAGE_TAG.fullmatch(text.strip()) is not None


def texts(content: object) -> list[str]:
    """The readable parts of a content field: a string, one part, or a list of parts."""
    if isinstance(content, str):
        return [stub_images(content)]
    parts = content if isinstance(content, list) else [content]
    found = [stub_images(part) if isinstance(part, str) else _part(part) for part in parts]
    return [text for text in found if text.strip()]


def _part(part: object) -> str:
    if not isinstance(part, Mapping):
        return render_input(part)
    text = part.get("text")
    if isinstance(text, str):
        return stub_images(text)
    url = string(part.get("image_url")) or string(part.get("imageUrl"))
    if url:
        return image(url)
    if data := string(part.get("data")):
        return image_stub(string(part.get("mimeType")) or string(part.get("mime_type")), data)
    return render_input({key: item for key, item in part.items() if key not in _HOUSEKEEPING})


def image(url: str) -> str:
    """An image as text: a stub for inline data, else the address or path."""
    head, marker, data = url.partition(";base64,")
    return image_stub(head.removeprefix("data:"), data) if marker else f"[image {url}]"


def said(role: object, content: object, native_id: str | None = None) -> list[Message]:
    """The messages of one ``message`` item, with injected texts set apart."""
    messages = []
    for text in texts(content):
        kind: Kind = "text"
        speaker: Role = "system"
        if role == "user":
            speaker = "user"
            kind = "meta" if is_injected(text) else "text"
        elif role == "assistant":
            speaker = "assistant"
        elif role == "tool":
            speaker, kind = "tool", "tool_result"
        else:
            kind = "meta"
        messages.append(Message(speaker, kind, text, native_id=native_id))
    return messages


def thoughts(payload: Payload, *fields: str) -> list[Message]:
    """Reasoning texts, each its own message."""
    native = string(payload.get("id"))
    return [
        Message("assistant", "thinking", text, native_id=native)
        for name in fields
        for text in texts(payload.get(name))
    ]


def unknown(payload: object) -> Message:
    """A record of a type this version does not know, kept whole."""
    return Message("system", "unknown", json_text(payload))


def response_item(item: Payload, own_path: str) -> Drafts:
    """A ``response_item`` payload, or the bare item of the oldest rollouts."""
    name = item.get("type")
    native = string(item.get("id"))
    if name == "agent_message" or (name is None and "author" in item):
        return from_agent(item, own_path)
    if name == "message" or (name is None and isinstance(item.get("role"), str)):
        content = next((item[key] for key in ("content", "message", "text") if item.get(key)), None)
        return said(item.get("role"), content, native)
    if name == "reasoning":
        return thoughts(item, "summary", "content") or "encrypted"
    if not isinstance(name, str):
        return None
    if name in _SILENT_ITEMS:
        return _SILENT_ITEMS[name]
    if name.endswith("_call"):
        return _call(item, name)
    if name.endswith(("_output", "_result")):
        return _result(item, native)
    return None


def from_agent(item: Payload, own_path: str) -> list[Message]:
    """What one agent of a team wrote to another; the reader of this file is ``own_path``."""
    role = "assistant" if item.get("author") in (own_path, None) else "user"
    return said(role, item.get("content"), string(item.get("id")))


def tool_name(namespace: object, name: str) -> str:
    """The name of a tool together with the namespace it was called in."""
    if not isinstance(namespace, str) or not namespace or name.startswith(namespace):
        return name
    return namespace + ("" if namespace.endswith("_") or name.startswith("_") else ".") + name


def call(tool: str, text: str, call_id: str | None, native: str | None = None) -> Message:
    """A tool call; one without arguments has its name as text."""
    return Message(
        "assistant", "tool_call", text if text.strip() else tool,
        tool=tool, call_id=call_id, native_id=native,
    )  # fmt: skip


def _call(item: Payload, name: str) -> list[Message]:
    native = string(item.get("id"))
    call_id = string(item.get("call_id")) or native
    given = string(item.get("name")) or string(mapping(item.get("function")).get("name"))
    tool = tool_name(item.get("namespace"), given or _UNNAMED.get(name, name.removesuffix("_call")))
    rest = {key: value for key, value in item.items() if key not in _HOUSEKEEPING}
    pictures = []
    if name == "image_generation_call":
        pictures = _picture(rest.pop("result", None), call_id)
    arguments = [arguments_text(rest.pop(key)) for key in _ARGUMENTS if rest.get(key) is not None]
    if list(rest) == ["action"]:
        rest = dict(mapping(rest["action"])) or rest
    text = "\n".join(part for part in (*arguments, render_input(rest)) if part.strip())
    return [call(tool, text, call_id, native), *pictures]


def arguments_text(value: object) -> str:
    """Arguments as text. They mostly come as a JSON string, and sometimes as a broken one."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        parsed = _json(value)
        if isinstance(parsed, Mapping):
            return render_input(parsed)
    return render_input(value)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _picture(data: object, call_id: str | None) -> list[Message]:
    encoded = string(data)
    if encoded is None:
        return []
    text = image(encoded) if encoded.startswith("data:") else image_stub("image/png", encoded)
    return [Message("tool", "tool_result", text, call_id=call_id)]


def _result(item: Payload, native: str | None) -> list[Message]:
    value = next((item[key] for key in _RESULTS if item.get(key) is not None), None)
    text, failed = output_text(value)
    extra = string(item.get("stderr"))
    text = f"{text}\n{extra}" if extra else text
    call_id = string(item.get("call_id")) or native
    return result(text, call_id, failed=failed, tool=string(item.get("name")), native=native)


def result(
    text: str,
    call_id: str | None,
    *,
    failed: bool = False,
    tool: str | None = None,
    native: str | None = None,
) -> list[Message]:
    """A tool's result, if it has any text."""
    if not text.strip():
        return []
    return [
        Message(
            "tool", "tool_result", text,
            tool=tool, call_id=call_id, native_id=native, is_error=failed,
        )
    ]  # fmt: skip


def output_text(value: object) -> tuple[str, bool]:
    """The text of a tool's output in any of its shapes, and whether it tells of a failure."""
    if isinstance(value, str):
        parsed = mapping(_json(value)) if value.startswith("{") else {}
        if isinstance(parsed.get("output"), str) and set(parsed) <= {"output", "metadata"}:
            return stub_images(parsed["output"]), failed(mapping(parsed.get("metadata")))
        header = value[:400] if (at := body_start(value)) is None else value[:at]
        code = _EXIT_LINE.search(header)
        return stub_images(value), code is not None and code[1] != "0"
    if isinstance(value, Mapping) and "content" in value:
        return output_text(value["content"])[0], failed(value)
    if isinstance(value, Mapping) and not isinstance(value.get("text"), str):
        return render_input(value), failed(value)
    return "\n".join(texts(value)), False


def body_start(output: str) -> int | None:
    """Where the command's own output begins, below the lines that Codex put before it."""
    match = _OUTPUT_LINE.search(output, 0, 400)
    return match.end() if match else None


def failed(report: Payload) -> bool:
    """Whether a status report of a tool run says that it failed."""
    code = report.get("exit_code", report.get("exitCode"))
    if isinstance(code, int) and code != 0:
        return True
    if report.get("success") is False or report.get("isError") is True:
        return True
    return report.get("status") in ("failed", "declined")
