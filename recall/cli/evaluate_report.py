"""The report of ``recall eval`` as Markdown tables, and the gate on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from recall.cli.output import note
from recall.cli.terminal import printable

if TYPE_CHECKING:
    from recall_api.evaluation.report import Refusal, Report
    from recall_api.evaluation.scores import Interval

#: How a report names the measures; ``{k}`` is how many hits were looked at.
MEASURES = {
    "hit": "hit rate@{k}",
    "precision": "precision@{k}",
    "recall": "recall@{k}",
    "mrr": "MRR@{k}",
    "ndcg": "nDCG@{k}",
}
#: What the tables by class show; the rest is in the JSON.
_BY_CLASS = ("ndcg", "mrr", "hit")
_NOTHING = "-"
#: How often "nothing" was said: rightly, wrongly, and wrongly above an answer.
_SAID = ("said so", "also said so wrongly", "and the answer was there")


def print_report(report: Report, *, by_class: bool) -> None:
    """Tables on stdout; what was left out, on stderr."""
    typer.echo(printable("\n".join(report_lines(report, by_class=by_class))))
    for mode, reason in report.unavailable.items():
        note(printable(f"not measured: {mode}: {reason}"))
    if report.skipped:
        note(f"{len(report.skipped):,} queries left out: their sessions are not in this store")
    for mode, found in report.modes.items():
        if found.degraded:
            note(f"{found.degraded:,} answers of {mode} were degraded and count as they are")


def report_lines(report: Report, *, by_class: bool) -> Iterator[str]:
    """The report as Markdown."""
    yield from _table(
        ["mode", *(name.format(k=report.k) for name in MEASURES.values())], _overall(report)
    )
    if by_class:
        for measure in _BY_CLASS:
            head = f"{MEASURES[measure].format(k=report.k)} by class"
            yield ""
            yield from _table([head, "queries", *_modes(report)], _classes(report, measure))
    yield ""
    columns = ["no answer exists", "by", *_SAID, "separation"]
    yield from _table(columns, _refusals(report))
    if report.differences:
        yield ""
        columns = [f"nDCG@{report.k}, same queries", "difference"]
        yield from _table(columns, _differences(report))


def _modes(report: Report) -> list[str]:
    return [*report.modes, *report.unavailable]


def _overall(report: Report) -> Iterator[list[str]]:
    for mode, found in report.modes.items():
        yield [mode, *(_cell(found.overall.get(measure)) for measure in MEASURES)]
    for mode in report.unavailable:
        yield [mode, *[_NOTHING] * len(MEASURES)]


def _classes(report: Report, measure: str) -> Iterator[list[str]]:
    for name, count in _class_sizes(report).items():
        cells = [_cell(found.classes.get(name, {}).get(measure)) for found in report.modes.values()]
        yield [name, str(count), *cells, *[_NOTHING] * len(report.unavailable)]


def _class_sizes(report: Report) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for found in report.modes.values():
        for name, scores in found.classes.items():
            sizes[name] = scores["ndcg"].count
    return sizes


def _refusals(report: Report) -> Iterator[list[str]]:
    for mode, found in report.modes.items():
        yield [mode, *_refusal_cells(found.refusal)]
    for mode in report.unavailable:
        yield [mode, *[_NOTHING] * (len(_SAID) + 2)]


def _refusal_cells(refusal: Refusal) -> list[str]:
    by = "weak" if refusal.threshold is None else f"< {refusal.threshold:g}"
    apart = _NOTHING if refusal.separation is None else f"{refusal.separation:.3f}"
    said = (refusal.refused, refusal.wrongly_refused, refusal.found_refused)
    return [by, *map(_cell, said), apart]


def _differences(report: Report) -> Iterator[list[str]]:
    for (better, worse), value in report.differences.items():
        yield [f"{better} over {worse}", _cell(value, sign="+")]


def _cell(value: Interval | None, sign: str = "") -> str:
    if value is None:
        return _NOTHING
    low, high = f"{value.low:{sign}.2f}", f"{value.high:{sign}.2f}"
    return f"{value.mean:{sign}.3f} [{low}, {high}]"


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> Iterator[str]:
    """A Markdown table that is also readable as it stands."""
    lines = [list(head), *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        yield f"| {' | '.join(cells)} |"


def below_minimum(report: Report, least: Mapping[str, float | None]) -> list[str]:
    """One line for each mode that misses a minimum over all queries that have an answer."""
    lines = []
    for measure, minimum in least.items():
        for mode, found in report.modes.items():
            value = found.overall.get(measure)
            if minimum is not None and value and value.mean < minimum:
                name = MEASURES[measure].format(k=report.k)
                lines.append(
                    f"below the minimum: {name} of {mode} is {value.mean:.3f} < {minimum:g}"
                )
    return lines
