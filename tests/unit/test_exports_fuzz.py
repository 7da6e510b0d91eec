"""Arbitrary values at arbitrary places of exported conversations."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.records import SessionDraft
from recall_ingester.exports import SOURCES
from recall_ingester.exports.chatgpt_content import SILENT as CHATGPT_SILENT
from recall_ingester.exports.claude_ai_blocks import SILENT as CLAUDE_SILENT
from recall_ingester.sources.base import Document

MARK = "zq7mark"
Path = tuple[str | int, ...]
Record = dict[str, Any]

CLAUDE: Record = {
    "uuid": "c1",
    "name": "Orders",
    "summary": "sum",
    "model": "claude",
    "created_at": "2026-08-01T08:00:00Z",
    "account": {"uuid": "acct"},
    "chat_messages": [
        {
            "uuid": "m1",
            "sender": "assistant",
            "text": "t",
            "created_at": "2026-08-01T09:00:00Z",
            "parent_message_uuid": "00000000-0000-4000-8000-000000000000",
            "attachments": [{"file_name": "n", "extracted_content": "e"}],
            "files": [{"file_name": "g"}],
            "content": [
                {"type": "text", "text": "t", "citations": [{"title": "c", "url": "u"}]},
                {"type": "thinking", "thinking": "th", "summaries": [{"summary": "s"}]},
                {"type": "tool_use", "id": "t1", "name": "repl", "input": {"a": {"b": ["c"]}}},
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "name": "repl",
                    "content": [{"type": "text", "text": "r"}],
                    "is_error": False,
                },
                {"type": "image", "source": {"type": "base64", "media_type": "m", "data": "QQ=="}},
                {"type": "flag", "flag": "f"},
                {"type": "voice_note", "title": "v", "text": "w"},
            ],
        },
        {"uuid": "m2", "sender": "human", "text": "text", "parent_message_uuid": "m1"},
    ],
}


def node(key: str, parent: str | None, content: Record, **fields: Any) -> Record:
    base = {"id": key, "author": {"role": "user", "name": None}, "content": content}
    return {"id": key, "parent": parent, "children": [], "message": {**base, **fields}}


NODES = [
    {"id": "root", "message": None, "parent": None, "children": ["q"]},
    node(
        "q",
        "root",
        {
            "content_type": "multimodal_text",
            "parts": ["x", {"content_type": "image_asset_pointer", "asset_pointer": "file://f"}],
        },
        create_time=1785574800.5,
        metadata={"attachments": [{"name": "n"}], "citations": [{"title": "t", "url": "u"}]},
    ),
    node(
        "c",
        "q",
        {"content_type": "code", "text": "p"},
        author={"role": "assistant", "name": None},
        recipient="python",
    ),
    node("t", "q", {"content_type": "thoughts", "thoughts": [{"summary": "s", "content": "c"}]}),
    node(
        "r",
        "q",
        {"content_type": "execution_output", "text": "o"},
        author={"role": "tool", "name": "py"},
    ),
    node("w", "r", {"content_type": "tether_quote", "url": "u", "title": "t", "text": "x"}),
    node("k", "r", {"content_type": "user_editable_context", "user_profile": "a"}),
]
CHATGPT: Record = {
    "id": "g1",
    "title": "Orders",
    "create_time": 1785574800.0,
    "mapping": {item["id"]: item for item in NODES},
    "current_node": "t",
    "safe_urls": ["https://a"],
}

SAMPLES = dict(zip(("claude-ai", "chatgpt"), (CLAUDE, CHATGPT), strict=True))
#: Keys whose strings the source leaves out or keeps in another form.
DECLARED = {
    "claude-ai": CLAUDE_SILENT.keys() | {"data"},
    "chatgpt": CHATGPT_SILENT.keys() | {"parent", "children", "current_node"},
}


def read(name: str, value: object) -> tuple[SessionDraft, Document]:
    source = next(source for source in SOURCES if source.name == name)
    parser = source.document_parser("id")
    document = parser.document(json.dumps(value).encode())
    assert parser.session is not None
    return parser.session, document


def paths(value: object, at: Path = ()) -> Iterator[Path]:
    pairs: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        pairs += value.items()
    elif isinstance(value, list):
        pairs += enumerate(value)
    for key, item in pairs:
        yield (*at, key)
        yield from paths(item, (*at, key))


PLACES = [(name, path) for name, sample in SAMPLES.items() for path in paths(sample)]


def replaced(value: Any, path: Path, by: object) -> Any:
    changed = copy.deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = by
    return changed


names = ["type", "content_type", "parts", "text", "content", "uuid", "id", "message"]
keys = st.text(max_size=4) | st.sampled_from(names)
anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(PLACES), st.data(), anything, anything)
def test_nothing_that_stands_anywhere_raises(
    place: tuple[str, Path], data: st.DataObject, first: object, second: object
) -> None:
    name, path = place
    value = replaced(SAMPLES[name], path, first)
    others = list(paths(value))
    value = replaced(value, data.draw(st.sampled_from(others)), second)
    _, document = read(name, value)
    assert read(name, value)[1] == document
    ordinals = [unit.ordinal for unit in document.units]
    assert ordinals == sorted(set(ordinals))
    for unit in document.units:
        assert [m.part for m in unit.parsed.messages] == list(range(len(unit.parsed.messages)))
        assert all(m.text.strip() for m in unit.parsed.messages)
    records = value.get("chat_messages", value.get("mapping"))
    if isinstance(records, list | dict) and records:
        counted = len(ordinals) + document.merged + sum(document.skipped.values())
        # One more where only the conversation itself says something.
        assert len(records) <= counted <= len(records) + 1


@given(anything)
def test_any_object_is_a_conversation_or_malformed(value: object) -> None:
    for name in SAMPLES:
        read(name, {"x": value, "mapping": value, "chat_messages": value})


MARKED = [
    MARK,
    [MARK],
    [[MARK]],
    {"x": MARK},
    {"text": MARK},
    {"title": MARK, "type": "text", "content_type": "text"},
    [{"type": "odd", "content_type": "odd", "deep": {"er": [MARK]}}],
    [{"type": "text", "text": "more", "beside": MARK}],
    {"content_type": "text", "parts": MARK},
    {"parts": [{"content_type": "x", "beside": [MARK]}]},
    {"audio_asset_pointer": {"to": MARK}},
]


@pytest.mark.parametrize(
    ("name", "path"), [place for place in PLACES if not DECLARED[place[0]] & set(place[1])]
)
def test_no_text_is_lost_wherever_it_stands(name: str, path: Path) -> None:
    for mark in MARKED:
        session, document = read(name, replaced(SAMPLES[name], path, mark))
        found = [str(m) for unit in document.units for m in unit.parsed.messages]
        assert MARK in "\n".join([*found, str(session)]), mark
