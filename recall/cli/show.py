"""``recall show``: one message with what stands around it, or a session from its start."""

from __future__ import annotations

import typer
from rich.text import Text

from recall.cli.backend import Backend, open_backend
from recall.cli.output import note, print_json, screen
from recall.cli.terminal import one_line, printable, short_time
from recall.client import Answer
from recall.config import load_settings
from recall.errors import NotFoundError, UsageError

#: Messages of one request for a transcript.
_PAGE = 200


def show(
    ref: str = typer.Argument(
        ...,
        metavar="REF",
        help="Id of a message or note, or key or beginning of the id of a session.",
    ),
    context: int = typer.Option(
        0, "--context", "-C", min=0, max=50, help="Messages before and after a message."
    ),
    first: int | None = typer.Option(
        None, "--from", metavar="ORDINAL", min=0, help="Start a session at this place."
    ),
    limit: int = typer.Option(
        200, "--limit", min=0, help="How many messages of a session; 0 for all."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the answer of the API."),
) -> None:
    """Show a message, a note or a session. Exit code 4 means that it is not in the store."""
    with open_backend(load_settings()) as backend:
        message = _find_message(backend, ref, context)
        if message is not None:
            _show_message(message, as_json=as_json)
        else:
            _show_session(backend, ref, first, limit, as_json=as_json)


def _find_message(backend: Backend, ref: str, context: int) -> Answer | None:
    """A number can be a message id or the beginning of a session's id; the message comes first."""
    if not (ref.isascii() and ref.isdigit()):
        return None
    try:
        return backend.message(ref, {"context": context})
    except (NotFoundError, UsageError):
        if len(ref) > 16:  # longer than the digits with which a session id can begin
            raise
        return None


def _show_message(message: Answer, *, as_json: bool) -> None:
    if as_json:
        print_json(message)
        return
    _print_place(message)
    for row in message["before"]:
        _print_message(row)
    _print_message(message, chosen=True)
    for row in message["after"]:
        _print_message(row)
    if message["retracted_at"]:
        note(f"the client took this text back ({message['retracted_at']}); Recall keeps it")
    if message["versions"]:
        ids = ", ".join(version["id"] for version in message["versions"])
        note(f"earlier texts of this message: {ids}")
    if message["occurrences"]:
        note(f"also in: {message['occurrence_count']} other places")
        for place in message["occurrences"][:5]:
            note(f"  {place['id']}  {one_line(place['session_key'], 120)}")


def _print_place(message: Answer) -> None:
    if message.get("note"):  # a server of before notes does not name it
        _print_note_place(message)
        return
    session = message["session"] or {}
    line = Text(one_line(session.get("title"), 100) or "untitled", "bold")
    if not message["session"]:
        line = Text("prompt history", "bold")
    screen.print(line)
    if message["session_key"]:
        screen.print(Text(one_line(message["session_key"], 200), "dim"))
    screen.print()


def _print_note_place(message: Answer) -> None:
    note_of = message["note"]
    name = "ledger entry" if note_of["shelf"] == "ledger" else "memory"
    screen.print(Text(one_line(note_of["title"], 100) or name, "bold"))
    facts = [name, message["source"], message["host"], message["project"], note_of["path"]]
    screen.print(Text("  ".join(one_line(fact, 400) for fact in facts if fact), "dim"))
    if message["session"]:
        session = message["session"]
        about = f"{one_line(session['session_key'], 200)}  {one_line(session['title'], 100)}"
        screen.print(Text(f"about session {about.strip()}", "dim"))
    elif note_of["session_id"]:
        unknown = one_line(note_of["session_id"], 200)
        screen.print(Text(f"about session {unknown}, which is not stored", "dim"))
    screen.print()


def _show_session(
    backend: Backend, ref: str, first: int | None, limit: int, *, as_json: bool
) -> None:
    session = backend.session(ref)
    key = session["session_key"]
    shown: list[Answer] = []
    if not as_json:
        _print_session(session)
    count = 0
    cursor: str | None = None
    while True:
        size = min(_PAGE, limit - count) if limit else _PAGE
        start = {"cursor": cursor} if cursor else {"from_ordinal": first}
        answer = backend.messages(key, {**start, "limit": size})
        count += len(answer["messages"])
        cursor = answer["next_cursor"]
        if as_json:
            shown += answer["messages"]
        else:
            for row in answer["messages"]:
                _print_message(row)
        if not cursor or count == limit:
            break
    if as_json:
        print_json({**session, "messages": shown, "next_cursor": cursor})
    elif cursor:
        last = answer["messages"][-1]["ordinal"]
        note(f"{count} messages; more: recall show {one_line(key, 200)} --from {last + 1}")
    else:
        note(f"{count} messages")


def _print_session(session: Answer) -> None:
    screen.print(Text(one_line(session["title"], 120) or "untitled", "bold"))
    facts = [session["session_key"], session["project"], session["branch"], session["model"]]
    screen.print(Text("  ".join(one_line(fact, 200) for fact in facts if fact), "dim"))
    if session["started_at"]:
        times = f"{session['started_at']} to {session['ended_at']}"
        screen.print(Text(f"{times}, {session['message_count']} messages", "dim"))
    if session["parent"]:
        relation = session["relation"] or "child"
        screen.print(
            Text(f"{relation} of {one_line(session['parent']['session_key'], 200)}", "dim")
        )
    for child in session["children"]:
        relation = child["relation"] or "child"
        screen.print(Text(f"{relation}: {one_line(child['session_key'], 200)}", "dim"))
    for file in session["files"]:
        gone = " (gone; Recall keeps what it read)" if file["source_missing_at"] else ""
        screen.print(Text(f"{one_line(file['path'], 400)}{gone}", "dim"))
    screen.print()


def _print_message(row: Answer, *, chosen: bool = False) -> None:
    tool = f" {one_line(row['tool'], 60)}" if row["tool"] else ""
    error = " error" if row["is_error"] else ""
    # A server of before branches does not say.
    branch = "" if row.get("on_active_branch", True) else " abandoned"
    header = Text("> " if chosen else "")
    style = "bold green" if row["role"] == "user" else "bold"
    header.append(f"{row['role']}/{row['kind']}{tool}{error}{branch}", style)
    header.append(f"  {short_time(row['ts'])}  #{row['ordinal']}  {row['id']}", "dim")
    screen.print(header)
    screen.print(Text(printable(row["content"])))
    if row.get("truncated"):
        length = row["length"]
        screen.print(Text(f"[cut: {length} characters in all; recall show {row['id']}]", "dim"))
    screen.print()
