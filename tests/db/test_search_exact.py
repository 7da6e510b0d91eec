"""Search by an exact string or a regular expression: every message that matches, newest first."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recall.document import CHUNK_CHARS, OVERLAP_CHARS
from recall.errors import UsageError
from recall.hygiene import clean
from recall_sql.connection import connect
from tests.db.search_store import Messages, Said, searching


@pytest.fixture
def messages(database: str) -> Iterator[Messages]:
    with searching(database) as found:
        yield found


@pytest.mark.parametrize(
    "query",
    [
        "E0382", "0382", "[E0382]: b", "src/foo/bar_baz.py:123", "oo/bar_b", "--shm-size", "m-siz",
        "Traceback (most recent call last)", "return value", " ", "\n", "::", "数据", "错误：数",
        "9e85fv", "e85f", "9e85", "100%_done", "%", "_", "\\n", "'", "v18.6.3", "18.6",
    ],
)  # fmt: skip
def test_any_part_of_a_text_is_found(messages: Messages, query: str) -> None:
    text = (
        "error[E0382]: borrow in src/foo/bar_baz.py:123 with --shm-size\n"
        "Traceback (most recent call last)::return value 错误：数据库 sha 9e85fv"
        " 100%_done \\n 'v18.6.3'"
    )
    (number,) = messages.add(text)
    messages.add("unrelated")
    answer = messages.search(query, mode="exact")
    assert number in [hit["id"] for hit in answer["hits"]]
    assert answer["mode_used"] == "exact"
    snippet = answer["hits"][-1]["snippet"]
    assert f"<mark>{' '.join(query.split(chr(10)))}</mark>" in snippet


def test_case_counts_unless_it_is_to_be_ignored(messages: Messages) -> None:
    messages.add("Some ERROR here", "ÄRGER and ärger")
    assert messages.ids("error", mode="exact") == []
    assert messages.contents("error", mode="exact", ignore_case=True) == ["Some ERROR here"]
    (hit,) = messages.search("some error", mode="exact", ignore_case=True)["hits"]
    assert hit["snippet"] == "<mark>Some ERROR</mark> here"
    assert len(messages.ids("ärGER", mode="exact", ignore_case=True)) == 1


def test_hits_come_newest_first_and_those_without_a_time_last(messages: Messages) -> None:
    said = [Said(f"needle {n}", age) for n, age in enumerate([5, None, 1, 3, None, 2])]
    numbers = messages.add(*said)
    timeless = sorted([numbers[1], numbers[4]], key=int, reverse=True)
    expected = [numbers[2], numbers[5], numbers[3], numbers[0], *timeless]
    assert messages.ids("needle", mode="exact") == expected
    assert messages.ids("eedl", mode="exact") == expected
    assert messages.ids(" needle "[1:], mode="exact") == expected
    assert messages.ids("n.edle", mode="regex") == expected


def test_a_long_query_and_one_over_the_border_of_chunks_are_found(messages: Messages) -> None:
    rng = random.Random(1)
    words = ["alpha", "beta_gamma", "x" * 300, "数据库", "9e85fv", "a-b", "…", "Zeta0"]
    text = " ".join(rng.choice(words) for _ in range(4_000))
    assert len(text) > 3 * CHUNK_CHARS
    messages.add(text)
    for border in (CHUNK_CHARS - OVERLAP_CHARS, CHUNK_CHARS, 2 * (CHUNK_CHARS - OVERLAP_CHARS)):
        for before, after in ((3, 20), (150, 150), (700, 900), (399, 3), (1, 401)):
            query = text[border - before : border + after]
            assert len(messages.ids(query, mode="exact")) == 1, query


_TEXTS = st.builds(
    lambda parts, times: clean("".join(parts) * times)[0],
    st.lists(
        st.text(min_size=1) | st.text("ab1E _-./\n", min_size=1) | st.text("数据かกำxX "),
        min_size=1,
    ),
    st.sampled_from([1, 1, 1, 50, 4_000]),
).map(lambda text: text[:70_000])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(texts=st.lists(_TEXTS.filter(bool), min_size=1, max_size=4), data=st.data())
def test_every_part_of_every_text_is_found(
    messages: Messages, texts: list[str], data: st.DataObject
) -> None:
    messages.connection.execute("truncate recall.message, recall.message_text, recall.session")
    numbers = messages.add(*texts)
    for number, text in zip(numbers, texts, strict=True):
        for _ in range(4):
            start = data.draw(st.integers(0, len(text) - 1))
            length = data.draw(st.integers(1, 30) | st.integers(1, 1_500))
            query = text[start : start + length]
            assert number in messages.ids(query, mode="exact")
            assert number in messages.ids(query, mode="exact", ignore_case=True)


def test_a_regular_expression_works_by_lines(messages: Messages) -> None:
    messages.add("first line\nsecond line", "firstly")
    assert messages.contents("^second line$", mode="regex") == ["first line\nsecond line"]
    assert messages.ids("first.*second", mode="regex") == []
    (hit,) = messages.search(r"sec\w+", mode="regex")["hits"]
    assert hit["snippet"] == "first line <mark>second</mark> line"
    assert len(messages.ids("FIRST", mode="regex", ignore_case=True)) == 2
    assert len(messages.ids("(?i)FIRST", mode="regex")) == 2


@pytest.mark.parametrize("query", ["(", "[a", "a{2,1}", "*", "\\", "(?<x"])
def test_an_invalid_expression_is_a_usage_error(messages: Messages, query: str) -> None:
    with pytest.raises(UsageError, match="invalid regular expression: "):
        messages.search(query, mode="regex")
    assert messages.ids("still", mode="exact") == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.text(min_size=1) | st.text("ab(|)[]{}*+?\\.^$-:=!<>0123,", min_size=1))
def test_an_expression_gives_an_answer_or_a_usage_error(messages: Messages, query: str) -> None:
    try:
        assert messages.search(query[:200], mode="regex")["mode_used"] == "regex"
    except UsageError as error:
        assert "invalid regular expression" in error.message


def test_a_search_that_is_cut_short_says_so_and_goes_on_from_there(messages: Messages) -> None:
    expected = messages.add(*(Said(f"haystack needle{n}", n) for n in range(40)))
    for mode, query in (("exact", "eedle"), ("regex", "need[l]e"), ("exact", "k needle")):
        found: list[str] = []
        cursor, pages = None, 0
        while True:
            answer = messages.search(query, mode=mode, cursor=cursor, budget=0)
            found += [hit["id"] for hit in answer["hits"]]
            cursor, pages = answer["next_cursor"], pages + 1
            if cursor is None:
                break
            assert answer["degraded"]
            assert "searched back to 2026-06-01T" in answer["reasons"][0]
        assert found == expected
        assert pages == 41


@pytest.mark.parametrize("mode", ["auto", "text", "exact", "regex"])
def test_a_statement_that_runs_out_of_time_is_a_degraded_answer(
    database: str, messages: Messages, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr("recall_api.search._GRACE_SECONDS", 0.2)
    messages.add("needle")
    with connect(database, application="tests") as other, other.transaction():
        other.execute("lock table recall.message_text in access exclusive mode")
        answer = messages.search("needle", mode=mode, budget=0.1)
    assert answer["degraded"]
    assert "time was over" in answer["reasons"][0]
    assert answer["coverage"]["searched"]["messages"] == 1
    assert len(messages.ids("needle", mode=mode)) == 1
