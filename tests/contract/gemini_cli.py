"""Gemini CLI: a conversation in one file, and the log of changes that took its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.contract.script import Case, Words, add, elsewhere, iso, put, put_new

_SESSION = "0f0f0f0f-1111-4222-8333-444444444444"
_CHATS = Path("tmp/shop/chats")
_LOG = _CHATS / "session-2026-03-04T10-00-0f0f0f0f.jsonl"
_WHOLE = _LOG.with_suffix(".json")


def _entry(number: int, kind: str, minute: int, content: object, **more: Any) -> dict[str, Any]:
    return {
        "id": f"entry-{number}",
        "timestamp": elsewhere(minute) if number % 2 else iso(minute),
        "type": kind,
        "content": content,
        **more,
    }


def _answer(number: int, minute: int, words: Words, result: str) -> dict[str, Any]:
    say = words.say
    call = {
        "id": "call-1", "name": "run_shell_command", "status": "success", "timestamp": iso(minute),
        "args": {"command": say("args", minute), "deep": [{"er": say("deeparg", minute)}]},
        "result": [{"functionResponse": {
            "id": "call-1", "name": "run_shell_command", "response": {"output": result},
        }}],
        "resultDisplay": say("display", minute),
    }  # fmt: skip
    return _entry(
        number, "gemini", minute, say("answer", minute), model="model-one", toolCalls=[call],
        thoughts=[{"subject": say("thinking", minute), "description": say("thoughts", minute),
                   "timestamp": iso(minute)}],
        tokens={"input": 1, "output": 1},
    )  # fmt: skip


def _about(**more: Any) -> dict[str, Any]:
    started = {"startTime": iso(0), "lastUpdated": iso(30), "kind": "main"}
    return {"sessionId": _SESSION, "projectHash": "h", **started, **more}


def _history(words: Words) -> dict[str, Any]:
    say, lose = words.say, words.lose
    growing = _answer(2, 2, words, say("output", 2))
    return {
        "ask": _entry(1, "user", 1, [{"text": say("ask", 1)}]),
        "growing": growing,
        "grown": {**growing, "content": f"{growing['content']} and more {say('streamed', 2)}"},
        "lost": _entry(3, "user", 3, [{"text": lose("rewound", 3)}]),
        "lost_answer": _entry(4, "gemini", 4, lose("lostanswer", 4), model="model-one"),
        "error": _entry(5, "error", 5, say("error", 5)),
        "ask_again": _entry(6, "user", 6, [
            {"text": say("again", 6)}, {"fileData": {"fileUri": say("filename", 6)}},
        ]),
        "last": _entry(7, "gemini", 7, say("last", 7), model="model-one"),
        "odd": _entry(8, "never_seen", 8, say("unknown", 8)),
        "summary": say("title"),
    }  # fmt: skip


_words = Words("geminilog")
_log = _history(_words)
_agent = _entry(1, "user", 6, _words.say("agentask", 6))
_prompts = [
    {"sessionId": _SESSION, "messageId": 0, "type": "user", "timestamp": iso(1),
     "message": _words.say("prompt", 1)}
]  # fmt: skip


def _older(root: Path) -> None:
    put(root / "tmp/shop/.project_root", "/home/dev/shop")
    put(root / "tmp/shop/logs.json", json.dumps(_prompts))
    put(root / _WHOLE, json.dumps(_about(messages=[_log["ask"]]), indent=2))


def _taken_over(root: Path) -> None:
    add(root / _LOG, _about(), _log["ask"], _log["growing"], _log["lost"])


def _updated(root: Path) -> None:
    add(root / _LOG, _log["grown"], _log["lost_answer"], {"$set": {"summary": _log["summary"]}})
    about = _about(sessionId="agent-session", kind="subagent")
    add(root / _CHATS / _SESSION / "agent.jsonl", about, _agent)


def _rewound(root: Path) -> None:
    new = [_log[name] for name in ("error", "ask_again", "last", "odd")]
    add(root / _LOG, {"$rewindTo": _log["lost"]["id"]}, *new)


_whole_words = Words("geminijson")
_whole = _history(_whole_words)


def _states_of_json() -> list[Any]:
    names = [
        ("ask", "growing"),
        ("ask", "grown", "lost", "lost_answer"),
        ("ask", "grown", "error", "ask_again", "last", "odd"),
    ]

    def write(kept: tuple[str, ...]) -> Any:
        summary = {"summary": _whole["summary"]} if "odd" in kept else {}
        about = _about(messages=[_whole[name] for name in kept], **summary)
        return lambda root: put_new(root / _WHOLE, json.dumps(about, indent=2))

    return [write(kept) for kept in names]


def _neighbour(root: Path, word: str) -> None:
    about = _about(sessionId="0f0f0f0f-2222-4222-8333-444444444444")
    entry = _entry(1, "user", 31, word)
    add(root / _CHATS / "session-2026-03-04T11-00-22222222.jsonl", about, entry)


CASES = [
    Case(
        "gemini-cli-log",
        "gemini-cli",
        _words,
        [_older, _taken_over, _updated, _rewound],
        main=str(_LOG),
        folder=".gemini",
        neighbour=_neighbour,
    ),
    Case(
        "gemini-cli-json",
        "gemini-cli",
        _whole_words,
        _states_of_json(),
        main=str(_WHOLE),
        folder=".gemini",
        neighbour=_neighbour,
    ),
]
