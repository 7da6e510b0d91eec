"""The hand-written dialogue: what is in `material/*.txt`, and how it is read.

A file holds projects (`@@ name`) and their sessions (`=== id | client | branch | start | title`). A
turn begins with `[U]` (the person), `[A]` (the answer), `[T]` (thinking), `[$]` (a command), `[>]`
or `[>!]` (what it printed; with `!` it failed), `[E]` (an edit: the path, then the new text), or
`[~ n]` (room for n steps of ordinary work). A word behind the letter is the label that queries use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

_TURN = re.compile(r"\[(?P<kind>[UATE$~]|>!?)(?: (?P<label>\w+))?\] ?(?P<text>.*)")


@dataclass(slots=True)
class Turn:
    """One thing that was said, done or printed."""

    kind: str
    text: str
    label: str | None = None


@dataclass(slots=True)
class Session:
    """One session of the set."""

    name: str
    project: str
    client: str
    branch: str
    start: datetime
    title: str
    turns: list[Turn] = field(default_factory=list)


def read_sessions(folder: Path) -> list[Session]:
    """All sessions of the material, in the order of files and lines."""
    sessions: list[Session] = []
    for path in sorted(folder.glob("*.txt")):
        if path.name != "queries.txt":
            sessions += _read_file(path)
    names = [session.name for session in sessions]
    if len(set(names)) < len(names):
        raise SystemExit("error: two sessions have one name")
    return sessions


def _read_file(path: Path) -> Iterator[Session]:
    project = ""
    session: Session | None = None
    for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
        if line.startswith("@@ "):
            project = line[3:].strip()
        elif line.startswith("=== "):
            if session:
                yield _trimmed(session)
            session = _header(line, project)
        elif match := _TURN.fullmatch(line):
            if session is None:
                raise SystemExit(f"error: {path.name}:{number}: a turn outside of a session")
            session.turns.append(Turn(match["kind"], match["text"], match["label"]))
        elif session and session.turns:
            session.turns[-1].text += f"\n{line}"
    if session:
        yield _trimmed(session)


def _header(line: str, project: str) -> Session:
    name, client, branch, start, title = (part.strip() for part in line[4:].split("|"))
    moment = datetime.strptime(start, "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
    return Session(name, project, client, branch, moment, title)


def _trimmed(session: Session) -> Session:
    for turn in session.turns:
        turn.text = turn.text.rstrip()
    return session
