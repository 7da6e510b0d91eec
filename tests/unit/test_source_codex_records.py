"""Codex rollouts: tool calls, results, images, events, compactions and unknown records."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from typing import Any

import pytest

from recall.records import Message, Parsed
from recall_ingester.sources.codex_parser import RolloutParser
from recall_ingester.sources.toolinput import image_stub, render_input

Record = dict[str, Any]

PIXELS = b"\x89PNG" + bytes(range(256)) * 2
ENCODED = base64.b64encode(PIXELS).decode()
STUB = f"[image image/png, 516 bytes, sha256 {hashlib.sha256(PIXELS).hexdigest()[:12]}]"


def read(records: Iterable[Record], using: RolloutParser | None = None) -> list[Parsed]:
    using = using or RolloutParser("own")
    return [using.record(record, ordinal) for ordinal, record in enumerate(records)]


def said(outcomes: Iterable[Parsed]) -> list[tuple[str, str, str]]:
    return [(m.role, m.kind, m.text) for outcome in outcomes for m in outcome.messages]


def only(record: Record) -> Message:
    (outcome,) = read([record])
    (message,) = outcome.messages
    return message


def item(payload: Record) -> Record:
    return {"timestamp": "2026-03-02T10:00:00Z", "type": "response_item", "payload": payload}


def event(kind: str, **fields: Any) -> Record:
    return {"type": "event_msg", "payload": {"type": kind, **fields}}


def spoken(role: str, text: str) -> Record:
    return item({"type": "message", "role": role, "content": [{"text": text}]})


def meta(**fields: Any) -> Record:
    return {"type": "session_meta", "payload": {"id": "own", **fields}}


def call(arguments: object, name: str = "shell", **fields: Any) -> Message:
    payload = {"type": "function_call", "name": name, "call_id": "c", "arguments": arguments}
    return only(item({**payload, **fields}))


def output(value: object) -> Message:
    return only(item({"type": "function_call_output", "call_id": "c", "output": value}))


def test_escaped_arguments_become_searchable_text() -> None:
    arguments = json.dumps({"cmd": 'echo "a b"\nls', "plan": [{"step": "x\ty"}], "timeout": 5})
    assert call(arguments).text == 'cmd: echo "a b"\nls\nplan:\nstep: x\ty\ntimeout: 5'


def test_arguments_that_are_not_json_stay_as_they_are() -> None:
    assert call('{"cmd": "ls').text == '{"cmd": "ls'
    assert call({"cmd": "ls"}).text == "cmd: ls"


def test_call_without_arguments_has_its_name_as_text() -> None:
    assert call("{}", name="list_agents").text == "list_agents"
    assert call(None, name="list_agents").text == "list_agents"
    assert call(None, summary="Running tests").text == "summary: Running tests"


@pytest.mark.parametrize(
    ("namespace", "name", "tool"),
    [
        (None, "shell", "shell"),
        ("mcp__mail", "send", "mcp__mail.send"),
        ("mcp__mail__", "send", "mcp__mail__send"),
        ("mcp__mail", "mcp__mail__send", "mcp__mail__send"),
    ],
)
def test_namespace_is_part_of_the_tool(namespace: str | None, name: str, tool: str) -> None:
    assert call("{}", name=name, namespace=namespace).tool == tool


def test_patch_is_stored_as_written() -> None:
    patch = "*** Begin Patch\n+\tprint('x')\n*** End Patch\n"
    payload = {"type": "custom_tool_call", "name": "apply_patch", "input": patch, "call_id": "c"}
    message = only(item(payload))
    assert (message.tool, message.text, message.call_id) == ("apply_patch", patch, "c")


def test_search_call_is_named_after_its_type() -> None:
    action = {"type": "search", "query": "halfvec", "queries": ["halfvec"]}
    response = item(
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": action}
    )
    told = event("web_search_end", call_id="ws", query="halfvec", action=action)
    ((_, kind, text),) = said(read([told, response]))
    assert (kind, text) == ("tool_call", "type: search\nquery: halfvec\nqueries: halfvec")


@pytest.mark.parametrize(
    ("value", "text", "is_error"),
    [
        ("plain", "plain", False),
        ('{"output": "a\\nb", "metadata": {"exit_code": 0}}', "a\nb", False),
        ('{"output": "a", "metadata": {"exit_code": 127}}', "a", True),
        ('{"output": "a", "more": "b"}', '{"output": "a", "more": "b"}', False),
        ([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}], "a\nb", False),
        ({"content": "a", "success": False}, "a", True),
        ({"type": "input_text", "text": "a"}, "a", False),
        ({"stdout": "a", "exitCode": 1}, "stdout: a\nexitCode: 1", True),
        ("Wall time: 1 s\nProcess exited with code 2\nOutput:\na", None, True),
        ("Exit code: 0\nOutput:\nProcess exited with code 2", None, False),
    ],
)
def test_output_in_every_shape(value: object, text: str | None, is_error: bool) -> None:
    message = output(value)
    assert message.text == (value if text is None else text)
    assert message.is_error is is_error


def test_empty_output_is_skipped() -> None:
    payload = {"type": "function_call_output", "call_id": "c", "output": ""}
    (outcome,) = read([item(payload)])
    assert outcome.skipped == "empty"


def test_image_is_a_stub_and_the_same_image_in_an_event_is_its_twin() -> None:
    uri = f"data:image/png;base64,{ENCODED}"
    content = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": uri}]
    response = item({"type": "message", "role": "user", "content": content})
    told = event("user_message", message="see", images=[uri], local_images=["/tmp/a.png"])
    assert [text for *_, text in said(read([response, told]))] == [
        "see",
        STUB,
        "[image /tmp/a.png]",
    ]
    assert STUB in output(f'[{{"image_url": "{uri}"}}]').text
    assert ENCODED not in output({"a": [uri]}).text
    generated = event("image_generation_end", call_id="c", revised_prompt="cat", result=ENCODED)
    assert [text for *_, text in said(read([generated]))] == ["cat", STUB]


def test_image_stub_takes_data_that_is_no_base64() -> None:
    assert image_stub(None, "x").startswith("[image of unknown type, 1 bytes")


def test_command_event_is_a_twin_of_call_and_output() -> None:
    asked = item({"type": "function_call", "name": "exec", "call_id": "c", "arguments": "ls"})
    shown = "Chunk ID: a\nProcess exited with code 0\nOutput:\na.txt\n"
    answered = item({"type": "function_call_output", "call_id": "c", "output": shown})
    ended = event("exec_command_end", call_id="c", command=["ls"], aggregated_output="a.txt")
    outcomes = read([asked, answered, ended])
    assert [kind for _, kind, _ in said(outcomes)] == ["tool_call", "tool_result"]
    assert outcomes[2].skipped == "duplicate family"


def test_command_output_that_differs_is_kept() -> None:
    cut = item({"type": "function_call_output", "call_id": "c", "output": "a … b"})
    ended = event("exec_command_end", call_id="c", command=["ls"], aggregated_output="a long b")
    results = [text for _, kind, text in said(read([cut, ended])) if kind == "tool_result"]
    assert results == ["a … b", "a long b"]


def test_command_typed_by_the_user_is_the_users() -> None:
    ended = event("exec_command_end", source="user_shell", command=["make"], stdout="done")
    assert said(read([ended])) == [("user", "tool_call", "make"), ("tool", "tool_result", "done")]


def test_mcp_call_is_matched_by_id_and_its_result_by_text() -> None:
    asked = item(
        {"type": "function_call", "name": "mcp__s__t", "call_id": "c", "arguments": '{"q":"x y"}'}
    )
    answered = item({"type": "function_call_output", "call_id": "c", "output": "found"})
    result = {"Ok": {"content": [{"type": "text", "text": "found"}], "structuredContent": {"n": 1}}}
    ended = event(
        "mcp_tool_call_end",
        call_id="c",
        invocation={"server": "s", "tool": "t", "arguments": {"q": "x y"}},
        result=result,
    )
    assert [text for *_, text in said(read([asked, answered, ended]))] == ["q: x y", "found"]
    assert [text for *_, text in said(read([ended, answered, asked]))] == ["q: x y", "found"]


def test_mcp_calls_that_reuse_an_id_are_all_kept() -> None:
    ended = [
        event(
            "mcp_tool_call_end",
            call_id="c",
            invocation={"server": "s", "tool": "t", "arguments": {"q": text}},
            result={"Err": text},
        )
        for text in ("first", "second")
    ]
    outcomes = read(ended)
    assert [m.text for o in outcomes for m in o.messages] == [
        "q: first",
        "first",
        "q: second",
        "second",
    ]
    assert all(m.is_error for o in outcomes for m in o.messages if m.kind == "tool_result")


def test_different_tools_with_equal_arguments_are_no_twins() -> None:
    asked = item({"type": "function_call", "name": "a", "call_id": "1", "arguments": '{"q":"x"}'})
    ended = event(
        "mcp_tool_call_end",
        call_id="2",
        invocation={"server": "s", "tool": "b", "arguments": {"q": "x"}},
    )
    assert len(said(read([asked, ended]))) == 2


def test_twins_are_not_looked_for_in_another_turn() -> None:
    records = [
        event("task_started", turn_id="t1"),
        spoken("user", "go on"),
        event("task_started", turn_id="t2"),
        event("user_message", message="go on"),
    ]
    assert len(said(read(records))) == 2
    records[2] = event("task_started", turn_id="t1")
    assert len(said(read(records))) == 1


def test_compaction_keeps_the_summary_and_only_what_is_not_stored() -> None:
    history = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix it"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "lost"}]},
        {"type": "compaction", "encrypted_content": "gAAAAA"},
    ]
    compacted = {
        "timestamp": "2026-03-02T10:00:00Z",
        "type": "compacted",
        "payload": {"message": "so far: fixed", "replacement_history": history},
    }
    outcomes = read([spoken("user", "fix it"), compacted, compacted])
    assert [(m.part, m.kind, m.text) for m in outcomes[1].messages] == [
        (0, "summary", "so far: fixed"),
        (2, "summary", "lost"),
    ]
    assert outcomes[2].skipped == "already stored"


def test_summary_that_the_new_history_contains_is_stored_once() -> None:
    handed = {"type": "message", "role": "user", "content": "Another model wrote: so far: fixed"}
    payload = {"message": "so far: fixed", "replacement_history": [handed]}
    message = only({"type": "compacted", "payload": payload})
    assert (message.role, message.text) == ("user", "Another model wrote: so far: fixed")


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (event("error", message="stream closed"), "error\nmessage: stream closed"),
        (
            event("turn_aborted", turn_id="t", reason="interrupted"),
            "turn_aborted\nreason: interrupted",
        ),
        (event("thread_rolled_back", num_turns=2), "thread_rolled_back\nnum_turns: 2"),
        (
            event("exited_review_mode", review_output={"findings": [{"title": "Off by one"}]}),
            "exited_review_mode\nreview_output:\nfindings:\ntitle: Off by one",
        ),
        (
            event("task_complete", last_agent_message=None, error={"message": "quota"}),
            "error\nmessage: quota",
        ),
    ],
)
def test_events_worth_finding_are_kept(record: Record, text: str) -> None:
    message = only(record)
    assert (message.role, message.kind, message.text) == ("system", "event", text)


def test_unknown_records_are_kept_whole_in_one_message() -> None:
    for record in (
        {"timestamp": "2026-08-10T09:04:00Z", "type": "future", "payload": {"x": "two words"}},
        item({"type": "future", "x": {"y": "two words"}}),
        event("future", x=["two words"]),
        {"x": "two words"},
        {"type": "event_msg", "payload": "two words"},
    ):
        message = only(record)
        assert (message.role, message.kind) == ("system", "unknown")
        assert '"two words"' in message.text


def test_unknown_event_without_text_is_skipped() -> None:
    (outcome,) = read([event("rate_limits", used=[1, 2], turn_id="t")])
    assert outcome.skipped == "event without text"


def test_records_of_one_ordinal_are_both_kept() -> None:
    records = [{**spoken("user", text), "ordinal": 11} for text in ("a", "b")]
    assert [text for *_, text in said(read(records))] == ["a", "b"]


def test_messages_between_agents_have_the_role_of_the_reader() -> None:
    def sent(author: str) -> Record:
        return item({"type": "agent_message", "author": author, "content": [{"text": author}]})

    records = [meta(agent_path="/root/ada"), sent("/root"), sent("/root/ada")]
    assert said(read(records)) == [("user", "text", "/root"), ("assistant", "text", "/root/ada")]


def test_damaged_characters_reach_the_pipeline_but_not_the_session() -> None:
    assert output("a\x00b").text == "a\x00b"
    using = RolloutParser("own")
    read([meta(cwd="/srv\x00"), spoken("user", "half \ud83d")], using)
    assert using.session is not None
    assert (using.session.cwd, using.session.title) == ("/srv\ufffd", "half \ufffd")


def test_rendered_input_loses_no_string_however_deep() -> None:
    value: Any = {"leaf": "the deep end"}
    for _ in range(3000):
        value = {"k": [value]}
    assert "leaf: the deep end" in render_input(value)
    assert render_input({"a": None, "b": True, "c": ["x", 1], "d": ["p q", "r\ns"]}) == (
        "b: true\nc:\nx\n1\nd: p q\nr\ns"
    )
