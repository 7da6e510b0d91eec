"""Filters, copies, prompts and what a client took back, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recall.errors import NotFoundError, UsageError
from recall_api.filters import MOST_VALUES
from tests.db.search_store import NOW, Messages, Said, searching

#: A query in each mode that finds every text which holds "needle".
MODES = (("text", "needle"), ("exact", "needle"), ("exact", "eedle"), ("regex", "need.e"))
in_each_mode = pytest.mark.parametrize(("mode", "query"), MODES)

ODD = Said(
    "the odd needle",
    age=50_000,
    session="oddone-1",
    source="codex",
    host="server",
    project="/srv/odd",
    role="tool",
    kind="tool_result",
    tool="Bash",
)


@pytest.fixture
def messages(database: str) -> Iterator[Messages]:
    with searching(database) as found:
        yield found


@in_each_mode
@pytest.mark.parametrize(
    "options",
    [
        {"sources": ["codex"]},
        {"hosts": ["server", "nowhere"]},
        {"projects": ["/srv/odd"]},
        {"projects": ["odd"]},
        {"roles": ["tool"]},
        {"kinds": ["tool_result"]},
        {"tools": ["Bash"]},
        {"sessions": ["codex:server:oddone-1"]},
        {"sessions": ["oddone"]},
        {"until": NOW - timedelta(days=30)},
        {"until": "2026-05-01"},
        {"since": "2026-04-01", "until": "2026-05-01T00:00:00Z"},
        {"exclude_sessions": ["claude-code:laptop:session-one"]},
        {"sources": ["codex"], "tools": ["Bash"], "projects": ["odd", "/none"]},
    ],
)
def test_a_filter_applies_before_the_limit(
    messages: Messages, mode: str, query: str, options: dict[str, Any]
) -> None:
    (odd,) = messages.add(ODD)
    messages.add(*(Said(f"needle number {n}", n) for n in range(230)))
    assert messages.ids(query, mode=mode, limit=1, **options) == [odd]


@in_each_mode
def test_since_leaves_out_what_is_older_and_what_has_no_time(
    messages: Messages, mode: str, query: str
) -> None:
    new, _, _ = messages.add(Said("needle", 1), Said("needle", 5_000), Said("needle", None))
    assert messages.ids(query, mode=mode, since=NOW - timedelta(days=1)) == [new]


@in_each_mode
def test_filters_that_nothing_passes(messages: Messages, mode: str, query: str) -> None:
    messages.add("needle")
    given: list[dict[str, Any]] = [
        {"sources": ["x"]}, {"projects": ["x"]}, {"projects": ["/home/dev"]},
    ]  # fmt: skip
    for options in given:
        answer = messages.search(query, mode=mode, **options)
        assert (answer["hits"], answer["next_cursor"]) == ([], None)


def test_a_project_is_named_by_its_path_or_its_last_folder(messages: Messages) -> None:
    paths = ("/home/dev/shop", "/Users/dev/shop/", "C:\\dev\\shop", "/home/shop/api", None)
    for n, path in enumerate(paths):
        messages.add(Said(f"needle {n}", project=path))
    for name, count in (("shop", 3), ("/home/dev/shop", 1), ("api", 1), ("dev", 0), ("hop", 0)):
        assert len(messages.ids("needle", projects=[name], mode="text")) == count, name


def test_a_session_is_named_by_a_unique_beginning(messages: Messages) -> None:
    messages.add(Said("needle", session="abcdef-1"), Said("needle", session="abcdef-2"))
    assert len(messages.ids("needle", sessions=["abcdef-1"], mode="text")) == 1
    with pytest.raises(UsageError, match="abcdef-2"):
        messages.search("needle", sessions=["abcdef"])
    with pytest.raises(NotFoundError):
        messages.search("needle", sessions=["nothing-like-it"])


@in_each_mode
def test_the_lineage_of_an_excluded_session_is_excluded(
    messages: Messages, mode: str, query: str
) -> None:
    said = {name: Said("needle", session=f"{name}-session") for name in "abcde"}
    root = messages.session(said["a"])
    child = messages.session(said["b"], parent=root, relation="resume")
    messages.session(said["c"], parent=child, relation="subagent")
    messages.session(said["d"], parent=root, relation="fork")
    numbers = messages.add(*said.values())
    excluded = messages.ids(query, mode=mode, exclude_sessions=[child])
    assert sorted(excluded) == sorted(numbers[3:])
    assert len(messages.ids(query, mode=mode, exclude_sessions=["not-stored-yet"])) == 5


@in_each_mode
def test_copies_are_one_hit_with_the_other_places(
    messages: Messages, mode: str, query: str
) -> None:
    first = Said("one needle", 30, session="original", copy=7)
    fork = replace(first, session="forked-1", age=31)
    resumed = replace(first, session="resumed-1", age=2)
    messages.session(first, title="The first")
    messages.session(fork, parent=first.key, relation="fork", title="The fork")
    numbers = messages.add(resumed, fork, first, Said("another needle", 40))
    answer = messages.search(query, mode=mode)
    assert sorted(hit["id"] for hit in answer["hits"]) == sorted([numbers[2], numbers[3]])
    hit = next(hit for hit in answer["hits"] if hit["id"] == numbers[2])
    assert hit["title"] == "The first"
    assert [place["id"] for place in hit["occurrences"]] == [numbers[1], numbers[0]]
    assert hit["occurrences"][0] == {
        "id": numbers[1], "session_key": fork.key, "ordinal": 2, "part": 0,
    }  # fmt: skip


@in_each_mode
def test_a_copy_that_alone_passes_the_filter_is_the_hit(
    messages: Messages, mode: str, query: str
) -> None:
    first = Said("one needle", 30, session="original", copy=7)
    fork = replace(first, session="forked-1", age=31, project="/home/dev/fork")
    messages.session(fork, parent=first.key, relation="fork")
    original, copied = messages.add(first, fork)
    (hit,) = messages.search(query, mode=mode, projects=["fork"])["hits"]
    assert hit["id"] == copied
    assert [place["id"] for place in hit["occurrences"]] == [original]
    assert messages.ids(query, mode=mode, exclude_sessions=[first.key]) == []


def test_many_copies_do_not_crowd_out_other_messages(messages: Messages) -> None:
    for n in range(260):
        messages.add(Said("one needle", n, session=f"copied-{n}", copy=7))
    (other,) = messages.add(Said("other needle", 9_000))
    for mode, query in MODES:
        answer = messages.search(query, mode=mode, limit=5)
        assert len(answer["hits"]) == 2
        assert other in [hit["id"] for hit in answer["hits"]]
        assert max(len(hit["occurrences"]) for hit in answer["hits"]) == 20


@in_each_mode
def test_a_prompt_is_a_hit_unless_its_message_is_stored(
    messages: Messages, mode: str, query: str
) -> None:
    said = Said("the same needle", 5)
    (number,) = messages.add(said)
    same = messages.prompt(said, session=said.key)
    alone = messages.prompt(replace(said, content="lone needle"), session=said.key)
    loose = messages.prompt(replace(said, content="loose needle"), session=None)
    assert sorted(messages.ids(query, mode=mode)) == sorted([number, alone, loose])
    prompts = messages.ids(query, mode=mode, kinds=["prompt"])
    assert sorted(prompts) == sorted([same, alone, loose])
    hits = {hit["id"]: hit for hit in messages.search(query, mode=mode)["hits"]}
    assert (hits[loose]["kind"], hits[loose]["role"]) == ("prompt", "user")
    assert (hits[loose]["part"], hits[loose]["session_key"]) == (None, None)


@in_each_mode
def test_what_a_client_took_back_is_found_only_if_asked_for(
    messages: Messages, mode: str, query: str
) -> None:
    kept, old = messages.add(Said("needle now", 1), Said("needle before", 2))
    old = messages.retract(old)
    assert messages.ids(query, mode=mode) == [kept]
    assert messages.search(query, mode=mode)["coverage"]["hidden"] == {"retracted": 1}
    assert sorted(messages.ids(query, mode=mode, include_retracted=True)) == sorted([kept, old])


@pytest.mark.parametrize(
    "options",
    [
        {"query": ""},
        {"query": "x" * 2_001},
        {"limit": 0},
        {"limit": 201},
        {"mode": "guess"},
        {"sources": ["x"] * (MOST_VALUES + 1)},
        {"since": "whenever"},
        {"cursor": "nonsense"},
    ],
)
def test_what_cannot_be_searched_is_a_usage_error(
    messages: Messages, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        messages.search(**{"query": "needle", **options})


def test_text_that_the_database_refuses_is_cleaned(messages: Messages) -> None:
    messages.add("a needle")
    assert messages.ids("needle\x00", mode="text")
    assert messages.ids("needle", mode="exact", sources=["\ud800", "\x00"]) == []


def test_coverage_names_sources_files_and_what_is_hidden(messages: Messages) -> None:
    messages.add(Said("one", 5), Said("two", session="session-two", age=1), ODD)
    for path, source, host, lines, unreadable in (
        ("a.jsonl", "claude-code", "laptop", (9, 4, 1, 2, 2), None),
        ("b.jsonl", "claude-code", "laptop", (3, 3, 0, 0, 0), "permission denied"),
    ):
        messages.connection.execute(
            "insert into recall.ingest_state (host, path, source, size, mtime_ns, ctime_ns, inode,"
            " byte_offset, lines, head_hash, tail_hash, generation, rereading, lines_seen,"
            " lines_stored, lines_merged, lines_quarantined, lines_skipped, skip_reasons, read_at,"
            " unreadable) values (%s, %s, %s, 0, 0, 0, 0, 0, 0, '', '', 1, false, %s, %s, %s, %s,"
            " %s, '{}', %s, %s)",
            (host, path, source, *lines, NOW, unreadable),
        )
    coverage = messages.search("nothing")["coverage"]
    assert coverage["sources"] == [
        {
            "source": "claude-code", "host": "laptop", "sessions": 2, "messages": 8,
            "newest": "2026-06-01T11:59:00Z", "last_read": "2026-06-01T12:00:00Z",
        },
        {
            "source": "codex", "host": "server", "sessions": 1, "messages": 0,
            "newest": "2026-04-27T18:40:00Z", "last_read": None,
        },
    ]  # fmt: skip
    assert coverage["searched"] == {"messages": 3, "prompts": 0, "notes": 0}
    assert (coverage["unreadable"], coverage["quarantined"]) == (1, 0)
