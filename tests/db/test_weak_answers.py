"""Answers of which nothing is close to the query say so, by words, by meaning and by both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from recall.errors import UsageError
from recall_api import closeness
from recall_api import search as search_module
from recall_api.models import SearchParams
from tests.db.search_store import Messages, Said, searching
from tests.db.test_hybrid import MESSAGES, MODEL, ask, found, store  # noqa: F401

PRINTER = "the printer driver on the reception desk"


@pytest.fixture
def messages(database: str) -> Iterator[Messages]:
    with searching(database) as found_messages:
        yield found_messages


def test_a_hit_with_one_common_word_of_many_is_weak(messages: Messages) -> None:
    messages.add("we looked at the desk", "nothing else")
    answer = messages.search(PRINTER, mode="text")
    assert len(answer["hits"]) == 1, "nothing is hidden"
    assert answer["weak"] is True
    assert 0 < answer["closeness"]["words"] < closeness.LEAST_WORDS
    assert "holds 33% of the query" in answer["weak_reason"]


def test_a_hit_with_most_of_the_words_is_not_weak(messages: Messages) -> None:
    messages.add("at the reception the printer has a new driver", "the desk")
    answer = messages.search(PRINTER, mode="text")
    assert (answer["weak"], answer["weak_reason"]) == (False, None)


def test_rare_words_weigh_more_than_common_ones(messages: Messages) -> None:
    messages.add(*(f"how did we do number {n}" for n in range(60)), "zebra at night")
    messages.connection.execute("analyze recall.message_text")
    common = messages.search("how did we do zorilla", mode="text")["closeness"]["words"]
    rare = messages.search("how zebra", mode="text")["closeness"]["words"]
    assert common < 0.5, "four of five words, and the one that matters is missing"
    assert rare > 0.5


def test_a_long_message_holds_what_one_of_its_rows_holds(messages: Messages) -> None:
    apart = "reception " + "x " * 9_000 + " driver " + "x " * 9_000 + " printer"
    messages.add(apart)
    answer = messages.search("reception driver printer", mode="text")
    assert answer["closeness"]["words"] == pytest.approx(1 / 3, abs=1e-4)


def test_one_of_alternatives_is_enough(messages: Messages) -> None:
    messages.add("the zebra sleeps")
    assert messages.search("zebra OR zorilla", mode="text")["closeness"]["words"] == 1
    assert messages.search("zebra zorilla", mode="text")["closeness"]["words"] == 0.5


def test_a_word_that_is_left_out_is_no_part_of_the_query(messages: Messages) -> None:
    messages.add("the zebra sleeps")
    assert messages.search("zebra -zorilla", mode="text")["closeness"]["words"] == 1


@pytest.mark.parametrize("mode", ["exact", "regex"])
def test_what_holds_the_string_is_not_weak(messages: Messages, mode: str) -> None:
    messages.add("a zebra")
    answer = messages.search("zebr", mode=mode)
    assert (len(answer["hits"]), answer["weak"]) == (1, False)


def test_an_empty_answer_is_not_weak(messages: Messages) -> None:
    messages.add("a zebra")
    answer = messages.search("zorilla", mode="text")
    assert (answer["hits"], answer["weak"]) == ([], False)
    assert answer["closeness"] == {"words": 0, "meaning": None}


def test_an_error_text_that_is_not_stored_gives_weak_hits_and_one_that_is_does_not(
    messages: Messages,
) -> None:
    messages.add("TypeError: unsupported operand for int and str", "cannot read the file")
    stored = messages.search("TypeError: unsupported operand")
    other = messages.search("KeyError: cannot resolve undefined properties of null reading map")
    assert (stored["mode_used"], stored["weak"]) == ("text", False)
    assert (other["mode_used"], other["weak"]) == ("text", True)
    assert other["hits"]


def test_a_later_page_is_not_judged(messages: Messages) -> None:
    messages.add("the desk", "a desk", "one desk")
    first = messages.search(PRINTER, mode="text", limit=2)
    second = messages.search(PRINTER, mode="text", limit=2, cursor=first["next_cursor"])
    assert first["weak"] is True
    assert (len(second["hits"]), second["weak"], second["weak_reason"]) == (1, None, None)
    assert second["closeness"] == {"words": None, "meaning": None}


def test_the_words_of_the_first_hit_behind_the_filter_count(messages: Messages) -> None:
    messages.add(Said(PRINTER, host="server"), Said("the desk", host="laptop"))
    assert messages.search(PRINTER, mode="text")["weak"] is False
    assert messages.search(PRINTER, mode="text", hosts=("laptop",))["weak"] is True


def test_strict_gives_nothing_instead_of_weak_hits(messages: Messages) -> None:
    messages.add("the desk", "a desk", "one desk")
    answer = messages.search(PRINTER, mode="text", limit=1, strict=True)
    assert (answer["hits"], answer["next_cursor"], answer["weak"]) == ([], None, True)
    assert "of the query" in answer["weak_reason"]
    assert len(messages.search("desk", mode="text", strict=True)["hits"]) == 3


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of the tests has a threshold."""
    monkeypatch.setattr(closeness, "LEAST_SIMILARITIES", {MODEL: 0.6})


def by(url: str, query: str, mode: str, **more: Any) -> tuple[Any, Any, Any]:
    answer = ask(url, query, mode, **more)
    assert answer["hits"] or more.get("strict")
    return answer["weak"], answer["closeness"]["words"], answer["closeness"]["meaning"]


@pytest.mark.usefixtures("judged")
def test_meaning_is_weak_if_no_passage_is_near(store: str) -> None:  # noqa: F811
    near, far = by(store, "dns", "semantic"), by(store, "nap", "semantic")
    assert (near[0], near[1]) == (False, None)
    assert near[2] > 0.9
    assert (far[0], far[1]) == (True, None)
    assert far[2] < 0.6
    assert by(store, "nap", "semantic", strict=True)[0] is True
    assert ask(store, "nap", "semantic", strict=True)["hits"] == []


@pytest.mark.usefixtures("judged")
def test_hybrid_is_weak_only_if_words_and_meaning_both_are(store: str) -> None:  # noqa: F811
    assert by(store, "nap", "hybrid")[:2] == (True, 0)
    assert by(store, "dns", "hybrid")[:2] == (False, 0), "near, without a word in common"
    assert by(store, "nap nothing particular", "hybrid")[0] is False, "words, not near"
    assert by(store, "nap nothing", "hybrid")[:2] == (True, 0.5), "too few words, and not near"


@pytest.mark.usefixtures("judged")
def test_auto_says_that_what_is_only_near_is_not_even_that(store: str) -> None:  # noqa: F811
    answer = ask(store, "nap", "auto")
    assert (answer["mode_used"], answer["weak"]) == ("hybrid", True)
    assert answer["weak_reason"].startswith("no hit has any of its words and the nearest passage")
    assert ask(store, "ocket timeo", "auto")["weak"] is False, "the exact text was found"


def test_a_model_without_a_threshold_is_not_judged(store: str) -> None:  # noqa: F811
    for mode in ("semantic", "hybrid"):
        answer = ask(store, "nap", mode)
        assert (answer["weak"], answer["weak_reason"]) == (None, None)
        assert answer["closeness"]["meaning"] < 0.6
        assert ask(store, "nap", mode, strict=True)["hits"]


@pytest.mark.usefixtures("judged")
def test_later_pages_by_meaning_are_not_judged(store: str) -> None:  # noqa: F811
    for mode in ("semantic", "hybrid"):
        first = ask(store, "nap", mode, limit=2)
        second = ask(store, "nap", mode, limit=2, cursor=first["next_cursor"])
        assert (first["weak"], second["weak"]) == (True, None)
        assert second["hits"]


def test_a_least_similarity_leaves_out_what_is_less_near(store: str) -> None:  # noqa: F811
    near = ask(store, "dns", "semantic", min_similarity=0.9)
    assert set(found(near)) == {MESSAGES[1], MESSAGES[2]}
    assert ask(store, "nap", "semantic", min_similarity=0.9)["hits"] == []
    both = ask(store, "dns refund", "hybrid", min_similarity=0.9)
    assert found(both) == [MESSAGES[0]], "hits by words stay"


@pytest.mark.usefixtures("judged")
def test_a_higher_least_similarity_makes_no_answer_closer(store: str) -> None:  # noqa: F811
    assert by(store, "nap nothing", "hybrid")[0] is True
    answer = ask(store, "nap nothing", "hybrid", min_similarity=0.9)
    assert (answer["weak"], answer["closeness"]) == (True, {"words": 0.5, "meaning": None})
    assert answer["hits"]
    assert answer["reasons"] == ["no passage has a similarity of 0.9 or more"]


def test_what_the_least_similarity_left_out_is_told(store: str) -> None:  # noqa: F811
    for mode in ("semantic", "auto"):
        answer = ask(store, "nap", mode, min_similarity=0.9)
        assert answer["hits"] == []
        assert "no passage has a similarity of 0.9 or more" in answer["reasons"]
        assert not any("near in meaning" in reason for reason in answer["reasons"])


@pytest.mark.parametrize("mode", ["text", "exact", "regex"])
def test_a_least_similarity_without_meaning_is_told(messages: Messages, mode: str) -> None:
    messages.add("a zebra")
    answer = messages.search("zebra", mode=mode, min_similarity=0.5)
    assert len(answer["hits"]) == 1
    assert answer["reasons"] == ["`min_similarity` changes nothing, as meaning was not searched"]


@pytest.mark.usefixtures("judged")
def test_a_strict_answer_does_not_speak_of_hits_that_it_left_out(store: str) -> None:  # noqa: F811
    answer = ask(store, "nap", "auto", strict=True)
    assert (answer["hits"], answer["weak"], answer["reasons"]) == ([], True, [])


def test_strict_says_where_it_changes_nothing(store: str) -> None:  # noqa: F811
    for mode in ("semantic", "hybrid"):
        reasons = ask(store, "nap", mode, strict=True)["reasons"]
        assert any(f"not known what is near for `{MODEL}`" in reason for reason in reasons)
        assert not any("strict" in reason for reason in ask(store, "nap", mode)["reasons"])


@pytest.mark.usefixtures("judged")
@pytest.mark.parametrize("late", ["text", "semantic"])
def test_an_answer_that_lacks_one_search_is_not_judged(
    store: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    late: str,
) -> None:
    """The search that ran out of time might have found what is close."""
    run = search_module._one

    def one(conn: Any, name: str, values: dict[str, Any]) -> Any:
        if name == late:
            raise psycopg.errors.QueryCanceled
        return run(conn, name, values)

    monkeypatch.setattr(search_module, "_one", one)
    answer = ask(store, "nap nothing", "hybrid", strict=True)
    assert (answer["degraded"], answer["weak"], answer["weak_reason"]) == (True, None, None)
    assert answer["hits"]


def test_a_cursor_is_bound_to_the_least_similarity(store: str) -> None:  # noqa: F811
    cursor = ask(store, "dns", "semantic", limit=1, min_similarity=0.5)["next_cursor"]
    assert ask(store, "dns", "semantic", limit=1, min_similarity=0.5, cursor=cursor)["hits"]
    with pytest.raises(UsageError, match="another search"):
        ask(store, "dns", "semantic", limit=1, cursor=cursor)


@pytest.mark.parametrize("value", ["1.5", "-2", "nan", "near"])
def test_a_least_similarity_is_a_cosine(value: str) -> None:
    with pytest.raises(UsageError, match="`min_similarity`"):
        SearchParams.read({"q": "x", "min_similarity": value})
