"""Vectors for the vector benchmark: many, made out of a few thousand real ones.

The real ones are embeddings of the evaluation set's messages by the bundled model. A made one lies
between a real one and one of its neighbours and is moved along differences of real ones, so that
the directions in which texts differ, and how many of them there are, stay those of the model.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ops.bench.embed_corpus import load_tokenizer, read_entries
from recall.config import Settings
from recall_embedder.batching import BATCH_TOKENS, batches
from recall_embedder.model import BUNDLED, load_model
from recall_embedder.passages import passages_of

Vectors = NDArray[np.float32]

DIMENSION = 384
MODEL = BUNDLED
SEED = 20_260_602
_EVALUATION = Path(__file__).resolve().parents[1] / "eval"
_KINDS = ("text", "thinking", "tool_call", "tool_result", "title")
_TEXT_TOKENS = 64
_NEIGHBOURS = 16
_PROJECT_TEXTS = 80
#: Of the vectors of a session, so many are near to what it is about, and near to its project.
_SESSION_SHARE, _PROJECT_SHARE = 0.55, 0.30
#: How far a vector is moved: to a neighbour, along other differences, and in no direction.
_TO_NEIGHBOUR, _ALONG, _ANYWHERE = 0.6, 0.42, 0.2


class Space:
    """Where the vectors of sessions, and those of queries, come from."""

    def __init__(self, real: Vectors, questions: Vectors) -> None:
        self._real = real
        self._questions = questions
        near = np.argsort(-(real @ real.T), axis=1, kind="stable").astype(np.int32)
        self._near = near[:, : max(_NEIGHBOURS, _PROJECT_TEXTS)].copy()

    def session_vectors(self, session: str, project: str, count: int) -> Vectors:
        """The vectors of a session, first to last: the same for the same names."""
        chance = np.random.default_rng([SEED, zlib.crc32(session.encode())])
        own = np.random.default_rng([SEED, zlib.crc32(project.encode())])
        around = self._near[own.integers(len(self._real)), :_PROJECT_TEXTS]
        topic = self._near[chance.choice(around), :_NEIGHBOURS]
        which = chance.random(count)
        first = np.where(
            which < _SESSION_SHARE,
            chance.choice(topic, count),
            np.where(
                which < _SESSION_SHARE + _PROJECT_SHARE,
                chance.choice(around, count),
                chance.integers(len(self._real), size=count),
            ),
        )
        return self._moved(chance, first)

    def queries(self, count: int, query_set: str) -> Vectors:
        """Half of them questions of the evaluation set, half new points among the vectors.

        Those of one set (``tune``, ``report``) are not in the other one.
        """
        chance = np.random.default_rng([SEED, zlib.crc32(f"queries {query_set}".encode())])
        tuning = query_set == "tune"
        questions = self._questions[0 if tuning else 1 :: 2][: count // 2]
        first = chance.integers(len(self._real), size=count - len(questions))
        return np.concatenate([questions, self._moved(chance, first)])

    def _moved(self, chance: np.random.Generator, first: NDArray[np.integer]) -> Vectors:
        count = len(first)
        second = self._near[first, chance.integers(1, _NEIGHBOURS, size=count)]
        there, back = chance.integers(len(self._real), size=(2, count))
        vectors = self._real[first]
        vectors = vectors + (self._real[second] - vectors) * _column(chance, _TO_NEIGHBOUR, count)
        vectors += (self._real[there] - self._real[back]) * _column(chance, _ALONG, count)
        vectors += chance.standard_normal(vectors.shape, np.float32) * np.float32(
            _ANYWHERE / DIMENSION**0.5
        )
        return _unit(vectors)


def load_space(cache: Path) -> Space:
    """The space out of a file, where that was made before."""
    if not cache.exists():
        texts, questions = list(dict.fromkeys(_texts())), list(dict.fromkeys(_questions()))
        vectors = _embed([*texts, *questions])
        np.savez(cache, real=vectors[: len(texts)], questions=vectors[len(texts) :])
    with np.load(cache) as kept:
        return Space(kept["real"], kept["questions"])


def _column(chance: np.random.Generator, most: float, count: int) -> Vectors:
    return (chance.random((count, 1), np.float32) * np.float32(most)).astype(np.float32)


def _unit(vectors: Vectors) -> Vectors:
    found: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found


def _texts() -> Iterator[str]:
    tokenizer = load_tokenizer()
    for client in ("claude-code", "codex"):
        for path in sorted((_EVALUATION / "sessions" / client).rglob("*.jsonl")):
            entries = read_entries(client, path)
            for draft in passages_of(list(entries), tokenizer, _TEXT_TOKENS, 8, _KINDS):
                yield draft.passage


def _questions() -> Iterator[str]:
    for line in (_EVALUATION / "queries.jsonl").read_text("utf-8").splitlines():
        yield json.loads(line)["query"]


def _embed(texts: list[str]) -> Vectors:
    model = load_model(Settings(embed_model=MODEL))
    numbered = list(enumerate(texts))
    made = np.zeros((len(texts), DIMENSION), np.float32)
    for batch in batches(numbered, [len(model.spans(text)) + 2 for text in texts], BATCH_TOKENS):
        made[[number for number, _ in batch]] = model.embed([text for _, text in batch])
    return _unit(made)
