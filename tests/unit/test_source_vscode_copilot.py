"""VS Code chats: what becomes a message, what was taken back, and what the session is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from recall.jsontext import MalformedLine
from recall.records import Message
from recall_ingester.sources.base import Document, Unit
from recall_ingester.sources.vscode_copilot import ChatParser, project_of
from recall_ingester.sources.vscode_requests import TAIL

ID = "5c5c5c5c-0000-4000-8000-000000000001"
FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "vscode_copilot" / f"{ID}.json"
Json = dict[str, Any]


def chat() -> Json:
    value: Json = json.loads(FIXTURE.read_text())
    return value


def log(*entries: object) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)


def begin(*requests: object, **fields: object) -> Json:
    return {"kind": 0, "v": {"version": 3, "sessionId": ID, "requests": list(requests), **fields}}


def put(*path: str | int, v: object) -> Json:
    return {"kind": 1, "k": list(path), "v": v}


def push(*path: str | int, v: object = None, i: int | None = None) -> Json:
    entry: Json = {"kind": 2, "k": list(path)}
    return entry | ({} if v is None else {"v": v}) | ({} if i is None else {"i": i})


def request(name: str, text: str, *response: object, **fields: object) -> Json:
    said = {"requestId": name, "message": {"text": text}, "response": list(response)}
    return said | {"timestamp": 1772000000000} | fields


def parser(suffix: str = ".jsonl") -> ChatParser:
    return ChatParser(Path(f"/nowhere/{ID}{suffix}"), ID)


def read(*entries: object) -> Document:
    return parser().document(log(*entries))


def whole(document: object, using: ChatParser | None = None) -> Document:
    return (using or parser(".json")).document(json.dumps(document).encode())


def said(units: Iterable[Unit]) -> list[tuple[int, str, str]]:
    return [(u.ordinal, m.kind, m.text) for u in units for m in u.parsed.messages]


def messages(document: Document) -> list[Message]:
    return [message for unit in document.units for message in unit.parsed.messages]


def test_damaged_line_ends_the_replay_until_a_whole_document() -> None:
    first, bad = log(begin(request("a", "one"))), b'{"kind":1,"k":["cust\n'
    tail = log(push("requests", v=[request("b", "two")]), put("customTitle", v="t"))
    document = parser().document(first + bad + tail)
    assert said(document.units) == [(0, "text", "one")]
    assert document.skipped == {"after a damaged line": 2}
    [span] = document.bad
    assert (span.byte_offset, span.data, span.ordinal) == (len(first), bad[:-1], 1)
    again = log(begin(request("a", "one"), request("c", "three")), put("customTitle", v="t"))
    document = parser().document(first + bad + tail + again)
    assert said(document.units) == [(0, "text", "one"), (2, "text", "three")]


def test_torn_last_line_is_left_out_and_a_whole_one_is_not() -> None:
    data = log(begin(request("a", "one")), push("requests", v=[request("b", "two")]))
    assert len(parser().document(data[:-1]).units) == 4
    for cut in range(2, len(data) - data.index(b"\n") - 1):
        document = parser().document(data[:-cut])
        assert (len(document.units), document.bad) == (2, [])


@pytest.mark.parametrize(
    "data", [b"", b"\n\n", b'{"kind":0,"v":{"requ', b"7\n", log({"kind": 0, "v": 3}), b"\x00" * 9]
)
def test_file_without_a_whole_document_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedLine):
        parser().document(data)
    with pytest.raises(MalformedLine):
        parser(".json").document(data)


def test_byte_order_mark_crlf_and_nul_around_lines_do_no_harm() -> None:
    data = b"\xef\xbb\xbf" + log(begin(request("a", "one"))).replace(b"\n", b"\r\n\x00\x00\n")
    assert said(parser().document(data).units) == [(0, "text", "one")]


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_bytes_that_are_no_text_mark_their_message(suffix: str) -> None:
    entry = begin(request("a", "caf#"), request("b", "fine"))
    data = log(entry) if suffix == ".jsonl" else json.dumps(entry["v"]).encode()
    document = parser(suffix).document(data.replace(b"caf#", b"caf\xe9"))
    assert said(document.units) == [(0, "text", "caf\ufffd"), (2, "text", "fine")]
    assert [unit.is_damaged for unit in document.units] == [True, False, False, False]


def test_request_becomes_a_message_and_a_response_in_parts() -> None:
    document = whole(chat())
    user, answer = document.units
    assert [(m.role, m.kind, m.part) for m in user.parsed.messages] == [
        ("user", "text", 0),
        ("user", "meta", 1),
        ("user", "meta", 2),
    ]
    assert [(m.role, m.kind, m.part) for m in answer.parsed.messages] == [
        ("system", "meta", 0),
        ("assistant", "thinking", 4),
        ("assistant", "text", 10),
        ("assistant", "tool_call", 19),
        ("tool", "tool_result", 20),
        ("assistant", "tool_call", 22),
        ("tool", "tool_result", 23),
        ("assistant", "text", 28),
        ("assistant", "tool_call", 37),
        ("system", "event", 40),
        ("system", "meta", 43),
        ("system", "unknown", 46),
        ("system", "meta", TAIL),
        ("system", "event", TAIL + 1),
        ("assistant", "tool_call", TAIL + 2),
        ("tool", "tool_result", TAIL + 3),
        ("assistant", "meta", TAIL + 4),
        ("system", "summary", TAIL + 5),
    ]
    texts = {message.part: message.text for message in answer.parsed.messages}
    assert texts[4] == "Look at the orders.\ngeneratedTitle: Reading orders"
    assert texts[10] == "I will search [orders.py](/srv/shop/orders.py:41) first."
    assert texts[28] == "Nothing checks it.\n```python\n/srv/shop/orders.py\n\n```\n"
    assert texts[37] == "/srv/shop/orders.py\nassert quantity >= 0"
    assert texts[40] == "warning\nClose to the limit"
    assert texts[46] == '{"kind":"brandNew","note":"a kind of tomorrow"}'
    assert texts[TAIL + 1] == "The network failed\ncode: ETIMEDOUT"
    assert texts[TAIL + 5] == "They looked for a check."


def test_attachments_and_the_rendered_prompt_stand_beside_the_message() -> None:
    user = whole(chat()).units[0].parsed.messages
    assert user[0].text == "why is the stock negative? #file:orders.py"
    assert "/srv/shop/orders.py" in user[1].text and "the open editor" in user[1].text
    assert "value: [image image/png, 8 bytes, sha256 " in user[1].text
    assert user[2].text == "<attachment>\nclass Order\n</attachment>"


def test_calls_are_joined_with_arguments_and_results() -> None:
    found = {(m.kind, m.call_id): m for m in messages(whole(chat())) if m.call_id}
    search = found["tool_call", "call_1"]
    assert search.tool == "grep_search"
    assert search.text.startswith("Searching for stock\nquery: stock -=\nisRegexp: false\n")
    assert "Searched, 1 result" in search.text and "allowed by the workspace" in search.text
    result = found["tool_result", "call_1"]
    assert result.text.startswith("1 match: \norders.py:41 stock -= 1\n/srv/shop/orders.py")
    assert "/srv/shop/stock.py" in result.text
    terminal = found["tool_result", "call_2"]
    assert (terminal.text, terminal.is_error, result.is_error) == ("1 failed", True, False)
    assert found["tool_result", "call_3"].text == "the read me"


def test_reused_call_id_goes_to_the_calls_in_order() -> None:
    calls = [
        {"id": f"c__vscode-{n}", "name": "t", "arguments": json.dumps({"n": f"no {n}"})}
        for n in (1, 2)
    ]
    results = {f"c__vscode-{n}": {"content": [{"value": f"result {n}"}]} for n in (1, 2)}
    entries = [{"kind": "toolInvocationSerialized", "toolCallId": "c"} for _ in calls]
    metadata = {"toolCallRounds": [{"toolCalls": calls}], "toolCallResults": results}
    document = read(begin(request("a", "go", *entries, result={"metadata": metadata})))
    assert [(m.part, m.text) for m in document.units[1].parsed.messages] == [
        (1, "n: no 1"),
        (2, "result 1"),
        (4, "n: no 2"),
        (5, "result 2"),
    ]


def test_model_times_and_identity_of_both_sides() -> None:
    user, answer = whole(chat()).units
    assert user.parsed.ts == datetime.fromtimestamp(1772000000, UTC)
    assert answer.parsed.ts == datetime.fromtimestamp(1772000007, UTC)
    assert {m.model for m in answer.parsed.messages if m.role == "assistant"} == {"model-x"}
    assert {m.copy_scope for m in user.parsed.messages} == {"request_a:user"}
    assert {m.copy_scope for m in answer.parsed.messages} == {"request_a:response"}
    assert {m.native_id for m in answer.parsed.messages} == {"response_a"}
    plain = request("a", "x", {"value": "y"}, modelId="m", result={"timings": {"totalElapsed": 5}})
    answer = read(begin(plain)).units[1]
    assert answer.parsed.ts == datetime.fromtimestamp(1772000000.005, UTC)
    assert answer.parsed.messages[0].model == "m"


def test_request_without_response_keeps_both_places() -> None:
    document = read(begin(request("a", "one"), request("b", "two", {"value": "yes"}), None))
    assert [unit.ordinal for unit in document.units] == [0, 1, 2, 3, 4, 5]
    assert [unit.parsed.skipped for unit in document.units] == [
        None, "empty response side", None, None, "empty user side", "empty response side",
    ]  # fmt: skip


def test_request_that_the_user_went_back_from_is_off_the_branch() -> None:
    undone = request("b", "two", shouldBeRemovedOnSend={"requestId": "b"})
    document = read(begin(request("a", "one"), undone))
    assert [m.on_active_branch for m in messages(document)] == [True, False]


def test_queued_message_stands_where_it_will_be_sent() -> None:
    document = read(begin(request("a", "one"), pendingRequests=[{"request": request("p", "next")}]))
    assert said(document.units) == [(0, "text", "one"), (2, "text", "next")]


@pytest.mark.parametrize(
    ("message", "text"),
    [("bare", "bare"), ({"parts": [{"text": "in "}, {"text": "parts"}]}, "in parts"), (7, "7")],
)
def test_message_in_an_older_shape_is_read(message: object, text: str) -> None:
    document = read(begin({"requestId": "a", "message": message, "response": "old answer"}))
    assert said(document.units) == [(0, "text", text), (1, "text", "old answer")]


def test_parts_do_not_move_while_a_response_grows() -> None:
    entries = chat()["requests"][0]["response"]
    grown: dict[int, str] = {}
    for length in range(len(entries) + 1):
        document = read(begin(request("a", "go", *entries[:length])))
        now = {m.part: m.text for m in document.units[1].parsed.messages}
        assert all(now[part].startswith(text) for part, text in grown.items())
        grown = now


def test_removed_request_is_taken_back_under_its_place() -> None:
    old = request("b", "second question", {"value": "second answer"})
    document = read(
        begin(request("a", "one"), old),
        push("requests", i=1, v=[request("c", "other question", {"value": "other answer"})]),
    )
    assert said(document.units) == [
        (0, "text", "one"),
        (2, "text", "other question"),
        (3, "text", "other answer"),
    ]
    assert said(document.taken_back) == [
        (2, "text", "second question"),
        (3, "text", "second answer"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        push("requests", i=0),
        put("requests", v=[]),
        {"kind": 3, "k": ["requests"]},
        {"kind": 3, "k": ["requests", 0]},
        begin(),
    ],
)
def test_emptied_chat_takes_its_requests_back(change: object) -> None:
    document = read(begin(request("a", "one", {"value": "yes"})), change)
    assert said(document.units) == []
    assert said(document.taken_back) == [(0, "text", "one"), (1, "text", "yes")]


def test_request_that_lives_on_longer_or_elsewhere_is_not_taken_back() -> None:
    short = request("b", "ques", {"value": "Half"})
    grown = request("b", "question", {"value": "Half of it"})
    document = read(begin(request("a", "one"), short), push("requests", i=0, v=[grown]))
    assert said(document.units) == [(0, "text", "question"), (1, "text", "Half of it")]
    assert said(document.taken_back) == [(0, "text", "one")]


def test_same_text_under_another_id_is_taken_back() -> None:
    document = read(begin(request("a", "try")), push("requests", i=0, v=[request("b", "try")]))
    assert said(document.taken_back) == [(0, "text", "try")]


def test_rewritten_part_of_a_live_response_is_taken_back_at_its_part() -> None:
    document = read(
        begin(request("a", "go", {"value": "first"}, {"kind": "thinking", "value": "dropped"})),
        push("requests", 0, "response", i=1, v=[{"value": " and more"}]),
        put("requests", 0, "message", "text", v="gone"),
        put("requests", 0, "message", "text", v="go on"),
        put("requests", 0, "result", v={"errorDetails": {"message": "failed"}}),
        put("requests", 0, "result", v={}),
    )
    assert said(document.units) == [(0, "text", "go on"), (1, "text", "first and more")]
    assert [
        (unit.ordinal, m.part, m.kind, m.text)
        for unit in document.taken_back
        for m in unit.parsed.messages
    ] == [
        (0, 0, "text", "gone"),
        (1, 4, "thinking", "dropped"),
        (1, TAIL + 1, "event", "failed"),
    ]
    assert document.taken_back[0].parsed.messages[0].copy_scope == "a:user"


def test_queued_message_is_taken_back_only_if_it_was_not_sent() -> None:
    queue = [{"request": request("p", "sent")}, {"request": request("q", "never sent")}]
    document = read(
        begin(pendingRequests=queue),
        push("requests", v=[request("r", "sent")]),
        push("pendingRequests", i=0),
    )
    assert said(document.taken_back) == [(4, "text", "never sent")]


def test_session_has_title_branch_model_version_and_times() -> None:
    using = parser(".json")
    whole(chat(), using)
    session = using.session
    assert session is not None
    assert session.title == "why is the stock negative? #file:orders.py"
    assert (session.title_rank, session.branch) == (10, "topic/stock")
    assert (session.model, session.client_version) == ("model-x", "0.40.1")
    assert session.started_at == datetime.fromtimestamp(1771999999, UTC)
    assert session.ended_at == datetime.fromtimestamp(1772000007, UTC)
    whole(chat() | {"customTitle": "Stock\nbug"}, using)
    assert (using.session.title, using.session.title_rank) == ("Stock bug", 50)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["claude-code:/0b0b", "copilotcli:/sid"])
def test_chat_of_another_store_gives_nothing(name: str) -> None:
    using = parser(".json")
    document = whole(chat() | {"sessionId": name}, using)
    assert (document.units, using.session) == ([], None)
    assert document.skipped == {"stored by another client": 1}
    assert whole(chat() | {"sessionId": "other-store:/x"}).units


@pytest.mark.parametrize(
    ("uri", "project"),
    [
        ("file:///srv/my%20shop", "/srv/my shop"),
        ("file:///c%3A/Users/ann/shop", "c:/Users/ann/shop"),
        ("file://server/share/shop", "//server/share/shop"),
        ("vscode-remote://wsl%2Bubuntu/home/ann", "vscode-remote://wsl%2Bubuntu/home/ann"),
        ("/plain/path", "/plain/path"),
        ("file://[broken", "file://[broken"),
    ],
)
def test_project_is_the_path_of_the_workspace(uri: str, project: str) -> None:
    assert project_of(uri) == project
