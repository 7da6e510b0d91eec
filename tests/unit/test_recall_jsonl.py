"""The import format: what each line becomes, and the exact words for what is wrong with one."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.errors import SourceError
from recall.hygiene import clean_json
from recall.records import Message, Note, Parsed, Prompt, SessionDraft
from recall_ingester.exports import recall_jsonl
from recall_ingester.exports.recall_jsonl import Header, Record, Validation, records, validate

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recall-jsonl.md"
HEADER = {"recall": 1, "source": "mine"}
SESSION = {"type": "session", "id": "s"}
AT = datetime(2026, 3, 2, 10, tzinfo=UTC)


def stream(*lines: object) -> io.BytesIO:
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    return io.BytesIO(b"\n".join(raw) + b"\n")


def message(**more: Any) -> dict[str, Any]:
    return {"type": "message", "session": "s", "role": "user", "text": "hi", **more}


def read(*lines: object) -> list[Record]:
    return list(records(stream(HEADER, SESSION, *lines)))[2:]


def one(line: dict[str, Any]) -> Parsed:
    (record,) = read(line)
    assert isinstance(record.value, Parsed)
    return record.value


def problems(*lines: object) -> list[str]:
    return list(map(str, validate(stream(*lines)).problems))


def wrong(line: object) -> list[str]:
    return problems(HEADER, SESSION, line)


def test_the_example_of_the_page_is_valid() -> None:
    example = re.search(r"```jsonl\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert example
    found = validate(io.BytesIO(example[1].encode()))
    assert found.problems == []
    assert found.sessions >= 2
    assert min(found.messages, found.prompts, found.notes) >= 1
    list(records(io.BytesIO(example[1].encode())))


def test_every_field_is_on_the_page() -> None:
    from recall_ingester.exports.recall_jsonl_lines import _TYPES

    page = PAGE.read_text("utf-8")
    for kind, fields in _TYPES.items():
        section = page.split(f"## `{kind}`")[1].split("\n## ")[0]
        assert [name for name in fields if f"| `{name}` |" not in section] == []


def test_header_and_places_of_lines() -> None:
    source = stream(HEADER, b"", SESSION)
    header, session = records(source)
    assert header == Record(1, 0, 32, None, Header("mine"), 0)
    assert (session.line, session.byte_offset) == (3, 33)
    assert source.getvalue()[33 : 33 + session.byte_length] == json.dumps(SESSION).encode() + b"\n"


def test_session_line() -> None:
    line = {
        "type": "session", "id": "t", "title": "T", "project": "/p", "branch": "b", "model": "m",
        "parent": "s", "relation": "fork", "started_at": "2026-03-02T10:00:00Z",
        "ended_at": "2026-03-02T12:00:00+01:00",
    }  # fmt: skip
    (record,) = read(line)
    assert record.session == "t"
    assert record.value == SessionDraft(
        "t", parent_id="s", relation="fork", title="T", title_rank=50, cwd="/p", branch="b",
        model="m", started_at=AT, ended_at=datetime(2026, 3, 2, 11, tzinfo=UTC),
    )  # fmt: skip


def test_message_line() -> None:
    parsed = one(
        message(role="tool", ts="2026-03-02T10:00:00Z", tool="sh", call_id="c", id="n", model="m",
                is_error=True)
    )  # fmt: skip
    assert parsed.ts == AT
    assert parsed.messages == [
        Message("tool", "tool_result", "hi", tool="sh", call_id="c", native_id="n", model="m",
                is_error=True)
    ]  # fmt: skip


def test_prompt_and_note_lines() -> None:
    prompt = one({"type": "prompt", "text": "do", "session": "s", "project": "/p"})
    assert prompt.prompts == [Prompt("do", None, "s", "/p")]
    note = one({"type": "note", "shelf": "memory", "key": "k", "text": "t", "fields": {"a": 1}})
    assert note.notes == [Note("memory", "k", "t", fields={"a": 1})]


def test_own_fields_are_kept_in_a_part_of_their_own() -> None:
    parsed = one(message(part=2, x_cost={"usd": 0.5}, x_note="why"))
    own = parsed.messages[1]
    assert (own.role, own.kind, own.part) == ("system", "meta", 10_002)
    assert json.loads(own.text) == {"x_cost": {"usd": 0.5}, "x_note": "why"}


def test_messages_are_numbered_within_their_session() -> None:
    lines = [
        {"type": "session", "id": "t"},
        message(), message(session="t"), message(), message(part=1), message(part=3),
        message(session="t"), message(ordinal=9), message(),
    ]  # fmt: skip
    found = [
        (record.session, record.ordinal)
        for record in read(*lines)
        if isinstance(record.value, Parsed)
    ]
    assert found == [
        ("s", 0), ("t", 0), ("s", 1), ("s", 1), ("s", 1), ("t", 1), ("s", 9), ("s", 10),
    ]  # fmt: skip


def test_nulls_count_as_not_given() -> None:
    assert one(message(tool=None, ordinal=None, ts=None)).messages == [
        Message("user", "text", "hi")
    ]


def test_call_without_arguments_has_its_name_as_text() -> None:
    assert one(message(kind="tool_call", text="", tool="ls")).messages[0].text == "ls"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (message(role="human"), '"role" must be one of user, assistant, tool, system'),
        ({"type": "message", "session": "s", "role": "user"}, '"text" is missing'),
        (message(text=5), '"text" must be a text'),
        (message(text=" "), '"text" must not be empty'),
        (message(kind="chat"), '"kind" must be one of text, thinking, tool_call, tool_result, '
         "summary, meta, event, unknown"),
        (message(ts="2026-03-02T10:00:00"), '"ts" must be a time with a zone, such as '
         "2026-03-02T10:00:00Z"),
        (message(ts=1), '"ts" must be a time with a zone, such as 2026-03-02T10:00:00Z'),
        (message(ordinal=-1), f'"ordinal" must be a whole number from 0 to {2**62 - 1}'),
        (message(part=True), '"part" must be a whole number from 0 to 9999'),
        (message(is_error="no"), '"is_error" must be true or false'),
        (message(mood="good"), '"mood" is not a field of this line'),
        (message(session="u"), 'session "u" has no line of type session before this one'),
        ({"type": "talk"}, '"type" must be one of session, message, prompt, note'),
        (SESSION, 'session "s" was declared on line 2'),
        ({"type": "session", "id": "t", "relation": "fork"}, '"relation" needs "parent"'),
        ({"type": "session", "id": "t", "parent": "t"}, '"parent" must be another session'),
        ({"type": "session", "id": "t", "x_a": 1}, '"x_a" is not a field of this line'),
        ({"type": "session", "id": "t", "started_at": "2026-03-02T10:00:00Z",
          "ended_at": "2026-03-01T10:00:00Z"}, '"ended_at" must not be before "started_at"'),
        ({"type": "note", "shelf": "desk", "key": "k", "text": "t"},
         '"shelf" must be one of ledger, memory'),
        ({"type": "note", "shelf": "memory", "key": "k", "text": "t", "fields": []},
         '"fields" must be an object'),
        (b'{"type": "mess', "is not JSON: not JSON"),
        (b"[]", "must be an object"),
        (b'{"type": "prompt", "text": "\xff"}', "is not UTF-8"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_exactly(line: object, said: str) -> None:
    assert wrong(line) == [f"line 3: {said}"]
    with pytest.raises(SourceError, match=re.escape(f"line 3: {said}")):
        read(line)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"recall": 2, "source": "a"}, '"recall" must be 1, the version of the format'),
        ({"recall": True, "source": "a"}, '"recall" must be 1, the version of the format'),
        ({"recall": 1, "source": "A b"}, '"source" must be a name made of a-z, 0-9 and -'),
        (
            {"recall": 1, "source": "a", "host": "h"},
            '"host" cannot be given: it is the machine that imports',
        ),
        ({"recall": 1, "source": "a", "day": 1}, '"day" is not a field of this line'),
    ],
)
def test_what_is_wrong_with_the_header_is_said_exactly(header: object, said: str) -> None:
    assert problems(header) == [f"line 1: {said}"]


def test_file_without_any_line_has_no_header() -> None:
    assert problems(b"", b"  ") == ['line 1: must be {"recall": 1, "source": NAME}']


def test_places_must_rise() -> None:
    said = '"ordinal" and "part" must be above those of the message before, 3, 1'
    lines = (HEADER, SESSION, message(ordinal=3, part=1))
    assert problems(*lines, message(ordinal=3, part=1)) == [f"line 4: {said}"]
    assert problems(*lines, message(ordinal=2)) == [f"line 4: {said}"]
    assert problems(*lines, message(ordinal=3, part=2), message()) == []


def test_every_problem_is_counted_and_the_first_hundred_are_told() -> None:
    found = validate(stream(HEADER, SESSION, *[message(role="x", text=1)] * 80))
    assert (found.total_problems, len(found.problems), found.is_valid) == (160, 100, False)


def test_wrong_session_line_does_not_make_its_messages_wrong() -> None:
    bad = {"type": "session", "id": "t", "title": 5}
    assert problems(HEADER, bad, message(session="t")) == ['line 2: "title" must be a text']


def test_line_beyond_the_limit_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall_jsonl, "MAX_LINE_BYTES", 100)
    assert wrong(message(text="x" * 200)) == ["line 3: is longer than 100 bytes"]


def test_last_line_needs_no_newline() -> None:
    data = stream(HEADER, SESSION, message()).getvalue().removesuffix(b"\n")
    assert validate(io.BytesIO(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"))).messages == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["type", "session", "id", "role", "kind", "text", "ts", "ordinal", "part", "shelf", "key",
     "fields", "parent", "relation", "x_a", "other", "recall", "source"]
)  # fmt: skip
WORDS = st.sampled_from(
    ["session", "message", "prompt", "note", "s", "user", "text", "ledger", "fork",
     "0001-01-01T00:00:00+23:00", "2026-03-02T10:00:00Z"]
)  # fmt: skip
LINES = st.lists(JSON | st.dictionaries(NAMES, JSON | WORDS), max_size=6)


@given(LINES)
def test_any_line_is_either_read_or_reported(lines: list[Any]) -> None:
    source = stream(HEADER, SESSION, *lines).getvalue()
    found = validate(io.BytesIO(source))
    assert isinstance(found, Validation)
    if not found.is_valid:
        with pytest.raises(SourceError):
            list(records(io.BytesIO(source)))
        return
    for record in records(io.BytesIO(source)):
        for note in record.value.notes if isinstance(record.value, Parsed) else ():
            json.dumps(clean_json(note.fields), allow_nan=False)


@given(st.binary(max_size=200))
def test_any_bytes_are_either_read_or_reported(data: bytes) -> None:
    validate(io.BytesIO(data))
