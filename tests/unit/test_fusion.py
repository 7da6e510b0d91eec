"""Fusing two lists of hits."""

from __future__ import annotations

from typing import Any

import pytest

from recall_api.fusion import fuse


def hit(number: str, score: float = 0.5, copy: str | None = None, **more: Any) -> dict[str, Any]:
    common = {"role": "assistant", "kind": "text", "passage": None}
    return {"id": number, "score": score, "copy": copy, **common, **more}


def test_score_is_the_share_of_the_best_text_and_the_similarity() -> None:
    fused = fuse([hit("a", 4.0), hit("b", 2.0)], [hit("b", 0.9), hit("c", 0.8)], meaning_weight=1.0)
    assert [(entry["id"], entry["score"]) for entry in fused] == [
        ("b", pytest.approx(1.4)),
        ("a", pytest.approx(1.0)),
        ("c", pytest.approx(0.8)),
    ]
    assert fused[0]["ranks"] == {
        "text": {"rank": 2, "score": 2.0},
        "semantic": {"rank": 1, "score": 0.9},
    }
    assert fused[1]["ranks"] == {"text": {"rank": 1, "score": 4.0}}


def test_far_best_text_stays_before_what_stands_in_both_lists_by_little() -> None:
    fused = fuse([hit("a", 9.0), hit("b", 1.0)], [hit("b", 0.2), hit("c", 0.1)])
    assert fused[0]["id"] == "a"


def test_copy_of_a_hit_is_the_same_hit() -> None:
    fused = fuse(
        [hit("a", 3.0, "7")], [hit("a2", 0.9, "7", passage={"start_char": 7, "length": 9})]
    )
    assert len(fused) == 1
    assert set(fused[0]["ranks"]) == {"text", "semantic"}
    assert fused[0]["id"] == "a"
    assert fused[0]["passage"] == {"start_char": 7, "length": 9}


def test_weight_decides_between_the_lists() -> None:
    text, meaning = [hit("a", 7.0)], [hit("b", 0.7)]
    assert [e["id"] for e in fuse(text, meaning, meaning_weight=1)] == ["a", "b"]
    assert [e["id"] for e in fuse(text, meaning, meaning_weight=2)] == ["b", "a"]


def test_similarity_below_zero_and_missing_scores_add_nothing() -> None:
    fused = fuse([hit("a", 0.0)], [hit("b", -0.3)])
    assert [(entry["id"], entry["score"]) for entry in fused] == [("a", 0.0), ("b", 0.0)]


def test_inputs_are_left_as_they_are_and_empty_lists_give_nothing() -> None:
    text = [hit("a", 3.0)]
    fuse(text, [])
    assert text == [hit("a", 3.0)]
    assert fuse([], []) == []


def test_repeated_hit_counts_at_its_first_place() -> None:
    fused = fuse([hit("a"), hit("b"), hit("a")], [])
    assert [entry["id"] for entry in fused] == ["a", "b"]
    assert fused[0]["score"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 1.0),
        ({"kind": "summary"}, 0.8),
        ({"kind": "tool_result", "role": "tool"}, 1.2),
        ({"role": "user"}, 0.9),
    ],
)
def test_kinds_weigh_differently(more: dict[str, Any], expected: float) -> None:
    (fused,) = fuse([hit("a", 3.0, **more)], [])
    assert fused["score"] == pytest.approx(expected)
    assert fused["ranks"] == {"text": {"rank": 1, "score": 3.0}}
