"""The content and metadata of one message of a ChatGPT export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recall.records import Kind, Message, Role
from recall_ingester.exports.readable import Shown, as_list, mapping, readable, remainder
from recall_ingester.sources.codex_records import arguments_text
from recall_ingester.sources.toolinput import json_text

Fields = Mapping[str, Any]

_ID = "an id"
_TIME = "a time; those of messages and conversations are stored as times"
_STATE = "a state or a switch of the client, nothing that anybody wrote"
#: Keys whose strings are not kept as text, at any depth, and why.
SILENT = {
    **dict.fromkeys(
        (
            "async_task_id", "attribution_id", "conversation_id", "conversation_template_id",
            "decoding_id", "file_id", "gen_id", "gizmo_id", "id", "image_gen_group_id",
            "kernel_id", "library_file_id", "message_id", "msg_id", "parent_gen_id",
            "parent_id", "plugin_id", "plugin_ids", "reasoning_group_id", "request_id",
            "run_id", "source_analysis_msg_id", "tether_id", "textdoc_id", "turn_exchange_id",
            "turn_trace_id", "user_id", "voice_session_id", "watermark_asset_pointer",
            "workspace_id", "working_turn_id",
        ),
        _ID,
    ),
    **dict.fromkeys(
        (
            "async_status", "channel", "client_reported_search_source", "conversation_origin",
            "default_model_slug", "disabled_tool_ids", "edit_op", "exclusive_key",
            "execution_state", "finish_details", "format", "memory_scope", "message_source",
            "message_type", "msg_type", "pad", "paragen_variants_info", "reasoning_status",
            "ref_type", "requested_model_id", "resolved_model_slug", "search_source",
            "serialization_metadata", "status", "stream_name", "system_hints",
            "thinking_effort", "timestamp_", "voice",
        ),
        _STATE,
    ),
    "citation_format_type": "how the client draws a citation",
    "content_type": "the name of a content type; unknown types are kept whole",
    "create_time": _TIME,
    "frames_asset_pointers": "names of the pictures of a video",
    "inline_base64": "bytes of a file, not text",
    "language": "the name of a programming language beside code",
    "mime_type": "a media type",
    "mimeType": "a media type",
    "model_slug": "kept as the model of the message",
    "parent_header": "ids of messages of the code interpreter",
    "recipient": "kept as the tool of a call",
    "type": "the name of a record type",
    "update_time": _TIME,
}  # fmt: skip

#: Content types that are a few texts, their kind (``None``: as the role), and the fields in order.
_TEXTS: dict[str, tuple[Kind | None, tuple[str, ...]]] = {
    "text": (None, ("text",)),
    "multimodal_text": (None, ("text",)),
    "code": (None, ("text",)),
    "execution_output": ("tool_result", ("text",)),
    "citable_code_output": ("tool_result", ("output_str",)),
    "tether_browsing_display": ("tool_result", ("summary", "result")),
    "tether_quote": (None, ("title", "url", "domain", "text")),
    "sonic_webpage": (None, ("title", "url", "domain", "snippet", "text")),
    "thoughts": ("thinking", ("content",)),
    "reasoning_recap": ("thinking", ("content",)),
    "system_error": ("event", ("name", "text")),
    "user_editable_context": ("meta", ("user_profile", "user_instructions")),
    "model_editable_context": ("meta", ("model_set_context", "repo_summary", "structured_context")),
}
_ROLES: dict[object, Role] = {
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
#: Who speaks in messages of a kind, whatever the author field says.
_SPEAKERS: dict[Kind, Role] = {"thinking": "assistant", "tool_result": "tool"}
_KINDS: dict[Role, Kind] = {"user": "text", "assistant": "text", "tool": "tool_result"}


def message_parts(message: Fields) -> list[Message]:
    """Everything readable in one message, each piece once."""
    author = message.get("author")
    author = author if isinstance(author, Mapping) else {"role": author}
    name = author.get("role")
    role = _ROLES.get(name if isinstance(name, str) else None, "system")
    metadata = mapping(message.get("metadata"))
    parts = _content(message.get("content"), role, _kind(message, role))
    rest = {key: item for key, item in message.items() if key not in ("author", "content")}
    rest["author"] = {key: item for key, item in author.items() if key not in ("role", "name")}
    if role == "system" and name != "system":
        rest["from"] = name
    shown = Shown([part.text.strip() for part in parts])
    tool = _tool(author, message, role)
    if role != "tool" and (named := readable(author.get("name")).strip()):
        rest["by"] = named
    parts.append(Message(role, "meta", remainder(rest, SILENT, shown)))
    model = readable(metadata.get("model_slug")).strip() or None
    kept = [part for part in parts if part.text.strip()]
    for part in kept:
        part.tool = tool if role == "tool" or part.kind == "tool_call" else None
        part.model = model
    return kept


def is_hidden(message: Fields) -> bool:
    """Whether the client does not show the message."""
    return mapping(message.get("metadata")).get("is_visually_hidden_from_conversation") is True


def _kind(message: Fields, role: Role) -> Kind:
    if role == "tool":
        return "tool_result"
    if role == "assistant" and _called(message):
        return "tool_call"
    return "meta" if is_hidden(message) else _KINDS.get(role, "meta")


def _called(message: Fields) -> str | None:
    """The tool that a message goes to; ``None`` for one that goes to the person."""
    recipient = readable(message.get("recipient")).strip()
    return None if recipient in ("", "all", "user") else recipient


def _tool(author: Fields, message: Fields, role: Role) -> str | None:
    if role == "tool":
        return readable(author.get("name")).strip() or None
    return _called(message) if role == "assistant" else None


def _content(content: object, role: Role, kind: Kind) -> list[Message]:
    if not isinstance(content, Mapping):
        return [Message(role, kind, _said(text, kind)) for text in as_list(content)]
    name = content.get("content_type") or "text"
    known = _TEXTS.get(name) if isinstance(name, str) else None
    if known is None:
        return _unknown(content, role)
    own, fields = known
    kind = own or kind
    role = _SPEAKERS.get(kind, role)
    parts = [Message(role, kind, _part(part, kind)) for part in as_list(content.get("parts"))]
    parts += [Message(role, kind, text) for text in _thoughts(content.get("thoughts"))]
    texts = [_said(content.get(field), kind) for field in fields]
    body = "\n".join(text for text in texts if text.strip())
    parts.append(Message(role, kind, body, is_error=name == "system_error"))
    used = {"parts", "thoughts", *fields}
    rest = {key: item for key, item in content.items() if key not in used}
    shown = Shown([part.text.strip() for part in parts])
    parts.append(Message(role, "meta", remainder(rest, SILENT, shown)))
    return [part for part in parts if part.text.strip()]


def _unknown(content: Fields, role: Role) -> list[Message]:
    if not remainder(content, SILENT, Shown()).strip():
        return []
    return [Message(role, "unknown", json_text(dict(content)))]


def _said(value: object, kind: Kind) -> str:
    return arguments_text(value) if kind == "tool_call" and value is not None else readable(value)


def _thoughts(value: object) -> list[str]:
    texts = []
    for thought in as_list(value):
        fields = thought if isinstance(thought, Mapping) else {"content": thought}
        known = ("summary", "content")
        head = [readable(fields.get(key)) for key in known]
        rest = {key: item for key, item in fields.items() if key not in known}
        texts.append(_joined(head, rest))
    return texts


def _part(part: object, kind: Kind) -> str:
    """One part of a message: text, a transcript, or a pointer to a file of the export."""
    if not isinstance(part, Mapping):
        return _said(part, kind)
    head = [readable(part.get("text"))]
    pointers = [readable(part.get("asset_pointer"))]
    rest = {key: item for key, item in part.items() if key not in ("text", "asset_pointer")}
    for key, item in part.items():
        if key.endswith("_asset_pointer") and isinstance(item, str | Mapping):
            pointer = mapping(item).get("asset_pointer", item)
            pointers.append(readable(pointer))
    pointers = [pointer for pointer in pointers if pointer.strip()]
    if pointers:
        name = readable(part.get("content_type")).strip() or "asset_pointer"
        head.append(f"[{name.removesuffix('_asset_pointer')} {' '.join(pointers)}]")
    return _joined(head, rest)


def _joined(head: Sequence[str], rest: Fields) -> str:
    shown = Shown([text.strip() for text in head])
    texts = (*head, remainder(rest, SILENT, shown))
    return "\n".join(text for text in texts if text.strip())
