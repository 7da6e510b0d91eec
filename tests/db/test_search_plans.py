"""Which indexes a search uses, seen in the counters and plans of the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.db.search_store import Messages, searching

ROWS = 8_000


@pytest.fixture
def messages(database: str) -> Iterator[Messages]:
    with searching(database) as found:
        found.connection.execute(
            "insert into recall.message (session_key, ordinal, part, id, role, kind, ts, content,"
            "  content_hash)"
            " select 'codex:server:s' || g % 100, g, 0, g,"
            "  case when g % 10 = 0 then 'user' else 'tool' end, 'text',"
            "  '2026-01-01'::timestamptz + make_interval(mins => g),"
            "  'the common text ' || g || ' word' || g % 700 || repeat(' filler', 60),"
            "  decode(md5(g::text), 'hex')"
            f" from generate_series(1, {ROWS}) g"
        )
        found.connection.execute(
            "insert into recall.message_retracted (session_key, ordinal, part, id, message_id,"
            "  generation, role, kind, content, content_hash)"
            " select session_key, ordinal, part, id + 1000000, id, 1, role, kind, content,"
            "  content_hash from recall.message where ordinal % 2 = 0"
        )
        found.connection.execute(
            "insert into recall.prompt (id, source, host, ordinal, content, content_hash)"
            " select id + 2000000, 'codex', 'server', ordinal, content, content_hash"
            " from recall.message where ordinal % 2 = 0"
        )
        found.connection.execute(
            "insert into recall.note (id, shelf, source, host, path, entry_key, ordinal, content,"
            "  content_hash)"
            " select id + 3000000, 'ledger', 'ledger', 'server', 'ledger.db', id, ordinal, content,"
            "  content_hash from recall.message where ordinal % 2 = 0"
        )
        found.connection.execute(
            "insert into recall.message_text (id, ts, source, host, role, kind, session_key, tsv)"
            " select id, ts, 'codex', 'server', role, kind, session_key,"
            "  recall.index_document(content || E'\\n') from recall.message"
        )
        found.connection.execute("vacuum analyze")
        yield found


def scans(messages: Messages, run: Callable[[], Any]) -> dict[str, int]:
    """How often each index of the text rows, and each table as a whole, was scanned by a call."""
    before = _counters(messages)
    run()
    after = _counters(messages)
    return {name: count - before[name] for name, count in after.items() if count > before[name]}


def _counters(messages: Messages) -> dict[str, int]:
    messages.connection.execute("select pg_stat_force_next_flush()")
    rows = messages.connection.execute(
        "select indexrelname, idx_scan from pg_stat_user_indexes where relname = 'message_text'"
        " union all"
        " select relname, seq_scan from pg_stat_user_tables"
        " where relname in ('message', 'message_text', 'message_retracted', 'prompt')"
    ).fetchall()
    return dict(rows)


def test_a_word_is_looked_up_in_the_text_index(messages: Messages) -> None:
    function = "select api.search_text('word77')"
    used = scans(messages, lambda: messages.connection.execute(function).fetchone())
    assert used["message_text_tsv"] == 1
    assert not used.keys() & {"message", "message_text", "message_retracted", "prompt"}


def test_several_words_are_looked_up_in_the_text_index(messages: Messages) -> None:
    function = "select api.search_text('word77 common word78', roles => '{user}')"
    used = scans(messages, lambda: messages.connection.execute(function).fetchone())
    assert used["message_text_tsv"] >= 2
    assert not used.keys() & {"message", "message_text", "message_retracted", "prompt"}


def test_behind_a_narrow_filter_its_rows_are_read_once(messages: Messages) -> None:
    function = "select api.search_text('word77 common word78', sessions => '{codex:server:s7}')"
    used = scans(messages, lambda: messages.connection.execute(function).fetchone())
    assert used["message_text_session"] == 1
    assert "message_text_tsv" not in used
    assert not used.keys() & {"message", "message_text", "message_retracted", "prompt"}


def test_a_common_word_is_read_from_the_newest_end(messages: Messages) -> None:
    function = "select api.search_text('common', max_hits => 5)"
    used = scans(messages, lambda: messages.connection.execute(function).fetchone())
    assert used["message_text_ts"] == 1
    assert "message_text_tsv" not in used
    assert "message_text" not in used


def test_whole_words_of_an_exact_string_are_looked_up(messages: Messages) -> None:
    function = "select api.search_exact(' word77 ')"
    used = scans(messages, lambda: messages.connection.execute(function).fetchone())
    assert used["message_text_tsv"] == 1
    assert not used.keys() & {"message", "message_text", "message_retracted", "prompt"}


@pytest.mark.parametrize("query", ["common text", '"common" "text"', '"common text"'])
def test_common_words_together_are_read_from_the_newest_end(messages: Messages, query: str) -> None:
    """Enough messages hold all of them, so no list for one of the words is looked at."""
    function = "select api.search_text(%s, max_hits => 5)"
    used = scans(messages, lambda: messages.connection.execute(function, (query,)).fetchone())
    assert used.keys() & {"message_text_ts", "message_text_tsv"} == {"message_text_ts"}
    assert used["message_text_ts"] <= 2  # of a phrase, the newest rows are counted first
    assert not used.keys() & {"message", "message_text", "message_retracted", "prompt"}


def test_what_is_excluded_is_left_out_by_the_text_index(messages: Messages) -> None:
    function = "select api.search_text('word77 -word78')"
    used = scans(messages, lambda: messages.connection.execute(function).fetchone())
    assert used["message_text_tsv"] == 1
    assert not used.keys() & {"message", "message_text", "message_retracted", "prompt"}


def test_a_common_string_is_read_from_the_newest_end(messages: Messages) -> None:
    function = "select api.search_exact('the common text', max_hits => 20)"
    used = scans(messages, lambda: messages.connection.execute(function).fetchone())
    assert used["message_text_ts"] == 1
    assert "message_text_tsv" not in used
    assert not used.keys() & {"message", "message_text", "message_retracted", "prompt"}


def test_of_common_words_and_a_rare_one_only_the_rare_one_is_fetched(messages: Messages) -> None:
    function = "select api.search_exact(' word77 filler fil')"
    used = scans(messages, lambda: messages.connection.execute(function).fetchone())
    assert used["message_text_tsv"] == 1
    assert "message_text_ts" not in used
    assert not used.keys() & {"message", "message_text", "message_retracted", "prompt"}


def test_a_rare_string_of_common_words_is_found_wherever_it_stands(messages: Messages) -> None:
    """Behind what is walked: in the span of time that the text index is asked for, or older."""
    places = [7_999, 7_500, 6_600, 5_000, 4_999, 900, 2]
    messages.connection.execute(
        "with changed as (update recall.message set content = 'text the common filler'"
        "  where ordinal = any(%s) returning id, content)"
        " update recall.message_text t set tsv = recall.index_document(c.content || E'\\n')"
        " from changed c where c.id = t.id",
        (places,),
    )
    expected = [str(place) for place in places]
    for query in ("text the comm", "xt the common "):
        assert messages.ids(query, mode="exact") == expected
        paged: list[str] = []
        cursor = None
        while True:
            answer = messages.search(query, mode="exact", limit=2, cursor=cursor)
            paged += [hit["id"] for hit in answer["hits"]]
            cursor = answer["next_cursor"]
            if cursor is None:
                break
        assert paged == expected
    assert messages.ids("common the text", mode="exact") == []


@pytest.mark.parametrize(
    ("mode", "query"), [("exact", "eedl"), ("regex", "n[e]+dle"), ("exact", "s of it f")]
)
def test_what_is_not_among_the_newest_is_looked_for_by_reading_all_texts(
    database: str, mode: str, query: str
) -> None:
    with searching(database) as messages:
        messages.connection.execute(
            "insert into recall.message (session_key, ordinal, part, id, role, kind, ts, content,"
            "  content_hash)"
            " select 'codex:server:s', g, 0, g, 'user', 'text',"
            "  case when g > 20 then '2026-01-01'::timestamptz + make_interval(mins => g) end,"
            "  case when g in (3, 9, 100, 9000, 11000, 11001) then 'xneedley as of it filler'"
            "   else 'it of filler' end, ''"
            " from generate_series(1, 36000) g"
        )
        messages.connection.execute(
            "insert into recall.message_text (id, ts, source, host, role, kind, session_key, tsv)"
            " select id, ts, 'codex', 'server', role, kind, session_key,"
            "  recall.index_document(content || E'\\n') from recall.message"
        )
        messages.connection.execute("vacuum analyze")
        expected = ["11001", "11000", "9000", "100", "9", "3"]
        used = scans(messages, lambda: messages.ids(query, mode=mode))
        assert used["message"] >= 1
        assert messages.ids(query, mode=mode) == expected
        first = messages.search(query, mode=mode, limit=2)
        rest = messages.search(query, mode=mode, cursor=first["next_cursor"])
        assert [hit["id"] for hit in first["hits"] + rest["hits"]] == expected
        assert not rest["degraded"]


@pytest.mark.parametrize(
    ("query", "index"),
    [("word77", "message_text_tsv"), ("common", "message_text_ts")],
)
def test_candidates_come_from_the_index_that_suits_the_word(
    messages: Messages, query: str, index: str
) -> None:
    plan = _plan_of(
        messages,
        "select t.id, t.chunk from recall.message_text t"
        f" where t.tsv @@ '{query}'::tsquery and true and not t.retracted"
        " order by t.ts desc nulls last, t.id desc, t.chunk limit 200",
    )
    assert index in {node.get("Index Name") for node in plan}
    assert "Seq Scan" not in {node["Node Type"] for node in plan}


def test_candidates_are_ranked_by_their_keys(messages: Messages) -> None:
    plan = _plan_of(
        messages,
        "select * from recall.ranked_candidates('{7,8,9}', '{0,0,0}', '{0,0,0}',"
        " array['common'::tsquery], '{1}', 'word78'::tsquery)",
    )
    names = {node.get("Index Name") for node in plan}
    assert "message_text_pkey" in names
    assert not {"message", "message_text"} & {
        node.get("Relation Name") for node in plan if node["Node Type"] == "Seq Scan"
    }


def test_a_scan_reads_from_the_newest_end_and_stops(messages: Messages) -> None:
    function = "select api.search_exact('ommon', max_hits => 5)"
    used = scans(messages, lambda: messages.connection.execute(function).fetchone())
    assert used["message_text_ts"] == 1
    assert not used.keys() & {"message", "message_text", "message_retracted", "prompt"}


@pytest.mark.parametrize(
    "statement",
    [
        "select content from recall.entry where id = 77",
        "select content from recall.entry where id = any('{7,8,9,1000010,2000012,3000012}')",
        "select e.content from unnest('{7,8,9}'::bigint[]) n (id) join recall.entry e using (id)",
    ],
)
def test_an_entry_is_looked_up_by_its_id(messages: Messages, statement: str) -> None:
    nodes = _plan_of(messages, statement)
    assert {node.get("Index Name") for node in nodes} >= {
        "message_id", "message_retracted_pkey", "prompt_pkey", "note_pkey",
    }  # fmt: skip
    assert "Seq Scan" not in {node["Node Type"] for node in nodes}


def _plan_of(messages: Messages, statement: str) -> list[dict[str, Any]]:
    row = messages.connection.execute(f"explain (format json) {statement}".encode()).fetchone()
    assert row is not None
    return list(_nodes(row[0][0]["Plan"]))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
