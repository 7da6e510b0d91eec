"""The report of the search benchmark, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MEGABYTE = 1_000_000


def report(result: Mapping[str, Any]) -> str:
    """All parts that were measured."""
    lines = [f"Machine: {result['machine']}; load {_load(result)}", ""]
    built = result["built"]
    lines += [f"{built['rows']:,} messages, built in {built['build_seconds']:.0f} s", ""]
    lines += [*_sizes(result["sizes"]), ""]
    if "words" in result:
        lines += [*_warm(result["words"]["warm"]), ""]
        lines += _cold(result["words"]["cold"])
    if "trigrams" in result:
        lines += _trigrams(result["trigrams"])
    return "\n".join(lines)


def _load(result: Mapping[str, Any]) -> str:
    return f"{result['load_before'][0]:.1f} before, {result['load_after'][0]:.1f} after"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _sizes(sizes: Mapping[str, int]) -> Iterator[str]:
    text = sizes["text"]
    yield from _table(
        ("what", "MB", "of the text"),
        [(name, f"{size / _MEGABYTE:,.1f}", f"{size / text:.2f}") for name, size in sizes.items()],
    )


def _warm(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "Warm. Milliseconds by the clock and of processor time, p50 / p95 over the queries."
    yield ""
    yield from _table(
        ("class", "filter", "queries", "clock", "processor", "hits", "score (least)", "right"),
        [
            (
                row["class"], row["filter"], str(len(row["queries"])), _quantiles(row.get("wall")),
                _quantiles(row.get("cpu")),
                f"{sum(q['hits'] for q in row['queries']) / len(row['queries']):.1f}",
                _share(row.get("score_share")), _right(row.get("right")),
            )
            for row in rows
        ],
    )  # fmt: skip


def _quantiles(value: Mapping[str, float] | None) -> str:
    return "" if value is None else f"{value['p50']:.1f} / {value['p95']:.1f}"


def _share(value: Mapping[str, float] | None) -> str:
    return "" if value is None else f"{value['mean']:.3f} ({value['min']:.3f})"


def _right(value: Mapping[str, float] | None) -> str:
    return "" if value is None else f"{value['mean'] * value['n']:.0f} of {value['n']:.0f}"


def _cold(cold: Mapping[str, Any] | None) -> Iterator[str]:
    if cold is None:
        return
    told = "and the page cache dropped" if cold["page_cache_dropped"] else "with the page cache"
    yield f"Cold: after a restart of the server, {told}. Milliseconds by the clock."
    yield ""
    yield from _table(
        ("class", "first query", "the next ones"),
        [
            (row["class"], f"{row['first']:.0f}", ", ".join(f"{t:.0f}" for t in row["others"]))
            for row in cold["rows"]
        ],
    )
    yield ""


def _trigrams(told: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"A trigram index of {told['rows']:,} messages: {told['index_bytes'] / _MEGABYTE:.0f} MB,"
        f" {told['share_of_text']:.2f} of the text, built in {told['seconds']:.0f} s. For all, by"
        f" the size of the text: {told['all_index_bytes'] / _MEGABYTE:,.0f} MB,"
        f" {told['all_seconds']:.0f} s."
    )
    yield ""
    yield from _table(
        ("look-up in the part", "hits", "clock"),
        [(one["text"], str(one["hits"]), f"{one['wall']:.1f}") for one in told["look_ups"]],
    )
