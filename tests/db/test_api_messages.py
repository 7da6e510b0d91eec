"""Messages of a session, and one message in full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from recall.keys import message_id
from recall_api import answers
from tests.db.serving import Line, Store, serving


@pytest.fixture
def store(database: str) -> Store:
    return Store(database)


@pytest.fixture
def api(database: str) -> Iterator[httpx.Client]:
    with serving(database) as client:
        yield client


def talk(store: Store) -> str:
    """Ordinals 0, 2, 2, 4 ... 10: gaps, and two parts at one place."""
    lines = [
        Line("m0", ordinal=0),
        Line("m2.0", ordinal=2, role="assistant"),
        Line("m2.1", ordinal=2, part=1, role="assistant", kind="tool_call", tool="Bash"),
        Line("m4", ordinal=4, role="tool", kind="tool_result"),
        *(Line(f"m{ordinal}", ordinal=ordinal) for ordinal in (6, 8, 10)),
    ]
    return store.add_session("0b7f2c9e", lines, title="Talk")


def contents(api: httpx.Client, **params: Any) -> list[str]:
    answer = api.get("/sessions/0b7f2c9e/messages", params=params)
    assert answer.status_code == 200, answer.text
    return [row["content"] for row in answer.json()["messages"]]


STRETCHES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["m0", "m2.0", "m2.1", "m4", "m6", "m8", "m10"]),
    ({"from_ordinal": 2, "limit": 3}, ["m2.0", "m2.1", "m4"]),
    ({"from_ordinal": 3, "limit": 1}, ["m4"]),
    ({"from_ordinal": 11}, []),
    ({"role": "assistant"}, ["m2.0", "m2.1"]),
    ({"role": ["assistant", "tool"], "kind": ["tool_call", "tool_result"]}, ["m2.1", "m4"]),
    ({"around": 4, "context": 1}, ["m2.1", "m4", "m6"]),
    ({"around": 2, "context": 1}, ["m0", "m2.0", "m2.1", "m4"]),
    ({"around": 0, "context": 1}, ["m0", "m2.0"]),
    ({"around": 5, "context": 1}, ["m4", "m6"]),
    ({"around": 4, "context": 0}, ["m4"]),
    ({"around": 4, "context": 2, "role": "user"}, ["m0", "m6", "m8"]),
]


def test_a_stretch_is_in_order(store: Store, api: httpx.Client, subtests: pytest.Subtests) -> None:
    talk(store)
    for params, expected in STRETCHES:
        with subtests.test(str(params)):
            assert contents(api, **params) == expected


def test_pages_give_every_message_once(
    store: Store, api: httpx.Client, subtests: pytest.Subtests
) -> None:
    talk(store)
    for limit in (1, 2, 3, 6, 7):
        with subtests.test(limit=limit):
            assert walk(api, limit) == ["m0", "m2.0", "m2.1", "m4", "m6", "m8", "m10"]


def walk(api: httpx.Client, limit: int) -> list[str]:
    found: list[str] = []
    params: dict[str, Any] = {"limit": limit}
    while True:
        answer = api.get("/sessions/0b7f2c9e/messages", params=params).json()
        found += [row["content"] for row in answer["messages"]]
        if answer["next_cursor"] is None:
            return found
        params["cursor"] = answer["next_cursor"]


IMPOSSIBLE: list[dict[str, Any]] = [
    {"limit": 0},
    {"limit": 501},
    {"limit": "many"},
    {"from_ordinal": -1},
    {"from_ordinal": 2**63},
    {"around": 1, "from_ordinal": 1},
    {"around": 1, "cursor": "WzEsMF0"},
    {"cursor": "WzEsMi41XQ"},
    {"cursor": "WzEsdHJ1ZV0"},
    {"cursor": "Wzk5OTk5OTk5OTk5OTk5OTk5OTk5LDBd"},
    {"role": "robot"},
    {"limit": 500, "max_chars": 1_000_000},
    {"contxt": 3},
]


def test_a_stretch_that_cannot_be_is_refused(
    store: Store, api: httpx.Client, subtests: pytest.Subtests
) -> None:
    talk(store)
    for params in IMPOSSIBLE:
        with subtests.test(str(params)):
            answer = api.get("/sessions/0b7f2c9e/messages", params=params)
            assert answer.status_code == 400
            assert answer.headers["content-type"] == "application/problem+json"


def test_a_long_message_is_cut_in_a_list_and_whole_by_its_id(
    store: Store, api: httpx.Client
) -> None:
    text = "ü" * 20_001
    key = store.add_session("0b7f2c9e", ["x" * 20_000, text])
    whole, cut = api.get("/sessions/0b7f2c9e/messages").json()["messages"]
    assert (whole["truncated"], whole["length"], len(whole["content"])) == (False, 20_000, 20_000)
    assert (cut["truncated"], cut["length"], len(cut["content"])) == (True, 20_001, 20_000)
    assert api.get(f"/messages/{cut['id']}").json()["content"] == text
    beside = api.get(f"/messages/{message_id(key, 0, 0)}?context=1&max_chars=3").json()
    assert beside["after"][0]["content"] == "üüü"


def test_a_message_comes_with_its_session_its_copies_and_its_neighbours(
    store: Store, api: httpx.Client
) -> None:
    key = store.add_session("0b7f2c9e", ["a", Line("same", copy=7), "b", "c"], title="First")
    other = store.add_session("0b7f2c9f", [Line("same", copy=7)], title="Resumed")
    answer = api.get(f"/messages/{message_id(key, 1, 0)}", params={"context": 2}).json()
    assert answer["id"] == str(message_id(key, 1, 0))
    assert answer["session"]["title"] == "First"
    assert [row["content"] for row in answer["before"]] == ["a"]
    assert [row["content"] for row in answer["after"]] == ["b", "c"]
    assert answer["occurrence_count"] == 1
    places = [(row["session_key"], row["title"]) for row in answer["occurrences"]]
    assert places == [(other, "Resumed")]
    assert answers.MessageAnswer(**answer).model_dump() == answer


def test_ids_are_text_because_javascript_cannot_hold_them(store: Store, api: httpx.Client) -> None:
    key = store.add_session("0b7f2c9e", [Line(str(number), ordinal=number) for number in range(20)])
    ids = [message_id(key, number, 0) for number in range(20)]
    assert max(ids) > 2**53
    answer = api.get(f"/sessions/{key}/messages").json()
    assert [row["id"] for row in answer["messages"]] == [str(number) for number in ids]
    assert answers.MessagesAnswer(**answer).model_dump() == answer


def test_a_message_says_whether_the_conversation_went_on_from_it(
    store: Store, api: httpx.Client
) -> None:
    lines = [Line("q"), Line("first answer", on_active_branch=False), Line("second answer")]
    key = store.add_session("0b7f2c9e", lines)
    answer = api.get(f"/sessions/{key}/messages").json()
    assert [row["on_active_branch"] for row in answer["messages"]] == [True, False, True]
    left = api.get(f"/messages/{message_id(key, 1, 0)}", params={"context": 1}).json()
    assert left["on_active_branch"] is False
    assert [row["on_active_branch"] for row in (*left["before"], *left["after"])] == [True, True]


def test_a_prompt_of_a_history_is_found_by_its_id(store: Store, api: httpx.Client) -> None:
    number = store.add_prompt("deploy it")
    answer = api.get(f"/messages/{number}", params={"context": 3}).json()
    assert (answer["role"], answer["kind"], answer["content"]) == ("user", "prompt", "deploy it")
    assert answer["session"] is None
    assert answers.MessageAnswer(**answer).model_dump() == answer


def test_a_prompt_may_name_a_session_that_is_not_stored(store: Store, api: httpx.Client) -> None:
    number = store.add_prompt("deploy it", session="claude-code:laptop:pruned")
    answer = api.get(f"/messages/{number}").json()
    assert (answer["session_key"], answer["session"]) == ("claude-code:laptop:pruned", None)


def test_a_text_that_was_taken_back_is_kept_and_linked(store: Store, api: httpx.Client) -> None:
    key = store.add_session("0b7f2c9e", ["the new text"])
    old = store.retract(key, 0, "the old text")
    now = str(message_id(key, 0, 0))
    answer = api.get(f"/messages/{old}").json()
    assert (answer["content"], answer["current_id"]) == ("the old text", now)
    assert answer["retracted_at"] is not None
    versions = api.get(f"/messages/{now}").json()["versions"]
    assert [row["id"] for row in versions] == [old]


IDS = [
    ("1", 404),
    ("9223372036854775807", 404),
    ("9223372036854775808", 400),
    ("99999999999999999999", 400),
    ("-1", 400),
    ("1.0", 400),
    ("%D9%A1", 400),
    ("abc", 400),
]


def test_what_is_no_id_is_a_usage_error(api: httpx.Client, subtests: pytest.Subtests) -> None:
    for message, status in IDS:
        with subtests.test(message=message):
            assert api.get(f"/messages/{message}").status_code == status
