"""Ledger entries and memories in every search, and the functions that list them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from recall.errors import UsageError
from recall.records import Shelf
from recall_api.models import SearchParams
from recall_api.notes import NotesRequest, list_notes
from recall_api.sessions import AmbiguousReferenceError
from recall_sql.connection import connect
from tests.db.note_store import NOW, Entry, add_note, memory
from tests.db.search_store import Messages, Said, searching

EVERY_MODE = [("text", "zebra"), ("exact", "zebra"), ("regex", "zeb.a")]


@pytest.fixture
def messages(database: str) -> Iterator[Messages]:
    with searching(database) as found:
        yield found


def put(messages: Messages, *entries: Entry, **more: Any) -> list[str]:
    return [add_note(messages.connection, entry, **more) for entry in entries]


def ledger(messages: Messages, query: str | None = None, **options: Any) -> dict[str, Any]:
    return list_notes(messages.connection, NotesRequest("ledger", query, **options))


def memories(messages: Messages, query: str | None = None, **options: Any) -> dict[str, Any]:
    return list_notes(messages.connection, NotesRequest("memory", query, **options))


def contents(answer: dict[str, Any]) -> list[str]:
    return [entry["content"] for entry in answer["entries"]]


@pytest.mark.parametrize(("mode", "query"), EVERY_MODE)
def test_a_search_finds_messages_and_notes(messages: Messages, mode: str, query: str) -> None:
    said = messages.add("a zebra was said")
    notes = put(messages, Entry("a zebra was noted"), memory("zebra for ever"))
    put(messages, Entry("a horse", key="two"))
    assert set(messages.ids(query, mode=mode)) == {*said, *notes}
    for kind, number in zip(get_args(Shelf), notes, strict=True):
        assert messages.ids(query, mode=mode, kinds=[kind]) == [number]
        assert SearchParams(q="x", kind=[kind]).request(NOW).kinds == (kind,)


@pytest.mark.parametrize(("mode", "query"), EVERY_MODE)
def test_a_note_is_found_by_its_title(messages: Messages, mode: str, query: str) -> None:
    number = put(messages, Entry("stripes are the topic", title="The zebra"))[0]
    hit = messages.search(query, mode=mode)["hits"][0]
    assert (hit["id"], hit["title"], hit["kind"]) == (number, "The zebra", "ledger")
    assert (hit["session_key"], hit["part"], hit["source"]) == (None, None, "ledger")
    assert "<mark>zebra</mark>" in hit["snippet"]


def test_a_title_that_the_content_has_is_not_repeated(messages: Messages) -> None:
    put(messages, memory("# Rules\nno force", title="Rules"))
    rows = messages.connection.execute("select content from recall.entry").fetchall()
    assert rows == [("# Rules\nno force",)]


@pytest.mark.parametrize(("mode", "query"), EVERY_MODE)
def test_an_earlier_text_is_found_only_on_request(
    messages: Messages, mode: str, query: str
) -> None:
    old = put(messages, memory("zebra rule"), replaced_at=NOW)
    new = put(messages, memory("horse rule"))
    assert messages.search(query, mode=mode)["hits"] == []
    assert messages.ids(query, mode=mode, include_retracted=True) == old
    assert messages.ids("horse", mode="text") == new


def test_filters_and_windows_hold_for_notes(messages: Messages, subtests: pytest.Subtests) -> None:
    put(messages, Entry("zebra", age=60))
    put(messages, Entry("zebra", source="worklog", host="server", project="/srv/api", age=5))
    cases: list[tuple[dict[str, Any], int]] = [
        ({"sources": ["ledger"]}, 1),
        ({"hosts": ["server"]}, 1),
        ({"projects": ["api"]}, 1),
        ({"projects": ["/home/dev/shop", "api"]}, 2),
        ({"since": "2026-06-01T11:30+00:00"}, 1),
        ({"until": "2026-06-01T11:30+00:00"}, 1),
        ({"roles": ["user"]}, 0),
        ({"kinds": ["memory"]}, 0),
    ]
    for mode in ("text", "exact"):
        for options, expected in cases:
            with subtests.test(f"{mode} {options}"):
                assert len(messages.ids("zebra", mode=mode, **options)) == expected


def test_coverage_counts_notes_and_what_is_hidden(messages: Messages) -> None:
    put(messages, Entry("old"), replaced_at=NOW)
    put(messages, Entry("new"), memory("rule"))
    coverage = messages.search("nothing")["coverage"]
    assert coverage["searched"] == {"messages": 0, "prompts": 0, "notes": 2}
    assert coverage["hidden"] == {"retracted": 1}


def test_a_long_note_is_found_at_its_end(messages: Messages) -> None:
    number = put(messages, memory("word " * 5_000 + "zebra", title="Long"))[0]
    for mode, query in EVERY_MODE:
        assert messages.ids(query, mode=mode) == [number]


def test_ledger_without_a_query_is_newest_first(
    messages: Messages, subtests: pytest.Subtests
) -> None:
    ages = [30, 10, None, 20, None]
    for place, age in enumerate(ages):
        put(messages, Entry(f"entry {place}", key=str(place), age=age))
    put(messages, Entry("gone", key="1"), replaced_at=NOW)
    put(messages, memory("no ledger"))
    every = contents(ledger(messages))
    assert every[:3] == ["entry 1", "entry 3", "entry 0"]
    assert set(every[3:]) == {"entry 2", "entry 4"}
    assert ledger(messages, "  ")["query"] == "  "
    assert contents(ledger(messages, "  ")) == every
    for limit in (1, 2, 4, 5):
        with subtests.test(limit=limit):
            assert [text for page in pages(messages, limit) for text in contents(page)] == every


def pages(messages: Messages, limit: int, query: str | None = None) -> list[dict[str, Any]]:
    found = [ledger(messages, query, limit=limit)]
    while found[-1]["next_cursor"]:
        found.append(ledger(messages, query, limit=limit, cursor=found[-1]["next_cursor"]))
    return found


def test_ledger_search_ranks_by_words_and_goes_on(messages: Messages) -> None:
    put(messages, Entry("the pool was exhausted", key="a", title="Connections", age=50))
    put(messages, Entry("a pool of frogs", key="b", age=1))
    put(messages, Entry("nothing of that", key="c"))
    put(messages, memory("pool exhausted"))
    messages.add("the pool was exhausted")
    answer = ledger(messages, "exhausted pool")
    assert contents(answer) == ["the pool was exhausted", "a pool of frogs"]
    first = answer["entries"][0]
    assert "<mark>pool</mark>" in first["snippet"]
    assert first["score"] > answer["entries"][1]["score"]
    assert (answer["stored"], answer["reasons"], answer["next_cursor"]) == (3, [], None)
    assert contents(ledger(messages, "connections")) == ["the pool was exhausted"]
    assert contents(ledger(messages, '"pool of" -toads')) == ["a pool of frogs"]
    walked = [text for page in pages(messages, 1, "exhausted pool") for text in contents(page)]
    assert walked == contents(answer)


def test_a_query_without_words_says_so(messages: Messages) -> None:
    put(messages, Entry("a ->> b"))
    answer = ledger(messages, "->>")
    assert answer["entries"] == []
    assert "no words" in answer["reasons"][0]
    assert "leave out" in ledger(messages, "-zebra")["reasons"][0]


def test_a_cursor_belongs_to_its_list(messages: Messages) -> None:
    put(messages, *(Entry(f"zebra {place}", key=str(place)) for place in range(3)))
    cursor = ledger(messages, limit=1)["next_cursor"]
    for other in (
        {"query": "zebra"},
        {"sources": ["ledger"]},
        {"since": NOW},
        {"sessions": ["unknown"]},
    ):
        with pytest.raises(UsageError, match="another search"):
            ledger(messages, cursor=cursor, **other)
    with pytest.raises(UsageError, match="another search"):
        memories(messages, cursor=cursor)


def test_ledger_filters_hold_with_and_without_a_query(
    messages: Messages, subtests: pytest.Subtests
) -> None:
    put(messages, Entry("zebra one", key="1", session="0b7f2c9e-aa", age=60))
    put(
        messages,
        Entry("zebra two", key="2", source="worklog", host="server", project="/srv/api", age=5),
        Entry("zebra three", key="3", age=None),
    )
    messages.session(Said("x", session="0b7f2c9e-aa"))
    messages.session(Said("x", session="0b7f2c9e-aa", host="server"))
    messages.session(Said("x", session="0b7f2c9e-bb"))
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"sources": ["worklog"]}, {"zebra two"}),
        ({"hosts": ["server"]}, {"zebra two"}),
        ({"projects": ["api"]}, {"zebra two"}),
        ({"projects": ["elsewhere"]}, set()),
        ({"since": NOW.replace(hour=11, minute=30)}, {"zebra two"}),
        ({"until": NOW.replace(hour=11, minute=30)}, {"zebra one"}),
        ({"sessions": ["0b7f2c9e-aa"]}, {"zebra one"}),
        ({"sessions": ["claude-code:server:0b7f2c9e-aa"]}, {"zebra one"}),
        ({"sessions": ["not-stored"]}, set()),
    ]
    for query in (None, "zebra"):
        for options, expected in cases:
            with subtests.test(f"{query} {options}"):
                assert set(contents(ledger(messages, query, **options))) == expected
    with pytest.raises(AmbiguousReferenceError):
        ledger(messages, sessions=["0b7f2c9e"])
    put(messages, Entry("about a lost one", key="4", session="not-stored"))
    assert contents(ledger(messages, sessions=["not-stored"])) == ["about a lost one"]


def test_an_entry_names_the_session_that_it_means(messages: Messages) -> None:
    put(messages, Entry("here", key="1", session="aaaaaa"))
    put(messages, Entry("there", key="2", session="aaaaaa", host="server"))
    put(messages, Entry("only elsewhere", key="3", session="bbbbbb"))
    put(messages, Entry("nowhere", key="4", session="cccccc"))
    put(messages, Entry("none", key="5"))
    mine = messages.session(Said("x", session="aaaaaa"), title="Mine")
    other = messages.session(Said("x", session="aaaaaa", host="server"), title="Other")
    far = messages.session(Said("x", session="bbbbbb", host="server"), title="Far")
    found = {
        entry["content"]: (entry["session_id"], entry["session_key"], entry["session_title"])
        for entry in ledger(messages)["entries"]
    }
    assert found == {
        "here": ("aaaaaa", mine, "Mine"),
        "there": ("aaaaaa", other, "Other"),
        "only elsewhere": ("bbbbbb", far, "Far"),
        "nowhere": ("cccccc", None, None),
        "none": (None, None, None),
    }


def test_long_content_is_bounded(messages: Messages) -> None:
    put(messages, Entry("x" * 5_000 + " <mark>zebra</mark>"))
    listed = ledger(messages, max_chars=10)["entries"][0]
    assert (listed["content"], listed["length"], listed["truncated"]) == ("x" * 10, 5_019, True)
    assert len(listed["snippet"]) == 241
    assert ledger(messages)["entries"][0]["length"] > len(ledger(messages)["entries"][0]["content"])
    assert ledger(messages, "zebra")["entries"][0]["snippet"].count("<mark>") == 1


def test_memories_are_listed_file_by_file(messages: Messages, subtests: pytest.Subtests) -> None:
    put(
        messages,
        memory("b second", key="2", path="/b.md", ordinal=1, age=1),
        memory("b first", key="1", path="/b.md", ordinal=0, age=2),
        memory("a", path="/a.md", age=90),
        memory("of a server", path="/a.md", host="server"),
        Entry("of the ledger"),
    )
    every = ["a", "b first", "b second", "of a server"]
    answer = memories(messages)
    assert contents(answer) == every
    assert answer["stored"] == 4
    for limit in (1, 3, 4):
        with subtests.test(limit=limit):
            page = memories(messages, limit=limit)
            walked = contents(page)
            while page["next_cursor"]:
                page = memories(messages, limit=limit, cursor=page["next_cursor"])
                walked += contents(page)
            assert walked == every


def test_memories_are_searched_by_words(messages: Messages) -> None:
    put(
        messages,
        memory("never push to main", key="1", path="/a/MEMORY.md"),
        memory("main never sleeps, push", key="2", path="/b/MEMORY.md", title="Zebra"),
    )
    put(messages, Entry("push to main"))
    answer = memories(messages, '"push to main"')
    assert contents(answer) == ["never push to main"]
    assert "<mark>push to main</mark>" in answer["entries"][0]["snippet"]
    assert contents(memories(messages, "zebra")) == ["main never sleeps, push"]
    assert contents(memories(messages, "push", paths=["b/MEMORY.md"])) == [
        "main never sleeps, push"
    ]


@pytest.mark.parametrize("query", [None, "rule"])
def test_path_is_whole_or_an_end_or_a_folder(
    messages: Messages, query: str | None, subtests: pytest.Subtests
) -> None:
    put(messages, memory("rule unix", path="/home/dev/shop/CLAUDE.md"))
    put(messages, memory("rule windows", path="C:\\dev\\api\\CLAUDE.md"))
    cases = [
        (["/home/dev/shop/CLAUDE.md"], {"rule unix"}),
        (["shop/CLAUDE.md"], {"rule unix"}),
        (["CLAUDE.md"], {"rule unix", "rule windows"}),
        (["api/CLAUDE.md"], {"rule windows"}),
        (["/home/dev"], {"rule unix"}),
        (["/home/dev/"], {"rule unix"}),
        (["C:\\dev"], {"rule windows"}),
        (["AUDE.md"], set()),
        (["/home/de"], set()),
        (["/home/dev", "api/CLAUDE.md"], {"rule unix", "rule windows"}),
    ]
    for paths, expected in cases:
        with subtests.test(str(paths)):
            assert set(contents(memories(messages, query, paths=paths))) == expected


def test_earlier_texts_of_memories_come_on_request(messages: Messages) -> None:
    first = put(messages, memory("rule one"), replaced_at=NOW.replace(hour=8))[0]
    second = put(messages, memory("rule two"), replaced_at=NOW.replace(hour=9))[0]
    put(messages, memory("rule three"))
    put(messages, memory("rule that went", key="gone"), replaced_at=NOW.replace(hour=7))

    answer = memories(messages)
    assert contents(answer) == ["rule three"]
    assert answer["entries"][0]["versions"] == []

    answer = memories(messages, include_replaced=True)
    assert contents(answer) == ["rule three", "rule that went"]
    kept, gone = answer["entries"]
    assert [(one["id"], one["content"], one["replaced_at"]) for one in kept["versions"]] == [
        (second, "rule two", "2026-06-01T09:00:00Z"),
        (first, "rule one", "2026-06-01T08:00:00Z"),
    ]
    assert (kept["is_current"], kept["replaced_at"]) == (True, None)
    assert (gone["is_current"], gone["replaced_at"]) == (False, "2026-06-01T07:00:00Z")

    assert contents(memories(messages, "two")) == []
    assert contents(memories(messages, "two", include_replaced=True)) == ["rule two"]


def test_a_ledger_search_does_not_read_all_messages(database: str) -> None:
    with searching(database) as messages:
        messages.connection.execute(
            "insert into recall.message_text (id, ts, source, host, role, kind, session_key, tsv)"
            " select g, '2026-01-01'::timestamptz + make_interval(mins => g), 'codex', 'server',"
            "  'tool', 'text', 's', recall.index_document('common text word' || g % 700 || E'\\n')"
            " from generate_series(1, 20000) g"
        )
        put(messages, *(Entry(f"a common entry {place}", key=str(place)) for place in range(5)))
        messages.connection.execute("vacuum analyze recall.message_text, recall.note")
        messages.connection.execute("select pg_stat_force_next_flush()")
    with connect(database, application="tests", autocommit=True) as connection:
        before = _scans(connection)
        connection.execute("select api.search_ledger('common')")
        after = _scans(connection)
    assert after["message_text_note"] > before["message_text_note"]
    assert after["message_text"] == before["message_text"]


def _scans(connection: Any) -> dict[str, int]:
    connection.execute("select pg_stat_force_next_flush()")
    return dict(
        connection.execute(
            "select indexrelname, idx_scan from pg_stat_user_indexes where relname = 'message_text'"
            " union all"
            " select relname, seq_scan from pg_stat_user_tables where relname = 'message_text'"
        ).fetchall()
    )
