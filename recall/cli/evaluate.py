"""``recall eval``: how good search is, measured with labelled queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recall.cli.backend import Backend, open_backend
from recall.cli.evaluate_corpus import scratch_store
from recall.cli.evaluate_report import MEASURES, below_minimum, print_report
from recall.cli.extras import need_server
from recall.cli.output import note, notes, print_json
from recall.config import load_settings
from recall.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from recall_api.evaluation.queries import Query
    from recall_api.evaluation.report import Report
    from recall_api.evaluation.run import Outcome

#: Measured without ``--mode``, as far as the store has them.
_MODES = ("text", "exact", "semantic", "hybrid")
_BY_MEANING = frozenset({"semantic", "hybrid", "auto"})
#: The set that comes with a checkout; an installed package does not have it.
_SHIPPED = Path(__file__).resolve().parents[2] / "ops" / "eval"


def evaluate(
    query_set: Path | None = typer.Option(
        None, "--set", metavar="FILE", help="Labelled queries; without it the set of a checkout."
    ),
    corpus: list[str] = typer.Option(
        [],
        "--corpus",
        metavar="[NAME=]DIR",
        help="Load this folder into a store that is dropped afterwards, and ask that. Below DIR,"
        " each folder that is named like a source is read as it; NAME=DIR reads all of DIR so.",
    ),
    mode: str = typer.Option(
        "", "--mode", metavar="NAMES", help="text, exact, semantic, hybrid or auto, with commas."
    ),
    k: int = typer.Option(10, "--k", min=1, max=200, help="How many hits are looked at."),
    split: str = typer.Option("", "--split", help="Only queries of this half: tune or report."),
    none_below: list[str] = typer.Option(
        [],
        "--none-below",
        metavar="MODE=SCORE",
        help="An answer of this mode counts as `nothing` if its best score is below this, and not"
        " if it is weak.",
    ),
    min_hit: float | None = typer.Option(None, "--min-hit", help="Least hit rate."),
    min_precision: float | None = typer.Option(None, "--min-precision", help="Least precision."),
    min_recall: float | None = typer.Option(None, "--min-recall", help="Least recall."),
    min_mrr: float | None = typer.Option(None, "--min-mrr", help="Least mean reciprocal rank."),
    min_ndcg: float | None = typer.Option(None, "--min-ndcg", help="Least nDCG."),
    by_class: bool = typer.Option(False, "--by-class", help="Also a table for each class."),
    as_json: bool = typer.Option(False, "--json", help="Print everything, each query included."),
) -> None:
    """Ask labelled queries in each mode and score the answers.

    Without `--corpus` the store of the settings is asked; with neither `--set` nor `--corpus`, the
    sessions that the set of a checkout was written for. A minimum has to be reached by every mode
    that is measured, over all queries that have an answer; exit code 1 means that one was not.
    """
    need_server()
    file = query_set or _shipped_set()
    folders = corpus or ([str(_SHIPPED / "sessions")] if query_set is None else [])
    modes = _modes(mode)
    thresholds = _thresholds(none_below, modes)
    queries = _read_set(file, split)
    with _open(folders, modes) as backend:
        report = _measure(backend, queries, modes, k=k, thresholds=thresholds, explicit=bool(mode))
    if as_json:
        print_json(report.as_json())
    else:
        print_report(report, by_class=by_class)
    least = zip(MEASURES, (min_hit, min_precision, min_recall, min_mrr, min_ndcg), strict=True)
    failures = below_minimum(report, dict(least))
    for failure in failures:
        note(failure)
    if failures:
        raise typer.Exit(1)


def _read_set(file: Path, split: str) -> list[Query]:
    from recall_api.evaluation.queries import read_queries

    queries = [query for query in read_queries(file) if not split or query.split == split]
    if not queries:
        raise UsageError(f"`{file}` has no queries of the split `{split}`")
    return queries


@contextmanager
def _open(folders: Sequence[str], modes: Sequence[str]) -> Iterator[Backend]:
    """The store of the settings, or one that holds the folders only."""
    settings = load_settings()
    embed = bool(_BY_MEANING.intersection(modes))
    with (
        scratch_store(settings, folders, embed=embed) if folders else open_backend(settings)
    ) as backend:
        yield backend


def _shipped_set() -> Path:
    file = _SHIPPED / "queries.jsonl"
    if not file.is_file():
        raise UsageError(
            "an installed Recall has no labelled queries of its own",
            hint="give some: `recall eval --set FILE`; docs/quality.md has the format",
        )
    return file


def _modes(given: str) -> list[str]:
    modes = [name.strip() for name in given.split(",") if name.strip()] or list(_MODES)
    known = (*_MODES, "auto")
    for name in modes:
        if name not in known:
            raise UsageError(f"no such mode: `{name}`", hint=f"there are {', '.join(known)}")
    return list(dict.fromkeys(modes))


def _thresholds(given: Sequence[str], modes: Sequence[str]) -> dict[str, float]:
    thresholds = {}
    for item in given:
        name, _, score = item.partition("=")
        if name not in modes:
            raise UsageError(f"`--none-below {item}`: `{name}` is not measured")
        try:
            thresholds[name] = float(score)
        except ValueError:
            raise UsageError(f"`--none-below {item}`: not a score: `{score}`") from None
    return thresholds


def _measure(
    backend: Backend,
    queries: list[Query],
    modes: Sequence[str],
    *,
    k: int,
    thresholds: dict[str, float],
    explicit: bool,
) -> Report:
    from recall_api.evaluation.report import build_report
    from recall_api.evaluation.run import (
        ModeUnavailableError,
        missing_sessions,
        require_mode,
        run_mode,
    )

    missing = missing_sessions(backend.session, queries)
    asked = [query for query in queries if not query.sessions() & missing]
    if not any(query.is_answerable for query in asked):
        raise NotFoundError(
            f"none of the {len(missing):,} sessions that the labels name is in this store",
            hint="give the folder that has them: --corpus DIR",
        )
    outcomes: dict[str, list[Outcome]] = {}
    unavailable: dict[str, str] = {}
    for mode in modes:
        try:
            require_mode(backend.search, mode)
            with _query_bar(mode, len(asked)) as advance:
                outcomes[mode] = run_mode(backend.search, asked, mode, k, advance)
        except ModeUnavailableError as error:
            if explicit:
                raise
            unavailable[mode] = error.reason
    skipped = [query.id for query in queries if query.sessions() & missing]
    return build_report(
        outcomes, k, thresholds=thresholds, unavailable=unavailable, skipped=skipped
    )


@contextmanager
def _query_bar(mode: str, count: int) -> Iterator[partial[None]]:
    columns = (TextColumn(mode), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as bar:
        yield partial(bar.advance, bar.add_task(mode, total=count))
