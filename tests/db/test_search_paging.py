"""Cursors: each hit once, in one order, and only for the search that gave them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from recall.errors import UsageError
from tests.db.search_store import NOW, Messages, Said, searching


@pytest.fixture
def messages(database: str) -> Iterator[Messages]:
    with searching(database) as found:
        yield found


def pages(messages: Messages, query: str, **options: Any) -> list[list[str]]:
    """The ids of all pages."""
    found, cursor = [], None
    while True:
        answer = messages.search(query, cursor=cursor, **options)
        found.append([hit["id"] for hit in answer["hits"]])
        cursor = answer["next_cursor"]
        if cursor is None:
            return found


@pytest.mark.parametrize(
    ("mode", "query"),
    [
        ("auto", "needle"), ("text", "needle hay"), ("text", '"a needle" hay'),
        ("exact", "a needle "), ("exact", "eedl"), ("regex", "^a needle"), ("auto", "eedl"),
    ],
)  # fmt: skip
def test_pages_give_every_hit_once(messages: Messages, mode: str, query: str) -> None:
    said = [
        Said(
            f"a needle {'hay ' * (n % 4)}{n}",
            None if n % 50 == 0 else n % 100,
            session=f"session-{n % 7}",
            copy=n % 90 if n % 3 == 0 else None,
        )
        for n in range(330)
    ]
    messages.add(*said)
    whole = pages(messages, query, mode=mode, limit=200)
    small = pages(messages, query, mode=mode, limit=17)
    flat = [number for page in small for number in page]
    assert flat == [number for page in whole for number in page]
    assert len(flat) == len(set(flat)) == 220 + 30
    assert all(len(page) == 17 for page in small[:-1])


def test_deeper_pages_of_a_text_search_leave_the_earlier_order_alone(messages: Messages) -> None:
    messages.add(*(Said(f"needle {'needle ' * (n % 5)}", n) for n in range(450)))
    flat = [number for page in pages(messages, "needle", mode="text", limit=30) for number in page]
    assert len(flat) == len(set(flat)) == 450


@pytest.mark.parametrize("mode", ["text", "exact", "regex"])
def test_a_cursor_is_only_for_its_own_search(messages: Messages, mode: str) -> None:
    messages.add(*(Said(f"needle {n}", n) for n in range(10)))
    options: dict[str, Any] = {"mode": mode, "limit": 3, "since": "2020-01-01"}
    cursor = messages.search("needle", **options)["next_cursor"]
    assert len(messages.ids("needle", **options, cursor=cursor)) == 3
    for change in (
        {"query": "needles"},
        {"mode": "exact" if mode == "text" else "text"},
        {"roles": ["user"]},
        {"since": None},
        {"since": "2021-01-01"},
        {"until": NOW},
        {"include_retracted": True},
        {"exclude_sessions": ["x"]},
        {"ignore_case": True},
    ):
        with pytest.raises(UsageError, match="belongs to another search"):
            messages.search(**{"query": "needle", **options, "cursor": cursor, **change})


def test_a_cursor_keeps_the_window_of_an_age(messages: Messages) -> None:
    messages.add(*(Said(f"needle {n}", n) for n in range(6)))
    first = messages.search("needle", mode="exact", limit=4, since="9000d")
    second = messages.search(
        "needle", mode="exact", limit=4, since="9000d", cursor=first["next_cursor"]
    )
    assert len(second["hits"]) == 2
    assert second["next_cursor"] is None


def test_new_messages_do_not_disturb_the_pages_of_a_scan(messages: Messages) -> None:
    numbers = messages.add(*(Said(f"needle {n}", n + 10) for n in range(6)))
    first = messages.search("needle", mode="exact", limit=3)
    messages.add(Said("needle new", 0))
    second = messages.search("needle", mode="exact", limit=3, cursor=first["next_cursor"])
    assert [hit["id"] for hit in first["hits"] + second["hits"]] == numbers
