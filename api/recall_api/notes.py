"""Notes: entries of work ledgers, memories of agents, and one of either in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from recall.errors import NotFoundError
from recall.hygiene import clean
from recall.records import Shelf
from recall_api.cursor import (
    SearchCursor,
    check_same_search,
    check_same_window,
    fingerprint,
    read_cursor,
)
from recall_api.filters import clean_values
from recall_api.reading import Answer, Connection, fetch, fetch_one, utc_text
from recall_api.sessions import AmbiguousReferenceError, resolve_session
from recall_sql.loader import load

MOST_NOTES = 200
#: Characters of one note in a list; `/messages/{id}` gives all of it.
DEFAULT_NOTE_CHARS = 4_000
MOST_NOTE_CHARS = 20_000
_TIMES = ("ts", "stored_at", "replaced_at")
_REASONS = {
    "no-words": "the query has no words; `search` with `mode=exact` finds any text",
    "only-excluded": "the query only says what to leave out",
    "depth": "only the newest 5,000 matches of each word were looked at",
}


@dataclass(frozen=True, slots=True)
class NotesRequest:
    """Which notes of a shelf to give: those with the words of ``query``, or all of them.

    Values of one filter are alternatives. ``sessions`` is for the ledger; ``paths`` and
    ``include_replaced`` are for memories.
    """

    shelf: Shelf
    query: str | None = None
    limit: int = 20
    cursor: str | None = None
    sources: Sequence[str] = ()
    hosts: Sequence[str] = ()
    projects: Sequence[str] = ()
    paths: Sequence[str] = ()
    sessions: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    include_replaced: bool = False
    max_chars: int = DEFAULT_NOTE_CHARS


def list_notes(connection: Connection, request: NotesRequest) -> Answer:
    """One page of notes: with a query best first, else the newest of the ledger first, or memories
    in the order of their files."""
    values = _values(connection, request)
    place, name = _place(request, values)
    values |= {
        "since": place.since,
        "until": place.until,
        "skip": place.skip,
        "before_ts": place.ts,
        "before_id": place.id,
        "limit": request.limit,
        "max_chars": request.max_chars,
    }
    answer = _one(connection, request.shelf, values)
    following = _following(place, answer)
    return {
        "query": request.query,
        "entries": [_with_times(entry) for entry in answer["entries"]],
        "stored": answer["stored"],
        "reasons": _reasons(answer),
        "next_cursor": following.encode(name) if following else None,
    }


def _values(connection: Connection, request: NotesRequest) -> dict[str, Any]:
    """Everything that makes the list what it is, apart from the window."""
    names = ("sources", "hosts", "projects", "paths", "sessions")
    lists = {name: clean_values(name, getattr(request, name)) for name in names}
    sessions = [_external_id(connection, ref) for ref in lists.pop("sessions")]
    query = clean(request.query or "")[0].strip()
    return {
        "q": query or None,
        **{name: list(values) or None for name, values in lists.items()},
        "session_ids": sessions or None,
        "include_replaced": request.include_replaced,
    }


def _external_id(connection: Connection, ref: str) -> str:
    """The client's own id of a session. What is not stored is taken for such an id itself, and one
    session that stands in the logs of two machines has one."""
    try:
        found = {resolve_session(connection, ref)}
    except NotFoundError:
        return ref
    except AmbiguousReferenceError as error:
        found = {row["session_key"] for row in error.candidates}
        if len({_id_of(key) for key in found}) > 1:
            raise
    return _id_of(found.pop())


def _id_of(session_key: str) -> str:
    return session_key.split(":", 2)[2]


def _place(request: NotesRequest, values: dict[str, Any]) -> tuple[SearchCursor, str]:
    """Where the page begins, and the fingerprint of the list that it belongs to."""
    mode = f"{request.shelf}-text" if values["q"] else request.shelf
    now = datetime.now(UTC)
    window = [request.since is None, request.until is None]
    name = fingerprint([mode, sorted(values.items()), window])
    if request.cursor is None:
        return SearchCursor(mode, now, request.since, request.until), name
    place, given = read_cursor(request.cursor)
    check_same_search(name, given)
    check_same_window(place, request.since, request.until, now)
    return place, name


def _following(place: SearchCursor, answer: Answer) -> SearchCursor | None:
    if not answer["more"]:
        return None
    if "next_id" not in answer:
        return replace(place, skip=place.skip + len(answer["entries"]))
    ts = answer["next_ts"]
    return replace(place, ts=datetime.fromisoformat(ts) if ts else None, id=int(answer["next_id"]))


def _reasons(answer: Answer) -> list[str]:
    reasons = [_REASONS[answer["reason"]]] if answer["reason"] else []
    if answer["left_out"]:
        reasons.append(f"{answer['left_out']} of the more common words were not looked for")
    return reasons


def _one(connection: Connection, name: str, values: dict[str, Any]) -> Answer:
    row = connection.execute(load("notes")[name], values).fetchone()
    assert row is not None, "a function without a set gives one row"
    answer: Answer = row[0]
    return answer


def _with_times(entry: Answer) -> Answer:
    """The same entry with its times as every answer writes them."""
    times = {
        name: utc_text(datetime.fromisoformat(entry[name]))
        for name in _TIMES
        if entry.get(name) is not None
    }
    versions = [_with_times(version) for version in entry.get("versions", [])]
    return {**entry, **times, **({"versions": versions} if "versions" in entry else {})}


def find_note(connection: Connection, number: int, *, most_versions: int) -> Answer | None:
    """A note in full in the form of a message, or ``None`` if there is none of this id."""
    found = fetch_one(connection, load("notes")["get_note"], {"id": number})
    if found is None:
        return None
    names = ("entry_key", "path", "title", "session_id", "fields", "is_current", "replaced_at")
    note = {name: found.pop(name) for name in names}
    note["shelf"] = found["kind"] = found.pop("shelf")
    means = {"key": found.pop("session_key")}
    listed = {"id": number, "limit": most_versions}
    absent = ("session_key", "part", "ts_origin", "branch", "tool", "call_id", "native_id", "model")
    return {
        **found,
        **dict.fromkeys(absent),
        "role": "assistant",
        "is_error": False,
        "is_damaged": False,
        "on_active_branch": True,
        "redactions": None,
        "retracted_at": None if note["is_current"] else note["replaced_at"] or found["stored_at"],
        "session": fetch_one(connection, load("sessions")["session_line"], means),
        "note": note,
        "occurrence_count": 0,
        "occurrences": [],
        "versions": fetch(connection, load("notes")["note_versions"], listed),
        "before": [],
        "after": [],
    }
