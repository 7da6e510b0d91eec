"""Batches of texts of about equal length."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recall_embedder.batching import batches

LENGTHS = st.lists(st.integers(2, 256), max_size=60)


@given(LENGTHS, st.integers(1, 2_000))
def test_every_item_is_in_one_batch_within_the_budget(lengths: list[int], budget: int) -> None:
    made = list(batches(range(len(lengths)), lengths, budget))
    assert sorted(index for batch in made for index in batch) == list(range(len(lengths)))
    for batch in made:
        assert len(batch) == 1 or max(lengths[index] for index in batch) * len(batch) <= budget


@given(LENGTHS, st.integers(1, 2_000))
def test_batches_are_full_and_the_longest_come_first(lengths: list[int], budget: int) -> None:
    made = list(batches(range(len(lengths)), lengths, budget))
    in_order = [lengths[index] for batch in made for index in batch]
    assert in_order == sorted(lengths, reverse=True)
    for batch in made[:-1]:
        assert lengths[batch[0]] * (len(batch) + 1) > budget


def test_items_of_equal_length_keep_their_order() -> None:
    assert list(batches(["a", "b", "c", "d"], [5, 9, 5, 5], 10)) == [["b"], ["a", "c"], ["d"]]


def test_an_item_beyond_the_budget_is_a_batch_of_its_own() -> None:
    assert list(batches(["long", "x", "y"], [50, 5, 5], 10)) == [["long"], ["x", "y"]]


def test_no_items_no_batches() -> None:
    assert list(batches([], [], 10)) == []
