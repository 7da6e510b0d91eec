"""Agents' memory: which files are found, and the entries of every shape."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.hygiene import clean, clean_json
from recall.jsontext import MalformedLine, compact
from recall.records import Note
from recall_ingester.sources.base import Document
from recall_ingester.sources.memory import Memory
from recall_ingester.sources.memory_entries import EntriesParser
from recall_ingester.sources.toolinput import leaves

AT = datetime(2026, 3, 2, 10, tzinfo=UTC)


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def found(source: Memory, root: Path) -> list[str]:
    files = list(source.discover(root))
    assert all(file.shape == "document" and not file.owns_session for file in files)
    return [f"{file.label} {file.relative}{file.path.suffix}" for file in files]


def read_file(source: Memory, root: Path) -> Document:
    (file,) = source.discover(root)
    return source.document_parser(file, "").document(file.path.read_bytes())


def entries(data: object, *, lines: bool = False) -> Document:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return EntriesParser(lines=lines).document(raw)


def notes(document: Document) -> list[Note]:
    return [note for unit in document.units for note in unit.parsed.notes]


def told(document: Document) -> list[tuple[str, str]]:
    return [(note.key, note.text) for note in notes(document)]


def test_roots_follow_the_clients() -> None:
    home = Path("/home/me")
    assert Memory([Path("/n")]).roots({}, home) == [
        home / ".claude/projects", home / ".config/claude/projects", home / ".codex/memories",
        Path("/n"),
    ]  # fmt: skip
    env = {"CLAUDE_CONFIG_DIR": "/a, /b", "CODEX_HOME": "/c"}
    assert Memory().roots(env, home) == [
        Path("/a/projects"), Path("/b/projects"), Path("/c/memories"),
    ]  # fmt: skip


def test_only_memory_folders_of_claude_projects_are_read(tmp_path: Path) -> None:
    root = tmp_path / "projects"
    for name in ("-src-app/memory/MEMORY.md", "-src-app/memory/old/a.md", "-src-app/s.jsonl",
                 "-src-app/notes.md", "-src-app/memory/state.json", "-src-app/s/memory/x.md",
                 "-src-b/memory/MEMORY.md"):  # fmt: skip
        write(root / name)
    (root / "-loop").symlink_to(root / "-loop")
    outside = write(tmp_path / "outside/memory/x.md").parent.parent
    (root / "-outside").symlink_to(outside)
    assert found(Memory(), root) == [
        "project-notes -src-app/memory/MEMORY.md",
        "project-notes -src-app/memory/old/a.md",
        "project-notes -src-b/memory/MEMORY.md",
    ]


def test_folder_of_the_setting_has_notes_and_entries(tmp_path: Path) -> None:
    for name in ("a.md", "b/c.markdown", "m.json", "m.jsonl", "n.ndjson", ".hidden/d.md", "x.py"):
        write(tmp_path / "notes" / name)
    assert found(Memory([tmp_path / "notes"]), tmp_path / "notes") == [
        "notes a.md", "notes b/c.markdown", "entries m.json", "entries m.jsonl", "entries n.ndjson",
    ]  # fmt: skip


def test_codex_memories_are_notes_only(tmp_path: Path) -> None:
    root = tmp_path / "memories"
    write(root / "a.md")
    write(root / "state.json")
    assert found(Memory(), root) == ["notes a.md"]
    assert found(Memory([root]), root) == ["notes a.md", "entries state.json"]


def test_single_file_of_the_setting(tmp_path: Path) -> None:
    assert found(Memory(), write(tmp_path / "m.json")) == ["entries m.json"]
    assert found(Memory(), write(tmp_path / "CONVENTIONS")) == ["notes CONVENTIONS"]


def test_memory_folder_that_cannot_be_listed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "projects"
    write(root / "a/memory/x.md")
    write(root / "b/memory/y.md")
    listing = os.scandir

    def scandir(path: Path) -> Any:
        if Path(path).parts[-2:] == ("a", "memory"):
            raise PermissionError(13, "Permission denied")
        return listing(path)

    monkeypatch.setattr(os, "scandir", scandir)
    source = Memory()
    assert found(source, root) == ["project-notes b/memory/y.md"]
    assert source.unreadable == {root / "a/memory": "Permission denied"}


def test_note_of_a_claude_project(tmp_path: Path) -> None:
    text = "---\nname: 'House style'\ndate: 2026-03-02T10:00:00Z\n---\n# Other\n\nShort names.\n"
    write(tmp_path / "projects/-src-app/memory/style.md", text)
    (note,) = notes(read_file(Memory(), tmp_path / "projects"))
    assert note == Note(
        "memory", "-src-app/memory/style.md", text, title="House style", ts=AT,
        fields={"folder": "-src-app"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("intro\n\n## The C# part ##\n", "The C# part"),
        ("# C#\n", "C#"),
        ("```\n# no\n```\n# Yes\n", "Yes"),
        ("---\ntitle: T\nname: N\n---\n", "T"),
        ("---\nname: |\n  a\n---\n# H\n", "H"),
        ("---\nname: never closed\n# H\n", "H"),
        ("#tag and text\n", None),
    ],
)
def test_title_of_a_note(tmp_path: Path, text: str, title: str | None) -> None:
    (note,) = notes(read_file(Memory(), write(tmp_path / "a.md", text)))
    assert (note.key, note.text, note.title) == ("a.md", text, title)


def test_empty_note_is_no_entry(tmp_path: Path) -> None:
    document = read_file(Memory(), write(tmp_path / "a.md", " \n"))
    assert (document.units, document.skipped) == ([], {"empty": 1})


def test_note_that_is_not_utf8_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.md")
    path.write_bytes(b"\xef\xbb\xbf# caf\xe9\n")
    assert told(read_file(Memory(), path)) == [("a.md", "# caf\ufffd\n")]


def test_array_of_entries() -> None:
    document = entries(
        [
            {"id": 7, "memory": "likes tea", "created_at": "2026-03-02T10:00:00Z", "user_id": "u"},
            "plain",
            {"title": "T", "content": "c", "project": "/p", "session_id": "s"},
            None,
            {"name": "n", "text": ""},
        ]
    )
    first, plain, third, named = notes(document)
    assert first == Note("memory", "7", "likes tea", ts=AT, fields={"user_id": "u"})
    assert (plain.text, len(plain.key)) == ("plain", 32)
    assert (third.key, third.title, third.project, third.session_id) == ("T", "T", "/p", "s")
    assert (named.key, named.text) == ("n", "name: n\ntext: ")
    assert [unit.ordinal for unit in document.units] == [0, 1, 2, 4]
    assert document.skipped == {"no text": 1}


def test_object_with_a_list_of_memories() -> None:
    document = entries({"version": "2", "memories": [{"key": "a", "value": "1"}, {"value": "x"}]})
    assert [text for _, text in told(document)] == ["2", "1", "x"]


def test_object_of_names_and_texts() -> None:
    document = entries({"editor": "vim", "lint": ["ruff", "mypy"], "age": 5, "none": None})
    assert told(document) == [("editor", "vim"), ("lint", "ruff mypy"), ("age", "5")]
    assert notes(document)[0].title == "editor"


def test_object_that_is_one_entry() -> None:
    assert told(entries({"name": "n", "content": "c"})) == [("n", "c")]


@pytest.mark.parametrize("lines", [True, False])
def test_entities_and_relations_line_by_line(lines: bool) -> None:
    data = (
        b'{"type":"entity","name":"Ada","entityType":"person",'
        b'"observations":["wrote it","is kind"]}\n'
        b'\n{"type":"relation","from":"Ada","to":"Engine","relationType":"works on"}\n{"type":"ent'
    )
    document = entries(data, lines=lines)
    ada, relation = notes(document)
    assert (ada.key, ada.title, ada.text) == ("Ada", "Ada", "wrote it\nis kind")
    assert ada.fields == {"type": "entity", "entityType": "person"}
    assert relation.text == "Ada works on Engine"
    assert [unit.ordinal for unit in document.units] == [0, 2]
    assert document.bad == []


def test_graph_in_one_object_even_on_one_line() -> None:
    graph = {
        "entities": [{"name": "Ada", "observations": ["x"]}],
        "relations": [{"from": "a", "to": "b", "relationType": "r"}],
    }
    for lines in (True, False):
        assert [note.text for note in notes(entries(graph, lines=lines))] == ["x", "a r b"]


def test_bad_line_between_entries_is_told_with_its_place() -> None:
    document = entries(b'{"id":"a","text":"x"}\n{oops\n{"id":"b","text":"y"}\n', lines=True)
    assert told(document) == [("a", "x"), ("b", "y")]
    (bad,) = document.bad
    assert (bad.byte_offset, bad.data, bad.ordinal) == (22, b"{oops\n", 1)


@pytest.mark.parametrize("data", [b'[{"id": 1', b'[\n{"id":"a","text":"x"}\n,\n', b"{oops"])
def test_half_written_file_gives_nothing(data: bytes) -> None:
    for lines in (True, False):
        if lines and b"\n" in data:
            continue
        with pytest.raises(MalformedLine):
            entries(data, lines=lines)


def test_equal_keys_are_told_apart_and_equal_entries_are_one() -> None:
    document = entries([{"name": "a", "text": "x"}, {"name": "a", "text": "y"}, "z", "z"])
    assert [key for key, _ in told(document)][:2] == ["a", "a#2"]
    assert len(document.units) == 3
    assert document.merged == 1


def test_entry_without_a_known_field_keeps_everything() -> None:
    (note,) = notes(entries([{"rule": "be brief", "scope": {"path": "/src"}}]))
    assert note.text == "rule: be brief\nscope:\npath: /src"


def test_deep_fields_become_text() -> None:
    deep: Any = "bottom"
    for _ in range(200):
        deep = [deep]
    (note,) = notes(entries([{"id": "a", "text": "x", "more": deep}]))
    clean_json(note.fields)
    assert "bottom" in compact(note.fields)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["id", "key", "name", "title", "text", "content", "observations", "created_at", "from", "to",
     "relationType", "memories", "entities", "project", "session_id", "more"]
)  # fmt: skip
ENTRY = st.dictionaries(NAMES, JSON | st.sampled_from(["a", "b"]), max_size=6)


def check(document: Document, value: object) -> None:
    """Nothing to read is lost, keys are unique, and the store can take the fields."""
    everything = notes(document)
    assert len({note.key for note in everything}) == len(everything)
    kept = set()
    for note in everything:
        assert note.text.strip()
        json.dumps(clean_json(note.fields), allow_nan=False)
        kept |= {note.text, note.key, note.title or "", note.project or "", note.session_id or ""}
        kept |= set(leaves(note.fields))
    shown = clean("\n".join(kept))[0]
    for leaf in leaves(value):
        assert clean(leaf.strip())[0] in shown or parse_like_a_time(leaf)


def parse_like_a_time(leaf: str) -> bool:
    return any(character.isdigit() for character in leaf)


@given(st.lists(ENTRY | JSON, max_size=5) | ENTRY | st.fixed_dictionaries({"memories": JSON}))
def test_any_document_is_read_without_a_loss(value: Any) -> None:
    raw = json.dumps(value).encode()
    document = entries(raw)
    check(document, value)
    assert document == entries(raw)


@given(st.lists(ENTRY, min_size=2, max_size=5))
def test_any_lines_are_read_without_a_loss(value: list[dict[str, Any]]) -> None:
    check(entries(b"".join(json.dumps(v).encode() + b"\n" for v in value), lines=True), value)


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for lines in (True, False):
        with suppress(MalformedLine):
            entries(data, lines=lines)
