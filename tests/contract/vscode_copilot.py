"""VS Code chats: the document of before, and the log of changes to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.contract.script import Case, State, Words, add, ms, put, put_new

_SESSION = "0abcabca-1111-4222-8333-444444444444"
_CHATS = Path("workspaceStorage/0123abcd/chatSessions")
_LOG = _CHATS / f"{_SESSION}.jsonl"
_WHOLE = _LOG.with_suffix(".json")


def _request(number: int, minute: int, text: str, *response: object, **more: Any) -> Any:
    return {
        "requestId": f"request-{number}",
        "responseId": f"response-{number}",
        "timestamp": ms(minute),
        "message": {"text": text, "parts": [{"kind": "text", "text": text, "range": {}}]},
        "variableData": {"variables": []},
        "modelId": "model-one",
        "response": list(response),
        **more,
    }


def _text(text: str) -> dict[str, Any]:
    return {"value": text, "supportThemeIcons": False}


def _history(words: Words) -> dict[str, Any]:
    say, lose = words.say, words.lose
    calls = [{
        "response": "", "id": "round-1", "thinking": {"id": "t", "text": say("thinking", 2)},
        "toolCalls": [{"id": "call-1", "name": "read_file",
                       "arguments": json.dumps({"path": say("args", 2)})}],
    }]  # fmt: skip
    result = {"$mid": 20, "content": [{"$mid": 21, "value": say("output", 2)}]}
    invocation = {
        "kind": "toolInvocationSerialized", "toolCallId": "call-1", "toolId": "copilot_readFile",
        "invocationMessage": {"value": say("invoking", 2)}, "isComplete": True,
        "isConfirmed": {"type": 1},
    }  # fmt: skip
    return {
        "first": _request(1, 1, say("ask", 1)),
        "first_response": [_text(say("answer", 2)), invocation],
        "first_done": {
            "timings": {"totalElapsed": 60_000},
            "metadata": {"toolCallRounds": calls, "toolCallResults": {"call-1": result}},
        },
        "lost": _request(2, 3, lose("rewound", 3), _text(lose("lostanswer", 3))),
        "next": _request(
            3, 5, say("again", 5), _text(say("last", 6)),
            {"kind": "never_seen", "content": say("unknown", 6)},
            result={"errorDetails": {"message": say("error", 6)},
                    "timings": {"totalElapsed": 60_000}},
            variableData={"variables": [
                {"kind": "file", "name": say("filename", 5), "value": say("attached", 5)}
            ]},
        ),
        "title": say("title"),
    }  # fmt: skip


def _document(requests: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "version": 3,
        "sessionId": _SESSION,
        "creationDate": ms(0),
        "requests": requests,
        "responderUsername": "GitHub Copilot",
        **more,
    }


_words = Words("vscodelog")
_log = _history(_words)


def _begun(root: Path) -> None:
    put(root / "workspaceStorage/0123abcd/workspace.json", '{"folder":"file:///home/dev/shop"}')
    add(root / _LOG, {"kind": 0, "v": _document([])})
    add(root / _LOG, {"kind": 2, "k": ["requests"], "v": [_log["first"]]})


def _answered(root: Path) -> None:
    add(
        root / _LOG,
        {"kind": 2, "k": ["requests", 0, "response"], "v": _log["first_response"][:1]},
        {"kind": 2, "k": ["requests", 0, "response"], "v": _log["first_response"][1:]},
        {"kind": 1, "k": ["requests", 0, "result"], "v": _log["first_done"]},
        {"kind": 2, "k": ["requests"], "v": [_log["lost"]]},
    )


def _rewound(root: Path) -> None:
    add(
        root / _LOG,
        {"kind": 2, "k": ["requests"], "i": 1, "v": [_log["next"]]},
        {"kind": 1, "k": ["customTitle"], "v": _log["title"]},
    )


def _compacted(root: Path) -> None:
    """The client writes the log anew, as one document, after a number of changes."""
    first = {**_log["first"], "response": _log["first_response"], "result": _log["first_done"]}
    document = _document([first, _log["next"]], customTitle=_log["title"])
    put_new(root / _LOG, json.dumps({"kind": 0, "v": document}).encode() + b"\n")


_whole_words = Words("vscodejson")
_whole = _history(_whole_words)


def _states_of_json() -> list[State]:
    first = {
        **_whole["first"], "response": _whole["first_response"], "result": _whole["first_done"]
    }  # fmt: skip
    documents = [
        _document([_whole["first"]]),
        _document([first, _whole["lost"]]),
        _document([first, _whole["next"]], customTitle=_whole["title"]),
    ]

    def write(document: object) -> State:
        return lambda root: put(root / _WHOLE, json.dumps(document, indent=2))

    return [write(document) for document in documents]


def _neighbour(root: Path, word: str) -> None:
    other = _document([_request(9, 31, word)], sessionId="other")
    name = "0abcabca-2222-4222-8333-444444444444.jsonl"
    add(root / _CHATS / name, {"kind": 0, "v": other})


CASES = [
    Case(
        "vscode-copilot-log",
        "vscode-copilot",
        _words,
        [_begun, _answered, _rewound, _compacted],
        main=str(_LOG),
        folder="User",
        neighbour=_neighbour,
    ),
    Case(
        "vscode-copilot-json",
        "vscode-copilot",
        _whole_words,
        _states_of_json(),
        main=str(_WHOLE),
        folder="User",
        neighbour=_neighbour,
    ),
]
