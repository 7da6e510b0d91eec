"""Search by meaning in SQL: nearest passages behind filters, against the exact answer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import psycopg
import pytest

from recall_sql.connection import connect

DIMENSION = 24
MODEL = "test-model"

_SEED = """
select setseed(0.4);
insert into recall.session (session_key, source, host, external_id)
select format('%s:h:s%s', case when n % 20 = 0 then 'rare' else 'main' end, n),
    case when n % 20 = 0 then 'rare' else 'main' end, 'h', 's' || n
from generate_series(0, 199) n;
insert into recall.message (
    session_key, ordinal, part, id, role, kind, ts, content, content_hash, project
)
select s.session_key, n / 200, 0, n, case when n % 7 = 0 then 'user' else 'assistant' end, 'text',
    timestamptz '2026-01-01' + n * interval '1 hour', 'message ' || n, decode(md5(n::text), 'hex'),
    'p' || n % 5
from generate_series(1, 6000) n
join recall.session s on s.external_id = 's' || n % 200;
select recall.create_embedding_generation('test-model', 24, 'mean', 256, 32, '{text}');
delete from recall.embed_dirty;
create temp table given (id bigint primary key, v real[]);
"""

_PASSAGES = """
insert into recall.passage (
    generation, id, entry_id, session_key, source, host, project, role, kind, ts, start_char,
    length, text_hash, is_representative, v
)
select 1, m.id, m.id, m.session_key, split_part(m.session_key, ':', 1), 'h', m.project, m.role,
    'text', m.ts, 0, length(m.content),
    case when m.id % 8 = 0 then decode(md5('copy' || m.id % 32), 'hex')
        else decode(md5(m.id::text), 'hex') end,
    m.id % 8 <> 0 or m.id <= 32, g.v::recall.halfvec
from recall.message m
join pg_temp.given g using (id);
"""

_COPIES = """
update recall.passage set has_copies = true where is_representative and id % 8 = 0;
analyze recall.passage_1;
"""


@cache
def passage_vectors() -> list[list[float]]:
    """By id: sixty clusters that overlap; one text in eight is one of four that hundreds repeat."""
    numbers = np.random.default_rng(7)
    centres = numbers.normal(size=(60, DIMENSION))
    own = centres[numbers.integers(0, 60, 6001)] + numbers.normal(size=(6001, DIMENSION))
    for number in range(0, 6001, 8):
        own[number] = own[number % 32 or 32]
    vectors: list[list[float]] = own.tolist()
    return vectors


def near_to_the_data(seed: int) -> list[float]:
    """A vector as queries have them: near to some passages, equal to none."""
    numbers = np.random.default_rng(1000 + seed)
    start = np.array(passage_vectors()[int(numbers.integers(1, 6000))])
    found: list[float] = (start + 0.7 * numbers.normal(size=DIMENSION)).tolist()
    return found


@pytest.fixture(scope="module")
def filled(module_database: str) -> str:
    """Six thousand messages, each with a passage."""
    with connect(module_database, application="tests") as conn:
        conn.execute(_SEED.encode())
        with conn.cursor() as cursor, cursor.copy(b"copy pg_temp.given (id, v) from stdin") as copy:
            for number, values in enumerate(passage_vectors()):
                copy.write_row((number, values))
        conn.execute(_PASSAGES.encode())
        conn.execute(_COPIES.encode())
        conn.commit()
    return module_database


@pytest.fixture
def connection(filled: str) -> Iterator[psycopg.Connection[Any]]:
    """The filled database; what a test does to it is rolled back."""
    with connect(filled, application="tests") as conn:
        yield conn
        conn.rollback()


def search(conn: psycopg.Connection[Any], wanted: list[float], **values: Any) -> dict[str, Any]:
    names = "".join(f", {name} => %({name})s" for name in values)
    statement = f"select api.search_semantic(%(wanted)s::real[], 'test-model'{names})"
    row = conn.execute(statement.encode(), {"wanted": wanted, **values}).fetchone()
    assert row
    answer: dict[str, Any] = row[0]
    return answer


def refresh_signs(conn: psycopg.Connection[Any], least_rows: int = 0) -> int | None:
    """Make the index of signs, whose table need not be larger than this."""
    conn.execute("select set_config('recall.signs_rows', %s, false)", (str(least_rows),))
    row = conn.execute("select recall.refresh_signs()").fetchone()
    assert row
    number: int | None = row[0]
    return number


#: What an exact search gives: the nearest texts behind a filter, by distance.
_EXACT = """
select min((p.v::recall.halfvec(24) operator(recall.<=>) %s::real[]::recall.halfvec)) as distance
from recall.passage p
where p.generation = 1 and {condition}
group by p.text_hash
order by 1
limit %s
"""

FILTERS: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({}, "true"),
    "broad source": ({"sources": ["main"]}, "p.source = 'main'"),
    "small source": ({"sources": ["rare"]}, "p.source = 'rare'"),
    "project": ({"projects": ["p3"]}, "p.project = 'p3'"),
    "role": ({"roles": ["user"]}, "p.role = 'user'"),
    "session": ({"sessions": ["main:h:s17"]}, "p.session_key = 'main:h:s17'"),
    "time": (
        {"since": "2026-05-01T00:00:00Z", "until": "2026-05-20T00:00:00Z"},
        "p.ts >= '2026-05-01Z' and p.ts < '2026-05-20Z'",
    ),
    "pair": (
        {"projects": ["p2"], "roles": ["user"]}, "p.project = 'p2' and p.role = 'user'",
    ),
    "nothing": ({"sources": ["absent"]}, "false"),
}  # fmt: skip


@pytest.mark.parametrize("way", ["scan", "index", "both indexes"])
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("limit", [10, 50, 200])
def test_filtered_search_is_never_short_and_near_to_exact(
    connection: psycopg.Connection[Any], way: str, name: str, limit: int
) -> None:
    if way != "scan":
        connection.execute("set recall.scan_rows = 0")
    if way == "both indexes":
        refresh_signs(connection)
    values, condition = FILTERS[name]
    recalls = []
    for seed in range(6):
        wanted = near_to_the_data(seed)
        exact = connection.execute(
            _EXACT.format(condition=condition).encode(), (wanted, limit)
        ).fetchall()
        answer = search(connection, wanted, max_hits=limit, **values)
        scores = [hit["score"] for hit in answer["hits"]]
        assert len(scores) == len(exact), (answer["way"], seed)
        assert scores == sorted(scores, reverse=True)
        if exact:
            least = 1 - exact[-1][0] - 0.0006
            recalls.append(sum(score >= least for score in scores) / len(exact))
    assert not recalls or (sum(recalls) / len(recalls) >= 0.98 and min(recalls) >= 0.8)


def test_copies_of_a_text_do_not_fill_the_answer(connection: psycopg.Connection[Any]) -> None:
    row = connection.execute("select v::real[] from recall.passage where id = 8").fetchone()
    assert row
    for scan_rows in ("30000", "0"):
        connection.execute("select set_config('recall.scan_rows', %s, false)", (scan_rows,))
        hits = search(connection, row[0], max_hits=50)["hits"]
        assert len(hits) == 50
        assert hits[0]["score"] == pytest.approx(1, abs=0.001)
        assert sum(int(hit["id"]) % 8 == 0 for hit in hits) <= 4


def test_filter_that_only_a_copy_satisfies_finds_the_copy(
    connection: psycopg.Connection[Any],
) -> None:
    row = connection.execute("select v::real[] from recall.passage where id = 8").fetchone()
    assert row
    for scan_rows in ("30000", "0"):
        connection.execute("select set_config('recall.scan_rows', %s, false)", (scan_rows,))
        values = {"since": "2026-03-01T00:00:00Z", "sources": ["main"]}
        first = search(connection, row[0], max_hits=5, **values)["hits"][0]
        assert first["score"] == pytest.approx(1, abs=0.001)
        assert first["source"] == "main"
        assert first["ts"] >= "2026-03-01"


def test_pages_do_not_repeat_and_do_not_leave_out(connection: psycopg.Connection[Any]) -> None:
    wanted = near_to_the_data(3)
    whole = [hit["id"] for hit in search(connection, wanted, max_hits=60)["hits"]]
    pages = [
        hit["id"]
        for skip in range(0, 60, 20)
        for hit in search(connection, wanted, max_hits=20, skip=skip)["hits"]
    ]
    assert pages == whole
    assert len(set(pages)) == 60


def test_threshold_is_applied_after_the_search(connection: psycopg.Connection[Any]) -> None:
    wanted = near_to_the_data(5)
    scores = [hit["score"] for hit in search(connection, wanted, max_hits=40)["hits"]]
    above = search(connection, wanted, max_hits=40, least_similarity=scores[9])["hits"]
    assert 9 <= len(above) <= 11


def test_vectors_of_another_model_are_never_compared(
    connection: psycopg.Connection[Any],
) -> None:
    row = connection.execute(
        "select api.search_semantic(%s::real[], 'other-model')", (near_to_the_data(1),)
    ).fetchone()
    assert row
    assert (row[0]["hits"], row[0]["reason"]) == ([], "model")


def test_without_a_generation_the_answer_says_so(database: str) -> None:
    with connect(database, application="tests") as conn:
        row = conn.execute("select api.search_semantic('{1,2}', 'm')").fetchone()
        assert row
        assert row[0]["reason"] == "no-vectors"
        assert conn.execute("select recall.vector_coverage()").fetchall() == [(None,)]


def test_coverage_counts_what_waits(connection: psycopg.Connection[Any]) -> None:
    connection.execute("select recall.mark_dirty('{main:h:s1}', '{0}', '{6000}', '{null}')")
    row = connection.execute("select recall.vector_coverage()").fetchone()
    assert row
    assert (row[0]["passages"], row[0]["sessions_waiting"], row[0]["share"]) == (6000, 1, 0.5)


def plan_of(conn: psycopg.Connection[Any], statement: str) -> str:
    rows = conn.execute(f"explain (costs off) {statement}".encode()).fetchall()
    return "\n".join(row[0] for row in rows)


def test_the_vector_index_serves_the_search_by_index(
    connection: psycopg.Connection[Any],
) -> None:
    zeros = "[" + ",".join(["0.1"] * DIMENSION) + "]"
    plan = plan_of(
        connection,
        "select p.id from recall.passage_1 p where p.is_representative and (p.source = 'main'"
        " or p.has_copies and exists (select from recall.passage_1 o"
        " where o.text_hash = p.text_hash and o.source = 'main'))"
        f" order by p.v::recall.halfvec(24) operator(recall.<=>) '{zeros}'::recall.halfvec"
        " limit 20",
    )
    assert "Index Scan using passage_1_vector" in plan


def test_a_selective_filter_is_read_through_its_own_index(
    connection: psycopg.Connection[Any],
) -> None:
    for condition, index in (
        ("p.session_key = 'main:h:s17'", "session_key"),
        ("p.ts >= '2026-09-01Z'", "ts"),
    ):
        plan = plan_of(
            connection,
            f"select p.id from recall.passage_1 p where {condition}"
            " order by (p.v::recall.halfvec(24) operator(recall.<=>) p.v) + 0.0 limit 20",
        )
        assert "passage_1_vector" not in plan
        assert index in plan.split("Index Scan", 1)[-1], plan


def found_of_the_nearest(conn: psycopg.Connection[Any], queries: range) -> float:
    """Which share of the ten nearest is found by the indexes, without a filter."""
    conn.execute("set local recall.scan_rows = 0")
    found = 0
    for seed in queries:
        wanted = near_to_the_data(seed)
        exact = conn.execute(_EXACT.format(condition="true").encode(), (wanted, 10)).fetchall()
        scores = [hit["score"] for hit in search(conn, wanted, max_hits=10)["hits"]]
        found += sum(score >= 1 - exact[-1][0] - 0.0006 for score in scores)
    return found / (10 * len(queries))


def make_a_graph_with_pockets(conn: psycopg.Connection[Any]) -> None:
    """Of very few links: it has pockets, as a large one of many links has."""
    conn.execute("drop index recall.passage_1_vector")
    conn.execute(
        "create index passage_1_vector on recall.passage_1"
        " using hnsw ((v::recall.halfvec(24)) recall.halfvec_cosine_ops)"
        " with (m = 2, ef_construction = 4) where is_representative"
    )


def test_signs_find_what_the_graph_does_not_lead_to(connection: psycopg.Connection[Any]) -> None:
    make_a_graph_with_pockets(connection)
    queries = range(40)
    by_the_graph = found_of_the_nearest(connection, queries)
    assert refresh_signs(connection) == 1
    by_both = found_of_the_nearest(connection, queries)
    assert by_the_graph < 0.8
    assert by_both > 0.9


def missed_of_the_nearest(conn: psycopg.Connection[Any], wanted: list[float], way: str) -> int:
    """How many of the ten nearest are not found ``by_indexes``, or in the end (``passages``)."""
    behind = {"by_indexes": "'true', 'true'", "passages": "null::recall.search_filter"}[way]
    call = f"recall.nearest_{way}(1, 24, %s::real[]::recall.halfvec, {behind}, 40)"
    exact = conn.execute(_EXACT.format(condition="true").encode(), (wanted, 10)).fetchall()
    found = conn.execute(
        f"select u.distance from {call} n, unnest(n.nearest) u".encode(), (wanted,)
    ).fetchall()
    as_near = [distance for (distance,) in found if distance <= exact[-1][0] + 1e-6]
    return 10 - min(10, len(as_near))


@pytest.mark.parametrize(
    ("scanned_rows", "way"),
    [(0, "index, completed by all signs"), (100_000, "index, replaced by a scan")],
)
def test_what_both_indexes_miss_is_found_where_they_differ(
    connection: psycopg.Connection[Any], scanned_rows: int, way: str
) -> None:
    make_a_graph_with_pockets(connection)
    refresh_signs(connection)
    connection.execute("set local recall.scan_rows = 0")
    connection.execute("set local recall.sign_candidates = 60")
    connection.execute(
        "select set_config('recall.doubt_scan_rows', %s, true)", (str(scanned_rows),)
    )
    missed = 0
    for wanted in map(near_to_the_data, range(40)):
        if search(connection, wanted, max_hits=10)["way"] == way:
            missed += missed_of_the_nearest(connection, wanted, "by_indexes")
            assert missed_of_the_nearest(connection, wanted, "passages") == 0
    assert missed > 0


def test_nothing_more_is_looked_at_where_both_indexes_agree(
    connection: psycopg.Connection[Any],
) -> None:
    refresh_signs(connection)
    connection.execute("set local recall.scan_rows = 0")
    ways = {search(connection, near_to_the_data(seed), max_hits=10)["way"] for seed in range(40)}
    assert ways == {"index"}


def test_looking_at_all_signs_leaves_the_settings_as_they_were(
    connection: psycopg.Connection[Any],
) -> None:
    """Also in a store so large that not all lists are looked at."""
    refresh_signs(connection)
    connection.execute("set local ivfflat.probes = 7")
    connection.execute(
        "update pg_class set reltuples = reltuples * 1000 where oid = 'recall.passage_1'::regclass"
    )
    found = connection.execute(
        "select * from recall.nearest_by_all_signs("
        "1, 24, %s::real[]::recall.halfvec, 'true', 'true', 10)",
        (near_to_the_data(1),),
    ).fetchall()
    assert len(found) == 10
    assert connection.execute("show ivfflat.probes").fetchall() == [("7",)]


def test_index_of_signs_is_made_when_it_is_due(connection: psycopg.Connection[Any]) -> None:
    assert refresh_signs(connection, 30_000) is None
    assert refresh_signs(connection) == 1
    assert refresh_signs(connection) is None
    rows = connection.execute("select signs_rows from recall.embedding_generation").fetchall()
    assert rows[0][0] == pytest.approx(6000, rel=0.2)
    connection.execute("update recall.embedding_generation set signs_rows = signs_rows / 2")
    assert refresh_signs(connection) == 1
    connection.execute("drop index recall.passage_1_signs")
    assert refresh_signs(connection) == 1
    indexes = connection.execute(
        "select indexrelid::regclass::text from pg_index"
        " where indrelid = 'recall.passage_1'::regclass and indexrelid::regclass::text ~ 'signs'"
    ).fetchall()
    assert indexes == [("recall.passage_1_signs",)]


def test_one_makes_the_index_of_signs_at_a_time(
    connection: psycopg.Connection[Any], filled: str
) -> None:
    assert refresh_signs(connection) == 1
    with connect(filled, application="tests") as other:
        assert refresh_signs(other) is None


def test_index_of_signs_serves_the_second_look(connection: psycopg.Connection[Any]) -> None:
    refresh_signs(connection)
    zeros = "[" + ",".join(["0.1"] * DIMENSION) + "]"
    plan = plan_of(
        connection,
        "select s.* from recall.passage_1 s where s.is_representative"
        " order by (recall.binary_quantize(s.v::recall.halfvec(24))::bit(24))"
        f" operator(recall.<~>) recall.binary_quantize('{zeros}'::recall.halfvec)::bit(24)"
        " limit 1500",
    )
    assert "Index Scan using passage_1_signs" in plan
