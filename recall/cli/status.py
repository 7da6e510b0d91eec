"""``recall status``: what is stored, from where, how fresh, and what went wrong."""

from __future__ import annotations

from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from recall.cli.backend import open_backend
from recall.cli.output import note, print_json, screen
from recall.cli.running import find_running
from recall.cli.terminal import one_line, short_age, short_size, short_time
from recall.client import Answer
from recall.config import Settings, load_settings

_PROBLEMS_LISTED = 50


def status(
    problems: bool = typer.Option(
        False, "--problems", help="List the lines and files that could not be read."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the answer of the API."),
) -> None:
    """Show what is in the store, where it came from, and which parts are running."""
    settings = load_settings()
    with open_backend(settings) as backend:
        answer = backend.status({"problems": _PROBLEMS_LISTED if problems else 0})
    running = find_running(settings.home)
    if as_json:
        print_json({**answer, "running": running})
        return
    _print_store(settings, answer)
    _print_disk(answer.get("disk"))
    _print_running(settings, running)
    _print_components(answer["components"])
    _print_embedding(answer.get("embedding", []), answer["components"])
    # A server of before hosts had tokens does not tell them apart.
    hosts = {row["host"]: row for row in answer.get("hosts", [])}
    _print_sources(answer["sources"], hosts)
    _print_hosts(answer["sources"], hosts)
    _print_problems(answer["problems"], listed=problems)


def _print_store(settings: Settings, answer: Answer) -> None:
    totals = answer["totals"]
    counts = [
        f"{'about ' if name in totals['estimated'] else ''}{totals[name]:,} {name}"
        for name in ("sessions", "messages", "prompts", "notes", "retracted")
        if totals.get(name) or name not in ("notes", "retracted")
    ]
    where = settings.url or "local"
    screen.print(Text(f"store     {where}: {', '.join(counts)}"))
    size = short_size(answer["database_bytes"])
    version = f"schema {answer['schema_version']}"
    if answer["schema_version"] != answer["schema_expected"]:
        version += f" (this version needs {answer['schema_expected']})"
    screen.print(Text(f"database  PostgreSQL {answer['server_version']}, {size}, {version}"))


def _print_disk(room: Answer | None) -> None:
    """Nothing while there is room."""
    if room and not room["ok"]:
        free, reserve = short_size(room["free_bytes"]), short_size(room["reserve_bytes"])
        line = f"disk      almost full: {free} free; nothing more is stored below {reserve}"
        screen.print(Text(line, "red"))
        note("make room on the disk of the database; nothing is lost, it is stored later")


def _print_running(settings: Settings, running: dict[str, Any] | None) -> None:
    if running is None and (settings.url or settings.database_url):
        return  # the store is elsewhere, and what runs for it is among the components
    if running is None:
        screen.print(Text("running   no `recall up` in this home"))
        return
    screen.print(Text(f"running   {one_line(str(running.get('url')))} (pid {running.get('pid')})"))
    for part in running.get("parts", []):
        state = part.get("state") or ("running" if part.get("pid") else "stopped")
        line = f"  {part.get('name')}: {state}"
        if part.get("pid"):
            line += f", pid {part['pid']}"
        if part.get("restarts"):
            line += f", {part['restarts']} restarts, last exit {part.get('last_exit')}"
        if next_try := part.get("next_try_at") or part.get("next_try"):
            line += f", next try {next_try}"
        screen.print(Text(one_line(line.strip(), 200)), style=None if part.get("pid") else "red")


def _print_components(components: list[Answer]) -> None:
    for row in components:
        age = short_age(row["age_seconds"])
        line = f"{row['component']}: last sign of life {age} ago on {row['host']}"
        if row["stale"]:
            line += f", which is over {short_age(row['stale_after_seconds'])}: it may be dead"
        if wrong := _reasons(row):
            line += f": {'; '.join(map(str, wrong))}"
        screen.print(Text(one_line(line, 300), "red" if row["stale"] or wrong else ""))


def _reasons(component: Answer) -> list[Any]:
    """What a component says is wrong with it."""
    detail = component["detail"] if isinstance(component["detail"], dict) else {}
    return detail.get("reasons") or []


def _print_embedding(rows: list[Answer], components: list[Answer]) -> None:
    """The share of texts that can be found by meaning, and when the others can be."""
    at_work = any(
        row["component"] == "embedder" and not row["stale"] and not _reasons(row)
        for row in components
    )
    for row in rows:
        about = "about " if row["is_estimated"] else ""
        line = str(row["model"])
        if row["state"] == "filling":
            line += " (being made, not used yet)"
        line += f": {about}{row['embedded']:,} passages, {_percent(row['share'])}"
        if row["remaining"]:
            line += f"; about {row['remaining']:,} to come"
        if row["eta_seconds"]:
            rate = f"{row['passages_per_minute']:,.0f} a minute"
            line += f", {rate}, ready in {short_age(row['eta_seconds'])}"
        elif row["remaining"]:
            line += f"; {'the speed is not known yet' if at_work else 'no embedder is at work'}"
        screen.print(Text(f"vectors   {one_line(line, 300)}"))
        if row["failed"] or row["failed_sessions"]:
            note(
                f"{row['failed']:,} passages and {row['failed_sessions']:,} sessions"
                " could not be embedded"
            )


def _percent(share: float) -> str:
    """Rounded down: nothing that is missing is called complete."""
    return f"{int(share * 1000) / 10:g}%"


def _print_sources(sources: list[Answer], hosts: dict[str, Answer]) -> None:
    if not sources:
        note("nothing has been stored yet: `recall ingest` reads the logs of a machine")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    # A server of before notes does not count them.
    has_notes = any(row.get("notes") for row in sources)
    numbers = ("files", "sessions", *(("notes",) if has_notes else ()), "lines")
    problems = ("quarantined", "unreadable")
    right = {*numbers, *problems, "lag"}
    names = (*numbers, "newest", "synced", "lag", *problems, "last beat", "remarks")
    for name in ("host", "source", *names):
        table.add_column(
            name, no_wrap=True, overflow="ignore", justify="right" if name in right else "left"
        )
    for row in sources:
        table.add_row(
            Text(one_line(row["host"], 40)),
            Text(one_line(row["source"], 40)),
            *(f"{row['lines_seen' if name == 'lines' else name]:,}" for name in numbers),
            short_time(row["newest_message"]),
            short_time(row.get("newest_sync", row["newest_read"])),
            _lag(row.get("lag_seconds")),
            f"{row['quarantined']:,}",
            f"{row['unreadable_files']:,}",
            _last_beat(hosts.get(row["host"])),
            Text(", ".join(_remarks(row))),
        )
    screen.print()
    screen.print(table)


def _lag(seconds: float | None) -> str:
    """Nothing for what no pass reads, such as imports."""
    return "-" if seconds is None else short_age(seconds)


def _last_beat(host: Answer | None) -> Text:
    """When a machine was last heard of, by which version, and whether that is too long ago."""
    if host is None:
        return Text("-")
    if host["age_seconds"] is None:
        return Text("SILENT: never", "red")
    told = f"{short_age(host['age_seconds'])} ago"
    if host["version"]:
        told += f", {one_line(host['version'], 32)}"
    return Text(f"SILENT: {told}", "red") if host["silent"] else Text(told)


def _print_hosts(sources: list[Answer], hosts: dict[str, Answer]) -> None:
    """Machines that joined and of which nothing came yet, which no row of the table shows; and what
    went wrong when the others stored."""
    shown = {row["host"] for row in sources}
    for name, host in hosts.items():
        if name not in shown:
            heard = _last_beat(host)
            screen.print(Text(f"{one_line(name, 40)}: nothing came yet; last beat ").append(heard))
        if host["sink_errors"]:
            errors = ", ".join(
                f"{one_line(code, 24)} ({number:,})" for code, number in host["sink_errors"].items()
            )
            line = f"{one_line(name, 40)}: errors in its last pass when it stored: {errors}"
            screen.print(Text(line, "red"))


def _remarks(row: Answer) -> list[str]:
    remarks = [
        f"{row[name]:,} {word}"
        for name, word in (
            ("lines_quarantined", "lines not readable"),
            ("missing_files", "files gone (kept here)"),
        )
        if row[name]
    ]
    if not row["lines_add_up"]:
        remarks.append("LINES DO NOT ADD UP")
    return remarks


def _print_problems(problems: Answer, *, listed: bool) -> None:
    if listed:
        for span in problems["quarantined_spans"]:
            saved = "partly stored" if span["salvaged"] else "not stored"
            place = (
                f"{one_line(span['path'], 400)}: line {span['line']}, byte {span['byte_offset']}"
            )
            size = f"{span['byte_length']:,} bytes"
            screen.print(Text(f"{place}, {size}: {one_line(span['reason'], 200)} ({saved})"))
        for file in problems["unreadable_files"]:
            screen.print(Text(f"{one_line(file['path'], 400)}: {one_line(file['reason'], 200)}"))
        shown = len(problems["quarantined_spans"]) + len(problems["unreadable_files"])
        note(f"{shown} of {problems['quarantined'] + problems['unreadable']} problems")
    elif problems["quarantined"] or problems["unreadable"]:
        note(
            f"{problems['quarantined']:,} spans and {problems['unreadable']:,} files "
            "could not be read; `recall status --problems` lists them"
        )
