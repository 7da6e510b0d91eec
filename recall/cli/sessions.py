"""``recall sessions``: what is stored, session by session."""

from __future__ import annotations

import typer
from rich.table import Table
from rich.text import Text

from recall.cli.backend import open_backend
from recall.cli.output import note, print_json, screen
from recall.cli.terminal import one_line, project_name, short_time
from recall.client import Answer
from recall.config import load_settings


def sessions(
    query: str | None = typer.Argument(None, metavar="[TITLE]", help="Part of the title."),
    limit: int = typer.Option(20, "--limit", min=1, max=200, help="How many sessions."),
    cursor: str | None = typer.Option(None, "--cursor", help="Go on where a list ended."),
    source: list[str] = typer.Option([], "--source", help="Only this client."),
    host: list[str] = typer.Option([], "--host", help="Only this machine."),
    project: list[str] = typer.Option([], "--project", help="Only this working folder."),
    relation: list[str] = typer.Option(
        [], "--relation", help="main, subagent, fork, resume or spill."
    ),
    since: str | None = typer.Option(None, "--since", help="A date or an age such as `3d`."),
    until: str | None = typer.Option(None, "--until", help="A date or an age such as `3d`."),
    include_spills: bool = typer.Option(
        False, "--include-spills", help="Also sessions that only hold spilled tool output."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the answer of the API."),
) -> None:
    """List sessions, newest first. `recall show ID` opens one."""
    params = {
        "q": query,
        "limit": limit,
        "cursor": cursor,
        "source": source,
        "host": host,
        "project": project,
        "relation": relation,
        "since": since,
        "until": until,
        "include_spills": include_spills,
    }
    with open_backend(load_settings()) as backend:
        answer = backend.sessions(params)
    if as_json:
        print_json(answer)
        return
    if answer["sessions"]:
        screen.print(_table(answer["sessions"]))
    note(_summary(answer))
    if answer["next_cursor"]:
        note(f"more: add --cursor {answer['next_cursor']}")


def _table(rows: list[Answer]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("started", "source", "host", "project", "messages", "session", "title"):
        is_number = name == "messages"
        table.add_column(
            name, no_wrap=True, overflow="ignore", justify="right" if is_number else "left"
        )
    for row in rows:
        title = [one_line(part, 60) for part in (row["relation"], row["title"]) if part]
        children = f" (+{row['children_count']})" if row["children_count"] else ""
        table.add_row(
            short_time(row["started_at"]),
            Text(one_line(row["source"], 20)),
            Text(one_line(row["host"], 20)),
            Text(project_name(row["project"])),
            Text(f"{row['message_count']}{children}"),
            Text(one_line(row["external_id"], 120), "cyan"),
            Text(": ".join(title)),
        )
    return table


def _summary(answer: Answer) -> str:
    line = f"{len(answer['sessions'])} of {answer['total']} sessions"
    if answer["hidden_spills"]:
        line += f"; {answer['hidden_spills']} with spilled tool output hidden (--include-spills)"
    return line
