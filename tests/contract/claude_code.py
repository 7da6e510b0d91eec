"""Claude Code: a session with a subagent, spilled output and a prompt history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.contract.script import Case, Words, add, elsewhere, iso, lines, ms, put

_SESSION = "0a0a0a0a-1111-4222-8333-444444444444"
_BEFORE = Path("projects/-home-dev-shop")
_AFTER = Path("projects/-home-dev-shop-two")
_words = Words("claude")
_say, _lose = _words.say, _words.lose


def _record(number: int, minute: int, kind: str, **more: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "uuid": f"00000000-0000-4000-8000-{number:012d}",
        "timestamp": elsewhere(minute) if number % 2 else iso(minute),
        "sessionId": _SESSION,
        "cwd": "/home/dev/shop",
        "gitBranch": "main",
        "version": "2.1.0",
        **more,
    }


def _user(number: int, minute: int, content: object, **more: Any) -> dict[str, Any]:
    return _record(number, minute, "user", message={"role": "user", "content": content}, **more)


def _assistant(number: int, minute: int, *content: object) -> dict[str, Any]:
    message = {"role": "assistant", "model": "model-one", "content": list(content)}
    return _record(number, minute, "assistant", message=message)


_FIRST = [
    {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
    _user(1, 1, f"please look at {_say('ask', 1)}"),
    _assistant(
        2, 2,
        {"type": "thinking", "thinking": _say("thinking", 2), "signature": "s"},
        {"type": "text", "text": _say("answer", 2)},
        {
            "type": "tool_use", "id": "toolu_1", "name": "Bash",
            "input": {"command": f"ls {_say('args', 2)}", "more": [{"deep": _say("deeparg", 2)}]},
        },
    ),
    _user(
        3, 3,
        [{"type": "tool_result", "tool_use_id": "toolu_1", "content": _say("output", 3)}],
        toolUseResult={"stdout": "", "stderr": _say("stderr", 3)},
    ),
    _user(4, 4, _lose("removed", 4)),
    _assistant(5, 5, {"type": "text", "text": _say("second", 5)}),
]  # fmt: skip
_SECOND = [
    _record(6, 6, "system", subtype="api_error", level="error", error={"why": _say("error", 6)}),
    _user(7, 7, _say("compacted", 7), isCompactSummary=True),
    {"type": "custom-title", "customTitle": _say("title"), "sessionId": _SESSION},
    _record(8, 8, "attachment", attachment={"type": "file", "filename": _say("filename", 8)}),
    _record(9, 9, "never-seen", text=_say("unknown", 9)),
    _user(10, 10, [
        {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True,
         "content": [{"type": "text", "text": _say("block", 10)}]},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    ]),
]  # fmt: skip
_THIRD = [_user(11, 11, _say("later", 11))]
_FOURTH = [_assistant(12, 12, {"type": "text", "text": _say("moved", 12)})]
_PASTED = _say("pasted", 1)
_HISTORY = {
    "display": _say("prompt", 1),
    "pastedContents": {"1": {"id": 1, "type": "text", "content": _PASTED}},
    "timestamp": ms(1),
    "project": "/home/dev/shop",
    "sessionId": _SESSION,
}
_HISTORY_LATER = {"display": _say("nextprompt", 7), "timestamp": ms(7), "project": "/home/dev/shop"}
_AGENT = [
    {**_user(21, 6, _say("agentask", 6)), "isSidechain": True, "agentId": "abc"},
    {**_assistant(22, 7, {"type": "text", "text": _say("agentanswer", 7)}), "isSidechain": True},
]
_SIDECAR = {"agentType": "explorer", "description": _say("agenttitle"), "model": "model-two"}
_SPILL = f"a long output\n{_say('spilled')}\n"


def _log(root: Path, folder: Path = _BEFORE) -> Path:
    return root / folder / f"{_SESSION}.jsonl"


def _first(root: Path) -> None:
    add(_log(root), *_FIRST)
    add(root / "history.jsonl", _HISTORY)


def _second(root: Path) -> None:
    add(_log(root), *_SECOND)
    add(root / "history.jsonl", _HISTORY_LATER)
    beside = root / _BEFORE / _SESSION
    add(beside / "subagents/agent-abc.jsonl", *_AGENT)
    put(beside / "subagents/agent-abc.meta.json", json.dumps(_SIDECAR))
    put(beside / "tool-results/toolu_9.txt", _SPILL)


def _removed(root: Path) -> None:
    kept = [record for record in (*_FIRST, *_SECOND) if record is not _FIRST[4]]
    put(_log(root), lines(*kept, *_THIRD))


def _renamed(root: Path) -> None:
    (root / _BEFORE).rename(root / _AFTER)
    add(_log(root, _AFTER), *_FOURTH)


def _neighbour(root: Path, word: str) -> None:
    other = root / _AFTER / "0b0b0b0b-1111-4222-8333-444444444444.jsonl"
    add(other, _user(31, 31, word))


#: Up to version 2.0, subagents lay beside their parents, and only their records name those.
_flat_words = Words("claudeflat")
_FLAT = _BEFORE / "agent-def.jsonl"
_flat_texts = _flat_words.say("ask", 1), _flat_words.say("more", 2)


def _flat(number: int, minute: int, text: str) -> dict[str, Any]:
    return {**_user(number, minute, text), "isSidechain": True, "agentId": "def"}


def _flat_begun(root: Path) -> None:
    add(root / _FLAT, _flat(41, 1, _flat_texts[0]))


def _flat_grown(root: Path) -> None:
    add(root / _FLAT, _flat(42, 2, _flat_texts[1]))


CASES = [
    Case(
        "claude-code-agent",
        "claude-code",
        _flat_words,
        [_flat_begun, _flat_grown],
        main=str(_FLAT),
        folder=".claude",
        neighbour=_neighbour,
    ),
    Case(
        "claude-code",
        "claude-code",
        _words,
        [_first, _second, _removed, _renamed],
        main=f"{_AFTER}/{_SESSION}.jsonl",
        folder=".claude",
        neighbour=_neighbour,
    ),
]
