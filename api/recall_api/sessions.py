"""Sessions: the list, one session with its lineage, and how a person may name one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from recall.errors import NotFoundError, UsageError
from recall_api.reading import Answer, Connection, decode_cursor, encode_cursor, fetch, fetch_one
from recall_sql.loader import load

#: The shortest beginning of an external id that names a session.
LEAST_PREFIX = 6
#: How many children, files and candidates an answer lists; it always says how many there are.
MOST_LISTED = 200


class AmbiguousReferenceError(UsageError):
    """The beginning of an external id fits more than one session."""

    def __init__(self, ref: str, candidates: list[Answer], fitting: int) -> None:
        keys = ", ".join(f"`{row['session_key']}`" for row in candidates[:5])
        more = f" and {fitting - 5} more" if fitting > 5 else ""
        super().__init__(
            f"`{ref}` fits {fitting} sessions: {keys}{more}",
            hint="give more of the id, or the whole session key",
        )
        self.candidates = candidates


@dataclass(frozen=True, slots=True)
class SessionsRequest:
    """Which sessions to list. Empty filters let everything through; filters of one kind are
    alternatives. ``relations`` may name ``main`` for sessions that stand for themselves."""

    limit: int = 50
    cursor: str | None = None
    sources: Sequence[str] = ()
    hosts: Sequence[str] = ()
    projects: Sequence[str] = ()
    relations: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    title: str | None = None
    include_spills: bool = False


def list_sessions(connection: Connection, request: SessionsRequest) -> Answer:
    """One page of sessions, newest first.

    Sessions that only hold the spilled output of a tool are left out unless they are asked for; the
    answer says how many those are.
    """
    started, key = _place(request.cursor)
    values = {
        "sources": list(request.sources) or None,
        "hosts": list(request.hosts) or None,
        "projects": list(request.projects) or None,
        "relations": list(request.relations) or None,
        "include_spills": request.include_spills or "spill" in request.relations,
        "title": _contains(request.title),
        "since": request.since,
        "until": request.until,
        "after_started": started,
        "after_key": key,
        "limit": request.limit + 1,
    }
    rows = fetch(connection, load("sessions")["list_sessions"], values)
    total, hidden = rows[0]["total"], rows[0]["hidden_spills"]
    found = [row for row in rows if row["session_key"] is not None]
    for row in found:
        del row["total"], row["hidden_spills"]
    page = found[: request.limit]
    more = len(found) > request.limit
    return {
        "sessions": page,
        "total": total,
        "hidden_spills": hidden,
        "next_cursor": encode_cursor(page[-1]["started_at"], page[-1]["session_key"])
        if more
        else None,
    }


def _place(cursor: str | None) -> tuple[datetime | None, str | None]:
    if cursor is None:
        return None, None
    started, key = decode_cursor(cursor, [(str, type(None)), (str,)])
    if "\x00" in key:
        raise UsageError("`cursor` is not one that this API gave")
    try:
        return (datetime.fromisoformat(started) if started else None), key
    except ValueError as error:
        raise UsageError("`cursor` is not one that this API gave") from error


def _contains(text: str | None) -> str | None:
    """An ILIKE pattern that means the text itself."""
    if not text:
        return None
    for special in ("\\", "%", "_"):
        text = text.replace(special, "\\" + special)
    return f"%{text}%"


def resolve_session(connection: Connection, ref: str) -> str:
    """The session key that a key, an external id, or a unique beginning of one stands for.

    Raises :class:`NotFoundError`, or :class:`AmbiguousReferenceError` with the candidates.
    """
    values = {"ref": ref, "least": LEAST_PREFIX, "limit": 20}
    rows = fetch(connection, load("sessions")["find_session"], values)
    if not rows:
        short = 0 < len(ref) < LEAST_PREFIX
        raise NotFoundError(
            f"no session `{ref}` is in the store",
            hint=f"give at least {LEAST_PREFIX} characters of its id"
            if short
            else "`recall sessions` lists what is there",
        )
    if len(rows) > 1:
        fitting = rows[0]["fitting"]
        for row in rows:
            del row["fitting"]
        raise AmbiguousReferenceError(ref, rows, fitting)
    return str(rows[0]["session_key"])


def get_session(connection: Connection, ref: str) -> Answer:
    """One session with its parent, children, files and counts."""
    key = resolve_session(connection, ref)
    sql = load("sessions")
    values: dict[str, Any] = {"key": key, "limit": MOST_LISTED}
    session = fetch_one(connection, sql["get_session"], values)
    if session is None:  # purged between the two statements
        raise NotFoundError(f"no session `{ref}` is in the store")
    session["parent"] = None
    if session["parent_key"] is not None:
        parent = {"parent_key": session["parent_key"]}
        session["parent"] = fetch_one(connection, sql["session_parent"], parent)
    session["children"] = fetch(connection, sql["session_children"], values)
    session["files"] = fetch(connection, sql["session_files"], values)
    session["counts"] = fetch(connection, sql["session_counts"], values)
    return session
