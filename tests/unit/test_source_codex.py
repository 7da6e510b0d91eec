"""Codex rollouts: what becomes a message, what is a twin, and what the session is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from recall.records import Parsed
from recall_ingester.sources.base import Parser, SourceFile
from recall_ingester.sources.codex import Codex

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "codex"
TURN = "019d0000-aaaa-7000-8000-000000000001"
Record = dict[str, Any]


def parser(natural_id: str | None = None, label: str = "rollout") -> Parser:
    file = SourceFile(Path("x.jsonl"), "codex", label, "lines", "x", natural_id)
    return Codex().parser(file, natural_id or "own", None)


def fixture(name: str) -> list[Record]:
    text = (FIXTURES / name).read_text()
    if name.endswith(".json"):
        return [json.loads(text)]
    return [json.loads(line) for line in text.splitlines()]


def read(records: Iterable[Mapping[str, Any]], using: Parser | None = None) -> list[Parsed]:
    using = using or parser()
    return [using.record(record, ordinal) for ordinal, record in enumerate(records)]


def said(outcomes: Iterable[Parsed]) -> list[tuple[str, str, str]]:
    return [(m.role, m.kind, m.text) for outcome in outcomes for m in outcome.messages]


def item(payload: Record) -> Record:
    return {"timestamp": "2026-03-02T10:00:00Z", "type": "response_item", "payload": payload}


def event(kind: str, **fields: Any) -> Record:
    payload = {"type": kind, **fields}
    return {"timestamp": "2026-03-02T10:00:00Z", "type": "event_msg", "payload": payload}


def spoken(role: str, *texts: str) -> Record:
    parts = [{"type": "input_text", "text": text} for text in texts]
    return item({"type": "message", "role": role, "content": parts})


def meta(**fields: Any) -> Record:
    return {"type": "session_meta", "payload": {"id": "own", **fields}}


def test_legacy_rollout_gives_each_text_once_in_file_order() -> None:
    assert said(read(fixture("legacy.jsonl"))) == [
        ("system", "meta", "<permissions instructions>ask first</permissions instructions>"),
        ("user", "meta", "# AGENTS.md instructions for /srv/shop\n\nbe brief"),
        (
            "user",
            "meta",
            "<environment_context>\n  <cwd>/srv/shop</cwd>\n</environment_context>",
        ),
        ("user", "text", "why is the stock negative?"),
        ("assistant", "thinking", "**Looking at orders**"),
        ("assistant", "tool_call", 'command: bash -lc grep "stock -=" src'),
        ("tool", "tool_result", "src/orders.py:41\nstock -= 1"),
        ("assistant", "text", "Nothing checks it."),
        ("user", "text", "continue"),
        ("user", "text", "continue"),
        ("assistant", "text", "Nothing checks it."),
    ]


def test_legacy_rollout_fills_the_session() -> None:
    using = parser("019d0000-0000-7000-8000-000000000001")
    outcomes = read(fixture("legacy.jsonl"), using)
    session = using.session
    assert session is not None
    assert (session.title, session.title_rank) == ("why is the stock negative?", 10)
    assert (session.cwd, session.branch) == ("/srv/shop", "topic/stock")
    assert (session.client_version, session.relation) == ("0.125.0", None)
    assert session.started_at == datetime(2026, 3, 2, 9, 59, 58, tzinfo=UTC)
    assert session.ended_at == datetime(2026, 3, 2, 10, 1, 2, tzinfo=UTC)
    assert outcomes[5].cwd == "/srv/shop" and outcomes[-1].cwd == "/srv/shop/api"
    assert outcomes[-1].branch == "topic/stock"


def test_model_is_the_one_of_the_turn() -> None:
    outcomes = read(fixture("legacy.jsonl"))
    answers = [m for o in outcomes for m in o.messages if m.role == "assistant"]
    assert [m.model for m in answers] == ["gpt-a", "gpt-a", "gpt-a", "gpt-b"]


def test_every_record_is_stored_told_or_skipped_with_a_reason() -> None:
    for name in (
        "legacy.jsonl",
        "fork.jsonl",
        "paginated.jsonl",
        "bare.jsonl",
        "rollout-2025-04-20-oldest.json",
    ):
        for outcome in read(fixture(name)):
            states = (bool(outcome.messages), outcome.session_info, bool(outcome.skipped))
            assert sum(states) == 1
    reasons = [outcome.skipped for outcome in read(fixture("legacy.jsonl"))]
    assert reasons[12] == "token_count"
    assert reasons[15] == "duplicate family"  # the turn's last message, told once more


def test_paginated_rollout_without_legacy_events_loses_nothing() -> None:
    using = parser()
    messages = said(read(fixture("paginated.jsonl"), using))
    assert [(role, kind) for role, kind, _ in messages] == [
        ("system", "meta"),  # the instructions of the first turn
        ("user", "text"),
        ("assistant", "thinking"),
        ("assistant", "thinking"),
        ("assistant", "tool_call"),
        ("tool", "tool_result"),
        ("tool", "tool_result"),
        ("tool", "tool_result"),
        ("assistant", "tool_call"),
        ("tool", "tool_result"),
        ("assistant", "text"),
        ("system", "unknown"),
        ("assistant", "text"),
    ]
    texts = [text for _, _, text in messages]
    assert texts[4] == "bash -lc git mv cart.ts basket.ts"
    assert "export const cart = [];" in texts[7]
    assert "a later version's item" in texts[11]
    assert using.session is not None
    assert using.session.title == "rename the cart module"


def test_failed_command_of_a_paginated_rollout_is_an_error() -> None:
    outcomes = read(fixture("paginated.jsonl"))
    command, result = outcomes[6].messages
    assert (command.tool, command.call_id, result.is_error) == ("exec_command", "call_7", True)
    asked, answer = outcomes[8].messages
    assert (asked.tool, answer.is_error) == ("mcp__tracker__find_issue", False)


def test_bare_rollout_has_no_times_and_takes_the_folder_from_the_context() -> None:
    using = parser()
    outcomes = read(fixture("bare.jsonl"), using)
    assert using.session is not None
    assert (using.session.cwd, using.session.branch) == ("/srv/old", "main")
    assert using.session.title == "say hello"
    assert [outcome.ts is None for outcome in outcomes] == [False] + [True] * 8
    assert said(outcomes) == [
        ("system", "meta", "always run the tests"),
        ("user", "meta", said(outcomes)[1][2]),
        ("user", "text", "say hello"),
        ("assistant", "thinking", "**Greeting**"),
        (
            "assistant",
            "tool_call",
            "type: exec\ncommand: echo hello\nworking_directory: /srv/old",
        ),
        ("tool", "tool_result", "hello\x00\n"),
        ("assistant", "text", "hello"),
    ]


def test_oldest_rollout_is_one_record_with_a_part_per_message() -> None:
    using = parser()
    (outcome,) = read(fixture("rollout-2025-04-20-oldest.json"), using)
    assert [(m.part, m.kind, m.text) for m in outcome.messages] == [
        (0, "meta", "answer in verse"),
        (1, "text", "list the files"),
        (2, "tool_call", "command: ls"),
        (3, "tool_result", "a.txt"),
        (4, "text", "One file lies here."),
    ]
    assert outcome.ts == datetime(2025, 4, 20, 6, tzinfo=UTC)


def test_text_that_is_no_json_is_skipped() -> None:
    assert parser().text('{"session": {"id"').skipped == "not JSON"
    assert parser().text("").skipped == "empty"


def test_first_header_owns_the_file_and_the_parents_is_skipped() -> None:
    using = parser("019d0000-0000-7000-8000-000000000002")
    outcomes = read(fixture("fork.jsonl"), using)
    session = using.session
    assert session is not None
    assert outcomes[1].skipped == "copied session_meta"
    assert (session.relation, session.parent_id) == (
        "fork",
        "019d0000-0000-7000-8000-000000000001",
    )
    assert (session.cwd, session.branch, session.client_version) == ("/srv/shop", None, "0.126.0")
    assert session.started_at == datetime(2026, 3, 3, 8, tzinfo=UTC)


def test_copied_turns_of_a_fork_have_the_scopes_of_the_parents_messages() -> None:
    def scopes(name: str) -> dict[str, str | None]:
        return {m.text: m.copy_scope for o in read(fixture(name)) for m in o.messages}

    parent, fork = scopes("legacy.jsonl"), scopes("fork.jsonl")
    shared = ["why is the stock negative?", "src/orders.py:41\nstock -= 1"]
    assert [fork[text] for text in shared] == [parent[text] for text in shared]
    assert fork[shared[1]] == f"{TURN}/call_1/tool/tool_result"
    assert fork["try a constraint"] not in parent.values()


def test_repeated_text_of_one_turn_has_a_scope_of_its_own() -> None:
    outcomes = read(fixture("legacy.jsonl"))
    first, second = (m for o in outcomes for m in o.messages if m.text == "continue")
    assert first.copy_scope != second.copy_scope


def test_texts_outside_a_nameable_turn_are_never_copies() -> None:
    outcomes = read([spoken("user", "a"), event("task_started", turn_id="3"), spoken("user", "b")])
    assert [m.copy_scope for o in outcomes for m in o.messages] == [None, None]


@pytest.mark.parametrize(
    ("fields", "relation", "parent"),
    [
        ({"session_id": "own"}, None, None),
        ({"forked_from_id": "p"}, "fork", "p"),
        ({"history_base": {"thread_id": "p"}}, "fork", "p"),
        ({"source": {"subagent": {"thread_spawn": {"parent_thread_id": "p"}}}}, "subagent", "p"),
        ({"parent_thread_id": "p", "source": {"subagent": "review"}}, "subagent", "p"),
        ({"session_id": "p", "source": {"subagent": {"other": "guardian"}}}, "subagent", "p"),
        ({"session_id": "p"}, "subagent", "p"),
        (
            {
                "forked_from_id": "p",
                "source": {"subagent": {"thread_spawn": {"parent_thread_id": "p"}}},
            },
            "subagent",
            "p",
        ),
    ],
)
def test_header_names_the_parent(fields: Record, relation: str | None, parent: str | None) -> None:
    using = parser()
    read([meta(**fields)], using)
    assert using.session is not None
    assert (using.session.relation, using.session.parent_id) == (relation, parent)


def test_reverted_rollout_is_a_fork_of_the_thread_in_its_name() -> None:
    thread = "019d0000-0000-7000-8000-000000000001"
    using = parser(f"{thread}_019d0000-0000-7000-8000-00000000000f")
    read([meta(id=thread)], using)
    assert using.session is not None
    assert (using.session.relation, using.session.parent_id) == ("fork", thread)


@pytest.mark.parametrize(
    "text",
    [
        "<environment_context>\n</environment_context>",
        "# AGENTS.md instructions for /x",
        "<permissions instructions>x",
        "<skills_instructions>x",
        "<user_instructions>\nx",
        "<turn_aborted>\nx",
        "<environment-change>x",
        "<heartbeat>x",
        "The following is the Codex agent history whose request you are judging",
        "<image name=[Image #1]>",
    ],
)
def test_injected_text_is_meta_and_never_the_title(text: str) -> None:
    using = parser()
    outcomes = read([spoken("user", text)], using)
    assert [(m.role, m.kind) for m in outcomes[0].messages] == [("user", "meta")]
    assert using.session is not None and using.session.title is None


def test_title_is_one_short_line() -> None:
    using = parser()
    read([spoken("user", "word\n" * 100)], using)
    assert using.session is not None
    assert using.session.title == ("word " * 24).strip()


def test_thread_name_beats_the_first_message() -> None:
    using = parser()
    rename = event("thread_name_updated", thread_id="own", thread_name="Stock bug")
    other = event("thread_name_updated", thread_id="child", thread_name="Helper")
    outcomes = read([meta(), rename, other, spoken("user", "hi")], using)
    assert using.session is not None
    assert (using.session.title, using.session.title_rank) == ("Stock bug", 50)
    assert outcomes[1].session_info
    assert [(label.external_id, label.title) for label in using.labels()] == [("child", "Helper")]
    assert using.labels() == []


def test_texts_of_several_parts_are_one_text_for_the_event() -> None:
    parts, whole = spoken("user", "look at", " this"), event("user_message", message="look at this")
    assert [text for *_, text in said(read([parts, whole]))] == ["look at", " this"]
    assert [text for *_, text in said(read([whole, parts]))] == ["look at this"]


def test_history_is_prompts_and_no_session() -> None:
    using = parser(label="prompts")
    (outcome, bad) = read([{"session_id": "s", "ts": 1785574800, "text": "do it"}, {}], using)
    (prompt,) = outcome.prompts
    assert using.session is None
    assert (prompt.text, prompt.session_id) == ("do it", "s")
    assert prompt.ts == datetime(2026, 8, 1, 9, tzinfo=UTC)
    assert bad.skipped == "no text"


def test_index_gives_the_last_name_of_each_thread() -> None:
    using = parser(label="titles")
    outcomes = read(
        [
            {"id": "a", "thread_name": "old", "updated_at": "2026-08-01T09:00:10Z"},
            {"id": "b", "thread_name": "other"},
            {"id": "a", "thread_name": "new"},
        ],
        using,
    )
    assert all(outcome.session_info for outcome in outcomes)
    assert [(d.external_id, d.title, d.title_rank) for d in using.labels()] == [
        ("b", "other", 50),
        ("a", "new", 50),
    ]


def test_instructions_are_stored_once_however_often_turns_repeat_them() -> None:
    mode = {"mode": "plan", "settings": {"developer_instructions": "plan first"}}
    settings = {"user_instructions": "be brief", "collaboration_mode": mode}
    wrapped = "# AGENTS.md instructions for /srv\n\n<INSTRUCTIONS>\nbe brief\n</INSTRUCTIONS>"
    records: list[Record] = [
        meta(),
        {
            "type": "response_item",
            "payload": {"type": "message", "role": "user", "content": wrapped},
        },
        {"type": "turn_context", "payload": {"turn_id": "one", **settings}},
        {"type": "turn_context", "payload": {"turn_id": "two", **settings}},
        {"type": "world_state", "payload": {"state": {"agents_md": {"text": "be kind"}}}},
        {"type": "turn_context", "payload": {"turn_id": "three", "user_instructions": "be kind"}},
    ]
    assert [text for _, _, text in said(read(records))] == [wrapped, "plan first", "be kind"]
