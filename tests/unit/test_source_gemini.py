"""Gemini CLI: the replay of its logs, and what becomes of each entry."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from recall.jsontext import MalformedLine
from recall.records import Message, SessionDraft
from recall_ingester.sources.base import Document, Unit
from recall_ingester.sources.gemini_parser import ChatParser

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "gemini"
LOG = FIXTURES / "session-2026-03-02T10-00-5e551011.jsonl"
OLD = FIXTURES / "session-2025-11-02T10-00-01d50000.json"
Record = dict[str, Any]
META: Record = {"sessionId": "own", "projectHash": "shop"}


def parse(data: bytes, *, is_log: bool = True) -> tuple[Document, SessionDraft]:
    parser = ChatParser("own", is_log=is_log, project=None, parent_id=None)
    return parser.document(data), parser.session


def read(path: Path) -> tuple[Document, SessionDraft]:
    return parse(path.read_bytes(), is_log=path.suffix == ".jsonl")


def log(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def said(units: list[Unit]) -> list[tuple[int, str, str, str]]:
    return [(u.ordinal, m.role, m.kind, m.text) for u in units for m in u.parsed.messages]


def texts(units: list[Unit]) -> list[tuple[int, str]]:
    return [(ordinal, text) for ordinal, _, _, text in said(units)]


def user(name: str, text: object) -> Record:
    return {"id": name, "timestamp": "2026-03-02T10:00:00Z", "type": "user", "content": text}


def answer(name: str, text: object, **fields: Any) -> Record:
    return {**user(name, text), "type": "gemini", **fields}


def blocks(entry: object) -> list[Message]:
    document, _ = parse(log(META, entry))
    return [message for unit in document.units for message in unit.parsed.messages]


def test_log_gives_the_conversation_as_the_client_shows_it() -> None:
    document, _ = read(LOG)
    assert said(document.units) == [
        (0, "user", "text", "why is @stock.py negative?"),
        (0, "user", "text", "--- stock.py ---\nstock -= 1"),
        (0, "system", "unknown", '{"directories":["/srv/shop","/srv/lib"]}'),
        (1, "assistant", "thinking", "Orders\nSomebody subtracts."),
        (1, "assistant", "text", "Let me look."),
        (1, "assistant", "tool_call", "pattern: stock -="),
        (1, "tool", "tool_result", "orders.py:41"),
        (1, "tool", "tool_result", "Found 1 match"),
        (2, "system", "event", "quota exceeded"),
        (3, "assistant", "text", "Nothing checks it."),
    ]
    assert said(document.taken_back) == [
        (0, "system", "summary", "Stock"),
        (3, "assistant", "text", "It is the weather."),
    ]


def test_log_counts_each_record_once_and_keeps_what_it_cannot_read() -> None:
    document, _ = read(LOG)
    # 2 x metadata, 3 x $set, $rewindTo, the rewound answer, the first form of g-1
    assert (document.merged, document.skipped) == (8, {"blank line": 1})
    (bad,) = document.bad
    data = LOG.read_bytes()
    assert data[bad.byte_offset :].startswith(bad.data + b"\n")
    assert (bad.data[:12], bad.ordinal, bad.reason) == (b'{"id":"g-3",', 10, "not JSON")
    ordinals = {unit.ordinal for unit in document.units}
    assert len(ordinals) + document.merged + 1 + 1 == data.count(b"\n")


def test_session_is_told_by_metadata_wherever_it_stands() -> None:
    _, session = read(LOG)
    assert (session.title, session.title_rank) == ("Negative stock", 30)
    assert (session.cwd, session.model) == ("/srv/shop", "gemini-a")
    assert session.started_at == datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
    assert session.ended_at == datetime(2026, 3, 2, 10, 0, 9, tzinfo=UTC)


def test_title_is_what_the_person_typed_first() -> None:
    context = user("c", "<session_context>\nThis is the Gemini CLI.")
    typed = {**user("u", "--- a.py ---\nexpanded"), "displayContent": "fix @a.py"}
    document, session = parse(log(META, context, typed))
    assert (session.title, session.title_rank) == ("fix @a.py", 10)
    assert said(document.units)[0][2] == "meta"
    assert texts(document.units)[1:] == [(1, "--- a.py ---\nexpanded"), (1, "fix @a.py")]


def test_model_and_copy_scope_are_the_messages_own() -> None:
    document, _ = read(LOG)
    messages = [message for unit in document.units for message in unit.parsed.messages]
    models = [message.model for message in messages if message.role == "assistant"]
    assert models == ["gemini-a", "gemini-a", "gemini-a", "gemini-b"]
    assert [(m.native_id, m.copy_scope) for m in messages if m.text == "Nothing checks it."] == [
        ("g-4", "g-4/0")
    ]


def test_unknown_rewind_clears_everything() -> None:
    document, _ = parse(log(META, user("a", "one"), {"$rewindTo": "x"}, user("b", "two")))
    assert texts(document.units) == [(0, "two")]
    assert texts(document.taken_back) == [(0, "one")]
    assert document.merged == 3


def test_rewind_drops_the_message_and_all_behind_it() -> None:
    records = [user("a", "one"), answer("b", "two"), user("c", "three"), {"$rewindTo": "b"}]
    document, _ = parse(log(META, *records, user("d", "four")))
    assert texts(document.units) == [(0, "one"), (1, "four")]
    assert texts(document.taken_back) == [(1, "two"), (2, "three")]


def test_an_id_that_comes_again_after_its_rewind_is_a_new_message() -> None:
    records = [user("a", "one"), answer("b", "two"), {"$rewindTo": "a"}, answer("b", "two")]
    document, _ = parse(log(META, *records))
    assert texts(document.units) == [(0, "two")]
    assert texts(document.taken_back) == [(0, "one")]


def test_set_messages_replaces_the_list_and_numbers_it_anew() -> None:
    new = [user("s", "<state_snapshot>so far</state_snapshot>"), answer("b", "two")]
    records = [user("a", "one"), answer("b", "two"), {"$set": {"messages": new}}]
    document, _ = parse(log(META, *records, user("c", "three")))
    assert said(document.units) == [
        (0, "user", "summary", "<state_snapshot>so far</state_snapshot>"),
        (1, "assistant", "text", "two"),
        (2, "user", "text", "three"),
    ]
    assert texts(document.taken_back) == [(0, "one")]
    assert document.merged == 4  # metadata, $set, both old messages


def test_set_messages_to_nothing_takes_all_back() -> None:
    document, _ = parse(log(META, user("a", "one"), {"$set": {"messages": []}}))
    assert (document.units, texts(document.taken_back)) == ([], [(0, "one")])


def test_empty_list_in_a_metadata_record_changes_nothing() -> None:
    document, _ = parse(log({**META, "messages": []}, user("a", "one"), {**META, "messages": []}))
    assert texts(document.units) == [(0, "one")]


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ("Hel", "Hello", []),
        ("Hello", "Hel", ["Hello"]),
        ("Hello", "Well, Hello", ["Hello"]),
        ("Hello world", [{"text": "Hello"}, {"text": " world"}], []),
        ([{"text": "one"}, {"text": "two"}], [{"text": "one"}], ["two"]),
        ([{"text": "one"}, {"text": "two"}], [{"text": "one"}, {"text": "2"}], ["two"]),
    ],
)
def test_replaced_text_is_taken_back_unless_the_new_one_goes_on(
    before: object, after: object, lost: list[str]
) -> None:
    document, _ = parse(log(META, answer("a", before), answer("a", after)))
    assert texts(document.taken_back) == [(0, text) for text in lost]
    assert document.merged == 2


def test_each_lost_form_of_a_message_is_kept_once() -> None:
    forms = ["draft", "draft two", "final", "draft", "final"]
    document, _ = parse(log(META, *(answer("a", form) for form in forms)))
    assert texts(document.units) == [(0, "final")]
    assert sorted(texts(document.taken_back)) == [(0, "draft"), (0, "draft two")]


def test_lost_forms_of_a_message_stand_in_the_order_of_the_log() -> None:
    document, _ = parse(log(META, *(answer("a", form) for form in ("one", "two", "three"))))
    assert texts(document.taken_back) == [(0, "one"), (0, "two")]


def test_torn_last_line_waits_and_a_whole_one_counts() -> None:
    whole = log(META, user("a", "one"), user("b", "two"))
    assert texts(parse(whole[:-1])[0].units) == [(0, "one"), (1, "two")]
    for end in range(len(whole) - len(log(user("b", "two"))) + 1, len(whole) - 1):
        document, _ = parse(whole[:end])
        assert texts(document.units) == [(0, "one")]
        assert (document.bad, document.skipped, document.merged) == ([], {}, 1)


def test_bom_crlf_nul_runs_and_blank_lines_are_no_part_of_a_record() -> None:
    first, second = log(META)[:-1], log(user("a", "one"))[:-1]
    data = b"\xef\xbb\xbf" + first + b"\r\n\r\n\x00\x00\n\x00\x00" + second + b"\x00\n\x00\x00"
    document, _ = parse(data)
    assert texts(document.units) == [(0, "one")]
    assert (document.skipped, document.bad) == ({"blank line": 2}, [])


def test_bytes_that_are_not_utf8_cost_only_themselves() -> None:
    data = log(META) + b'{"id":"a","type":"user","content":"caf\xe9"}\n'
    assert texts(parse(data)[0].units) == [(0, "caf\ufffd")]


def test_records_of_no_known_form_stay_readable() -> None:
    strange = {"event": "moved", "to": "north"}
    document, _ = parse(log(META, strange, "loose words", 5, None, {}, user("a", "one")))
    assert said(document.units) == [
        (0, "system", "unknown", '{"event":"moved","to":"north"}'),
        (1, "system", "unknown", "loose words"),
        (5, "user", "text", "one"),
    ]
    assert document.skipped == {"not an object": 2, "empty record": 1}


def test_metadata_without_a_field_is_kept_with_the_first_message() -> None:
    note = {"note": {"by": "somebody"}}
    document, _ = parse(log({**META, **note}, user("a", "one")))
    assert texts(document.units) == [(0, "one"), (0, '{"note":{"by":"somebody"}}')]
    assert [message.part for message in document.units[0].parsed.messages] == [0, 1000]
    alone, _ = parse(log({**META, **note}))
    assert texts(alone.units) == [(0, '{"note":{"by":"somebody"}}')]
    assert alone.merged == 0


def test_conversation_is_its_list_of_messages() -> None:
    document, session = read(OLD)
    assert texts(document.units) == [(0, "hello"), (2, "hi")]
    assert document.skipped == {"no text": 1, "not an object": 1}
    assert (session.title, session.model) == ("hello", "gemini-a")
    assert session.ended_at == datetime(2025, 11, 2, 10, 0, 9, tzinfo=UTC)


def test_half_written_conversation_is_malformed() -> None:
    data = OLD.read_bytes()
    for end in (0, 1, 40, len(data) // 2, len(data.rstrip()) - 1):
        with pytest.raises(MalformedLine):
            parse(data[:end], is_log=False)


@pytest.mark.parametrize("data", [b"5", b'"words"', b"null", b'{"name":"a package"}'])
def test_json_that_is_no_conversation_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedLine):
        parse(data, is_log=False)


def test_conversation_under_the_name_of_a_log_is_read_all_the_same() -> None:
    data = OLD.read_bytes()
    assert said(parse(data)[0].units) == said(read(OLD)[0].units)
    with pytest.raises(MalformedLine):
        parse(data[:-20])


def test_older_entries_have_a_role_and_parts() -> None:
    history = [{"role": "user", "parts": [{"text": "q"}]}, {"role": "model", "parts": ["a"]}]
    document, _ = parse(json.dumps({"history": history}).encode(), is_log=False)
    assert said(document.units) == [(0, "user", "text", "q"), (1, "assistant", "text", "a")]


def test_log_and_conversation_say_the_same() -> None:
    messages = json.loads(OLD.read_bytes())["messages"]
    as_log, _ = parse(log(META, *messages))
    assert said(as_log.units) == said(read(OLD)[0].units)


def call(**fields: Any) -> Record:
    return answer("g", "", toolCalls=[{"id": "c", "name": "edit", "args": {"file": "a"}, **fields}])


def response(body: object) -> list[Record]:
    return [{"functionResponse": {"id": "c", "name": "edit", "response": body}}]


@pytest.mark.parametrize(
    ("result", "expected", "failed"),
    [
        (response({"output": "done"}), "done", False),
        (response({"error": "no such file"}), "no such file", True),
        (response({"output": "done", "more": ["x", "y"]}), "done\nmore: x y", False),
        (response("plain"), "plain", False),
        ("only text", "only text", False),
        ([*response({"output": "done"}), {"text": "beside"}], "done\nbeside", False),
    ],
)
def test_result_of_a_call_is_one_part(result: object, expected: str, failed: bool) -> None:
    messages = blocks(call(result=result, status="success"))
    assert [(m.kind, m.text, m.tool, m.call_id, m.is_error) for m in messages] == [
        ("tool_call", "file: a", "edit", "c", False),
        ("tool_result", expected, "edit", "c", failed),
    ]


@pytest.mark.parametrize(
    ("display", "added"),
    [
        ("done", []),
        ("a diff", ["a diff"]),
        ({"fileDiff": "-x +y", "fileName": "a", "newContent": "done"}, ["fileDiff: -x +y"]),
        (
            [[{"text": "red ", "fg": "#f00"}, {"text": "line"}], [{"text": "two"}]],
            ["red line\ntwo"],
        ),
        ([[{"text": "done", "bold": True}]], []),
        ({"todos": [{"description": "buy"}]}, ["todos:\ndescription: buy"]),
        (None, []),
        (5, []),
    ],
)
def test_display_of_a_result_is_kept_where_it_adds_text(display: object, added: list[str]) -> None:
    messages = blocks(call(result=response({"output": "done"}), resultDisplay=display))
    assert [message.text for message in messages[2:]] == added


def test_failed_call_is_an_error() -> None:
    (_, result) = blocks(call(result=response({"output": "stopped"}), status="cancelled"))
    assert result.is_error


def test_fields_that_nobody_knows_yet_stay_readable() -> None:
    messages = blocks({**call(progress="half way"), "citations": ["a book"]})
    assert [(m.kind, m.text) for m in messages] == [
        ("tool_call", "file: a"),
        ("unknown", '{"progress":"half way"}'),
        ("unknown", '{"citations":["a book"]}'),
    ]


def test_parts_of_every_kind() -> None:
    picture = base64.b64encode(b"x" * 300).decode()
    content = [
        "words",
        {"text": "hm", "thought": True, "thoughtSignature": "c2lnbmF0dXJl"},
        {"inlineData": {"mimeType": "image/png", "data": picture}},
        {"fileData": {"fileUri": "gs://a", "mimeType": "text/plain"}},
        {"functionCall": {"id": "c", "name": "ls", "args": {"dir": "src"}}},
        {"executableCode": {"language": "PYTHON", "code": "1+1"}},
        {"codeExecutionResult": {"outcome": "OK", "output": "2"}},
        {"newKind": {"says": "what"}},
        ["nested"],
        7,
    ]
    assert [(m.part, m.kind, m.text) for m in blocks(answer("g", content))] == [
        (0, "text", "words"),
        (1, "thinking", "hm"),
        (2, "text", "[image image/png, 300 bytes, sha256 0d4e2ca9e9cb]"),
        (3, "text", "fileUri: gs://a\nmimeType: text/plain"),
        (4, "tool_call", "dir: src"),
        (5, "tool_call", "language: PYTHON\ncode: 1+1"),
        (6, "tool_result", "outcome: OK\noutput: 2"),
        (7, "unknown", '{"newKind":{"says":"what"}}'),
        (8, "unknown", '["nested"]'),
    ]


def test_checkpoint_that_repeats_calls_and_results_gives_them_once() -> None:
    result = response({"output": "done"})
    spoken = {"functionCall": {"id": "c", "name": "edit", "args": {"file": "a"}}}
    turn = {**call(result=result), "content": [{"text": "ok"}, spoken]}
    document, _ = parse(log(META, {"$set": {"messages": [turn, user("r", result)]}}))
    assert texts(document.units) == [(0, "ok"), (0, "file: a"), (0, "done")]
    assert document.skipped == {"repeats a tool result": 1}


def test_a_call_that_is_told_twice_has_its_result_twice() -> None:
    turn = call(result=response({"output": "done"}))
    document, _ = parse(log(META, turn, {**turn, "id": "h"}))
    assert texts(document.units) == [(n, text) for n in (0, 1) for text in ("file: a", "done")]


def test_levels_are_events_and_unknown_types_are_kept_whole() -> None:
    levels = [{**user(name, name), "type": name} for name in ("info", "warning", "error")]
    messages = [message for level in levels for message in blocks(level)]
    assert [(m.role, m.kind, m.is_error) for m in messages] == [
        ("system", "event", False),
        ("system", "event", False),
        ("system", "event", True),
    ]
    (shell,) = blocks({"id": "s", "type": "shell", "content": "ls"})
    assert (shell.kind, shell.text) == ("unknown", '{"id":"s","type":"shell","content":"ls"}')
