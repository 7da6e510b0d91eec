"""The syntax of `leaves_out`: each pattern covers what it says and nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from recall_ingester.left_out import LeftOut
from recall_ingester.sources import all_sources
from recall_ingester.sources.base import LeavesOut


def covers(where: str, path: str, record: Mapping[str, Any] | None = None) -> bool:
    """Whether the pattern covers the value at a dotted path of a record."""
    steps = path.split(".")
    holders: list[Any] = [record or {}]
    for step in steps[:-1]:
        holder = holders[-1]
        below = holder[int(step)] if isinstance(holder, list) else holder.get(step, {})
        holders.append(below)
    return LeftOut([LeavesOut(where, "x")]).value(steps, holders) == "x"


@pytest.mark.parametrize(
    ("where", "path", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.0.c", True),
        ("a.b", "a", False),
        ("a.b", "a.bc", False),
        ("a.b", "x.a.b", False),
        ("a.*.b", "a.0.b", True),
        ("a.*.b", "a.b", False),
        ("a.*.b", "a.0.1.b", False),
        ("**.b", "b", True),
        ("**.b", "a.0.b.c", True),
        ("a.**.b", "a.b", True),
        ("a.**.b", "a.x.y.b", True),
        ("a.**.b", "b", False),
        ("event*", "event_log.text", True),
        ("event*", "an_event", False),
        ("a, c.d", "c.d", True),
        ("a, c.d", "c", False),
        ("auth.json", "auth.json", False),
    ],
)
def test_path_covers_a_value_and_what_is_below_it(where: str, path: str, expected: bool) -> None:
    assert covers(where, path) is expected


@pytest.mark.parametrize(
    ("where", "path", "expected"),
    [
        ("type=event.text", "text", True),
        ("type=event", "text", True),
        ("type=ev*.text", "text", True),
        ("type=other.text", "text", False),
        ("payload.kind=count.note", "payload.note", True),
        ("payload.kind=told.note", "payload.note", False),
        ("type=event.payload.kind=count.note", "payload.note", True),
        ("**.kind=count.note", "payload.note", True),
        ("missing=event.text", "text", False),
        ("parts.*.kind=a/b.note", "parts.1.note", True),
        ("parts.*.kind=a/b.note", "parts.0.note", False),
    ],
)
def test_condition_holds_for_the_object_that_is_reached(
    where: str, path: str, expected: bool
) -> None:
    record = {
        "type": "event",
        "text": "x",
        "payload": {"kind": "count", "note": "x"},
        "parts": [{"kind": "c", "note": "x"}, {"kind": "a/b", "note": "x"}],
    }
    assert covers(where, path, record) is expected


@pytest.mark.parametrize(
    ("where", "file", "expected"),
    [
        ("auth.json", "auth.json", True),
        ("auth.json", "home/.codex/auth.json", True),
        ("auth.json", "myauth.json", False),
        ("memory/*.md", "projects/p/memory/a.md", True),
        ("memory/*.md", "projects/p/memory/deep/a.md", False),
        ("tmp/*/checkpoints/**", "tmp/p/checkpoints/a/b.json", True),
        ("tmp/*/checkpoints/**", "tmp/p/q/checkpoints/a", False),
        ("a/**/b.txt", "a/b.txt", True),
        ("a/**/b.txt", "a/x/y/b.txt", True),
        ("plans/, todos/", "x/todos/1.json", True),
        ("plans/", "plans", False),
        ("**/.*", "notes/.git/config", True),
        ("**/.*", "notes/a.md", False),
        ("text", "text", False),
    ],
)
def test_file_pattern_matches_the_end_of_a_path(where: str, file: str, expected: bool) -> None:
    assert (LeftOut([LeavesOut(where, "x")]).file(file) == "x") is expected


def test_first_line_that_covers_a_value_gives_the_reason() -> None:
    left = LeftOut([LeavesOut("a", "one"), LeavesOut("a.b", "two")])
    assert left.value(["a", "b"], [{}, {}]) == "one"
    assert left.value(["c"], [{}]) is None


def test_no_source_leaves_out_everything_or_without_a_reason() -> None:
    for source in all_sources().values():
        for line in source.leaves_out:
            assert line.why.strip()
            assert not {"", "*", "**"} & set(line.where.split(", "))
