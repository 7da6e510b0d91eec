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
    row = messages.connection.execute(f"explain (format json) {statement}").fetchone()
    assert row is not None
    nodes = list(_nodes(row[0][0]["Plan"]))
    assert {node.get("Index Name") for node in nodes} >= {
        "message_id", "message_retracted_pkey", "prompt_pkey", "note_pkey",
    }  # fmt: skip
    assert "Seq Scan" not in {node["Node Type"] for node in nodes}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
