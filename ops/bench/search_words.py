"""Search by words, exact strings and regular expressions: classes of queries times filters."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ops.bench import search_queries, search_reference
from ops.bench.search_queries import Filter, QueryClass
from ops.bench.search_run import Options, Timing, median, quantile, timed
from ops.bench.search_store import Connection, Store
from recall_api.search import SearchRequest, search

#: A search of the benchmark ends by itself, as one of the product does.
_BUDGET_SECONDS = 10.0
#: What is asked with every filter; the other classes are asked without one.
_FILTERED = (
    "word rare", "word very high", "or3 rare mid vhigh", "or5 mid high2 vhigh2", "and3 common",
    "exact named", "exact common, two words",
)  # fmt: skip
#: One that has no hits reads every text, so a few queries are enough.
_SLOW = ("exact no hit, bare word", "regex selective", "regex no hit")
_SLOW_QUERIES = 5
_HITS = 20


def measure(store: Store, options: Options) -> dict[str, Any]:
    """Every class and filter, warm, and the classes without a filter cold."""
    with store.connection() as conn:
        classes = search_queries.classes(conn, options.queries)
        filters = search_queries.filters(conn)
        rows = [_warm(conn, one, which, options) for one, which in _pairs(classes, filters)]
    return {"warm": rows, "cold": _cold(store, classes, options) if options.cold else None}


def _pairs(
    classes: Sequence[QueryClass], filters: Sequence[Filter]
) -> Iterator[tuple[QueryClass, Filter]]:
    for one in classes:
        for which in filters:
            if which.name == "none" or one.name in _FILTERED:
                yield one, which


def _queries(one: QueryClass, options: Options) -> Sequence[str]:
    most = _SLOW_QUERIES if one.name in _SLOW else options.queries
    return one.queries[options.query_set][:most]


def _warm(conn: Connection, one: QueryClass, which: Filter, options: Options) -> dict[str, Any]:
    measured = []
    for number, query in enumerate(_queries(one, options)):
        runs = [_ask(conn, one, which, query) for _ in range(options.rounds + 1)]
        timing = median([run[0] for run in runs[1:]])
        hits = [int(hit["id"]) for hit in runs[0][1]["hits"]]
        row: dict[str, Any] = {
            "query": query, "wall": timing.wall, "cpu": timing.cpu, "hits": len(hits),
            "degraded": runs[0][1]["degraded"],
        }  # fmt: skip
        if number < (options.reference if which.name == "none" else min(1, options.reference)):
            row |= _compare(conn, one, which, query, hits, row["degraded"])
        measured.append(row)
    print(f"{one.name}, {which.name}", file=sys.stderr)
    return {"class": one.name, "mode": one.mode, "filter": which.name, "queries": measured} | (
        summary(measured)
    )


def _ask(
    conn: Connection, one: QueryClass, which: Filter, query: str
) -> tuple[Timing, dict[str, Any]]:
    request = SearchRequest(query, mode=one.mode, limit=_HITS, **which.options)
    return timed(conn, lambda: search(conn, request, budget_seconds=_BUDGET_SECONDS))


def _compare(
    conn: Connection, one: QueryClass, which: Filter, query: str, hits: list[int], degraded: bool
) -> dict[str, Any]:
    """How good the hits are; nothing where the search itself said that it did not get through."""
    if one.mode != "text":
        if degraded:
            return {}
        expected = search_reference.newest_with(conn, one.mode, query, which.options, _HITS)
        return {"right": hits == expected}
    best, found = search_reference.best_scores(conn, query, which.options, hits)
    best = best[:_HITS]
    if not best:
        return {"score_share": 1.0, "overlap": 1.0}
    reached = sum(score >= best[-1] - 1e-9 for score in found)
    return {"score_share": sum(found) / sum(best), "overlap": reached / len(best)}


def _cold(store: Store, classes: Sequence[QueryClass], options: Options) -> dict[str, Any]:
    """The first query of each class after a restart, and the others in a row behind it."""
    dropped = True
    rows = []
    for one in classes:
        if one.name in _SLOW:
            continue
        dropped = store.restart(drop_cache=True) and dropped
        with store.connection() as conn:
            timings = [
                _ask(conn, one, Filter("none"), query)[0].wall
                for query in one.queries[options.query_set][:5]
            ]
        rows.append({"class": one.name, "first": timings[0], "others": timings[1:]})
    return {"page_cache_dropped": dropped, "rows": rows}


def summary(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The quantiles of a class."""
    told: dict[str, Any] = {}
    for name in ("wall", "cpu"):
        values = [row[name] for row in measured if row[name] is not None]
        if values:
            told[name] = {
                "p50": quantile(values, 0.5), "p95": quantile(values, 0.95), "max": max(values),
            }  # fmt: skip
    for name in ("score_share", "overlap", "right"):
        values = [float(row[name]) for row in measured if name in row]
        if values:
            told[name] = {"mean": sum(values) / len(values), "min": min(values), "n": len(values)}
    return told
