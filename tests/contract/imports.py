"""Files that are given once: the exports of two websites, and Recall's own format."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

from tests.contract.script import Case, State, Words, at, elsewhere, iso, lines, put

_ROOT_OF_ALL = "00000000-0000-4000-8000-000000000000"


def _zip(**members: object) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in members.items():
            archive.writestr(f"{name}.json", json.dumps(value))
    return target.getvalue()


def _give(data: bytes, name: str) -> State:
    return lambda root: put(root / name, data)


_claude_words = Words("claudeai")
_say, _lose = _claude_words.say, _claude_words.lose


def _claude(number: int, parent: int | None, minute: int, sender: str, *content: object) -> Any:
    return {
        "uuid": f"m-{number}",
        "parent_message_uuid": _ROOT_OF_ALL if parent is None else f"m-{parent}",
        "sender": sender,
        "text": "",
        "content": list(content),
        "attachments": [],
        "files": [],
        "created_at": elsewhere(minute) if number % 2 else iso(minute),
        "updated_at": iso(minute),
    }


def _block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": []}


def _claude_conversation(updated: int, *messages: object, **more: Any) -> dict[str, Any]:
    times = {"created_at": iso(0), "updated_at": iso(updated)}
    return {"uuid": "conversation-1", **times, "chat_messages": list(messages), **more}


_claude_first = {
    **_claude(1, None, 1, "human", _block(_say("ask", 1))),
    "attachments": [{"file_name": _say("filename", 1), "extracted_content": _say("attached", 1)}],
}
_claude_answer = _claude(
    2, 1, 2, "assistant",
    {"type": "thinking", "thinking": _say("thinking", 2), "summaries": []},
    {"type": "tool_use", "id": "t", "name": "search", "input": {"query": _say("args", 2)}},
    {"type": "tool_result", "tool_use_id": "t", "name": "search",
     "content": [{"type": "text", "text": _say("output", 2)}]},
    _block(_say("answer", 2)),
)  # fmt: skip
_claude_lost = _claude(3, 2, 3, "human", _block(_lose("removed", 3)))
_claude_other = _claude(4, 1, 4, "assistant", _block(_say("regenerated", 4)))
_claude_odd = _claude(5, 4, 5, "human", {"type": "never_seen", "words": _say("unknown", 5)})
_title = _say("title")


def _claude_note(text: str) -> list[Any]:
    return [{"conversations_memory": text, "account_uuid": "a"}]


_memories = (_lose("memory"), _say("editedmemory"))
_claude_states = [
    _give(_zip(conversations=[_claude_conversation(2, _claude_first, _claude_answer)],
               memories=_claude_note(_memories[0])), "export.zip"),
    _give(_zip(conversations=[
        _claude_conversation(3, _claude_first, _claude_answer, _claude_lost)
    ], memories=_claude_note(_memories[0])), "export.zip"),
    _give(_zip(conversations=[
        _claude_conversation(5, _claude_first, _claude_answer, _claude_other, _claude_odd,
                             name=_title, current_leaf_message_uuid="m-5"),
    ], memories=_claude_note(_memories[1])), "export.zip"),
]  # fmt: skip

_gpt_words = Words("chatgpt")


def _node(number: int, parent: int | None, minute: int, role: str, *parts: object) -> Any:
    message = {
        "id": f"n-{number}", "author": {"role": role}, "create_time": _seconds(minute),
        "content": {"content_type": "text", "parts": list(parts)}, "metadata": {},
        "recipient": "all",
    }  # fmt: skip
    return {"id": f"n-{number}", "message": message, "children": [],
            "parent": None if parent is None else f"n-{parent}"}  # fmt: skip


def _seconds(minute: int) -> float:
    return at(minute).timestamp()


def _gpt(updated: int, leaf: int, *nodes: Any, **more: Any) -> dict[str, Any]:
    mapping = {node["id"]: node for node in nodes}
    for node in nodes:
        node = mapping[node["id"]] = {**node, "children": []}
    for node in mapping.values():
        if node["parent"] in mapping:
            mapping[node["parent"]]["children"].append(node["id"])
    times = {"create_time": _seconds(0), "update_time": _seconds(updated)}
    return {"id": "gpt-1", "conversation_id": "gpt-1", "current_node": f"n-{leaf}",
            "mapping": mapping, **times, **more}  # fmt: skip


_gpt_root: dict[str, Any] = {"id": "n-0", "message": None, "parent": None, "children": []}
_gpt_ask = _node(1, 0, 1, "user", _gpt_words.say("ask", 1))
_gpt_call = _node(2, 1, 2, "assistant")
_gpt_call["message"]["recipient"] = "python"
_gpt_call["message"]["content"] = {
    "content_type": "code", "language": "python", "text": _gpt_words.say("code", 2)
}  # fmt: skip
_gpt_output = _node(3, 2, 3, "tool")
_gpt_output["message"]["content"] = {
    "content_type": "execution_output", "text": _gpt_words.say("output", 3)
}  # fmt: skip
_gpt_answer = _node(4, 3, 4, "assistant", _gpt_words.say("answer", 4), {
    "content_type": "image_asset_pointer", "asset_pointer": _gpt_words.say("picture", 4),
})  # fmt: skip
_gpt_lost = _node(5, 4, 5, "user", _gpt_words.lose("removed", 5))
_gpt_other = _node(6, 4, 6, "user", _gpt_words.say("again", 6))
_gpt_odd = _node(7, 6, 7, "assistant")
_gpt_odd["message"]["content"] = {"content_type": "never_seen", "words": _gpt_words.say("odd", 7)}
_gpt_thought = _node(8, 7, 8, "assistant")
_gpt_thought["message"]["content"] = {
    "content_type": "thoughts",
    "thoughts": [{"summary": _gpt_words.say("thought", 8), "content": _gpt_words.say("more", 8)}],
}
_gpt_begun = (_gpt_root, _gpt_ask, _gpt_call, _gpt_output, _gpt_answer)
_gpt_title = _gpt_words.say("title")
_gpt_states = [
    _give(_zip(conversations=[_gpt(4, 4, *_gpt_begun)], chat=[]), "export.zip"),
    _give(_zip(conversations=[_gpt(5, 5, *_gpt_begun, _gpt_lost)]), "export.zip"),
    _give(
        _zip(
            conversations=[
                _gpt(8, 8, *_gpt_begun, _gpt_other, _gpt_odd, _gpt_thought, title=_gpt_title)
            ]
        ),
        "export.zip",
    ),
]

_own_words = Words("recalljsonl")
_own_header = {"recall": 1, "source": "own-agent"}


def _own(minute: int, role: str, text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "session": "s", "role": role, "text": text, "ts": iso(minute),
            **more}  # fmt: skip


_own_session = {"type": "session", "id": "s", "title": _own_words.say("title"),
                "project": "/home/dev/shop", "started_at": iso(0)}  # fmt: skip
_own_note = {"type": "note", "shelf": "ledger", "key": "1", "ts": iso(4),
             "title": _own_words.say("notetitle", 4)}  # fmt: skip
_own_first = [
    _own_header,
    _own_session,
    _own(1, "user", _own_words.say("ask", 1)),
    _own(2, "assistant", _own_words.say("args", 2), kind="tool_call", tool="shell", call_id="c"),
    _own(3, "tool", _own_words.say("output", 3), call_id="c", x_note=_own_words.say("extra", 3)),
    {"type": "prompt", "text": _own_words.say("prompt", 1), "ts": iso(1)},
]
_own_before = {**_own_note, "text": _own_words.lose("note", 4)}
_own_later = [
    {**_own_note, "text": _own_words.say("editednote", 4),
     "fields": {"outcome": _own_words.say("field", 4)}},
    _own(5, "assistant", _own_words.say("answer", 5)),
]  # fmt: skip
_own_states = [
    _give(lines(*_own_first, _own_before), "sessions.jsonl"),
    _give(lines(*_own_first, *_own_later), "sessions.jsonl"),
]

CASES = [
    Case("claude-ai", "claude-ai", _claude_words, _claude_states, main="export.zip", way="export"),
    Case("chatgpt", "chatgpt", _gpt_words, _gpt_states, main="export.zip", way="export"),
    Case(
        "recall-jsonl",
        "own-agent",
        _own_words,
        _own_states,
        main="sessions.jsonl",
        way="recall-jsonl",
    ),
]
