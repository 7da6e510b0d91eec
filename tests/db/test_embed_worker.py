"""Passages get their vectors: each text once, and what fails costs itself only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from recall.errors import ModelError
from recall_embedder.worker import ModelFailsError, as_text
from recall_sql.connection import connect
from tests.db.embedding import Bench, HashModel, check_store, expected, fetch, passages, say

KEY = "claude-code:laptop:one"


@pytest.fixture
def bench(database: str) -> Iterator[Bench]:
    bench = Bench(database)
    bench.begin()
    yield bench
    bench.close()


def cut(bench: Bench) -> None:
    while bench.cutter.cut_next():
        pass


def expire_leases(url: str) -> None:
    """Let all leases be over, as five minutes later."""
    with connect(url, application="tests") as connection:
        connection.execute("update recall.embed_queue set leased_until = now() - interval '1 s'")
        connection.execute("update recall.embed_dirty set leased_until = now() - interval '1 s'")


def test_vectors_are_those_of_the_model(database: str, bench: Bench) -> None:
    say(database, KEY, ["one", "two"])
    bench.drain()
    stored = dict(
        fetch(
            database,
            "select m.content, p.v::text from recall.passage p"
            " join recall.message m on m.id = p.entry_id",
        )
    )
    given = bench.model.embed(["one", "two"])
    for text, vector in zip(("one", "two"), given, strict=True):
        kept = np.array([float(number) for number in stored[text].strip("[]").split(",")])
        assert np.allclose(kept, vector, atol=1e-3)


def test_newest_passages_are_embedded_first(database: str, bench: Bench) -> None:
    say(database, KEY, [f"text {number}" for number in range(10)])
    cut(bench)
    bench.worker.embed_next()
    assert sorted(bench.model.given) == [f"text {number}" for number in (6, 7, 8, 9)]


def test_identical_text_is_embedded_once(database: str, bench: Bench) -> None:
    for number in range(12):
        say(database, f"codex:laptop:{number}", ["go on", f"own {number}"])
    bench.drain()
    assert bench.model.given.count("go on") == 1
    check_store(database)
    assert passages(database) == expected(database, bench.model)
    say(database, "codex:laptop:later", ["go on"])
    cut(bench)
    assert fetch(database, "select count(*) from recall.embed_queue") == [(0,)]
    assert bench.model.given.count("go on") == 1
    check_store(database)


def test_copy_takes_the_place_of_a_representative_that_goes(database: str, bench: Bench) -> None:
    for number in range(3):
        say(database, f"codex:laptop:{number}", ["go on"])
    bench.drain()
    for left in (2, 1, 0):
        key = fetch(
            database, "select session_key from recall.passage where is_representative"
        )[0][0]  # fmt: skip
        say(database, key, [None])
        bench.drain()
        assert len(passages(database)) == left
        check_store(database)
    assert bench.model.given == ["go on"]


def test_passage_that_fails_is_marked_after_three_tries_alone_and_the_others_go_on(
    database: str,
) -> None:
    bench = Bench(database, HashModel(fails=lambda text: "poison" in text), claim_rows=8)
    bench.begin()
    say(database, KEY, ["a", "b", "poison", "c", "d", "poison"])
    bench.drain()
    assert len(passages(database)) == 4
    marked = fetch(
        database, "select passage, attempts, error, failed_at is not null from recall.embed_queue"
    )
    assert marked == [("poison", 3, "the model fails", True)] * 2
    # In one claim both stand for one text, later they are tried one by one.
    assert bench.model.given[-2:] == ["poison", "recall"]
    assert bench.health.failed_total == 2
    assert bench.health.embedded_total == 4
    bench.close()


def test_vector_that_no_search_would_find_is_a_failure(database: str) -> None:
    @dataclass
    class Odd(HashModel):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            vectors = HashModel.embed(self, texts)
            for row, text in enumerate(texts):
                if text in ("zero", "nan"):
                    vectors[row] = 0 if text == "zero" else np.nan
            return vectors

    bench = Bench(database, Odd())
    bench.begin()
    say(database, KEY, ["zero", "fine", "nan"])
    bench.drain()
    assert fetch(database, "select distinct error from recall.embed_queue") == [
        ("the model gave no usable vector",)
    ]
    assert len(passages(database)) == 1
    bench.close()


def test_model_that_fails_on_any_text_blames_no_passage(database: str, bench: Bench) -> None:
    say(database, KEY, ["a", "b"])
    cut(bench)
    bench.model.fails = lambda _text: True
    for _ in range(5):
        with pytest.raises(ModelFailsError):
            bench.worker.embed_next()
    waiting = fetch(database, "select attempts, lease, failed_at, error from recall.embed_queue")
    assert waiting == [(0, None, None, None)] * 2
    assert bench.health.reasons() == ["every batch of the last 5 minutes failed"]
    bench.model.fails = lambda _text: False
    bench.drain()
    assert passages(database) == expected(database, bench.model)
    assert bench.health.reasons() == []


def test_passage_that_ends_the_process_each_time_takes_no_other_with_it(database: str) -> None:
    class Killed(BaseException):
        pass

    def kills(text: str) -> bool:
        if text == "killer":
            raise Killed
        return False

    bench = Bench(database, HashModel(fails=kills), claim_rows=8)
    bench.begin()
    say(database, KEY, ["a", "killer", "b", "c"])
    cut(bench)
    deaths = 0
    for _ in range(20):
        bench.worker.store.release_passages = lambda *_: None  # type: ignore[method-assign]
        try:
            while bench.worker.embed_next():
                pass
        except Killed:
            deaths += 1
        expire_leases(database)
    assert deaths == 4
    assert len(passages(database)) == 3
    assert fetch(
        database, "select passage, error, failed_at is not null from recall.embed_queue"
    ) == [("killer", "the embedder ended each time it worked on this passage", True)]
    assert bench.health.failed_total == 1
    bench.close()


def test_late_finisher_changes_nothing_twice(database: str, bench: Bench) -> None:
    say(database, KEY, ["one", "two"])
    other = Bench(database)
    cut(bench)

    def overtake(step: str) -> None:
        if step == "embedded":
            bench.worker.step = lambda _step: None
            expire_leases(database)
            other.drain()

    bench.worker.step = overtake
    assert bench.worker.embed_next()
    assert bench.health.embedded_total == 0
    assert other.health.embedded_total == 2
    assert passages(database) == expected(database, bench.model)
    check_store(database)
    other.close()


def test_passage_that_was_deleted_while_it_was_embedded_stays_away(
    database: str, bench: Bench
) -> None:
    say(database, KEY, ["one", "two"])
    other = Bench(database)
    cut(bench)

    def take_back(step: str) -> None:
        if step == "embedded":
            bench.worker.step = lambda _step: None
            say(database, KEY, [None])
            cut(other)

    bench.worker.step = take_back
    bench.worker.embed_next()
    assert passages(database) == expected(database, bench.model)
    assert len(passages(database)) == 1
    other.close()


def test_stop_gives_back_what_was_not_tried(database: str, bench: Bench) -> None:
    say(database, KEY, [f"text number {number} " + "word " * 20 for number in range(4)])
    cut(bench)
    bench.worker.should_stop = lambda: bool(bench.model.given)
    bench.worker.embed_next()
    waiting = fetch(database, "select attempts, lease from recall.embed_queue")
    assert waiting
    assert set(waiting) == {(0, None)}
    assert len(passages(database)) + len(waiting) == 4


def test_claim_that_takes_long_is_held(database: str, bench: Bench) -> None:
    say(database, KEY, [f"text number {number} " + "word " * 20 for number in range(4)])
    cut(bench)
    held: list[tuple[int, ...]] = []
    bench.worker.clock = lambda: 50.0 * len(bench.model.given)

    def look(step: str) -> None:
        if step == "stored":
            expire_leases(database)
        if step == "embedded":
            held.extend(
                fetch(
                    database,
                    "select count(*) from recall.embed_queue where leased_until > now()",
                )
            )

    bench.worker.step = look
    bench.worker.embed_next()
    assert len(held) > 1
    assert all(row[0] > 0 for row in held)


def test_claims_of_two_embedders_are_disjoint(database: str, bench: Bench) -> None:
    say(database, KEY, [f"text {number}" for number in range(8)])
    cut(bench)
    (generation,) = bench.store.generations()
    other = Bench(database)
    claims = [
        one.store.claim_passages(generation, rows=5, seconds=60)[0].passages
        for one in (bench, other)
    ]
    found = [item.id for claim in claims for item in claim]
    assert (len(claims[0]), len(claims[1]), len(set(found))) == (5, 3, 8)
    other.close()


def test_text_that_somebody_is_embedding_is_not_claimed_by_another(
    database: str, bench: Bench
) -> None:
    say(database, KEY, ["same", "same", "other"])
    cut(bench)
    (generation,) = bench.store.generations()
    first, _ = bench.store.claim_passages(generation, rows=2, seconds=60)
    assert sorted(item.text for item in first.passages) == ["other", "same"]
    second, _ = bench.store.claim_passages(generation, rows=2, seconds=60)
    assert second.passages == []


def test_reason_never_holds_the_text(database: str) -> None:
    def fails(text: str) -> bool:
        if "secret" in text:
            raise ValueError(f"cannot embed {text}")
        return False

    bench = Bench(database, HashModel(fails=fails))
    bench.begin()
    say(database, KEY, ["secret"])
    bench.drain()
    assert fetch(database, "select error from recall.embed_queue") == [("ValueError",)]
    bench.close()


def test_vector_as_text_keeps_what_a_halfvec_keeps() -> None:
    vector = np.array([0.123456789, -1e-7, 1.0], dtype=np.float32)
    assert as_text(vector) == "[0.123457,-1e-07,1]"


def test_model_error_has_our_words() -> None:
    assert isinstance(ModelFailsError("x"), ModelError)
