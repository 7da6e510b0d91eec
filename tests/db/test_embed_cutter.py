"""What changed is cut into passages: all of it, once, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recall.config import Settings
from recall_embedder import cutter as cutter_module
from recall_sql.connection import connect
from tests.db.embedding import (
    Bench,
    HashModel,
    add_note,
    check_store,
    expected,
    fetch,
    mark_note,
    passages,
    say,
)

KEY = "claude-code:laptop:one"


@pytest.fixture
def bench(database: str) -> Iterator[Bench]:
    bench = Bench(database)
    bench.begin()
    yield bench
    bench.close()


def texts(url: str) -> list[str]:
    """The texts of the entries that have passages, in order."""
    return [
        row[0]
        for row in fetch(
            url,
            "select m.content from recall.message m where exists (select from recall.passage p"
            " where p.entry_id = m.id) order by m.session_key, m.ordinal",
        )
    ]


def test_session_becomes_passages_at_their_places(database: str, bench: Bench) -> None:
    say(database, KEY, ["why is it slow", ("assistant", "the index is missing"), "add it"])
    bench.drain()
    assert passages(database) == expected(database, bench.model) != []
    check_store(database)
    assert fetch(database, "select count(*) from recall.embed_dirty") == [(0,)]
    assert fetch(database, "select count(*) from recall.embed_queue") == [(0,)]


def test_growth_cuts_again_from_the_run_it_joins_and_embeds_only_what_is_new(
    database: str, bench: Bench
) -> None:
    say(database, KEY, [f"question {n}" for n in range(50)] + [("assistant", "first half")])
    bench.drain()
    bench.model.given.clear()
    say(database, KEY, [("assistant", "second half"), "thanks"], first=51)
    bench.drain()
    assert passages(database) == expected(database, bench.model)
    assert sorted(bench.model.given) == ["first half second half", "thanks"]
    check_store(database)


def test_what_is_taken_back_or_rewritten_goes(database: str, bench: Bench) -> None:
    say(database, KEY, ["one", "two", "three"])
    bench.drain()
    say(database, KEY, [None, "two anew"], first=0)
    bench.drain()
    assert texts(database) == ["two anew", "three"]
    assert passages(database) == expected(database, bench.model)


def test_text_that_only_moved_keeps_its_vector(database: str, bench: Bench) -> None:
    say(database, KEY, ["one", "two"])
    bench.drain()
    bench.model.given.clear()
    say(database, KEY, ["zero", "one", "two"])
    bench.drain()
    assert bench.model.given == ["zero"]
    assert passages(database) == expected(database, bench.model)
    check_store(database)


def test_changed_time_or_project_reaches_the_passage_without_the_model(
    database: str, bench: Bench
) -> None:
    say(database, KEY, ["one"])
    bench.drain()
    bench.model.given.clear()
    with connect(database) as connection:
        connection.execute("update recall.message set project = '/other', ts = ts + '1 hour'")
        connection.execute("update recall.embed_dirty set version = version")
    say(database, KEY, [], first=0)
    bench.drain()
    assert bench.model.given == []
    assert passages(database) == expected(database, bench.model)
    assert fetch(database, "select project from recall.passage") == [("/other",)]


def test_long_session_is_cut_in_stretches_that_equal_the_whole(
    database: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutter_module, "_STRETCH_PASSAGES", 7)
    monkeypatch.setattr(cutter_module, "_PAGE_ROWS", 5)
    steps: list[str] = []
    bench.cutter.step = steps.append
    lines: list[str | tuple[str, str]] = []
    for number in range(400):
        lines.append(f"question {number}" if number % 9 == 0 else ("assistant", f"step {number}"))
    lines += [("assistant", f"goes on {number} " + "word " * 40) for number in range(400)]
    say(database, KEY, lines)
    bench.drain()
    assert steps.count("stretch stored") > 10
    assert passages(database) == expected(database, bench.model)
    # From any place on, cutting again changes nothing.
    before = passages(database)
    bench.model.given.clear()
    for place in (0, 3, 9, 10, 399, 400, 511, 512, 513, 799, 5_000):
        say(database, KEY, [], first=place)
        bench.drain()
        assert passages(database) == before
    assert bench.model.given == []


def test_session_that_changes_while_it_is_cut_is_cut_again(database: str, bench: Bench) -> None:
    say(database, KEY, ["old text"])
    happened: list[str] = []

    def interfere(step: str) -> None:
        if step == "session cut" and not happened:
            happened.append(step)
            say(database, KEY, ["new text"])

    bench.cutter.step = interfere
    assert bench.cutter.cut_next()
    assert fetch(database, "select passage from recall.embed_queue") == []
    assert fetch(database, "select attempts, lease from recall.embed_dirty") == [(0, None)]
    bench.drain()
    assert texts(database) == ["new text"]
    assert bench.model.given == ["new text"]


def test_purged_session_leaves_nothing_behind_a_cutter_that_was_at_it(
    database: str, bench: Bench
) -> None:
    say(database, KEY, ["text"])

    def purge(step: str) -> None:
        if step == "session cut":
            with connect(database) as connection:
                connection.execute("delete from recall.embed_dirty")
                connection.execute("delete from recall.message")

    bench.cutter.step = purge
    bench.drain()
    assert fetch(database, "select count(*) from recall.embed_queue") == [(0,)]
    assert passages(database) == []


def test_session_that_cannot_be_cut_costs_itself_only(database: str) -> None:
    bench = Bench(database, HashModel(fails_to_cut=lambda text: "poison" in text))
    bench.begin()
    say(database, KEY, ["poison"])
    say(database, "codex:laptop:two", ["fine"])
    bench.drain()
    assert texts(database) == ["fine"]
    assert fetch(database, "select key, attempts, error from recall.embed_dirty") == [
        (KEY, 5, "ValueError")
    ]
    say(database, KEY, ["well again"])  # a change is a new chance
    bench.drain()
    assert texts(database) == ["well again", "fine"]
    bench.close()


def test_newest_session_is_cut_first(database: str, bench: Bench) -> None:
    say(database, KEY, ["old"])
    say(database, "codex:laptop:two", ["new"], first=100)
    bench.cutter.cut_next()
    assert fetch(database, "select passage from recall.embed_queue") == [("new",)]


def test_nothing_is_cut_while_the_queue_is_long(database: str) -> None:
    bench = Bench(database, queue_rows=3)
    bench.begin()
    for number in range(3):
        say(database, f"codex:laptop:{number}", [f"a {number}", f"b {number}"])
    while bench.cutter.cut_next():
        pass
    assert fetch(database, "select count(*) from recall.embed_queue") == [(4,)]
    bench.drain()
    assert passages(database) == expected(database, bench.model)
    assert len(passages(database)) == 6
    bench.close()


def test_only_the_chosen_kinds_are_embedded(database: str) -> None:
    bench = Bench(database)
    bench.begin(Settings(embed_kinds=("text", "tool_result"), embed_tokens=32))
    say(database, KEY, ["said"])
    say(database, KEY, [("tool", "gave back")], first=1, kind="tool_result")
    say(database, KEY, [("assistant", "thought")], first=2, kind="thinking")
    add_note(database, 1, "a memory")
    bench.drain()
    assert texts(database) == ["said", "gave back"]
    assert sorted(bench.model.given) == ["gave back", "said"]
    bench.close()


def test_note_is_embedded_and_goes_when_another_version_takes_its_place(
    database: str, bench: Bench
) -> None:
    add_note(database, 1, "first version " + "word " * 60)
    add_note(database, 2, "another one", shelf="ledger")
    bench.drain()
    found = fetch(
        database,
        "select entry_id, session_key, kind, count(*) from recall.passage group by 1, 2, 3",
    )
    assert sorted(found) == [(1, None, "memory", 3), (2, None, "ledger", 1)]
    with connect(database) as connection:
        connection.execute("update recall.note set is_current = false where id = 1")
        mark_note(connection, 1)
    bench.drain()
    assert fetch(database, "select distinct entry_id from recall.passage") == [(2,)]


def test_title_that_no_message_holds_is_a_passage_of_its_first_message(
    database: str, bench: Bench
) -> None:
    say(database, KEY, ["hello", ("assistant", "hi")])
    bench.drain()
    set_title = "update recall.session set title = %s, title_rank = %s"
    for title, rank, found in [
        ("Checkout is slow", 40, ["Checkout is slow"]),
        ("Checkout was slow", 50, ["Checkout was slow"]),
    ]:
        with connect(database) as connection:
            connection.execute(set_title.encode(), (title, rank))
        bench.drain()
        rows = fetch(database, "select entry_id, kind, role from recall.passage where ordinal = -1")
        first = fetch(database, "select id from recall.message where ordinal = 0")[0][0]
        assert rows == [(first, "summary", "system")]
        assert bench.model.given[-1:] == found
    say(database, KEY, [("system", "Checkout was slow")], first=2, kind="summary")
    bench.drain()
    assert fetch(database, "select count(*) from recall.passage where ordinal = -1") == [(0,)]
    check_store(database)


def test_title_that_repeats_the_first_prompt_is_no_passage(database: str, bench: Bench) -> None:
    say(database, KEY, ["hello there"])
    with connect(database) as connection:
        connection.execute("update recall.session set title = 'hello', title_rank = 10")
    bench.drain()
    assert bench.model.given == ["hello there"]
