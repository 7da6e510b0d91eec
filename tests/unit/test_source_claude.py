"""Claude Code: what each kind of record becomes, and the traps of its format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recall.records import Parsed
from recall_ingester.sources.base import SourceFile
from recall_ingester.sources.claude_code import ClaudeCode
from recall_ingester.sources.claude_history import HistoryParser
from recall_ingester.sources.claude_transcript import (
    SidecarParser,
    SpillParser,
    TranscriptParser,
)

SESSION = "11111111-2222-4333-8444-555555555555"
UUID = "00000000-0000-4000-8000-000000000001"


def parse(*records: Mapping[str, Any]) -> tuple[list[Parsed], TranscriptParser]:
    parser = TranscriptParser(SESSION)
    return [parser.record(record, n) for n, record in enumerate(records)], parser


def user(content: object, **extra: object) -> dict[str, Any]:
    return {
        "type": "user",
        "uuid": UUID,
        "timestamp": "2026-08-01T09:00:00.000Z",
        "cwd": "/home/dev/shop",
        "gitBranch": "main",
        "version": "2.1.226",
        "message": {"role": "user", "content": content},
        **extra,
    }


def assistant(content: object, **message: object) -> dict[str, Any]:
    body = {"role": "assistant", "model": "claude-sonnet-4-5", "content": content, **message}
    return {"type": "assistant", "uuid": UUID, "message": body}


def shape(parsed: Parsed) -> list[tuple[str, str, int, str]]:
    return [(m.role, m.kind, m.part, m.text) for m in parsed.messages]


def test_blocks_become_messages_with_their_place_as_part() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls -l"}}
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "text", "text": "I look."},
        call,
    ]
    (parsed,), parser = parse(assistant(blocks))
    assert shape(parsed) == [
        ("assistant", "thinking", 0, "hm"),
        ("assistant", "text", 1, "I look."),
        ("assistant", "tool_call", 2, "command: ls -l"),
    ]
    assert [m.model for m in parsed.messages] == ["claude-sonnet-4-5"] * 3
    assert parsed.messages[2].tool == "Bash"
    assert parser.session.model == "claude-sonnet-4-5"


def test_tool_result_is_a_tool_message_with_the_name_of_its_call() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "Grep", "input": {"pattern": "qty"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": "src/orders.py:41"}, {"type": "text", "text": "more"}],
        "is_error": True,
    }
    (_, parsed), _ = parse(assistant([call]), user([result]))
    assert shape(parsed) == [("tool", "tool_result", 0, "src/orders.py:41\nmore")]
    (message,) = parsed.messages
    assert (message.tool, message.call_id, message.is_error) == ("Grep", "toolu_1", True)


def test_a_string_in_tool_input_is_found_as_it_was_written() -> None:
    text = 'first line\nsecond "quoted" line'
    call = {"type": "tool_use", "id": "t", "name": "Edit", "input": {"new_string": text}}
    (parsed,), _ = parse(assistant([call]))
    assert text in parsed.messages[0].text


def test_output_that_only_the_structured_twin_has_is_kept() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "short"}
    twin = {"stdout": "short", "stderr": "warning: only here"}
    (parsed,), _ = parse(user([result], toolUseResult=twin))
    assert [m.text for m in parsed.messages] == ["short", "warning: only here"]
    assert [m.part for m in parsed.messages] == [0, 1001]


def test_file_of_the_structured_twin_is_kept_only_where_the_result_lacks_a_line() -> None:
    block = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": "     1→def f():\n     2→  1",
    }
    (same,), _ = parse(user([block], toolUseResult={"file": {"content": "def f():\n  1\n"}}))
    assert [m.part for m in same.messages] == [0]
    (more,), _ = parse(user([block], toolUseResult={"file": {"content": "def f():\n  1\n  2\n"}}))
    assert [m.text for m in more.messages][1:] == ["def f():\n  1\n  2\n"]
    assert more.messages[1].call_id == "toolu_1"


def test_image_becomes_a_stub_with_type_size_and_hash() -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"},
    }
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    (pasted, returned), _ = parse(user([image]), user([result]))
    stub = "[image image/png, 3 bytes, sha256 b5d4045c3f46]"
    assert [m.text for m in pasted.messages + returned.messages] == [stub, stub]


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (user("plain words"), "text"),
        (user("a summary", isCompactSummary=True), "summary"),
        (user("injected", isMeta=True), "meta"),
        (user("<system-reminder>be brief</system-reminder>"), "meta"),
        (user("<local-command-stdout>ok</local-command-stdout>"), "meta"),
        (user("<ide_opened_file>x.py</ide_opened_file>"), "meta"),
        (user("<command-name>/review</command-name>"), "text"),
        ({"type": "system", "subtype": "compact_boundary", "content": "Compacted"}, "event"),
        ({"type": "system", "subtype": "api_error", "error": {"message": "529"}}, "event"),
        ({"type": "queue-operation", "operation": "enqueue", "content": "also add a test"}, "meta"),
        ({"type": "summary", "summary": "Fix the 500", "leafUuid": UUID}, "summary"),
        ({"type": "pr-link", "prUrl": "https://example.org/pull/7"}, "event"),
        ({"type": "attachment", "attachment": {"type": "file", "content": "text"}}, "meta"),
        ({"type": "some-future-type", "foo": {"a": 1}}, "unknown"),
        ({"message": {"role": "user", "content": "no envelope"}}, "text"),
    ],
)
def test_kind_of_a_record(record: dict[str, Any], kind: str) -> None:
    (parsed,), _ = parse(record)
    assert [m.kind for m in parsed.messages] == [kind]
    assert parsed.skipped is None


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"type": "progress", "data": {"type": "hook_progress"}}, "progress"),
        ({"type": "file-history-snapshot", "snapshot": {}}, "file-history-snapshot"),
        ({"type": "last-prompt", "lastPrompt": "x"}, "last-prompt"),
        ({"type": "queue-operation", "operation": "dequeue"}, "queue-operation"),
        ({"type": "system", "subtype": "turn_duration", "durationMs": 3}, "system turn_duration"),
        ({"type": "attachment", "attachment": {"type": "auto_mode"}}, "attachment auto_mode"),
        (assistant([{"type": "thinking", "thinking": "", "signature": "x"}]), "no text"),
        (assistant([{"type": "redacted_thinking", "data": "x"}]), "no text"),
        ({}, "empty record"),
    ],
)
def test_record_without_text_is_skipped_for_a_named_reason(
    record: dict[str, Any], reason: str
) -> None:
    (parsed,), _ = parse(record)
    assert (parsed.messages, parsed.skipped) == ([], reason)


def test_queued_command_is_a_prompt_and_a_task_notification_is_not() -> None:
    typed = {
        "type": "attachment",
        "attachment": {"type": "queued_command", "prompt": "do this too"},
    }
    note = {
        "type": "attachment",
        "attachment": {
            "type": "queued_command",
            "prompt": "<task-notification>x</task-notification>",
        },
    }
    (first, second), _ = parse(typed, note)
    assert shape(first) == [("user", "text", 0, "do this too")]
    assert shape(second)[0][:2] == ("user", "meta")


def test_error_text_that_the_client_made_is_an_event_of_no_model() -> None:
    (parsed,), parser = parse(assistant("API Error: 500", model="<synthetic>"))
    assert [(m.kind, m.model) for m in parsed.messages] == [("event", None)]
    assert parser.session.model is None


def test_better_title_wins_and_an_equal_one_replaces_it() -> None:
    _, parser = parse(
        user("<command-name>/init</command-name>"),
        user("Why does it   fail?"),
        {"type": "custom-title", "customTitle": "mine"},
        {"type": "ai-title", "aiTitle": "the model's"},
        {"type": "summary", "summary": "a summary"},
        {"type": "custom-title", "customTitle": "mine, renamed"},
    )
    assert parser.session.title == "mine, renamed"
    _, plain = parse(user("<command-name>/init</command-name>"), user("Why does it   fail?"))
    assert plain.session.title == "Why does it fail?"


def test_session_spans_its_records_whatever_their_order() -> None:
    _, parser = parse(
        user("b", timestamp="2026-08-01T09:00:05Z"),
        user("a", timestamp="2026-08-01T09:00:01Z"),
        {"type": "ai-title", "aiTitle": "no time here"},
    )
    assert parser.session.started_at is not None
    assert parser.session.ended_at is not None
    assert (parser.session.started_at.second, parser.session.ended_at.second) == (1, 5)


def test_place_belongs_to_the_message_and_the_first_one_to_the_session() -> None:
    parsed, parser = parse(
        user("here"),
        {"type": "relocated", "relocatedCwd": "/home/dev/other"},
        {"type": "assistant", "message": {"content": "there"}},
    )
    assert [p.cwd for p in parsed] == ["/home/dev/shop", "/home/dev/other", "/home/dev/other"]
    assert parser.session.cwd == "/home/dev/shop"
    assert parsed[1].session_info


def test_copy_scope_is_the_uuid_and_block_so_that_copies_meet() -> None:
    (first,), _ = parse(user(["one", "two"]))
    assert [m.copy_scope for m in first.messages] == [f"{UUID}/0", f"{UUID}/1"]
    (without,), _ = parse({"type": "user", "message": {"content": "no uuid"}})
    assert without.messages[0].copy_scope is None


def test_fork_names_its_parent_where_the_client_says_it() -> None:
    _, parser = parse(user("x", forkedFrom={"sessionId": "parent-id", "messageUuid": UUID}))
    assert (parser.session.parent_id, parser.session.relation) == ("parent-id", "fork")
    _, background = parse(user("x", sessionKind="bg"))
    assert (background.session.parent_id, background.session.relation) == (None, "fork")


def test_sidecar_gives_the_subagent_its_title() -> None:
    parser = SidecarParser(f"{SESSION}/agent-a1")
    parser.record({"agentType": "Explore", "description": "scan repo", "toolUseId": "t"}, 0)
    (draft,) = parser.labels()
    assert (draft.title, draft.relation, draft.parent_id) == ("scan repo", "subagent", SESSION)
    assert parser.labels() == []


def test_spilled_output_hangs_on_its_session_and_its_call() -> None:
    parser = SpillParser(f"{SESSION}/tool-results/toolu_big.txt")
    parsed = parser.text("x" * 1_200_000)
    assert [len(m.text) for m in parsed.messages] == [500_000, 500_000, 200_000]
    assert {m.call_id for m in parsed.messages} == {"toolu_big"}
    assert (parser.session.parent_id, parser.session.relation) == (SESSION, "spill")


def test_prompt_history_with_pastes_and_without_session(tmp_path: Path) -> None:
    (tmp_path / "paste-cache").mkdir()
    (tmp_path / "paste-cache" / "abc123.txt").write_text("from the cache")
    parser = HistoryParser(tmp_path)
    pasted = {"1": {"type": "text", "content": "inline"}, "2": {"contentHash": "abc123"}}
    with_paste = parser.record(
        {"display": "see", "pastedContents": pasted, "timestamp": 1785574800000}, 0
    )
    assert with_paste.prompts[0].text == "see\n\ninline\n\nfrom the cache"
    assert with_paste.prompts[0].session_id is None
    escape = parser.record(
        {"display": "x", "pastedContents": {"1": {"hash": "../../etc/passwd"}}}, 1
    )
    assert escape.prompts[0].text == "x"


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """Both subagent layouts and everything that lies beside transcripts."""
    for name in (
        f"projects/-p/{SESSION}.jsonl",
        f"projects/-p/{SESSION}.jsonl.backup",
        f"projects/-p/{SESSION}/subagents/agent-a1.jsonl",
        f"projects/-p/{SESSION}/subagents/agent-a1.meta.json",
        f"projects/-p/{SESSION}/subagents/workflows/wf/agent-b2.jsonl",
        f"projects/-p/{SESSION}/tool-results/toolu_1.txt",
        f"projects/-p/{SESSION}/session-memory/summary.md",
        "projects/-p/agent-c3.jsonl",
        "projects/-p/sessions-index.json",
        "projects/-p/memory/MEMORY.md",
        "projects/-p/notes.jsonl",
        "todos/x.jsonl",
        "file-history/y/z.jsonl",
        "history.jsonl",
        ".credentials.json",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    return tmp_path


def found(files: Iterator[SourceFile]) -> dict[str, tuple[str, str | None]]:
    return {file.relative: (file.label, file.natural_id) for file in files}


def test_discovery_takes_sessions_and_leaves_the_rest(layout: Path) -> None:
    assert found(ClaudeCode().discover(layout)) == {
        "history": ("prompts", None),
        f"projects/-p/{SESSION}": ("transcript", SESSION),
        f"projects/-p/{SESSION}/subagents/agent-a1": ("transcript", f"{SESSION}/agent-a1"),
        f"projects/-p/{SESSION}/subagents/agent-a1.meta": ("sidecar", f"{SESSION}/agent-a1"),
        f"projects/-p/{SESSION}/subagents/workflows/wf/agent-b2": (
            "transcript",
            f"{SESSION}/agent-b2",
        ),
        f"projects/-p/{SESSION}/tool-results/toolu_1.txt": (
            "spill",
            f"{SESSION}/tool-results/toolu_1.txt",
        ),
        "projects/-p/agent-c3": ("transcript", None),
        "projects/-p/notes": ("transcript", None),
    }


def test_old_subagent_layout_names_its_parent_inside() -> None:
    record = {"isSidechain": True, "sessionId": SESSION, "agentId": "c3", "type": "user"}
    assert ClaudeCode().first_id(record) == f"{SESSION}/agent-c3"
    assert ClaudeCode().first_id({"sessionId": SESSION, "type": "user"}) is None


def test_roots_follow_the_clients_own_variable(tmp_path: Path) -> None:
    source = ClaudeCode()
    assert source.roots({"CLAUDE_CONFIG_DIR": "/a, /b"}, tmp_path) == [Path("/a"), Path("/b")]
    assert source.roots({}, tmp_path)[0] == tmp_path / ".claude"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("type", "message", "content", "uuid", "timestamp", "attachment", "toolUseResult", "text",
          "summary", "cwd", "sessionId", "forkedFrom", "error", "role", "prompt", "name", "input",
          "source", "data", "worktreeSession", "model")  # fmt: skip
TYPES = ("user", "assistant", "system", "attachment", "summary", "queue-operation", "relocated",
         "tool_use", "tool_result", "image", "thinking", "text", "queued_command")  # fmt: skip
RECORDS = st.recursive(
    st.sampled_from(TYPES) | JSON,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6)
    ),
    max_leaves=24,
)


@example([{"message": {"role": "summary", "content": "x"}}])
@example([{"message": {"role": "tag", "content": "x"}}])
@example([user([{"type": ["text"], "text": "x"}])])
@example([user([{"type": "tool_result", "content": [{"type": {}, "text": "x"}]}])])
@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), RECORDS), max_size=4))
def test_no_record_raises_and_its_state_is_json(records: list[dict[str, Any]]) -> None:
    parser = TranscriptParser(SESSION)
    for number, record in enumerate(records):
        parsed = parser.record(record, number)
        assert bool(parsed.messages) + bool(parsed.skipped) + parsed.session_info >= 1
        for message in parsed.messages:
            assert isinstance(message.text, str)
    resumed = TranscriptParser(SESSION, json.loads(json.dumps(parser.state())))
    assert resumed.state() == parser.state()


@pytest.mark.parametrize(
    ("record", "kind", "text"),
    [
        (
            {"type": "frame-link", "title": "Preview of qty", "frameUrl": "https://x.invalid/1"},
            "event",
            "Preview Preview of qty https://x.invalid/1",
        ),
        ({"type": "tag", "tag": "billing"}, "event", "Tag billing"),
        (
            {"type": "system", "subtype": "api_refusal", "content": "refusal",
             "apiRefusalExplanation": "Not this."},
            "event",
            "refusal\nNot this.",
        ),
        (
            {"type": "system", "subtype": "stop_hook_summary", "hookErrors": ["lint failed"],
             "stopReason": ""},
            "event",
            "lint failed",
        ),
        (
            {"type": "attachment", "attachment": {
                "type": "hook_success", "content": "", "stdout": "branch is clean"}},
            "meta",
            "branch is clean",
        ),
        (
            {"type": "summary", "message": {"role": "system", "content": "What was done."}},
            "summary",
            "What was done.",
        ),
        (
            {"type": "user", "message": {"role": "user", "contents": "misnamed"}},
            "unknown",
            '{"contents":"misnamed"}',
        ),
    ],
)  # fmt: skip
def test_text_beside_the_usual_place_is_kept(record: dict[str, Any], kind: str, text: str) -> None:
    (parsed,), _ = parse(record)
    assert [(message.kind, message.text) for message in parsed.messages] == [(kind, text)]


def test_hook_that_says_nothing_is_skipped() -> None:
    silent = {"type": "hook_success", "hookName": "x", "content": "", "stdout": "{}", "stderr": ""}
    (parsed,), _ = parse({"type": "attachment", "attachment": silent})
    assert (parsed.messages, parsed.skipped) == ([], "attachment hook_success")
