"""Conversations of a ChatGPT export, and what people told the client about themselves."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from recall.jsontext import MalformedLine
from recall.records import Message, SessionDraft
from recall_ingester.exports import open_export
from recall_ingester.exports.chatgpt import ChatGpt
from recall_ingester.sources.base import Document

Record = dict[str, Any]


def node(
    key: str,
    content: object,
    parent: str | None = None,
    *,
    role: str = "user",
    children: tuple[str, ...] = (),
    **fields: Any,
) -> Record:
    if isinstance(content, str):
        content = {"content_type": "text", "parts": [content]}
    message = {
        "id": key,
        "author": {"role": role, "name": None, "metadata": {}},
        "content": content,
    }
    defaults = {"create_time": 1785574800.5, "status": "finished_successfully", "weight": 1.0}
    whole = {**message, **defaults, "recipient": "all", "metadata": {}, **fields}
    return {"id": key, "message": whole, "parent": parent, "children": list(children)}


def conversation(*nodes: Record, **fields: Any) -> Record:
    base = {"conversation_id": "g1", "id": "g1", "title": "Orders", "create_time": 1785574800.0}
    return {**base, "mapping": {item["id"]: item for item in nodes}, **fields}


def typed(name: str, /, **fields: object) -> Record:
    return {"content_type": name, **fields}


def read(value: object) -> tuple[SessionDraft, Document]:
    parser = ChatGpt().document_parser("g1")
    document = parser.document(json.dumps(value).encode())
    return parser.session, document


def messages(value: object) -> list[Message]:
    return [message for unit in read(value)[1].units for message in unit.parsed.messages]


def of(content: object, **fields: Any) -> list[tuple[str, str, str]]:
    found = messages(conversation(node("n", content, **fields)))
    return [(m.role, m.kind, m.text) for m in found]


def test_message_becomes_one_ordinal_with_its_identity() -> None:
    root = {"id": "root", "message": None, "parent": None, "children": ["q"]}
    answer = node("a", "So.", "q", role="assistant", metadata={"model_slug": "gpt-5"})
    session, document = read(conversation(root, node("q", "Why?", "root"), answer))
    assert [unit.ordinal for unit in document.units] == [0, 1]
    question, answered = (unit.parsed.messages[0] for unit in document.units)
    assert (question.role, question.kind, question.text, question.model) == (
        "user", "text", "Why?", None,
    )  # fmt: skip
    assert (answered.native_id, answered.copy_scope, answered.model) == ("a", "a", "gpt-5")
    assert document.units[0].parsed.ts == datetime(2026, 8, 1, 9, 0, 0, 500_000, UTC)
    assert (document.merged, document.skipped) == (1, {})
    assert (session.title, session.title_rank, session.model) == ("Orders", 40, "gpt-5")
    assert session.started_at == datetime(2026, 8, 1, 9, tzinfo=UTC)


def test_tree_is_walked_in_the_order_of_the_children() -> None:
    value = conversation(
        node("a2", "new answer", "q", role="assistant"),
        node("lost", "orphan", "gone"),
        node("f1", "old follow-up", "a1"),
        node("a1", "old answer", "q", role="assistant", children=("f1",)),
        node("q", "question", None, children=("a1", "a2", "nowhere")),
        current_node="a2",
    )
    assert [(m.text, m.on_active_branch) for m in messages(value)] == [
        ("question", True), ("old answer", False), ("old follow-up", False),
        ("new answer", True), ("orphan", False),
    ]  # fmt: skip


@pytest.mark.parametrize("current", [None, "gone", 7, {}])
def test_without_a_current_node_all_messages_are_active(current: object) -> None:
    nodes = (node("q", "q", children=("a",)), node("a", "a", "q"), node("b", "b", "q"))
    found = messages(conversation(*nodes, current_node=current))
    assert [(m.text, m.on_active_branch) for m in found] == [("q", True), ("a", True), ("b", True)]


def test_circle_and_shared_children_lose_nothing() -> None:
    value = conversation(
        node("a", "one", "b", children=("b",)),
        node("b", "two", "a", children=("a", "c")),
        node("c", "three", "a"),
        node("d", "four", None, children=("c",)),
    )
    assert sorted(m.text for m in messages(value)) == ["four", "one", "three", "two"]


def test_long_chain_is_no_problem() -> None:
    nodes = [node(f"n{n}", f"t{n}", f"n{n - 1}" if n else None) for n in range(5000)]
    found = messages(conversation(*nodes, current_node="n4999"))
    assert [m.text for m in found] == [f"t{n}" for n in range(5000)]
    assert all(m.on_active_branch for m in found)


HIDDEN = {"is_visually_hidden_from_conversation": True}


def test_hidden_and_system_texts_are_set_apart() -> None:
    assert of("You are kind.", role="system") == [("system", "meta", "You are kind.")]
    assert of("About me", metadata=HIDDEN) == [("user", "meta", "About me")]
    assert of("out", role="tool", metadata=HIDDEN) == [("tool", "tool_result", "out")]
    assert of("judged", role="critic") == [
        ("system", "meta", "judged"),
        ("system", "meta", "from: critic"),
    ]


def test_every_node_is_a_unit_merged_or_skipped() -> None:
    value = conversation(
        {"id": "root", "message": None, "parent": None, "children": ["s", "e", "q"]},
        node("s", "", "root", role="system", metadata=HIDDEN),
        node("e", {"content_type": "text", "parts": [None, ""]}, "root"),
        node("q", "q", "root"),
    )
    value["mapping"]["odd"] = "loose"
    value["mapping"]["nothing"] = None
    _, document = read(value)
    assert [unit.ordinal for unit in document.units] == [2, 3]
    assert document.merged == 2
    assert document.skipped == {"hidden, no text": 1, "no text": 1}


def test_parts_and_pointers_become_parts() -> None:
    picture = {
        "content_type": "image_asset_pointer", "asset_pointer": "file-service://file-1",
        "width": 8, "metadata": {"dalle": {"prompt": "a lake", "gen_id": "x"}},
    }  # fmt: skip
    spoken = {"content_type": "audio_transcription", "text": "spoken words", "direction": "in"}
    audio = {
        "content_type": "audio_asset_pointer",
        "asset_pointer": "sediment://f",
        "format": "wav",
    }
    video = {
        "content_type": "real_time_user_audio_video_asset_pointer",
        "audio_asset_pointer": {"asset_pointer": "sediment://v"},
    }
    content = {
        "content_type": "multimodal_text",
        "parts": [picture, None, "See.", spoken, audio, video],
    }
    assert [text for _, _, text in of(content)] == [
        "[image file-service://file-1]\nprompt: a lake",
        "See.",
        "spoken words\ndirection: in",
        "[audio sediment://f]",
        "[real_time_user_audio_video sediment://v]",
    ]


@pytest.mark.parametrize(
    "content",
    [{"content_type": "code", "language": "json", "text": '{"q": "a\\nb"}'}, '{"q": "a\\nb"}'],
)
def test_message_to_a_tool_is_a_call(content: object) -> None:
    value = conversation(node("n", content, role="assistant", recipient="browser.search"))
    (call,) = messages(value)
    assert (call.role, call.kind, call.tool, call.text) == (
        "assistant", "tool_call", "browser.search", "q: a\nb",
    )  # fmt: skip


def test_code_for_the_person_is_text() -> None:
    content = {"content_type": "code", "language": "python", "text": "print(1)"}
    assert of(content, role="assistant") == [("assistant", "text", "print(1)")]


def test_what_a_tool_answers_names_the_tool() -> None:
    content = {"content_type": "execution_output", "text": "1"}
    author = {"role": "tool", "name": "python", "metadata": {"real_author": "tool:web"}}
    found = messages(conversation(node("n", content, author=author)))
    assert [(m.role, m.kind, m.tool, m.text) for m in found] == [
        ("tool", "tool_result", "python", "1"),
        ("tool", "meta", "python", "real_author: tool:web"),
    ]


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        (typed("tether_quote", url="u", title="t", text="x"), "text", "t\nu\nx"),
        (typed("tether_browsing_display", result="r", summary=None), "tool_result", "r"),
        (typed("thoughts", thoughts=[{"summary": "S", "content": "C"}]), "thinking", "S\nC"),
        (typed("thoughts", parts=["P"]), "thinking", "P"),
        (typed("reasoning_recap", content="Thought for 5s"), "thinking", "Thought for 5s"),
        (typed("system_error", name="E", text="failed"), "event", "E\nfailed"),
        (typed("user_editable_context", user_profile="P", user_instructions="I"), "meta", "P\nI"),
        (typed("model_editable_context", model_set_context="M"), "meta", "M"),
        ({"parts": ["no type"]}, "text", "no type"),
        ("plain", "text", "plain"),
        (["a list"], "text", "a list"),
        (typed("hologram", beam="b"), "unknown", '{"content_type":"hologram","beam":"b"}'),
    ],
)
def test_content_types(content: object, kind: str, text: str) -> None:
    assert [(k, t) for _, k, t in of(content)] == [(kind, text)]


def test_error_is_marked() -> None:
    content = {"content_type": "system_error", "name": "E", "text": "failed"}
    assert messages(conversation(node("n", content, role="tool")))[0].is_error


def test_readable_metadata_follows_the_text() -> None:
    metadata = {
        "request_id": "r", "finish_details": {"type": "stop"},
        "attachments": [{"id": "f", "name": "input.txt", "mime_type": "text/plain"}],
        "citations": [{"metadata": {"title": "Doc", "url": "https://d", "text": "See."}}],
        "search_result_groups": [{"entries": [{"url": "https://d", "snippet": "found"}]}],
    }  # fmt: skip
    assert of("See.", metadata=metadata) == [
        ("user", "text", "See."),
        ("user", "meta", "name: input.txt\ntitle: Doc\nurl: https://d\nsnippet: found"),
    ]


def test_picture_of_the_code_interpreter_becomes_a_stub() -> None:
    metadata = {"aggregate_result": {"data": {"image/png": "QUJD" * 400}}}
    ((_, _, text),) = of({"content_type": "text", "parts": []}, role="tool", metadata=metadata)
    assert text.startswith("image/png: [encoded bytes, 1200 bytes, sha256 ")


def test_null_title_takes_the_first_question() -> None:
    picture = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://f"}
    content = {"content_type": "multimodal_text", "parts": [picture, "Why  500?"]}
    session, _ = read(conversation(node("n", content), title=None))
    assert (session.title, session.title_rank) == ("Why 500?", 10)


@pytest.mark.parametrize("time", [None, "soon", {}, float("nan"), 1e300, True])
def test_odd_times_are_no_times(time: object) -> None:
    value = conversation(node("n", "q", create_time=time), create_time=time, update_time=time)
    session, document = read(value)
    assert document.units[0].parsed.ts is None
    assert (session.started_at, session.ended_at) == (None, None)


def test_empty_conversation_is_a_session_without_messages() -> None:
    session, document = read(conversation(title=None, update_time=1785574860.5))
    assert (document.units, document.merged, document.skipped) == ([], 0, {})
    assert session.ended_at == datetime(2026, 8, 1, 9, 1, 0, 500_000, UTC)


def test_what_is_said_of_the_conversation_stands_behind_its_first_message() -> None:
    value = conversation(
        node("n", "see https://a"), safe_urls=["https://a", "https://b"], voice="x"
    )
    found = messages(value)
    assert [(m.role, m.kind, m.text) for m in found] == [
        ("user", "text", "see https://a"),
        ("system", "meta", "safe_urls: https://b"),
    ]


def test_mapping_may_be_a_list() -> None:
    nodes = [node("a", "one", children=("b",)), node("b", "two", "a")]
    assert [m.text for m in messages({"id": "g", "mapping": nodes})] == ["one", "two"]


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'"x"', b"null"])
def test_what_is_no_object_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedLine):
        ChatGpt().document_parser("g1").document(data)


def test_settings_and_group_chats_become_notes(tmp_path: Path) -> None:
    path = tmp_path / "export.zip"
    settings = {"user_id": "u", "settings": {"theme": "dark", "about_model_message": "brief"}}
    settings["settings"]["custom"] = [{"x": "Answer in French."}]  # type: ignore[index]
    members: Record = {
        "conversations.json": [conversation(node("n", "q"))],
        "user.json": {"email": "dev@example.com"},
        "user_settings.json": settings,
        "group_chats.json": {
            "chats": [{"id": "c", "title": "Trip", "messages": [{"text": "Hi."}]}]
        },
        "message_feedback.json": [{"id": "f", "rating": "bad", "content": "wrong"}],
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in members.items():
            archive.writestr(name, json.dumps(value))
    export = open_export([path])
    assert [(n.key, n.title, n.text) for n in export.notes()] == [
        ("group_chats/c", "Trip", "title: Trip\ntext: Hi."),
        ("message_feedback/f", "message feedback", "rating: bad\ncontent: wrong"),
        ("user_settings/settings/about_model_message", "about_model_message", "brief"),
        ("user_settings/settings/custom/0/x", "x", "Answer in French."),
    ]
    assert export.unread == ["user.json"]


@pytest.mark.corpus
def test_exports_of_the_samples_are_read(corpus: Path) -> None:
    folder = corpus / "chatgpt" / "synthetic"
    classic = open_export([folder / "export-classic.zip"])
    sharded = open_export([folder / "export-sharded.zip"])
    assert sharded.missing == []
    found = list(classic.conversations())
    assert [item.data for item in sharded.conversations()] == [item.data for item in found]
    for item in found:
        document = classic.source.document_parser(item.external_id).document(item.data)
        marks = [
            (u.parsed.messages[0].text, u.parsed.messages[0].on_active_branch)
            for u in document.units
        ]
        assert marks[1:3] == [("first (abandoned) answer", False), ("Look\nquantity", True)]
        assert len(marks) == 6


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "external_id", "count"),
    [
        ("brain-mcp/sample_chatgpt_export.json", "conv-export-001", 4),
        ("polylogue/chatgpt-export.json", "origin-matrix-chatgpt", 1),
        ("polylogue/native-conversation-v1.json", "chatgpt-fixture-conversation", 8),
        ("polylogue/native-browser-capture-v1.json", "chatgpt-fixture-conversation", 8),
    ],
)
def test_bare_samples_are_read(corpus: Path, name: str, external_id: str, count: int) -> None:
    export = open_export([corpus / "chatgpt" / name])
    (found,) = export.conversations()
    assert found.external_id == external_id
    document = export.source.document_parser(external_id).document(found.data)
    assert len(document.units) == count
    said = "\n".join(m.text for unit in document.units for m in unit.parsed.messages)
    if "capture" in name:
        assert "DOM fallback answer omits structured evidence." in said
