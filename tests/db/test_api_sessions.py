"""The list of sessions, and one session with its lineage."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from recall_api import answers
from tests.db.serving import START, Line, Store, serving


@pytest.fixture
def store(database: str) -> Store:
    return Store(database)


@pytest.fixture
def api(database: str) -> Iterator[httpx.Client]:
    with serving(database) as client:
        yield client


def listed(api: httpx.Client, **params: Any) -> list[str]:
    answer = api.get("/sessions", params=params)
    assert answer.status_code == 200, answer.text
    return [row["external_id"] for row in answer.json()["sessions"]]


def fill(store: Store) -> None:
    store.add_session("main-1", ["a", "b"], title="Fix the 100% bug", project="/home/dev/shop")
    store.add_session(
        "main-2", ["c"], source="codex", host="server", title="100 percent", project="/srv/api",
        started_at=START + timedelta(days=1),
    )  # fmt: skip
    parent = store.keys[0]
    store.add_session("main-1/agent-a", parent_key=parent, relation="subagent", title="helper")
    store.add_session("main-1/tool-results/x", parent_key=parent, relation="spill", started_at=None)


FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["main-2", "main-1", "main-1/agent-a"]),
    ({"source": "codex"}, ["main-2"]),
    ({"source": ["codex", "claude-code"]}, ["main-2", "main-1", "main-1/agent-a"]),
    ({"host": "laptop"}, ["main-1", "main-1/agent-a"]),
    ({"project": "/srv/api"}, ["main-2"]),
    ({"relation": "subagent"}, ["main-1/agent-a"]),
    ({"relation": "main"}, ["main-2", "main-1"]),
    ({"relation": "spill"}, ["main-1/tool-results/x"]),
    ({"q": "FIX THE"}, ["main-1"]),
    ({"q": "100%"}, ["main-1"]),
    ({"q": "f_x"}, []),
    ({"q": "\\"}, []),
    ({"since": "2026-03-02"}, ["main-2"]),
    ({"until": "2026-03-02"}, ["main-1", "main-1/agent-a"]),
    (
        {"include_spills": "true", "host": "laptop"},
        ["main-1", "main-1/agent-a", "main-1/tool-results/x"],
    ),
]


def test_filters_decide_what_is_listed(
    store: Store, api: httpx.Client, subtests: pytest.Subtests
) -> None:
    fill(store)
    for params, expected in FILTERS:
        with subtests.test(str(params)):
            assert listed(api, **params) == expected


def test_hidden_spills_are_counted_and_every_row_tells_its_size(
    store: Store, api: httpx.Client
) -> None:
    fill(store)
    answer = api.get("/sessions", params={"host": "laptop"}).json()
    assert (answer["total"], answer["hidden_spills"]) == (2, 1)
    first = answer["sessions"][0]
    assert (first["message_count"], first["children_count"]) == (2, 2)
    assert answers.SessionsAnswer(**answer).model_dump() == answer


def test_an_empty_list_still_says_what_is_hidden(store: Store, api: httpx.Client) -> None:
    store.add_session("a/tool-results/x", relation="spill")
    answer = api.get("/sessions").json()
    assert answer == {"sessions": [], "total": 0, "hidden_spills": 1, "next_cursor": None}


def test_pages_give_every_session_once_in_order(
    store: Store, api: httpx.Client, subtests: pytest.Subtests
) -> None:
    for number in range(3):  # equal times, so that the key decides
        store.add_session(f"same-{number}")
    for number in range(2):
        store.add_session(f"timeless-{number}", started_at=None)
    store.add_session("newest", started_at=START + timedelta(hours=1))
    expected = ["newest", "same-0", "same-1", "same-2", "timeless-0", "timeless-1"]
    for limit in (1, 2, 3, 6, 7):
        with subtests.test(limit=limit):
            assert walk(api, limit) == expected


def walk(api: httpx.Client, limit: int) -> list[str]:
    found: list[str] = []
    params: dict[str, Any] = {"limit": limit}
    while True:
        answer = api.get("/sessions", params=params).json()
        assert answer["total"] == 6
        found += [row["external_id"] for row in answer["sessions"]]
        if answer["next_cursor"] is None:
            return found
        assert len(answer["sessions"]) == limit
        params["cursor"] = answer["next_cursor"]


def test_a_cursor_that_nobody_gave_is_refused(api: httpx.Client, subtests: pytest.Subtests) -> None:
    for cursor in ("x", "!!", "", "bnVsbA", "WzEsMl0", "WyJ4IiwieSJd", "é", "W" * 3_000):
        with subtests.test(cursor=cursor[:10]):
            answer = api.get("/sessions", params={"cursor": cursor})
            assert (answer.status_code, answer.json()["type"]) == (400, "urn:recall:problem:usage")


KEYS = [
    "0b7f2c9e-5d1a-4e0e",
    "0b7f2c9e/agent-x",
    "with space/and ünïcode",
    "a:b:c",
    "dots/../and/./more",
    "100%25/already?q=1#f",
    "..",
]


def paths_of(key: str) -> list[str]:
    """A key in a path: all escaped, and as a person writes it, whose client resolves raw dots."""
    paths = [quote(key, safe="").replace(".", "%2E")]
    return paths if ".." in key else [*paths, quote(key, safe="/:")]


def test_a_key_works_with_raw_and_with_encoded_slashes(
    store: Store, api: httpx.Client, subtests: pytest.Subtests
) -> None:
    for key in [store.add_session(external_id, ["hello"]) for external_id in KEYS]:
        for path in paths_of(key):
            with subtests.test(path=path):
                assert api.get(f"/sessions/{path}").json()["session_key"] == key
                messages = api.get(f"/sessions/{path}/messages").json()
                assert (messages["session_key"], len(messages["messages"])) == (key, 1)


def test_a_session_comes_with_lineage_files_and_counts(store: Store, api: httpx.Client) -> None:
    parent = store.add_session("parent-1", title="The parent")
    key = store.add_session(
        "parent-1/agent-1",
        ["a", Line("b", role="tool", kind="tool_result"), "c"],
        parent_key=parent,
        relation="subagent",
    )
    child = store.add_session("parent-1/agent-2", parent_key=key, relation="fork")
    store.retract(key, 0, "an older text")
    store.add_prompt("typed here", session=key)
    store.add_file("/logs/one.jsonl", key=key)
    store.add_file("/logs/gone.jsonl", key=key, missing=True)
    answer = api.get(f"/sessions/{key}").json()
    assert answer["parent"]["session_key"] == parent
    assert (answer["parent"]["title"], answer["parent"]["stored"]) == ("The parent", True)
    assert [row["session_key"] for row in answer["children"]] == [child]
    assert [(row["path"], row["source_missing_at"]) for row in answer["files"]] == [
        ("/logs/gone.jsonl", "2026-03-01T12:00:00Z"),
        ("/logs/one.jsonl", None),
    ]
    assert answer["counts"] == [
        {"role": "user", "kind": "text", "messages": 2},
        {"role": "tool", "kind": "tool_result", "messages": 1},
    ]
    counted = ("message_count", "retracted_count", "prompt_count", "children_count")
    assert [answer[name] for name in counted] == [3, 1, 1, 1]
    assert answers.SessionAnswer(**answer).model_dump() == answer


def test_a_parent_that_is_not_stored_is_named_all_the_same(store: Store, api: httpx.Client) -> None:
    key = store.add_session("orphan", parent_key="claude-code:laptop:lost", relation="fork")
    parent = api.get(f"/sessions/{key}").json()["parent"]
    assert (parent["session_key"], parent["stored"]) == ("claude-code:laptop:lost", False)


def test_a_unique_beginning_of_the_id_names_a_session(store: Store, api: httpx.Client) -> None:
    key = store.add_session("0b7f2c9e-5d1a")
    store.add_session("0b7f2c9e-5d1a/agent-77aa", parent_key=key, relation="subagent")
    store.add_session("1c7f2c9e")
    assert api.get("/sessions/0b7f2c").json()["session_key"] == key
    assert api.get("/sessions/0b7f2c9e-5d1a").json()["session_key"] == key
    agent = api.get("/sessions/0b7f2c9e-5d1a/agent-77").json()
    assert agent["external_id"] == "0b7f2c9e-5d1a/agent-77aa"


def test_what_names_no_session_is_not_found(
    store: Store, api: httpx.Client, subtests: pytest.Subtests
) -> None:
    store.add_session("0b7f2c9e-5d1a")
    for ref in ("0b7f2", "0b7f__", "0b7f2c9e-5d1b", "%25%25%25%25%25%25", "5d1a00"):
        with subtests.test(ref=ref):
            answer = api.get(f"/sessions/{ref}")
            assert answer.status_code == 404
            assert answer.json()["type"] == "urn:recall:problem:not-found"


def test_a_beginning_that_fits_several_lists_them(store: Store, api: httpx.Client) -> None:
    first = store.add_session("0b7f2c9e-aaaa")
    second = store.add_session("0b7f2c9e-bbbb", started_at=START + timedelta(days=1))
    answer = api.get("/sessions/0b7f2c9e")
    assert answer.status_code == 409
    problem = answer.json()
    assert [row["session_key"] for row in problem["candidates"]] == [second, first]
    assert (problem["type"], problem["status"]) == ("urn:recall:problem:ambiguous", 409)
    assert "2 sessions" in problem["detail"]


def test_the_same_id_on_two_machines_is_ambiguous(store: Store, api: httpx.Client) -> None:
    store.add_session("0b7f2c9e", host="laptop")
    store.add_session("0b7f2c9e", host="server")
    assert api.get("/sessions/0b7f2c9e/messages").status_code == 409
