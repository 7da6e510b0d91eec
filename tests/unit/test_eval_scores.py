"""Scores against values that were worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall_api.evaluation.scores import (
    MEASURES,
    Judged,
    difference,
    hit_rate,
    interval,
    is_refused,
    judge,
    ndcg,
    precision,
    recall,
    reciprocal_rank,
    separation,
)


def judged(hits: str, relevant: dict[str, int]) -> Judged:
    """An answer whose hits have one key each, written as one letter."""
    return judge([[key] for key in hits], relevant)


def test_measures_of_an_answer_worked_out_by_hand() -> None:
    # Places: a=3 at 2, b=1 at 3, c=2 at 5; d=2 is not found.
    answer = judged("xabyc", {"a": 3, "b": 1, "c": 2, "d": 2})
    assert answer.grades == (0, 3, 1, 0, 2)
    assert answer.ideal == (3, 2, 2, 1)
    assert hit_rate(answer, 10) == 1.0
    assert precision(answer, 10) == pytest.approx(2 / 10)
    assert recall(answer, 10) == pytest.approx(2 / 3)
    assert reciprocal_rank(answer, 10) == pytest.approx(1 / 2)
    gain = 7 / math.log2(3) + 1 / math.log2(4) + 3 / math.log2(6)
    ideal = 7 / math.log2(2) + 3 / math.log2(3) + 3 / math.log2(4) + 1 / math.log2(5)
    assert ndcg(answer, 10) == pytest.approx(gain / ideal)
    assert gain / ideal == pytest.approx(0.5615, abs=0.0001)


def test_only_the_first_k_hits_count() -> None:
    answer = judged("xyza", {"a": 3})
    assert [measure(answer, 3) for measure in MEASURES.values()] == [0.0] * 5
    assert hit_rate(answer, 4) == 1.0
    assert precision(answer, 4) == 0.25
    assert reciprocal_rank(answer, 4) == 0.25


def test_ideal_answer_is_cut_at_k_as_well() -> None:
    answer = judged("ab", {"a": 3, "b": 3, "c": 3, "d": 3})
    assert ndcg(answer, 2) == 1.0
    assert recall(answer, 2) == 0.5


def test_missing_hits_count_as_wrong_ones() -> None:
    short, padded = judged("a", {"a": 3, "b": 2}), judged("axxx", {"a": 3, "b": 2})
    for measure in MEASURES.values():
        assert measure(short, 4) == measure(padded, 4)
    assert precision(short, 4) == 0.25


def test_empty_answer_scores_nothing() -> None:
    assert [measure(judged("", {"a": 3}), 10) for measure in MEASURES.values()] == [0.0] * 5


def test_grade_one_weighs_in_ndcg_and_is_no_answer() -> None:
    answer = judged("ba", {"a": 2, "b": 1})
    assert reciprocal_rank(answer, 10) == 0.5
    assert recall(answer, 10) == 1.0
    assert precision(answer, 2) == 0.5
    assert ndcg(answer, 10) == pytest.approx((1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3)))


def test_second_hit_of_one_message_gains_nothing() -> None:
    answer = judged("aab", {"a": 3, "b": 3})
    assert answer.grades == (3, 0, 3)
    assert precision(answer, 3) == pytest.approx(2 / 3)
    assert recall(answer, 3) == 1.0
    assert ndcg(answer, 3) < 1


def test_label_of_a_whole_record_is_found_by_any_part_and_once() -> None:
    hits = [["s#4.1", "s#4"], ["s#4.0", "s#4"], ["s#5.0", "s#5"]]
    answer = judge(hits, {"s#4": 3, "s#5.0": 2})
    assert answer.grades == (3, 0, 2)
    assert answer.found == (1, 0, 1)


def test_hit_with_labelled_copies_gives_all_of_them_at_its_best_grade() -> None:
    answer = judge([["one", "copy"], ["other"]], {"one": 2, "copy": 3, "other": 2})
    assert answer.grades == (3, 2)
    assert answer.found == (2, 1)
    assert recall(answer, 10) == 1.0


@pytest.mark.parametrize("measure", [recall, ndcg])
def test_query_without_labels_cannot_be_measured(measure: Any) -> None:
    with pytest.raises(ValueError, match="without"):
        measure(judged("ab", {}), 10)


@given(
    st.lists(st.sampled_from("abcdefghij"), max_size=14),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(2, 3), min_size=1),
    st.integers(1, 12),
)
def test_measures_stay_between_nothing_and_perfect(
    hits: list[str], relevant: dict[str, int], k: int
) -> None:
    answer = judge([[key] for key in hits], relevant)
    assert all(0 <= measure(answer, k) <= 1 + 1e-9 for measure in MEASURES.values())
    best = judge([[key] for key in sorted(relevant, key=lambda key: -relevant[key])], relevant)
    assert ndcg(best, k) == pytest.approx(1)
    assert recall(best, len(relevant)) == 1


@pytest.mark.parametrize(
    ("hits", "weak", "score", "threshold", "expected"),
    [
        (0, False, None, None, True),
        (0, False, None, 0.5, True),
        (3, False, 0.4, None, False),
        (3, True, 0.4, None, True),
        (3, False, 0.4, 0.5, True),
        (3, True, 0.5, 0.5, False),
        (3, False, None, 0.5, False),
    ],
)
def test_an_answer_says_nothing_if_empty_or_weak_or_below_the_threshold(
    hits: int, weak: bool, score: float | None, threshold: float | None, expected: bool
) -> None:
    assert is_refused(hits, weak, score, threshold) is expected


def test_separation_counts_pairs_and_halves_ties() -> None:
    # Of the six pairs 4 are right, 1 is a tie and 1 is wrong.
    assert separation([0.9, 0.5, 0.4], [0.5, 0.3]) == pytest.approx(4.5 / 6)
    assert separation([1.0], [1.0]) == 0.5
    assert separation([], [1.0]) is None
    assert separation([1.0], []) is None


def test_interval_holds_the_mean_and_repeats_itself() -> None:
    values = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.5, 0.25]
    found = interval(values)
    assert found is not None
    assert found == interval(values)
    assert found.mean == pytest.approx(0.59375)
    assert 0 < found.low < found.mean < found.high < 1
    assert found.count == 8


def test_interval_of_equal_values_has_no_width() -> None:
    found = interval([0.5] * 6)
    assert found is not None
    assert (found.low, found.mean, found.high) == (0.5, 0.5, 0.5)
    assert interval([]) is None


def test_interval_of_few_values_takes_the_tails_of_the_resamples() -> None:
    # Two values give the means 0, 0.5 and 1 a quarter, a half and a quarter of the time.
    found = interval([0.0, 1.0])
    assert found is not None
    assert (found.low, found.high) == (0.0, 1.0)


def test_interval_narrows_with_more_queries() -> None:
    few, many = interval([0.0, 1.0] * 5), interval([0.0, 1.0] * 100)
    assert few is not None
    assert many is not None
    assert many.high - many.low < (few.high - few.low) / 2
    # Twice the standard error of a fair coin thrown 200 times is 0.07.
    assert many.high - many.low == pytest.approx(4 * math.sqrt(0.25 / 200), rel=0.15)


def test_difference_compares_query_by_query() -> None:
    first, second = [0.9, 0.5, 0.7, 0.3], [0.8, 0.4, 0.6, 0.2]
    found = difference(first, second)
    assert found is not None
    assert found.mean == pytest.approx(0.1)
    assert found.low == pytest.approx(0.1)
    with pytest.raises(ValueError, match="zip"):
        difference([1.0], [])
