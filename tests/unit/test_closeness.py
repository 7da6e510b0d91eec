"""When an answer is called weak, and what it says of it."""

from __future__ import annotations

import pytest

from recall.config import Settings
from recall_api.closeness import LEAST_SIMILARITIES, Closeness

DEFAULT = Settings().embed_model
OTHER = "model-a1b2c3"


@pytest.mark.parametrize(
    ("words", "meaning", "expected"),
    [
        (None, None, None),
        # words alone
        (0.0, None, True),
        (0.39, None, True),
        (0.41, None, False),
        # meaning alone
        (None, 0.39, True),
        (None, 0.41, False),
        # both have to be far
        (0.5, 0.3, True),
        (0.5, 0.41, False),
        (0.7, 0.3, False),
        (1.0, 0.0, False),
        (0.0, 0.41, False),
    ],
)
def test_an_answer_is_weak_if_nothing_is_close(
    words: float | None, meaning: float | None, expected: bool | None
) -> None:
    assert Closeness(words, meaning).is_weak(DEFAULT) is expected


def test_the_default_model_has_a_threshold() -> None:
    assert DEFAULT in LEAST_SIMILARITIES


@pytest.mark.parametrize("model", [OTHER, None])
def test_the_cosines_of_another_model_are_not_judged(model: str | None) -> None:
    assert Closeness(None, 0.1).is_weak(model) is None
    assert Closeness(0.1, 0.1).is_weak(model) is None
    assert Closeness(0.7, 0.1).is_weak(model) is False, "words need no model"
    assert Closeness(0.1, None).is_weak(model) is True


def test_an_answer_tells_its_numbers() -> None:
    assert Closeness(0.241, 0.3149).told() == (
        "the best hit by words holds 24% of the query"
        " and the nearest passage has the similarity 0.31"
    )
    assert Closeness(0.0).told() == "no hit has any of its words"
    assert Closeness(None, 1 / 3).as_json() == {"words": None, "meaning": 0.3333}
