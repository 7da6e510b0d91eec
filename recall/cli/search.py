"""``recall search``: find messages by their words or by an exact text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import typer
from rich.text import Text
from typer.core import TyperCommand

from recall.cli.backend import open_backend
from recall.cli.output import note, print_json, screen
from recall.cli.terminal import (
    counted,
    highlight,
    one_line,
    printable,
    project_name,
    short_time,
)
from recall.client import Answer
from recall.config import load_settings

#: So many other places of a hit are listed at most.
_MOST_PLACES = 20


class SearchCommand(TyperCommand):
    """A command whose arguments may look like options, because people search for options.

    Only what this command itself defines is an option; `--shm-size` and `-not` are text.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the options first and everything else behind ``--``."""
        takes_value = dict.fromkeys(ctx.help_option_names, False)
        for parameter in self.params:
            for name in (*parameter.opts, *parameter.secondary_opts):
                if name.startswith("-"):
                    takes_value[name] = not getattr(parameter, "is_flag", False)
        return super().parse_args(ctx, sort_arguments(args, takes_value))


def sort_arguments(args: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """``[*options, "--", *words]``; a word that nearly is an option gets a note."""
    options: list[str] = []
    words: list[str] = []
    waiting = iter(args)
    for argument in waiting:
        name, equals, _ = argument.partition("=")
        if argument == "--":
            words.extend(waiting)
        elif argument in takes_value:
            options.append(argument)
            if takes_value[argument]:
                options.extend([value] if (value := next(waiting, None)) is not None else [])
        elif equals and name.startswith("--") and takes_value.get(name):
            options.append(argument)
        else:
            words.append(argument)
            if name.startswith("--") and (near := get_close_matches(name, takes_value, 1, 0.85)):
                note(f"note: searching for the text `{name}`; the option is `{near[0]}`")
    return [*options, "--", *words]


def search(
    query: list[str] = typer.Argument(
        ..., metavar="QUERY...", help="Words, a quoted phrase, `or`, `-not`; or an exact text."
    ),
    mode: str = typer.Option(
        "auto", "--mode", help="auto, text, exact, regex, semantic (by meaning) or hybrid."
    ),
    limit: int = typer.Option(20, "--limit", min=1, max=200, help="How many hits."),
    cursor: str | None = typer.Option(None, "--cursor", help="Go on where an answer ended."),
    source: list[str] = typer.Option([], "--source", help="Only this client."),
    host: list[str] = typer.Option([], "--host", help="Only this machine."),
    project: list[str] = typer.Option([], "--project", help="Only this working folder."),
    role: list[str] = typer.Option([], "--role", help="user, assistant, tool or system."),
    kind: list[str] = typer.Option(
        [], "--kind", help="text, tool_call, prompt, ledger, memory ..."
    ),
    tool: list[str] = typer.Option([], "--tool", help="Only this tool."),
    session: list[str] = typer.Option([], "--session", help="Only this session."),
    since: str | None = typer.Option(None, "--since", help="A date or an age such as `3d`."),
    until: str | None = typer.Option(None, "--until", help="A date or an age such as `3d`."),
    ignore_case: bool = typer.Option(
        False, "--ignore-case", "-i", help="For the modes exact and regex."
    ),
    exclude_session: list[str] = typer.Option(
        [], "--exclude-session", help="Leave out this session and what comes from it."
    ),
    min_similarity: float | None = typer.Option(
        None, "--min-similarity", help="By meaning, only what is at least so similar, to 1."
    ),
    strict: bool = typer.Option(
        False, "--strict", help="Find nothing rather than hits of which none is close."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the answer of the API."),
) -> None:
    """Find messages. `recall show ID` opens a hit.

    What looks like an unknown option is text: `recall search --shm-size` works; put text that is an
    option of this command behind `--`. Filters can be given several times. A note says if no hit is
    close to the query. Exit code 1 means that nothing was found.
    """
    params = {
        "q": " ".join(query), "mode": mode, "limit": limit, "cursor": cursor, "source": source,
        "host": host, "project": project, "role": role, "kind": kind, "tool": tool,
        "session": session, "exclude_session": exclude_session, "since": since, "until": until,
        "ignore_case": ignore_case, "min_similarity": min_similarity, "strict": strict or None,
    }  # fmt: skip
    with open_backend(load_settings()) as backend:
        answer = backend.search(params)
    if as_json:
        print_json(answer)
    else:
        _print_hits(answer)
    if not answer["hits"]:
        raise typer.Exit(1)


def _print_hits(answer: Answer) -> None:
    for hit in answer["hits"]:
        screen.print(_header(hit))
        screen.print(highlight(hit["snippet"].strip(), styled=screen.is_terminal))
        if hit["occurrences"]:
            screen.print(Text(f"also in: {_places(len(hit['occurrences']))}", "dim"))
        screen.print()
    if not answer["hits"]:
        note(f"nothing found for `{one_line(answer['query'])}`")
        note(f"searched: {describe_coverage(answer['coverage'])}")
    _print_footer(answer)


def _header(hit: Answer) -> Text:
    text = Text(short_time(hit["ts"]), "dim")
    where = [hit["source"], one_line(hit["host"], 40)]
    if hit["project"]:
        where.append(project_name(hit["project"]))
    text.append("  " + " ".join(where))
    tool = f" {one_line(hit['tool'], 40)}" if hit["tool"] else ""
    text.append(f"  {hit['role']}/{hit['kind']}{tool}")
    text.append(f"  {hit['id']}", "cyan")
    if hit.get("ranks"):
        text.append(f"  {_ranks(hit['ranks'])}", "dim")
    if hit["title"]:
        text.append(f"  {one_line(hit['title'], 60)}", "italic")
    return text


def _ranks(ranks: Mapping[str, Any]) -> str:
    """Where a hit of a hybrid answer stands by words and by meaning."""
    names = {"text": "words", "semantic": "meaning"}
    return ", ".join(f"{names[name]} #{place['rank']}" for name, place in ranks.items())


def _places(number: int) -> str:
    if number >= _MOST_PLACES:
        return f"{number} other places or more"
    return counted(number, "other place")


def _print_footer(answer: Answer) -> None:
    """How the answer came about, on stderr, so that piped hits stay hits."""
    hits = counted(len(answer["hits"]), "hit")
    line = f"{hits}, mode {answer['mode_used']}, {answer['took_ms']:.0f} ms"
    note(line)
    if answer.get("weak"):  # an older server does not say it
        told = "these are only the nearest" if answer["hits"] else "so `--strict` gives none"
        note(f"note: no hit is close to the query, {told}: {printable(answer['weak_reason'])}")
    for reason in answer["reasons"]:
        note(f"{'degraded' if answer['degraded'] else 'note'}: {printable(str(reason))}")
    if answer["hits"]:
        note(f"open one: recall show {answer['hits'][0]['id']}")
    if answer["next_cursor"]:
        note(f"more: add --cursor {answer['next_cursor']}")


def describe_coverage(coverage: Mapping[str, Any]) -> str:
    """What a search could see, on one line."""
    searched = coverage.get("searched", {})
    counts = [
        f"{searched.get(name, 0):,} {name}"
        for name in ("messages", "prompts", "notes")
        if name != "notes" or searched.get(name)
    ]
    sources = [
        f"{row['source']} on {row['host']} (read {short_time(row['last_read'])})"
        for row in coverage.get("sources", [])
    ]
    if not sources:
        return "nothing is stored yet; `recall up` reads the logs of this machine"
    parts = [f"{', '.join(counts)} of {', '.join(sources)}"]
    if retracted := coverage.get("hidden", {}).get("retracted"):
        parts.append(f"{retracted:,} taken back by the client left out")
    if damaged := coverage.get("quarantined", 0):
        parts.append(f"{damaged:,} lines could not be read (`recall status --problems`)")
    return printable("; ".join(parts))
