"""The replay of a log of changes to a JSON document."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recall_ingester.sources.object_log import replay

Json = dict[str, Any]


def log(*entries: object) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)


def put(*path: str | int, v: object) -> Json:
    return {"kind": 1, "k": list(path), "v": v}


def push(*path: str | int, v: object = None, i: int | None = None) -> Json:
    entry: Json = {"kind": 2, "k": list(path)}
    return entry | ({} if v is None else {"v": v}) | ({} if i is None else {"i": i})


def test_set_push_cut_and_delete_are_replayed() -> None:
    state = replay(
        log(
            {"kind": 0, "v": {"a": [1, 2, 3], "b": {"c": "old"}}},
            push("a", v=[8, 9], i=1),
            put("b", "c", v="new"),
            push("d", v=["made"]),
            {"kind": 1, "k": ["b", "gone"]},
            put("a", 0, v={"x": 1}),
            {"kind": 3, "k": ["b"]},
        )
    ).state
    assert state == {"a": [{"x": 1}, 8, 9], "d": ["made"]}


def test_replay_tells_what_was_removed_and_where() -> None:
    result = replay(
        log(
            {"kind": 0, "v": {"a": ["x", "y", "z"], "b": "old"}},
            push("a", i=1),
            put("b", v="new"),
            {"kind": 3, "k": ["b"]},
            {"kind": 0, "v": {}},
        )
    )
    assert [(item.path, item.value) for item in result.removed] == [
        (("a",), [None, "y", "z"]),
        (("b",), "old"),
        (("b",), "new"),
        ((), {"a": ["x"]}),
    ]


@pytest.mark.parametrize(
    "entry",
    [
        put("missing", "deeper", v=1),
        put("a", 7, v=1),
        push("a", i=4, v=[1]),
        push("text", v=[1]),
        push(v=[1]),
        {"kind": 4, "k": ["a"]},
        {"kind": True, "k": ["a"], "v": 1},
        {"kind": 1, "k": "a", "v": 1},
        {"kind": 1, "k": [["a"]], "v": 1},
        {"kind": 2, "k": ["a"], "v": {"0": 1}},
        [],
        7,
    ],
)
def test_change_that_does_not_fit_ends_the_replay(entry: object) -> None:
    result = replay(log({"kind": 0, "v": {"a": [1], "text": "t"}}, entry, put("later", v=1)))
    assert result.state == {"a": [1], "text": "t"}
    assert [span.ordinal for span in result.bad] == [1]
    assert result.unread == 1
