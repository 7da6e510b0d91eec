"""The report of the vector benchmark, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MEGABYTE = 1_000_000
#: Goals: recall on average and at least, milliseconds of 95 of 100 queries, of hybrid ones.
GOALS = {"recall": 0.98, "least_recall": 0.8, "p95": 30.0, "hybrid_p95": 80.0}
#: The goals are about these lengths of the answer.
_GOAL_LIMITS = (10, 20)


def report(result: Mapping[str, Any]) -> str:
    """All that was measured."""
    built = result["built"]
    lines = [
        f"Machine: {result['machine']}; load {result['load_before'][0]:.1f} before,"
        f" {result['load_after'][0]:.1f} after",
        "",
        f"{built['rows']:,} passages, {built['copies']:,} of them copies of another one."
        f" Vector index: {built['index'] or 'as in the product'}.",
        "",
        *_sizes(result["sizes"]),
        "",
        *_built(built),
        "",
    ]
    if "search" in result:
        lines += [*_search(result["search"]), "", *_verdict(result["search"]), ""]
    if "hybrid" in result:
        lines += _hybrid(result["hybrid"])
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _sizes(sizes: Mapping[str, int]) -> Iterator[str]:
    yield from _table(
        ("what", "MB"), [(name, f"{size / _MEGABYTE:,.1f}") for name, size in sizes.items()]
    )


def _built(built: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"Built in {built['seconds']:.0f} s: the other indexes in {built['btree_seconds']:.0f} s,"
        f" the vector index in {built['vector_index_seconds']:.0f} s,"
        f" that of signs in {built.get('signs_seconds', 0):.0f} s."
        " Passages stored in a second, a few hundred in a transaction:"
        f" {built['btree_rows_a_second']:,.0f} with all indexes but the vector index,"
        f" {built['vector_rows_a_second']:,.0f} with it"
        f" ({1000 / built['vector_rows_a_second']:.1f} ms each)."
    )


def _search(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "Warm. Milliseconds by the clock and of processor time, p50 / p95 over the queries."
    yield ""
    yield from _table(
        (
            "filter", "passages", "texts", "function", "limit", "queries", "clock", "processor",
            "recall", "least", "short", "way",
        ),
        [
            (
                row["filter"], f"{row['passages']:,}", f"{row['texts']:,}", row["function"],
                str(row["limit"]), str(row["queries"]), _quantiles(row["wall"]),
                _quantiles(row["cpu"]), f"{row['recall']:.3f}", f"{row['least_recall']:.2f}",
                str(row["short"]), ", ".join(f"{way} {n}" for way, n in row["ways"].items()),
            )
            for row in rows
        ],
    )  # fmt: skip


def _quantiles(value: Mapping[str, float] | None) -> str:
    return "" if value is None else f"{value['p50']:.1f} / {value['p95']:.1f}"


def _verdict(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    asked = [row for row in rows if row["limit"] in _GOAL_LIMITS]
    worst = {
        "mean recall": (min(asked, key=lambda row: row["recall"]), "recall", GOALS["recall"]),
        "least recall": (
            min(asked, key=lambda row: row["least_recall"]), "least_recall", GOALS["least_recall"],
        ),
    }  # fmt: skip
    for name, (row, key, goal) in worst.items():
        yield f"- {name}: {row[key]:.3f} ({row['filter']}, {row['limit']}), goal {goal}"
    for clock, name in (("wall", "by the clock"), ("cpu", "of processor time")):
        timed = [row for row in asked if row[clock]]
        if timed:
            row = max(timed, key=lambda row: float(row[clock]["p95"]))
            yield (
                f"- p95 {name}: {row[clock]['p95']:.1f} ms ({row['filter']}, {row['function']},"
                f" {row['limit']}), goal {GOALS['p95']:.0f}"
            )
    yield f"- short answers: {sum(row['short'] for row in rows)}, goal 0"


def _hybrid(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "`search()`, 20 hits, warm; the vector of the query is given."
        f" Goal for hybrid: p95 {GOALS['hybrid_p95']:.0f} ms."
    )
    yield ""
    yield from _table(
        ("queries", "filter", "mode", "number", "clock", "processor"),
        [
            (
                row["class"], row["filter"], row["mode"], str(row["queries"]),
                _quantiles(row["wall"]), _quantiles(row["cpu"]),
            )
            for row in rows
        ],
    )  # fmt: skip
