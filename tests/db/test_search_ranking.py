"""The ranking by words takes short ways, and its answers are those of the long one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ops.bench.search_reference import best_scores
from tests.db.search_store import Messages, Said, searching

ROWS = 20_000
#: What stands in row `g`: words by how common they are, one pair that avoids each other, and two
#: words that are neighbours in some rows only.
_TEXT = """
    concat_ws(' ',
        case when g % 5 < 2 then 'upload' end,
        case when g % 5 < 2 and g % 7 < 5 or g % 11 = 0 then 'queue' end,
        case when g % 3 = 0 then 'north' end,
        case when g % 3 = 1 or g in (5001, 702, 42) then 'south' end,
        case when g % 90 = 0 then 'beacon beacon' when g % 45 = 0 then 'beacon' end,
        case when g % 3000 = 17 then 'zymurgy' end,
        'alpha',
        case when g % 100 <> 0 then 'and' end,
        'beta gamma',
        case when g in (9000, 300, 20) then 'to' else 'by to' end,
        'delta filler ' || g
    )
"""


@pytest.fixture
def messages(database: str) -> Iterator[Messages]:
    with searching(database) as found:
        yield found


@pytest.fixture
def many(messages: Messages) -> Messages:
    """Rows by minutes, in tens of the same time; some without one, and some of several chunks."""
    messages.connection.execute(
        "insert into recall.session (session_key, source, host, external_id)"
        " select 'codex:server:s' || g, 'codex', 'server', 's' || g from generate_series(0, 39) g"
    )
    messages.connection.execute(
        "insert into recall.message (session_key, ordinal, part, id, role, kind, ts, content,"
        "  content_hash)"
        f" select 'codex:server:s' || g % 40, g, 0, g, 'user', 'text', case when g > 30"
        f"  then '2026-01-01'::timestamptz + make_interval(mins => g / 10) end, {_TEXT}, ''"
        f" from generate_series(1, {ROWS}) g"
    )
    messages.connection.execute(
        "insert into recall.message_text (id, chunk, ts, source, host, role, kind, session_key,"
        " tsv) select m.id, c, ts, 'codex', 'server', role, kind, session_key,"
        "  recall.index_document(content || E'\\n')"
        " from recall.message m, generate_series(0, (m.id % 50 = 0)::integer) c"
    )
    messages.connection.execute("vacuum analyze")
    return messages


@pytest.mark.parametrize(
    "query",
    [
        "beacon", "upload", "beacon upload", "upload queue", "north south", "zymurgy beacon queue",
        "zymurgy beacon upload queue north", '"upload" "queue"', '"beacon" "north"',
        "beacon -queue", '"alpha beta"', '"beta gamma by"',
        "zymurgy beacon south alpha gamma delta",
    ],
)  # fmt: skip
def test_the_scores_are_nearly_those_of_a_ranking_of_all(many: Messages, query: str) -> None:
    hits = many.ids(query, mode="text", limit=20)
    best, found = best_scores(many.connection, query, {}, [int(hit) for hit in hits])
    assert len(found) == len(hits) == min(20, len(best))
    assert sum(found) >= 0.95 * sum(best[:20])


def _newest(many: Messages, query: str, most: int, rows: float | None) -> list[tuple[int, int]]:
    found = many.connection.execute(
        "select id, chunk from recall.newest_matches("
        " row(%s::tsquery, false, null, 0, false, %s)::recall.candidate_list, null, 'true', %s)"
        " where id is not null order by place",
        (query, rows, most),
    ).fetchall()
    return [(row[0], row[1]) for row in found]


def _sorted(many: Messages, query: str, most: int) -> list[tuple[int, int]]:
    found = many.connection.execute(
        "select id, chunk from recall.message_text where tsv @@ %s::tsquery"
        " order by ts desc nulls last, id desc, chunk limit %s",
        (query, most),
    ).fetchall()
    return [(row[0], row[1]) for row in found]


@pytest.mark.parametrize("most", [1, 7, 250, 5_000, 30_000])
@pytest.mark.parametrize("rows", [None, 40.0, 5_000.0, 1e6])
@pytest.mark.parametrize("query", ["'upload' & 'queue'", "'north' & 'south'", "'alpha' & 'delta'"])
def test_the_newest_rows_are_the_same_whatever_is_expected(
    many: Messages, query: str, rows: float | None, most: int
) -> None:
    """Walked in one part or more, given up, or collected: the estimate only decides the way."""
    assert _newest(many, query, most, rows) == _sorted(many, query, most)


@pytest.mark.parametrize(
    ("query", "most"),
    [
        ("'beta' <-> 'gamma'", 200),  # every row: the newest are enough
        ("'alpha' <-> 'beta'", 5_000),  # one in a hundred, all of them
        ("'gamma' <-> 'to'", 200),  # the newest rows with both words are others
        ("'beacon' <-> 'beacon'", 1_000),
        ("'alpha' <-> 'alpha'", 200),
    ],
)
def test_phrases_are_found_newest_first(many: Messages, query: str, most: int) -> None:
    assert _newest(many, query, most, None) == _sorted(many, query, most)


def test_a_phrase_among_many_rows_with_its_words_is_found_page_by_page(many: Messages) -> None:
    """The first pages look at the newest rows that hold both words, later ones at more."""
    row = many.connection.execute(
        "select array_agg(place order by place) from recall.newest_matches("
        " row('alpha <-> beta'::tsquery, false, null, 0, false, null)::recall.candidate_list,"
        " null, 'true', 200)"
    ).fetchone()
    assert row is not None
    assert len(row[0]) < 120  # it stopped after 4,000 rows, and says so by a last place
    assert row[0][-1] == 200
    expected = set(range(100, ROWS + 1, 100))
    for limit in (20, 63):
        found: list[str] = []
        cursor = None
        while True:
            answer = many.search('"alpha beta"', mode="text", limit=limit, cursor=cursor)
            found += [hit["id"] for hit in answer["hits"]]
            cursor = answer["next_cursor"]
            if cursor is None:
                break
        assert len(found) == len(expected)
        assert {int(number) for number in found} == expected
        assert not answer["degraded"]
    assert many.ids('"alpha beta"', mode="text", limit=20) == found[:20]


def test_behind_a_narrow_filter_the_best_of_all_are_found(many: Messages) -> None:
    options = {"sessions": ["codex:server:s17"]}
    query = "zymurgy beacon upload queue"
    hits = many.ids(query, mode="text", limit=30, **options)
    best, found = best_scores(many.connection, query, options, [int(hit) for hit in hits])
    assert len(hits) == 30
    assert sum(found) >= 0.99 * sum(best[:30])
    assert len(set(hits) & set(many.ids(query, mode="text", limit=60, **options)[:30])) == 30


def test_words_that_avoid_each_other_are_found_together_first(many: Messages) -> None:
    hits = many.ids("north south", mode="text", limit=10)
    assert {int(hit) for hit in hits[:3]} == {5001, 702, 42}
    assert len(hits) == 10


def test_copies_of_the_best_leave_room_for_others(messages: Messages) -> None:
    messages.add(*(Said("needle needle needle", n, session=f"s{n}", copy=7) for n in range(150)))
    others = messages.add(*(Said(f"a needle here {n}", 500 + n) for n in range(30)))
    hits: list[dict[str, Any]] = messages.search("needle", mode="text", limit=25)["hits"]
    assert "needle needle needle" in hits[0]["snippet"].replace("<mark>", "").replace("</mark>", "")
    assert len(hits) == 25
    assert {hit["id"] for hit in hits[1:]} <= set(others)


def test_what_is_excluded_in_another_chunk_leaves_the_message_out(messages: Messages) -> None:
    filler = "lorem ipsum dolor " * 2_500
    messages.add(f"worker {filler} secret", f"worker {filler} done", "worker secret")
    assert [text[-4:] for text in messages.contents("worker -secret", mode="text")] == ["done"]


@pytest.mark.parametrize(
    ("text", "query", "marked"),
    [
        ("outlets " * 80 + "let it be", "let", ["let"]),
        ("fooBar here", "bar", ["Bar"]),
        ("running a Run, runs", "run", ["running", "Run", "runs"]),
        ("the of", "the of", ["the", "of"]),
        ("run away, to run a test", '"run a" test', ["run a", "test"]),
        ("one-two one", '"one"', ["one", "one"]),
        ("fooBar foo bar", "fooBar", ["fooBar"]),
    ],
)
def test_snippets_mark_forms_of_words_and_phrases(
    messages: Messages, text: str, query: str, marked: list[str]
) -> None:
    messages.add(text)
    (hit,) = messages.search(query, mode="text")["hits"]
    pieces = hit["snippet"].split("<mark>")[1:]
    assert [piece.partition("</mark>")[0] for piece in pieces] == marked
