"""Search by meaning and hybrid search through the function that every door calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray

from recall.config import Settings
from recall.errors import ModelError
from recall_api.query_vectors import QueryVectors
from recall_api.search import SearchRequest, search
from recall_sql.connection import connect

MODEL = "topics"
TOPICS = ("money", "network", "colour", "sleep")


class TopicModel:
    """A model whose vectors are known: one dimension for each topic that a text is about."""

    name = MODEL
    dimension = len(TOPICS)
    pooling = "mean"
    max_tokens = 256
    threads_safe = True
    words: ClassVar[dict[str, int]] = {
        "invoice": 0, "refund": 0, "billing": 0, "dns": 1, "socket": 1, "resolver": 1,
        "palette": 2, "contrast": 2, "nap": 3,
    }  # fmt: skip

    def spans(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = np.full((len(texts), self.dimension), 0.01, dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word, topic in self.words.items():
                row[topic] += text.lower().count(word)
            row /= np.linalg.norm(row)
        return rows


MESSAGES = (
    "the refund was sent twice",
    "socket timeouts after the deploy",
    "the resolver caches an old address",
    "contrast of the dark theme is too low",
    "nothing in particular",
)


@pytest.fixture
def store(database: str) -> str:
    model = TopicModel()
    with connect(database, application="tests") as conn:
        conn.execute(
            "insert into recall.session (session_key, source, host, external_id)"
            " values ('x:h:1', 'x', 'h', '1')"
        )
        for number, text in enumerate(MESSAGES):
            conn.execute(
                "insert into recall.message (session_key, ordinal, part, id, role, kind, ts,"
                " content, content_hash) values ('x:h:1', %s, 0, %s, 'user', 'text',"
                " timestamptz '2026-01-01Z' + %s * interval '1 day', %s, decode(md5(%s), 'hex'))",
                (number, number + 1, number, text, text),
            )
            conn.execute(
                "insert into recall.message_text (id, chunk, ts, source, host, role, kind,"
                " session_key, tsv) select id, 0, ts, 'x', 'h', role, kind, session_key,"
                " recall.index_document(content || E'\\n' || content) from recall.message"
                " where id = %s",
                (number + 1,),
            )
        conn.execute("select recall.create_embedding_generation(%s, 4, 'mean', 256, 32, '{text}')",
                     (MODEL,))  # fmt: skip
        conn.execute("delete from recall.embed_dirty")
        for number, text in enumerate(MESSAGES):
            conn.execute(
                "insert into recall.passage (generation, id, entry_id, session_key, source, host,"
                " role, kind, ts, start_char, length, text_hash, is_representative, v)"
                " select 1, id, id, session_key, 'x', 'h', role, kind, ts, 0, length(content),"
                " content_hash, true, %s::real[]::recall.halfvec from recall.message where id = %s",
                (model.embed([text])[0].tolist(), number + 1),
            )
        conn.commit()
    return database


def vectors(model: TopicModel | None = None) -> QueryVectors:
    return QueryVectors(Settings(), load=lambda _: model or TopicModel())


def ask(
    url: str, query: str, mode: str, given: QueryVectors | None = None, **more: Any
) -> dict[str, Any]:
    request = SearchRequest(query=query, mode=mode, **more)  # type: ignore[arg-type]
    with connect(url, application="tests", autocommit=True) as conn:
        return search(conn, request, budget_seconds=60, vectors=given or vectors())


def found(answer: dict[str, Any]) -> list[str]:
    return [MESSAGES[int(hit["id"]) - 1] for hit in answer["hits"]]


def test_meaning_finds_what_shares_no_word(store: str) -> None:
    answer = ask(store, "dns", "semantic", limit=2)
    assert set(found(answer)) == {MESSAGES[1], MESSAGES[2]}
    assert answer["mode_used"] == "semantic"
    assert not answer["degraded"]
    assert answer["hits"][0]["score"] > 0.9
    assert answer["hits"][0]["passage"] == {"start_char": 0, "length": len(found(answer)[0])}
    assert answer["coverage"]["vectors"]["model"] == MODEL


def test_hybrid_puts_first_what_both_find_and_shows_both_ranks(store: str) -> None:
    answer = ask(store, "socket", "hybrid")
    assert found(answer)[0] == MESSAGES[1]
    assert found(answer)[1] == MESSAGES[2]
    assert answer["hits"][0]["ranks"]["text"]["rank"] == 1
    assert answer["hits"][0]["ranks"]["semantic"]["rank"] == 1
    assert "<mark>socket</mark>" in answer["hits"][0]["snippet"]
    assert set(answer["hits"][1]["ranks"]) == {"semantic"}
    assert len({hit["id"] for hit in answer["hits"]}) == len(answer["hits"])


def test_pages_of_a_hybrid_answer_are_one_list(store: str) -> None:
    whole = found(ask(store, "socket deploy", "hybrid"))
    cursor, pages = None, []
    while True:
        answer = ask(store, "socket deploy", "hybrid", limit=2, cursor=cursor)
        pages.extend(found(answer))
        cursor = answer["next_cursor"]
        if cursor is None:
            break
    assert pages == whole
    assert len(whole) == 5


def test_auto_is_hybrid_where_there_are_vectors(store: str, database: str) -> None:
    assert ask(store, "socket", "auto")["mode_used"] == "hybrid"
    with connect(store, application="tests") as conn:
        conn.execute("delete from recall.passage")
    assert ask(store, "socket", "auto")["mode_used"] == "text"


def test_auto_looks_for_the_exact_text_before_it_gives_what_is_only_near(store: str) -> None:
    answer = ask(store, "ocket timeo", "auto")
    assert (answer["mode_used"], found(answer)) == ("exact", [MESSAGES[1]])
    answer = ask(store, "billing", "auto")
    assert answer["mode_used"] == "hybrid"
    assert found(answer)[0] == MESSAGES[0]
    assert any("near in meaning" in reason for reason in answer["reasons"])


def test_without_vectors_the_answer_is_by_words_and_says_so(store: str) -> None:
    with connect(store, application="tests") as conn:
        conn.execute("delete from recall.passage")
    for mode in ("semantic", "hybrid"):
        answer = ask(store, "socket", mode)
        assert (answer["mode_used"], answer["degraded"]) == ("text", True)
        assert answer["reasons"][0] == "by words only: there are no vectors yet"
        assert found(answer) == [MESSAGES[1]]


def test_part_of_the_vectors_is_used_and_told(store: str) -> None:
    with connect(store, application="tests") as conn:
        conn.execute("select recall.mark_dirty('{x:h:1}', '{0}', '{15}', '{null}')")
    answer = ask(store, "socket", "hybrid")
    assert (answer["mode_used"], answer["degraded"]) == ("hybrid", True)
    assert any("25% of the passages" in reason for reason in answer["reasons"])


def test_model_that_cannot_be_loaded_turns_meaning_off_with_a_word(store: str) -> None:
    tries = []

    def load(settings: Settings) -> TopicModel:
        tries.append(settings.embed_model)
        raise ModelError("the model file is not there", hint="install it again")

    now = [0.0]
    broken = QueryVectors(Settings(), load=load, clock=lambda: now[0])
    for _ in range(3):
        answer = ask(store, "socket", "hybrid", broken)
        assert (answer["mode_used"], answer["degraded"]) == ("text", True)
        assert answer["reasons"][0] == "by words only: the model file is not there"
    assert tries == [MODEL]
    now[0] = 61.0
    ask(store, "socket", "hybrid", broken)
    assert tries == [MODEL, MODEL]


def test_vector_of_a_query_is_made_once(store: str) -> None:
    asked: list[str] = []

    class Counting(TopicModel):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            asked.extend(texts)
            return super().embed(texts)

    kept = vectors(Counting())
    for _ in range(3):
        ask(store, "socket", "hybrid", kept)
    assert asked == ["socket"]


def test_model_of_another_name_is_refused(store: str) -> None:
    class Other(TopicModel):
        name = "other"

    answer = ask(store, "socket", "semantic", vectors(Other()))
    assert answer["reasons"][0] == "by words only: `topics` loads as `other`"


def test_filters_hold_in_every_mode(store: str) -> None:
    for mode in ("semantic", "hybrid"):
        answer = ask(store, "socket", mode, since="2026-01-03T00:00:00Z")
        assert MESSAGES[1] not in found(answer)
        assert answer["hits"]
        assert ask(store, "socket", mode, sources=("absent",))["hits"] == []


def test_cursor_of_another_mode_is_refused(store: str) -> None:
    cursor = ask(store, "socket deploy", "hybrid", limit=1)["next_cursor"]
    with pytest.raises(Exception, match="another search"):
        ask(store, "socket deploy", "semantic", limit=1, cursor=cursor)


def test_plain_connection_answers_in_text_modes_as_before(store: str) -> None:
    with connect(store, application="tests", autocommit=True) as conn:
        request = SearchRequest(query="socket", mode="auto")
        assert search(conn, request, budget_seconds=60)["mode_used"] == "text"
    assert isinstance(conn, psycopg.Connection)
