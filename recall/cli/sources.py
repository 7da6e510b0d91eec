"""``recall sources``: what is read on this machine, and what is not and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from recall.cli.output import note, print_json, screen
from recall.config import load_settings
from recall.errors import UsageError

if TYPE_CHECKING:
    from recall_ingester.survey import Survey


def sources(
    name: list[str] = typer.Argument(None, metavar="[NAME]...", help="Only these, in detail."),
    as_json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
) -> None:
    """List the sources: what each reads, where it looked on this machine, and what it found.

    Nothing is read or stored. Named sources are described in full: which files are read as what,
    and what is left out and why.
    """
    from recall_ingester.run import select_sources
    from recall_ingester.survey import survey_all

    settings = load_settings()
    if any("=" in item for item in name or []):
        raise UsageError("a folder cannot be given here", hint="recall sources NAME")
    every = settings.sources if settings.sources and not name else name or ()
    surveys = survey_all(select_sources(settings, tuple(every)))
    if as_json:
        print_json([{**asdict(survey), "files": survey.files} for survey in surveys])
        return
    if name:
        for survey in surveys:
            _describe(survey)
        return
    screen.print(_table(surveys))
    _print_problems(surveys)
    if settings.sources:
        note("only the sources named in the setting `sources` are read")
    note("`recall sources NAME` says what one reads; exports are read with `recall import`")


def _table(surveys: list[Survey]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("source", "files", "found", "looked in"):
        table.add_column(title, justify="right" if title == "files" else "left")
    for survey in surveys:
        by_count = sorted(survey.found.items(), key=lambda item: (-item[1], item[0]))
        found = ", ".join(f"{label} {count:,}" for label, count in by_count)
        there = [str(place["path"]) for place in survey.looked if place["exists"]]
        absent = [f"{place['path']} (not there)" for place in survey.looked if not place["exists"]]
        looked = "\n".join(there or absent) or "nowhere: no place is set"
        table.add_row(survey.name, f"{survey.files:,}", found, looked)
    return table


def _print_problems(surveys: list[Survey]) -> None:
    for survey in surveys:
        for problem in survey.problems:
            note(f"{survey.name}: cannot read {problem['path']}: {problem['reason']}")
        if survey.problem_count > len(survey.problems):
            note(f"{survey.name}: and {survey.problem_count - len(survey.problems):,} more")


def _describe(survey: Survey) -> None:
    def say(text: str) -> None:
        screen.print(text, markup=False)

    say(f"{survey.name}: {survey.title}")
    say("  looked in")
    for place in survey.looked:
        found = f"files: {place['files']:,}" if place["exists"] else "not there"
        say(f"    {place['path']}  {found}")
    if not survey.looked:
        say("    nowhere: no place is set")
    say("  reads")
    for item in survey.reads:
        say(f"    {item['pattern']}  {item['what']} ({item['checkpoint']})")
    if survey.leaves_out:
        say("  leaves out")
        for item in survey.leaves_out:
            say(f"    {item['where']}: {item['why']}")
    for problem in survey.problems:
        say(f"  cannot read {problem['path']}: {problem['reason']}")
    say("")
