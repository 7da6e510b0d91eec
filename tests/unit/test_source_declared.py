"""Declared sources: which files the patterns match, and what the named fields make of a record."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.config import Settings
from recall.declared import DeclaredSource
from recall.errors import ConfigError
from recall.records import Message, Parsed, SessionDraft
from recall_ingester.sources import all_sources
from recall_ingester.sources.base import Parser
from recall_ingester.sources.declared import Declared
from recall_ingester.sources.json_path import JsonPath

AT = datetime(2026, 3, 2, 10, tzinfo=UTC)


def source(paths: tuple[str, ...] = ("/x/*.jsonl",), **fields: Any) -> Declared:
    return Declared(DeclaredSource("mine", paths, **{"text": ("text",), **fields}))


def parser(state: dict[str, Any] | None = None, **fields: Any) -> Parser:
    declared = source(("/x/s.jsonl",), **fields)
    return declared.parser(declared._describe(Path("/x/s.jsonl"), Path("/x")), "s", state)


def read(*records: dict[str, Any], **fields: Any) -> list[Parsed]:
    using = parser(**fields)
    return [using.record(record, ordinal) for ordinal, record in enumerate(records)]


def one(record: dict[str, Any], **fields: Any) -> Message:
    ((message,),) = [parsed.messages for parsed in read(record, **fields)]
    return message


def session(using: Parser) -> SessionDraft:
    assert using.session is not None
    return using.session


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}\n")
    return path


def found(declared: Declared, home: Path) -> list[str]:
    files = [file for root in declared.roots({}, home) for file in declared.discover(root)]
    return [file.path.relative_to(home).as_posix() for file in files]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("~/a/*.jsonl", ["a/1.jsonl", "a/2.jsonl"]),
        ("~/a/**/*.jsonl", ["a/1.jsonl", "a/2.jsonl", "a/b/3.jsonl", "a/b/c/4.jsonl"]),
        ("~/a/**/c/*.jsonl", ["a/b/c/4.jsonl"]),
        ("~/a/**", ["a/1.jsonl", "a/2.jsonl", "a/n.txt", "a/b/3.jsonl", "a/b/c/4.jsonl"]),
        ("~/a/**/**/4.jsonl", ["a/b/c/4.jsonl"]),
        ("~/a/[2-9].jsonl", ["a/2.jsonl"]),
        ("~/a/?.txt", ["a/n.txt"]),
        ("~/*/1.jsonl", ["a/1.jsonl"]),
        ("~/a/1.jsonl", ["a/1.jsonl"]),
        ("~/a/.hidden/*.jsonl", ["a/.hidden/5.jsonl"]),
        ("~/*/.hidden/*.jsonl", ["a/.hidden/5.jsonl"]),
        ("~/a/b", []),
        ("~/missing/*.jsonl", []),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, names: list[str]) -> None:
    for name in ("1.jsonl", "2.jsonl", "n.txt", "b/3.jsonl", "b/c/4.jsonl", ".hidden/5.jsonl"):
        write(tmp_path / "a" / name)
    os.mkfifo(tmp_path / "a" / "pipe.jsonl")
    declared = source((pattern,))
    roots = [root for root in declared.roots({}, tmp_path) if root.exists()]
    assert sorted(
        file.path.relative_to(tmp_path).as_posix()
        for root in roots
        for file in declared.discover(root)
    ) == sorted(names)


def test_several_patterns_of_one_folder_give_each_file_once(tmp_path: Path) -> None:
    write(tmp_path / "a/1.jsonl")
    (tmp_path / "a/2.jsonl").symlink_to(tmp_path / "a/1.jsonl")
    (tmp_path / "a/up").symlink_to(tmp_path)
    assert found(source(("~/a/*.jsonl", "~/a/**/*.jsonl")), tmp_path) == ["a/1.jsonl"]


def test_another_folder_is_searched_by_the_tail_of_the_pattern(tmp_path: Path) -> None:
    path = write(tmp_path / "old" / "b" / "s.jsonl")
    (file,) = source(("~/a/*/*.jsonl",)).discover(tmp_path / "old")
    assert (file.path, file.natural_id, file.relative) == (path, "s", "b/s")
    (file,) = source(("~/a/*/*.jsonl",)).discover(path)
    assert file.path == path


def test_compressed_file_has_the_id_of_the_plain_one(tmp_path: Path) -> None:
    write(tmp_path / "s.jsonl.zst")
    (file,) = source(("~/a/*",)).discover(tmp_path)
    assert (file.natural_id, file.compressed, file.shape) == ("s", True, "lines")


def test_folder_that_cannot_be_listed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a/shut/1.jsonl")
    write(tmp_path / "a/open/2.jsonl")
    listing = os.scandir

    def scandir(path: Path) -> Any:
        if Path(path).name == "shut":
            raise PermissionError(13, "Permission denied")
        return listing(path)

    monkeypatch.setattr(os, "scandir", scandir)
    declared = source(("~/a/**/*.jsonl",))
    assert found(declared, tmp_path) == ["a/open/2.jsonl"]
    assert declared.unreadable == {tmp_path / "a/shut": "Permission denied"}


def test_session_id_comes_from_a_field_where_one_is_named(tmp_path: Path) -> None:
    write(tmp_path / "log.jsonl")
    declared = source(("~/a/*",), session=("meta.id", "sid"))
    (file,) = declared.discover(tmp_path)
    assert file.natural_id is None
    assert declared.first_id({"meta": {"id": ""}, "sid": 7}) is None
    assert declared.first_id({"sid": 7}) == "7"
    assert declared.first_id({"other": 1}) is None
    assert source().first_id({"id": "x"}) is None


def test_name_of_a_known_source_is_refused() -> None:
    taken = DeclaredSource("codex", ("/x",), ("t",))
    with pytest.raises(ConfigError, match="`codex`") as error:
        all_sources(Settings(declared_sources=(taken,)))
    assert error.value.hint


def test_declared_source_is_known_by_its_name() -> None:
    spec = DeclaredSource("mine", ("/x",), ("t",))
    made = all_sources(Settings(declared_sources=(spec,)))["mine"]
    assert (made.name, made.reads[0].pattern, made.leaves_out[0].where) == ("mine", "/x", "**")


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("a", [{"b": [1, {"c": "x"}, None]}]),
        ("a.b[0]", [1]),
        ("a.b[9]", []),
        ("a.b[*]", [1, {"c": "x"}]),
        ("a.b[*].c", ["x"]),
        ("a[*]", []),
        ("a.b.c", []),
        ("d[0][1]", [4]),
        ("d[*][*]", [3, 4, 5]),
        ("with space.x-y", [True]),
    ],
)
def test_json_path(path: str, values: list[Any]) -> None:
    record = {
        "a": {"b": [1, {"c": "x"}, None]}, "d": [[3, 4], [5]], "with space": {"x-y": True},
    }  # fmt: skip
    assert JsonPath.parse(path).find(record) == values


def test_text_of_a_list_is_joined_and_the_first_path_that_has_any_counts() -> None:
    text = ("parts[*].text", "content")
    assert one({"parts": [{"text": "a"}, {"x": 1}, {"text": "b"}]}, text=text).text == "a\nb"
    assert one({"parts": [], "content": "c"}, text=text).text == "c"


def test_text_that_is_no_string_is_rendered() -> None:
    assert one({"text": {"cmd": "ls -l", "env": ["A=1"]}}).text == "cmd: ls -l\nenv: A=1"
    assert one({"text": 5}).text == "5"


def test_every_field() -> None:
    using = parser(
        role=("from",), time=("at",), project=("cwd",), branch=("git.branch",), model=("llm",),
        tool=("tool.name",), title=("title",), kind=("type",),
        roles={"agent": "assistant"}, kinds={"thought": "thinking"},
    )  # fmt: skip
    parsed = using.record(
        {"text": "hm", "from": "agent", "at": 1772445600, "cwd": "/p", "git": {"branch": "b"},
         "llm": "m", "title": " A \n title ", "type": "thought"},
        0,
    )  # fmt: skip
    assert parsed.messages == [Message("assistant", "thinking", "hm", model="m")]
    assert (parsed.ts, parsed.cwd, parsed.branch) == (AT, "/p", "b")
    assert using.session == SessionDraft(
        "s", title="A title", title_rank=50, cwd="/p", branch="b", model="m",
        started_at=AT, ended_at=AT,
    )  # fmt: skip
    later = using.record({"text": "ls", "from": "agent", "tool": {"name": "sh"}}, 1)
    assert later.messages == [Message("assistant", "tool_call", "ls", tool="sh", model="m")]
    assert (later.ts, later.cwd, later.branch) == (None, "/p", "b")


@pytest.mark.parametrize(
    ("record", "role", "kind"),
    [
        ({"role": "user"}, "user", "text"),
        ({"role": "Human"}, "user", "text"),
        ({"role": "AI"}, "assistant", "text"),
        ({"role": "tool"}, "tool", "tool_result"),
        ({"role": "tool", "tool": "sh"}, "tool", "tool_result"),
        ({"kind": "tool_result"}, "tool", "tool_result"),
        ({"kind": "message"}, "system", "text"),
        ({"role": "stranger"}, "system", "text"),
        ({"role": ["user"]}, "system", "text"),
        ({}, "system", "text"),
    ],
)
def test_words_for_roles_and_kinds(record: dict[str, Any], role: str, kind: str) -> None:
    message = one({"text": "x", **record}, role=("role",), kind=("kind",), tool=("tool",))
    assert (message.role, message.kind) == (role, kind)


def test_role_of_records_that_give_none() -> None:
    assert one({"text": "x"}, default_role="user").role == "user"


def test_first_words_of_the_person_are_the_title_unless_one_is_given() -> None:
    using = parser(role=("role",), title=("title",))
    using.record({"text": "sys", "role": "system"}, 0)
    using.record({"text": "fix\nit", "role": "user"}, 1)
    assert session(using).title == "fix it"
    using.record({"text": "more", "role": "user", "title": "Fix"}, 2)
    assert session(using).title == "Fix"


def test_records_without_text_are_counted_by_their_reason() -> None:
    fields: dict[str, Any] = {
        "title": ("title",), "skip": {"type": ("ping", 1)}, "only": {"ok": (True,)},
    }  # fmt: skip
    outcomes = read(
        {"text": "a", "ok": True},
        {"ok": True},
        {"ok": True, "title": "T"},
        {"text": "a", "ok": True, "type": "ping", "title": "U"},
        {"text": "a", "ok": True, "type": 1},
        {"text": "a", "ok": True, "type": True},
        {"text": "a", "ok": 1},
        {"text": "a"},
        {"title": "header"},
        **fields,
    )
    assert [
        "message" if o.messages else "session" if o.session_info else o.skipped for o in outcomes
    ] == [
        "message", "no text", "session", "skip", "skip", "message", "not in only", "not in only",
        "session",
    ]  # fmt: skip


RECORDS = [
    {"cwd": "/a", "llm": "m"},
    {"text": "one", "role": "user", "at": "2026-03-02T10:00:00Z"},
    {"text": "two", "role": "assistant", "branch": "b", "at": "2026-03-02T11:00:00Z"},
    {"text": "three", "role": "assistant", "title": "T", "cwd": "/b"},
]
ALL: dict[str, Any] = {
    "role": ("role",), "time": ("at",), "project": ("cwd",), "branch": ("branch",),
    "model": ("llm",), "title": ("title",), "tool": ("tool",), "kind": ("kind",),
}  # fmt: skip


@pytest.mark.parametrize("at", range(5))
def test_reading_on_gives_what_reading_at_once_gives(at: int) -> None:
    whole = parser(**ALL)
    expected = [whole.record(record, n) for n, record in enumerate(RECORDS)]
    first = parser(**ALL)
    parsed = [first.record(record, n) for n, record in enumerate(RECORDS[:at])]
    second = parser(json.loads(json.dumps(first.state())), **ALL)
    parsed += [second.record(record, n) for n, record in enumerate(RECORDS[at:], at)]
    assert parsed == expected
    assert second.session == whole.session
    assert second.state() == whole.state()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(["text", "role", "at", "cwd", "branch", "llm", "title", "tool", "kind"])
VALUES = JSON | st.sampled_from(["user", "tool_call", "assistant"])


@given(st.lists(st.dictionaries(NAMES, VALUES), max_size=4))
def test_any_record_is_read(records: list[dict[str, Any]]) -> None:
    using = parser(**ALL)
    step: Callable[..., Parsed] = using.record
    for ordinal, record in enumerate(records):
        parsed = step(record, ordinal)
        assert bool(parsed.messages) + parsed.session_info + bool(parsed.skipped) == 1
    restored = parser(json.loads(json.dumps(using.state())), **ALL)
    assert restored.session == using.session


@given(JSON, st.lists(st.sampled_from(["a", "b[0]", "c[*]", "[*]"]), min_size=1, max_size=4))
def test_any_path_of_any_value(value: Any, steps: list[str]) -> None:
    assert None not in JsonPath.parse(".".join(steps)).find(value)
