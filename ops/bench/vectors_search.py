"""Search by meaning behind each filter: its time, and its share of the right answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg.rows import tuple_row

from ops.bench import vectors_space
from ops.bench.search_run import Timing, median, quantile, timed
from ops.bench.search_store import Connection, Store
from ops.bench.vectors_exact import Exact, recall_of
from ops.bench.vectors_filters import Filter, filters
from ops.bench.vectors_space import DIMENSION, Vectors

LIMITS = (10, 20)
LONG_LIMITS = (50, 200)
_LONG_QUERIES = 20

#: ``recall.search_filter`` has these in this order.
_FILTER_FIELDS = {
    "sources": "text[]", "hosts": "text[]", "projects": "text[]", "roles": "text[]",
    "kinds": "text[]", "tools": "text[]", "sessions": "text[]", "since": "timestamptz",
    "until": "timestamptz", "exclude_sessions": "text[]",
}  # fmt: skip
_NEAREST = (
    "select (select array_agg((u).distance) from unnest(n.nearest) u), n.way"
    f" from recall.nearest_passages(1, {DIMENSION}, %(wanted)s::real[]::recall.halfvec, row("
    + ", ".join(f"%({name})s::{kind}" for name, kind in _FILTER_FIELDS.items())
    + ", false)::recall.search_filter, %(most)s) n"
).encode()


def measure(store: Store, queries: Vectors, rounds: int) -> list[dict[str, Any]]:
    """A row for each filter, function and limit."""
    measured = []
    with store.connection() as conn:
        exact = Exact(conn, queries)
        for which in filters(conn):
            passages, texts = exact.rows_and_texts(conn, which)
            about = {"filter": which.name, "passages": passages, "texts": len(texts)}
            right = exact.nearest(texts, max(LONG_LIMITS))
            for function in ("nearest_passages", "search_semantic"):
                for most in LIMITS:
                    row = _measure(conn, function, which, most, queries, right, rounds)
                    measured.append(about | row)
            for most in LONG_LIMITS:
                some = slice(None, None, max(1, len(queries) // _LONG_QUERIES))
                row = _measure(
                    conn, "search_semantic", which, most, queries[some], right[some], rounds
                )
                measured.append(about | row)
    return measured


def _measure(
    conn: Connection,
    function: str,
    which: Filter,
    most: int,
    queries: Vectors,
    right: Vectors,
    rounds: int,
) -> dict[str, Any]:
    """The queries one after the other, each once to warm up and then ``rounds`` times."""
    ask = _nearest if function == "nearest_passages" else _semantic
    timings: list[Timing] = []
    recalls: list[float] = []
    ways: Counter[str] = Counter()
    short = 0
    for query, distances in zip(queries, right, strict=True):
        run = partial(ask, conn, which, most, query.tolist())
        found, way = run()
        timings.append(median([timed(conn, run)[0] for _ in range(rounds)]))
        recalls.append(recall_of(found, distances[:most]))
        ways[way] += 1
        short += len(found) < min(most, len(distances))
    return {
        "function": function, "limit": most, "queries": len(queries), "ways": dict(ways),
        "short": short, "recall": float(np.mean(recalls)), "least_recall": min(recalls),
        "wall": quantiles([timing.wall for timing in timings]),
        "cpu": quantiles([timing.cpu for timing in timings if timing.cpu is not None]),
    }  # fmt: skip


def quantiles(values: Sequence[float]) -> dict[str, float] | None:
    """Median and 95th percentile."""
    if not values:
        return None
    return {"p50": quantile(values, 0.5), "p95": quantile(values, 0.95)}


def _nearest(
    conn: Connection, which: Filter, most: int, wanted: list[float]
) -> tuple[NDArray[np.floating], str]:
    values = dict.fromkeys(_FILTER_FIELDS) | dict(which.values)
    row = _one(conn, _NEAREST, values | {"wanted": wanted, "most": most})
    return np.array(row[0] or []), row[1]


def _semantic(
    conn: Connection, which: Filter, most: int, wanted: list[float]
) -> tuple[NDArray[np.floating], str]:
    names = "".join(f", {name} => %({name})s" for name in which.values)
    statement = (
        f"select api.search_semantic(%(wanted)s::real[], %(model)s, max_hits => %(most)s{names})"
    )
    values: Mapping[str, Any] = {"wanted": wanted, "model": vectors_space.MODEL, "most": most}
    (answer,) = _one(conn, statement.encode(), {**values, **which.values})
    # Scores are rounded to four places.
    return np.array([1 - hit["score"] - 5e-5 for hit in answer["hits"]]), answer["way"]


def _one(conn: Connection, statement: bytes, values: Mapping[str, Any]) -> tuple[Any, ...]:
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(statement, values).fetchone()
    assert row is not None
    return row
