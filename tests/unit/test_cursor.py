"""Cursors of a search, and the times that people type."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.errors import UsageError
from recall_api.cursor import (
    SearchCursor,
    check_same_search,
    check_same_window,
    fingerprint,
    read_cursor,
)
from recall_api.reading import encode_cursor
from recall_api.search import parse_when

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
_MOMENTS = st.none() | st.datetimes(timezones=st.just(UTC))


@given(
    since=_MOMENTS,
    until=_MOMENTS,
    ts=_MOMENTS,
    skip=st.integers(0, 1_000_000),
    number=st.integers(0, (1 << 63) - 1),
)
def test_a_cursor_comes_back_as_it_was(
    since: datetime | None, until: datetime | None, ts: datetime | None, skip: int, number: int
) -> None:
    cursor = SearchCursor("exact", NOW, since, until, skip, ts, number)
    assert read_cursor(cursor.encode("name")) == (cursor, "name")


@given(st.text())
def test_any_other_text_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        read_cursor(text)


@pytest.mark.parametrize(
    "place",
    [
        ("s", "text", -1, None, NOW.isoformat(), None, None, None),
        ("s", "text", 1 << 40, None, NOW.isoformat(), None, None, None),
        ("s", "exact", 0, "9" * 19, NOW.isoformat(), None, None, None),
        ("s", "exact", 0, "-1", NOW.isoformat(), None, None, None),
        ("s", "exact", 0, "x", NOW.isoformat(), None, None, None),
        ("s", "exact", 0, None, NOW.isoformat(), None, None, NOW.isoformat()),
        ("s", "exact", 0, "1", "yesterday", None, None, None),
        ("s", "exact", 0, "1", "2026-06-01T12:00:00", None, None, None),
    ],
)
def test_a_place_that_cannot_be_is_a_usage_error(place: tuple[object, ...]) -> None:
    with pytest.raises(UsageError, match="belongs to another search"):
        read_cursor(encode_cursor(*place))


def test_a_fingerprint_tells_searches_apart() -> None:
    assert fingerprint(["a", ["b"]]) == fingerprint(["a", ["b"]])
    assert fingerprint(["a", ["b"]]) != fingerprint(["a", ["c"]])
    with pytest.raises(UsageError, match="belongs to another search"):
        check_same_search(fingerprint(["a"]), fingerprint(["b"]))


def test_an_age_may_have_moved_by_the_time_that_passed_and_no_more() -> None:
    week = timedelta(days=7)
    cursor = SearchCursor("text", NOW, since=NOW - week)
    later = NOW + timedelta(minutes=5)
    check_same_window(cursor, later - week, None, later)
    check_same_window(cursor, NOW - week, None, later)
    for since, until in ((None, None), (later, None), (NOW - week, NOW), (NOW - 2 * week, None)):
        with pytest.raises(UsageError, match="belongs to another search"):
            check_same_window(cursor, since, until, later)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("30m", NOW - timedelta(minutes=30)),
        ("12h", NOW - timedelta(hours=12)),
        ("7d", NOW - timedelta(days=7)),
        (" 2w ", NOW - timedelta(weeks=2)),
        ("2026-05-01", datetime(2026, 5, 1, tzinfo=UTC)),
        ("2026-05-01T10:30", datetime(2026, 5, 1, 10, 30, tzinfo=UTC)),
        ("2026-05-01T10:30:00Z", datetime(2026, 5, 1, 10, 30, tzinfo=UTC)),
        ("2026-05-01T10:30:00+02:00", datetime(2026, 5, 1, 8, 30, tzinfo=UTC)),
    ],
)
def test_times_as_people_type_them(text: str, moment: datetime) -> None:
    assert parse_when(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "soon", "7", "d", "-3d", "999999999w", "2026-13-01", "1e3d"])
def test_what_is_not_a_time_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="not a time") as caught:
        parse_when(text, NOW)
    assert caught.value.hint


@given(st.text())
def test_a_time_never_fails_otherwise(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert parse_when(text, NOW).tzinfo
