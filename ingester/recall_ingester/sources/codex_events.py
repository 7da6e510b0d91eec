"""What the events of a Codex rollout say: ``event_msg`` records and the items of paginated mode."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from recall.records import Message
from recall_ingester.sources.codex_records import (
    Drafts,
    Payload,
    call,
    failed,
    image,
    mapping,
    result,
    said,
    string,
    texts,
    thoughts,
    unknown,
)
from recall_ingester.sources.toolinput import image_stub, leaves, render_input, stub_images

#: Events that hold no text of their own, and the word under which they are counted.
_SILENT = {
    "token_count": "token_count",
    "task_started": "turn boundary",
    "turn_started": "turn boundary",
    "agent_reasoning_section_break": "section break",
    "session_configured": "session_configured",
    "shutdown_complete": "shutdown_complete",
}
#: Events worth finding again, kept as their fields.
_TOLD = frozenset(
    {
        "background_event", "deprecation_notice", "entered_review_mode", "error",
        "exited_review_mode", "guardian_assessment", "guardian_warning", "model_reroute",
        "plan_update", "stream_error", "sub_agent_activity", "thread_goal_updated",
        "thread_rolled_back", "turn_aborted", "turn_diff", "undo_completed", "warning",
    }
)  # fmt: skip
_UNTOLD = frozenset(
    {
        "type", "id", "call_id", "turn_id", "turnId", "item_id", "duration", "duration_ms",
        "started_at", "completed_at", "encrypted_content",
    }
)  # fmt: skip
_TOLD_ITEMS = frozenset(
    {"collabagenttoolcall", "enteredreviewmode", "exitedreviewmode", "subagentactivity"}
)
_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")


def event(payload: Payload) -> Drafts:
    """An ``event_msg`` payload."""
    name = payload.get("type")
    if not isinstance(name, str):
        return None
    if name in _SILENT:
        return _SILENT[name]
    if name in _HANDLERS:
        return _HANDLERS[name](payload)
    if name in _TOLD or name.startswith("collab_"):
        return [told(name, payload)]
    return None if _has_text(payload) else "event without text"


def told(name: str, payload: Payload) -> Message:
    """An event as its name and its fields."""
    rest = {key: value for key, value in payload.items() if key not in _UNTOLD}
    text = f"{name}\n{render_input(rest)}".rstrip()
    return Message("system", "event", text, is_error=name in ("error", "stream_error"))


def _has_text(payload: Payload) -> bool:
    rest = {key: value for key, value in payload.items() if key not in _UNTOLD}
    return any(leaf.strip() for leaf in leaves(rest))


def _user_message(payload: Payload) -> Drafts:
    messages = said("user", payload.get("message"), string(payload.get("client_id")))
    pictures = [image(url) for url in _strings(payload.get("images"))]
    pictures += [f"[image {path}]" for path in _strings(payload.get("local_images"))]
    return messages + [Message("user", "text", text) for text in pictures] or "empty"


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, str) and item)


def _agent_message(payload: Payload) -> Drafts:
    spoken = payload.get("message", payload.get("text", payload.get("content")))
    messages = said("assistant", spoken, string(payload.get("id")))
    if cited := render_input(payload.get("memory_citation")):
        messages.append(Message("system", "meta", f"memory_citation\n{cited}"))
    return messages or "empty"


def _agent_reasoning(payload: Payload) -> Drafts:
    return thoughts(payload, "text", "summary_text", "raw_content", "summary", "content") or "empty"


def _task_complete(payload: Payload) -> Drafts:
    messages = said("assistant", payload.get("last_agent_message"))
    if error := render_input(payload.get("error")):
        messages.append(Message("system", "event", f"error\n{error}", is_error=True))
    return messages or "turn boundary"


def _context_compacted(payload: Payload) -> Drafts:
    return said("assistant", payload.get("last_agent_message")) or "context_compacted"


def _command(payload: Payload) -> Drafts:
    call_id = string(payload.get("call_id"))
    command = call("exec_command", render_input(payload.get("command")), call_id)
    if payload.get("source") in ("user_shell", "userShell"):
        command.role = "user"
    shown = string(payload.get("aggregated_output")) or ""
    for name in ("stdout", "stderr", "formatted_output"):
        more = string(payload.get(name))
        # The formatted output is what the model saw of the others.
        if more and more.strip() not in shown and not (shown and name == "formatted_output"):
            shown = f"{shown}\n{more}" if shown else more
    return [command, *result(stub_images(shown), call_id, failed=failed(payload))]


def _mcp_call(payload: Payload) -> Drafts:
    asked = mapping(payload.get("invocation")) or payload
    call_id = string(payload.get("call_id"))
    parts = (string(asked.get("server")), string(asked.get("tool")))
    tool = "__".join(("mcp", *(part for part in parts if part)))
    text, broken = _mcp_result(payload.get("result"))
    if error := render_input(payload.get("error")):
        text, broken = "\n".join(part for part in (text, error) if part), True
    called = call(tool, render_input(asked.get("arguments")), call_id)
    return [called, *result(text, call_id, failed=broken or failed(payload), tool=tool)]


def _mcp_result(value: object) -> tuple[str, bool]:
    """The text of an MCP result, bare or in ``Ok`` or ``Err``, and whether the call failed."""
    outer = mapping(value)
    if "Err" in outer:
        return render_input(outer["Err"]), True
    given = mapping(outer.get("Ok")) or outer
    if not given:
        return render_input(value), False
    shown = "\n".join(texts(given.get("content")))
    rest = {
        key: item
        for key, item in given.items()
        if key not in ("content", "isError", "is_error", "_meta")
    }
    # The structured twin mostly repeats the text.
    more = "" if all(leaf in shown for leaf in leaves(rest)) else render_input(rest)
    return "\n".join(part for part in (shown, more) if part), failed(given)


def _patch(payload: Payload) -> Drafts:
    call_id = string(payload.get("call_id"))
    shown = "\n".join(filter(None, (string(payload.get(key)) for key in ("stdout", "stderr"))))
    broken = failed(payload)
    changes = render_input(payload.get("changes"))
    return [
        *result(shown, call_id, failed=broken, tool="apply_patch"),
        *result(changes, call_id, failed=broken, tool="apply_patch"),
    ] or "empty"


def _web_search(payload: Payload) -> Drafts:
    call_id = string(payload.get("call_id"))
    action = render_input(payload.get("action"))
    query = string(payload.get("query")) or ""
    asked = action if query in action else "\n".join(part for part in (query, action) if part)
    kind = string(payload.get("kind")) or "web_search"
    found = render_input(payload.get("results"))
    return [call(kind, asked, call_id), *result(found, call_id, tool=kind)]


def _dynamic_call(payload: Payload) -> Drafts:
    call_id = string(payload.get("call_id")) or string(payload.get("callId"))
    space = string(payload.get("namespace"))
    name = string(payload.get("tool")) or "tool"
    tool = f"{space}.{name}" if space else name
    shown = "\n".join(texts(payload.get("content_items")))
    if error := render_input(payload.get("error")):
        shown = f"{shown}\n{error}".lstrip()
    called = call(tool, render_input(payload.get("arguments")), call_id)
    return [called, *result(shown, call_id, failed=failed(payload), tool=tool)]


def _generated_image(payload: Payload) -> Drafts:
    call_id = string(payload.get("call_id"))
    asked = call("image_generation", string(payload.get("revised_prompt")) or "", call_id)
    data, path = string(payload.get("result")), string(payload.get("saved_path"))
    shown = [image_stub("image/png", data)] if data else []
    shown += [f"[image {path}]"] if path else []
    return [asked, *(answer for text in shown for answer in result(text, call_id))]


def _viewed_image(payload: Payload) -> Drafts:
    call_id = string(payload.get("call_id"))
    return [call("view_image", string(payload.get("path")) or "", call_id)]


def _item_completed(payload: Payload) -> Drafts:
    """An item of paginated mode, which carries what a legacy event of the same meaning carried."""
    item = mapping(payload.get("item"))
    name = string(item.get("type"))
    if name is None:
        return None
    fields = {_CAPITAL.sub(r"_\1", key).lower(): value for key, value in item.items()}
    fields.setdefault("call_id", fields.get("id"))
    plain = name.replace("_", "").lower()
    handler = _ITEMS.get(plain)
    if handler is not None:
        drafts = handler(fields)
        for draft in drafts if isinstance(drafts, list) else ():
            draft.native_id = draft.native_id or string(item.get("id"))
        return drafts
    if plain in _TOLD_ITEMS:
        return [told(name, fields)]
    return [unknown(item)]


def _user_item(item: Payload) -> Drafts:
    return said("user", item.get("content"), string(item.get("id"))) or "empty"


def _hook_prompt(item: Payload) -> Drafts:
    shown = texts(item.get("fragments"))
    return [Message("user", "meta", text) for text in shown] or "empty"


def _plan(item: Payload) -> Drafts:
    return said("assistant", item.get("text")) or "empty"


def _compaction_item(_item: Payload) -> Drafts:
    return "context_compacted"


_HANDLERS: dict[str, Callable[[Payload], Drafts]] = {
    "user_message": _user_message,
    "agent_message": _agent_message,
    "agent_reasoning": _agent_reasoning,
    "agent_reasoning_raw_content": _agent_reasoning,
    "task_complete": _task_complete,
    "turn_complete": _task_complete,
    "context_compacted": _context_compacted,
    "exec_command_end": _command,
    "mcp_tool_call_end": _mcp_call,
    "patch_apply_end": _patch,
    "web_search_end": _web_search,
    "dynamic_tool_call_request": _dynamic_call,
    "dynamic_tool_call_response": _dynamic_call,
    "image_generation_end": _generated_image,
    "view_image_tool_call": _viewed_image,
    "item_completed": _item_completed,
}
_ITEMS: dict[str, Callable[[Payload], Drafts]] = {
    "usermessage": _user_item,
    "agentmessage": _agent_message,
    "hookprompt": _hook_prompt,
    "plan": _plan,
    "reasoning": _agent_reasoning,
    "commandexecution": _command,
    "filechange": _patch,
    "mcptoolcall": _mcp_call,
    "dynamictoolcall": _dynamic_call,
    "websearch": _web_search,
    "extension": _web_search,
    "imageview": _viewed_image,
    "imagegeneration": _generated_image,
    "contextcompaction": _compaction_item,
}
