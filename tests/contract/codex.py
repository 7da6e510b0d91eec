"""Codex: a rollout that is rolled back, archived, and one that is compressed in the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import zstandard

from tests.contract.script import Case, Words, add, elsewhere, iso, ms, put

_THREAD = "0c0c0c0c-1111-4222-8333-444444444444"
_NAME = f"rollout-2026-03-04T10-00-00-{_THREAD}.jsonl"
_LIVE = Path("sessions/2026/03/04") / _NAME
_ARCHIVED = Path("archived_sessions") / _NAME


def _record(kind: str, minute: int, **payload: Any) -> dict[str, Any]:
    stamp = elsewhere(minute) if minute % 2 else iso(minute)
    return {"timestamp": stamp, "type": kind, "payload": payload}


def _said(role: str, minute: int, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    return _record("response_item", minute, type="message", role=role, content=content)


def _event(name: str, minute: int, **more: Any) -> dict[str, Any]:
    return _record("event_msg", minute, type=name, **more)


def _history(words: Words) -> tuple[list[Any], list[Any], list[Any]]:
    say = words.say
    ask, answer, thought = say("ask", 2), say("answer", 6), say("thinking", 3)
    first = [
        _record(
            "session_meta", 0, id=_THREAD, timestamp=iso(0), cwd="/home/dev/shop",
            cli_version="0.100.0", git={"branch": "main"}, instructions=say("instructions", 0),
        ),
        _record("turn_context", 1, turn_id="t-1", cwd="/home/dev/shop", model="model-one"),
        _said("user", 2, f"look at {ask}"),
        _event("user_message", 2, message=f"look at {ask}"),
        _record(
            "response_item", 3, type="reasoning",
            summary=[{"type": "summary_text", "text": thought}], encrypted_content="e",
        ),
        _event("agent_reasoning", 3, text=thought),
        _record(
            "response_item", 4, type="function_call", name="shell", call_id="call-1",
            arguments=json.dumps({"command": ["cat", say("args", 4)], "why": say("deeparg", 4)}),
        ),
        _record(
            "response_item", 5, type="function_call_output", call_id="call-1",
            output=json.dumps({"output": say("output", 5), "metadata": {"exit_code": 1}}),
        ),
        _event("exec_command_end", 5, call_id="call-1", command=["cat", "x"],
               stdout="", stderr=say("stderr", 5), exit_code=1),
        _said("assistant", 6, answer),
        _event("agent_message", 6, message=answer),
    ]  # fmt: skip
    second = [
        _record(
            "response_item", 7, type="custom_tool_call", name="apply_patch", call_id="call-2",
            input=f"*** Begin Patch\n*** Update File: {say('filename', 7)}\n",
        ),
        _event("patch_apply_end", 8, call_id="call-2", success=True, stdout="",
               changes={"a.py": {"update": {"unified_diff": say("diff", 8)}}}),
        _event("mcp_tool_call_end", 9, call_id="call-3",
               invocation={"server": "db", "tool": "query", "arguments": {"sql": say("mcp", 9)}},
               result={"Ok": {"content": [{"type": "text", "text": say("mcpout", 9)}]}}),
        _event("error", 10, message=say("error", 10)),
        _record("compacted", 11, message=say("compacted", 11), replacement_history=[]),
        _event("thread_name_updated", 12, thread_id=_THREAD, thread_name=say("title")),
    ]  # fmt: skip
    third = [
        _event("thread_rolled_back", 13, num_turns=1),
        _said("user", 14, say("after", 14)),
        _record("never_seen", 15, text=say("unknown", 15)),
    ]
    return first, second, third


_words = Words("codex")
_first, _second, _third = _history(_words)
_fourth = [_said("assistant", 16, _words.say("archived", 16))]
#: As of early 2025: the whole session is one document, which the client writes over.
_OLD = Path("sessions/rollout-2025-04-20-0a1b0a1b-1111-4222-8333-444444444444.json")
_old_words = [_words.say("oldask"), _words.say("oldanswer")]


def _old(number: int) -> str:
    items = [
        {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
        for role, text in zip(("user", "assistant"), _old_words[:number], strict=False)
    ]
    header = {"id": "0a1b0a1b-1111-4222-8333-444444444444", "timestamp": iso(0)}
    return json.dumps({"session": header, "items": items}, indent=2)


_prompt = {"session_id": _THREAD, "ts": ms(2) // 1000, "text": _words.say("prompt", 2)}
_other_name = {"id": "0d0d0d0d-1111-4222-8333-444444444444", "updated_at": iso(1)}
_indexed = {**_other_name, "thread_name": _words.say("indexed")}


def _begun(root: Path) -> None:
    add(root / _LIVE, *_first)
    add(root / "history.jsonl", _prompt)
    put(root / _OLD, _old(1))
    other = root / _LIVE.with_name(_NAME.replace("0c0c", "0d0d"))
    add(other, _record("session_meta", 1, id=_other_name["id"], timestamp=iso(1)))


def _grown(root: Path) -> None:
    add(root / _LIVE, *_second)
    put(root / _OLD, _old(2))
    add(root / "session_index.jsonl", _indexed)


def _rolled_back(root: Path) -> None:
    add(root / _LIVE, *_third)


def _archived(root: Path) -> None:
    (root / _ARCHIVED).parent.mkdir()
    (root / _LIVE).rename(root / _ARCHIVED)
    add(root / _ARCHIVED, *_fourth)


def _neighbour(root: Path, word: str) -> None:
    other = root / _LIVE.with_name(_NAME.replace("0c0c", "0e0e"))
    add(other, _said("user", 31, word))


_packed_words = Words("codexzst")
_packed = _history(_packed_words)


def _plain(root: Path) -> None:
    add(root / _LIVE, *_packed[0], *_packed[1])


def _compressed(root: Path) -> None:
    log = root / _LIVE
    add(log, *_packed[2])
    frame = zstandard.ZstdCompressor(level=1).compress(log.read_bytes())
    log.with_name(f"{_NAME}.zst").write_bytes(frame)
    log.unlink()


CASES = [
    Case(
        "codex",
        "codex",
        _words,
        [_begun, _grown, _rolled_back, _archived],
        main=str(_ARCHIVED),
        folder=".codex",
        neighbour=_neighbour,
    ),
    Case(
        "codex-zst",
        "codex",
        _packed_words,
        [_plain, _compressed],
        main=f"{_LIVE}.zst",
        folder=".codex",
        neighbour=_neighbour,
    ),
]
