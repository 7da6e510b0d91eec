"""Hybrid search from end to end, but for the model: vectors of queries are drawn."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from ops.bench import search_queries
from ops.bench.search_queries import Filter, QueryClass
from ops.bench.search_run import Timing, median, timed
from ops.bench.search_store import Connection, Store
from ops.bench.vectors_search import quantiles
from ops.bench.vectors_space import DIMENSION, MODEL, Vectors
from recall.config import Settings
from recall_api.query_vectors import QueryVectors
from recall_api.search import Mode, SearchRequest, search

_BUDGET_SECONDS = 10.0
_HITS = 20
_MODES: tuple[Mode, ...] = ("text", "semantic", "hybrid")
_FILTERS = ("none", "project", "role user", "last 30 d")


class _Drawn:
    """A model that gives each query one of the benchmark's vectors."""

    name, dimension, pooling, max_tokens, threads_safe = MODEL, DIMENSION, "mean", 256, True

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors

    def spans(self, text: str) -> list[tuple[int, int]]:
        raise NotImplementedError

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self._vectors[[zlib.crc32(text.encode()) % len(self._vectors) for text in texts]]


def measure(store: Store, vectors: Vectors, rounds: int, count: int) -> list[dict[str, Any]]:
    """A row for each class of word queries, filter and mode: ``count`` queries of each class."""

    def load(_: Settings) -> _Drawn:
        return _Drawn(vectors)

    stub = QueryVectors(Settings(), load=load)
    with store.connection() as conn:
        kept = {one.name: one for one in search_queries.filters(conn)}
        return [
            _measure(conn, one, kept[name], mode, stub, rounds)
            for one in search_queries.classes(conn, count)
            if one.mode == "text"
            for name in _FILTERS
            for mode in _MODES
        ]


def _measure(
    conn: Connection, one: QueryClass, which: Filter, mode: Mode, stub: QueryVectors, rounds: int
) -> dict[str, Any]:
    timings: list[Timing] = []
    for query in one.queries["report"]:
        request = SearchRequest(query, mode=mode, limit=_HITS, **which.options)
        run = partial(search, conn, request, budget_seconds=_BUDGET_SECONDS, vectors=stub)
        run()
        timings.append(median([timed(conn, run)[0] for _ in range(rounds)]))
    cpu = [timing.cpu for timing in timings if timing.cpu is not None]
    return {
        "class": one.name, "filter": which.name, "mode": mode, "queries": len(timings),
        "wall": quantiles([timing.wall for timing in timings]), "cpu": quantiles(cpu),
        "timings": [(timing.wall, timing.cpu) for timing in timings],
    }  # fmt: skip
