"""``recall ledger`` and ``recall memories``: notes that agents and people keep about their work."""

from __future__ import annotations

import typer
from rich.text import Text

from recall.cli.backend import open_backend
from recall.cli.output import note, print_json, screen
from recall.cli.terminal import highlight, one_line, printable, project_name, short_time
from recall.client import Answer
from recall.config import load_settings


def ledger(
    query: list[str] = typer.Argument(
        None, metavar="QUERY...", help="Words, a quoted phrase, `or`, `-not`."
    ),
    limit: int = typer.Option(20, "--limit", min=1, max=200, help="How many entries."),
    cursor: str | None = typer.Option(None, "--cursor", help="Go on where an answer ended."),
    source: list[str] = typer.Option([], "--source", help="Only this source."),
    host: list[str] = typer.Option([], "--host", help="Only this machine."),
    project: list[str] = typer.Option([], "--project", help="Only this working folder."),
    session: list[str] = typer.Option([], "--session", help="Only entries about this session."),
    since: str | None = typer.Option(None, "--since", help="A date or an age such as `3d`."),
    until: str | None = typer.Option(None, "--until", help="A date or an age such as `3d`."),
    as_json: bool = typer.Option(False, "--json", help="Print the answer of the API."),
) -> None:
    """Find entries of work ledgers, best first; without a query, the newest.

    `recall show ID` opens an entry. Exit code 1 means that nothing was found.
    """
    params = {
        "q": " ".join(query or []) or None,
        "limit": limit,
        "cursor": cursor,
        "source": source,
        "host": host,
        "project": project,
        "session": session,
        "since": since,
        "until": until,
    }
    with open_backend(load_settings()) as backend:
        answer = backend.ledger(params)
    _print(answer, "ledger entries", as_json=as_json)


def memories(
    query: list[str] = typer.Argument(
        None, metavar="QUERY...", help="Words, a quoted phrase, `or`, `-not`."
    ),
    limit: int = typer.Option(20, "--limit", min=1, max=200, help="How many entries."),
    cursor: str | None = typer.Option(None, "--cursor", help="Go on where an answer ended."),
    path: list[str] = typer.Option(
        [], "--path", help="Only this file: its path, the end of it, or a folder above it."
    ),
    source: list[str] = typer.Option([], "--source", help="Only this client."),
    host: list[str] = typer.Option([], "--host", help="Only this machine."),
    project: list[str] = typer.Option([], "--project", help="Only this working folder."),
    since: str | None = typer.Option(None, "--since", help="A date or an age such as `3d`."),
    until: str | None = typer.Option(None, "--until", help="A date or an age such as `3d`."),
    include_replaced: bool = typer.Option(
        False, "--include-replaced", help="Also earlier texts, and entries that are gone."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the answer of the API."),
) -> None:
    """Find entries of agents' memories, best first; without a query, file by file.

    `recall show ID` opens an entry. Exit code 1 means that nothing was found.
    """
    params = {
        "q": " ".join(query or []) or None,
        "limit": limit,
        "cursor": cursor,
        "path": path,
        "source": source,
        "host": host,
        "project": project,
        "since": since,
        "until": until,
        "include_replaced": include_replaced,
    }
    with open_backend(load_settings()) as backend:
        answer = backend.memories(params)
    _print(answer, "memories", as_json=as_json)


def _print(answer: Answer, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        for entry in answer["entries"]:
            _print_entry(entry)
        _print_footer(answer, what)
    if not answer["entries"]:
        raise typer.Exit(1)


def _print_entry(entry: Answer) -> None:
    screen.print(_header(entry))
    screen.print(highlight(entry["snippet"].strip(), styled=screen.is_terminal))
    if entry["session_key"]:
        about = f"{one_line(entry['session_key'], 200)}  {one_line(entry['session_title'])}"
        screen.print(Text(f"about session {about.strip()}", "dim"))
    if not entry["is_current"]:
        screen.print(Text(f"replaced {short_time(entry['replaced_at'])}", "dim"))
    for version in entry["versions"]:
        text = Text(f"  replaced {short_time(version['replaced_at'])}  ", "dim")
        text.append(version["id"], "cyan")
        text.append(f"  {one_line(version['content'], 120)}", "dim")
        screen.print(text)
    screen.print()


def _header(entry: Answer) -> Text:
    text = Text(short_time(entry["ts"]), "dim")
    where = [entry["source"], one_line(entry["host"], 40)]
    if entry["project"]:
        where.append(project_name(entry["project"]))
    text.append("  " + " ".join(where))
    if entry["shelf"] == "memory":
        text.append(f"  {one_line(entry['path'], 400)}", "dim")
    text.append(f"  {entry['id']}", "cyan")
    if entry["title"]:
        text.append(f"  {one_line(entry['title'], 60)}", "italic")
    return text


def _print_footer(answer: Answer, what: str) -> None:
    """How the answer came about, on stderr, so that piped entries stay entries."""
    if not answer["entries"]:
        asked = f" for `{one_line(answer['query'])}`" if answer["query"] else ""
        note(f"nothing found{asked}")
    note(f"{len(answer['entries'])} shown; {answer['stored']:,} {what} in the store")
    for reason in answer["reasons"]:
        note(f"note: {printable(str(reason))}")
    if answer["entries"]:
        note(f"open one: recall show {answer['entries'][0]['id']}")
    if answer["next_cursor"]:
        note(f"more: add --cursor {answer['next_cursor']}")
