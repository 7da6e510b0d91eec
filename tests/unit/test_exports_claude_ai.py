"""Conversations, projects and memories of a Claude.ai export."""

from __future__ import annotations

import io
import json
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from recall.jsontext import MalformedLine
from recall.records import Message, Note, SessionDraft
from recall_ingester.exports import open_export
from recall_ingester.exports.claude_ai import ClaudeAi
from recall_ingester.sources.base import Document

NO_PARENT = "00000000-0000-4000-8000-000000000000"
Record = dict[str, Any]


def said(uuid: str, text: str, sender: str = "human", **fields: Any) -> Record:
    block = {
        "type": "text",
        "text": text,
        "citations": [],
        "start_timestamp": "2026-08-01T09:00:00Z",
    }
    times = {"created_at": "2026-08-01T09:00:00.5Z", "updated_at": "2026-08-01T09:00:00.5Z"}
    base = {"uuid": uuid, "sender": sender, "text": text, "content": [block], **times}
    return {**base, "attachments": [], "files": [], **fields}


def blocks(*content: object, **fields: Any) -> Record:
    return {**said("m", "", "assistant", content=list(content)), **fields}


def conversation(*messages: object, **fields: Any) -> Record:
    base = {"uuid": "c1", "name": "Orders", "account": {"uuid": "acct"}, "chat_messages": messages}
    times = {"created_at": "2026-08-01T08:00:00Z", "updated_at": "2026-08-02T09:00:00Z"}
    return {**base, **times, **fields}


def read(value: object) -> tuple[SessionDraft, Document]:
    parser = ClaudeAi().document_parser("c1")
    document = parser.document(json.dumps(value).encode())
    return parser.session, document


def messages(value: object) -> list[Message]:
    return [message for unit in read(value)[1].units for message in unit.parsed.messages]


def of(*content: object, **fields: Any) -> list[tuple[str, str, str]]:
    found = messages(conversation(blocks(*content, **fields)))
    return [(m.role, m.kind, m.text) for m in found]


def export_of(tmp_path: Path, **members: object) -> Path:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, value in members.items():
            archive.writestr(f"{name.replace('__', '/')}.json", json.dumps(value))
    path = tmp_path / "data.zip"
    path.write_bytes(target.getvalue())
    return path


def test_message_becomes_one_ordinal_with_its_identity() -> None:
    session, document = read(conversation(said("m1", "Why?"), said("m2", "So.", "assistant")))
    assert [unit.ordinal for unit in document.units] == [0, 1]
    first, second = (unit.parsed.messages[0] for unit in document.units)
    assert (first.role, first.kind, first.text) == ("user", "text", "Why?")
    assert (second.role, second.native_id, second.copy_scope) == ("assistant", "m2", "m2")
    at = datetime(2026, 8, 1, 9, 0, 0, 500_000, UTC)
    assert document.units[0].parsed.ts == at
    assert (session.title, session.title_rank) == ("Orders", 40)
    assert (session.started_at, session.ended_at) == (datetime(2026, 8, 1, 8, tzinfo=UTC), at)


def test_branches_are_walked_depth_first_and_the_left_one_is_marked() -> None:
    value = conversation(
        said("q", "question", parent_message_uuid=NO_PARENT),
        said("a1", "old answer", "assistant", parent_message_uuid="q"),
        said("f1", "old follow-up", parent_message_uuid="a1"),
        said("lost", "orphan", parent_message_uuid="gone"),
        said("a2", "new answer", "assistant", parent_message_uuid="q"),
    )
    found = [(m.text, m.on_active_branch) for m in messages(value)]
    assert found == [
        ("question", True), ("old answer", False), ("old follow-up", False),
        ("new answer", True), ("orphan", False),
    ]  # fmt: skip


def test_a_new_branch_does_not_move_the_messages_before_it() -> None:
    before = [
        said("q", "q", parent_message_uuid=NO_PARENT),
        said("a", "a", parent_message_uuid="q"),
    ]
    places = {m.native_id: n for n, m in enumerate(messages(conversation(*before)))}
    after = messages(conversation(*before, said("b", "b", parent_message_uuid="q")))
    assert {m.native_id: n for n, m in enumerate(after) if m.native_id in places} == places


def test_leaf_that_the_export_names_wins_over_the_last_message() -> None:
    value = conversation(
        said("a", "shown", parent_message_uuid=NO_PARENT),
        said("b", "left", parent_message_uuid=NO_PARENT),
        current_leaf_message_uuid="a",
    )
    assert [m.on_active_branch for m in messages(value)] == [True, False]


def test_without_parents_the_order_of_the_array_holds() -> None:
    found = messages(conversation(said("b", "first"), said("a", "second"), said("b", "third")))
    assert [m.text for m in found] == ["first", "second", "third"]
    assert all(m.on_active_branch for m in found)


def test_circle_of_parents_loses_nothing() -> None:
    value = conversation(
        said("a", "one", parent_message_uuid="b"),
        said("b", "two", parent_message_uuid="a"),
        said("c", "three", parent_message_uuid="c"),
    )
    assert sorted(m.text for m in messages(value)) == ["one", "three", "two"]


def test_long_chain_is_no_problem() -> None:
    chain = [said(f"m{n}", f"t{n}", parent_message_uuid=f"m{n - 1}") for n in range(5000)]
    chain[0]["parent_message_uuid"] = NO_PARENT
    assert [m.text for m in messages(conversation(*chain))] == [f"t{n}" for n in range(5000)]


def test_blocks_become_parts() -> None:
    value = conversation(
        blocks(
            {"type": "thinking", "thinking": "look", "summaries": [{"summary": "Looking"}]},
            {"type": "tool_use", "id": "t1", "name": "repl", "input": {"code": "1+\n1"}},
            {
                "type": "tool_result", "tool_use_id": "t1", "name": "repl", "is_error": True,
                "content": [{"type": "text", "text": "2"}],
            },
            {"type": "token_budget"},
            {"type": "text", "text": "Two."},
        )
    )  # fmt: skip
    found = messages(value)
    assert [(m.part, m.role, m.kind, m.text, m.tool, m.call_id, m.is_error) for m in found] == [
        (0, "assistant", "thinking", "look\nsummary: Looking", None, None, False),
        (1, "assistant", "tool_call", "code: 1+\n1", "repl", "t1", False),
        (2, "tool", "tool_result", "2", "repl", "t1", True),
        (3, "assistant", "text", "Two.", None, None, False),
    ]


def test_what_a_tool_showed_to_the_person_is_kept_once() -> None:
    use = {"type": "tool_use", "name": "fetch", "input": {"url": "u"}, "message": "Fetching u2"}
    shown = {
        "type": "rich_content",
        "content": [{"title": "Page", "url": "https://x", "icon_url": "i"}],
    }
    result = {
        "type": "tool_result",
        "name": "fetch",
        "content": "Page text",
        "display_content": shown,
    }
    assert of(use, result) == [
        ("assistant", "tool_call", "url: u"),
        ("assistant", "meta", "message: Fetching u2"),
        ("tool", "tool_result", "Page text"),
        ("assistant", "meta", "url: https://x"),
    ]


def test_search_result_keeps_title_and_address() -> None:
    item = {"type": "knowledge", "title": "Doc", "url": "https://d", "text": "body", "metadata": {}}
    assert of({"type": "tool_result", "content": [item]}) == [
        ("tool", "tool_result", "Doc\nhttps://d\nbody")
    ]


def test_citations_keep_title_and_address() -> None:
    cited = {"uuid": "x", "title": "Source", "url": "https://s", "start_index": 1}
    assert of({"type": "text", "text": "Said.", "citations": [cited]}) == [
        ("assistant", "text", "Said."),
        ("assistant", "meta", "title: Source\nurl: https://s"),
    ]


def test_image_becomes_a_stub() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "QUJD" * 400}
    ((_, _, text),) = of({"type": "image", "source": source})
    assert text.startswith("[image image/png, 1200 bytes")


def test_voice_note_and_flag() -> None:
    assert of(
        {"type": "voice_note", "title": "Note", "text": "spoken"},
        {"type": "flag", "flag": "harm", "helpline": {"name": "Line"}},
    ) == [
        ("assistant", "text", "Note\nspoken"),
        ("system", "event", "flag: harm\nname: Line"),
    ]


def test_unknown_block_is_kept_whole() -> None:
    ((_, kind, text),) = of({"type": "hologram", "beam": {"of": ["light"]}})
    assert (kind, text) == ("unknown", '{"type":"hologram","beam":{"of":["light"]}}')


@pytest.mark.parametrize(
    ("flat", "extra"),
    [
        ("Hello there. \n\nMore of it.", []),
        ("Hello there.More of it.", []),
        ("Hello there.\n```\nThis block is not supported on your current device yet.\n```", []),
        ("Hello there. And that.", ["Hello there. And that."]),
    ],
)
def test_flat_text_is_kept_where_it_says_more(flat: str, extra: list[str]) -> None:
    content = [{"type": "text", "text": "Hello there."}, {"type": "text", "text": "More of it."}]
    assert [text for _, _, text in of(*content, text=flat)][2:] == extra


@pytest.mark.parametrize("content", [None, [], 7, {}])
def test_flat_text_stands_in_for_missing_blocks(content: object) -> None:
    found = messages(conversation(said("m", "only here", content=content)))
    assert ("user", "text", "only here") in [(m.role, m.kind, m.text) for m in found]


def test_attachments_and_files_follow_the_text() -> None:
    attached = {
        "file_name": "a.py",
        "file_size": 9,
        "file_type": "txt",
        "extracted_content": "x = 1",
    }
    files: list[object] = [{"file_name": "shot.png"}, {"file_uuid": "u"}, {"file_name": "b.pdf"}]
    found = messages(conversation(said("m", "See.", attachments=[attached], files=files)))
    assert [(m.part, m.kind, m.text) for m in found] == [
        (0, "text", "See."),
        (1, "meta", "a.py\nx = 1"),
        (2, "meta", "file_name: shot.png\nfile_name: b.pdf"),
    ]


def test_empty_name_takes_the_first_question_as_title() -> None:
    session, _ = read(conversation(said("m", "What  is\nthis?"), name=""))
    assert (session.title, session.title_rank) == ("What is this?", 10)


def test_long_name_is_kept_whole_as_a_message() -> None:
    name = "word " * 60
    session, document = read(conversation(said("m", "q"), name=name))
    assert len(session.title or "") == 120
    assert document.units[0].parsed.messages[1].text == name.strip()


def test_empty_conversation_is_a_session_without_messages() -> None:
    session, document = read(conversation(name=""))
    assert (document.units, document.skipped, document.merged) == ([], {}, 0)
    assert session.ended_at == datetime(2026, 8, 2, 9, tzinfo=UTC)


def test_summary_stands_behind_the_first_message() -> None:
    _, document = read(conversation(said("m", "q"), said("n", "a"), summary="About q."))
    first = document.units[0].parsed.messages
    assert [(m.role, m.kind, m.text) for m in first] == [
        ("user", "text", "q"),
        ("system", "summary", "About q."),
    ]
    assert len(document.units) == 2


def test_every_message_is_a_unit_or_skipped() -> None:
    empty = said("m", "", content=[{"type": "text", "text": " "}])
    _, document = read(conversation(empty, said("n", "q"), None, 5, "loose"))
    assert [unit.ordinal for unit in document.units] == [1, 3, 4]
    assert document.skipped == {"no text": 1, "not a message": 1}


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'"x"', b"null"])
def test_what_is_no_object_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedLine):
        ClaudeAi().document_parser("c1").document(data)


def notes_of(path: Path) -> list[Note]:
    return list(open_export([path]).notes())


def test_projects_and_memories_become_notes(tmp_path: Path) -> None:
    project = {
        "uuid": "p1", "name": "acme", "description": "All of it", "prompt_template": "Be brief.",
        "updated_at": "2026-07-01T00:00:00Z", "creator": {"uuid": "a", "full_name": "Dev"},
        "docs": [{"uuid": "d1", "filename": "spec.md", "content": "# spec"}],
    }  # fmt: skip
    memory = {
        "conversations_memory": "Likes SQL.",
        "project_memories": {"p1": "Uses 18."},
        "account_uuid": "a",
    }
    path = export_of(
        tmp_path, conversations=[conversation()], memories=[memory], projects=[project],
        users=[{"full_name": "Dev"}],
    )  # fmt: skip
    found = notes_of(path)
    assert [(n.key, n.title, n.text, n.project) for n in found] == [
        ("project/p1", "acme", "acme\n\nAll of it", "acme"),
        ("project/p1/instructions", "Instructions of acme", "Be brief.", "acme"),
        ("project/p1/d1", "spec.md", "spec.md\n# spec", "acme"),
        ("memory/conversations_memory", "conversations memory", "Likes SQL.", None),
        ("memory/project/p1", "Memory of project acme", "Uses 18.", "acme"),
    ]
    assert {n.shelf for n in found} == {"memory"}
    assert found[0].ts == datetime(2026, 7, 1, tzinfo=UTC)


def test_notes_that_are_not_json_are_problems(tmp_path: Path) -> None:
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("conversations.json", json.dumps([conversation()]))
        archive.writestr("memories.json", "[oops, {}]")
    export = open_export([path])
    assert list(export.notes()) == []
    assert [(p.member, p.data, p.reason) for p in export.problems] == [
        ("memories.json", b"oops", "not JSON")
    ]


@pytest.mark.corpus
def test_samples_are_read(corpus: Path) -> None:
    folder = corpus / "claude-ai"
    single = open_export([folder / "synthetic" / "data-export-single.zip"])
    first, second = single.conversations()
    assert (first.external_id[:4], second.external_id[:4]) == ("aaaa", "bbbb")
    parts = sorted((folder / "synthetic").glob("*-0*"))
    several = open_export(parts)
    assert several.missing == []
    assert [found.data for found in several.conversations()] == [first.data]
    bare = open_export([folder / "polylogue" / "claude-ai-export.json"])
    (found,) = bare.conversations()
    parser = bare.source.document_parser(found.external_id)
    ((message,),) = [unit.parsed.messages for unit in parser.document(found.data).units]
    assert message.text == "Prove the parser claim."
    assert parser.session is not None
    assert parser.session.title == "Origin capability matrix"
