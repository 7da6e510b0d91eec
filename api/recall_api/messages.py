"""Messages: a stretch of a session, and one message in full with what stands around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recall.errors import NotFoundError, UsageError
from recall_api.notes import find_note
from recall_api.reading import Answer, Connection, decode_cursor, encode_cursor, fetch, fetch_one
from recall_api.sessions import resolve_session
from recall_sql.loader import load

#: Characters of one message in a list; `/messages/{id}` gives all of it.
DEFAULT_CHARS = 20_000
#: Characters of all messages of one answer. A page must not cost the memory of the server.
MOST_CHARS = 20_000_000
MOST_MESSAGES = 500
_MOST_LISTED = 50
_FIRST_PART, _LAST_PART = -(2**31), 2**31 - 1
_MOST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """Which messages of a session to give.

    ``around`` asks for the messages at one ordinal and ``context`` messages on each side; it cannot
    be combined with ``cursor`` and ``from_ordinal``.
    """

    from_ordinal: int | None = None
    cursor: str | None = None
    limit: int = 100
    around: int | None = None
    context: int = 5
    roles: Sequence[str] = ()
    kinds: Sequence[str] = ()
    max_chars: int = DEFAULT_CHARS


def list_messages(connection: Connection, ref: str, request: MessagesRequest) -> Answer:
    """A stretch of a session in order."""
    _check(request)
    key = resolve_session(connection, ref)
    if request.around is not None:
        rows = _around(connection, key, request, request.around)
        return {"session_key": key, "messages": rows, "next_cursor": None}
    values = _values(key, request)
    values["ordinal"], values["part"] = _start(request)
    values["limit"] = request.limit + 1
    rows = fetch(connection, load("sessions")["messages_after"], values)
    page = rows[: request.limit]
    more = len(rows) > request.limit
    return {
        "session_key": key,
        "messages": page,
        "next_cursor": encode_cursor(page[-1]["ordinal"], page[-1]["part"]) if more else None,
    }


def _check(request: MessagesRequest) -> None:
    starts = (request.around, request.cursor, request.from_ordinal)
    if sum(start is not None for start in starts) > 1:
        raise UsageError("only one of `around`, `cursor` and `from_ordinal` can be given")
    if request.limit * request.max_chars > MOST_CHARS:
        raise UsageError(
            f"`limit` times `max_chars` is over {MOST_CHARS}",
            hint="ask for fewer messages at a time, or `/messages/{id}` for a long one",
        )


def _start(request: MessagesRequest) -> tuple[int, int]:
    if request.cursor is None:
        first = request.from_ordinal
        return (-_MOST_ID if first is None else first), _FIRST_PART
    ordinal, part = decode_cursor(request.cursor, [(int,), (int,)])
    if not (-_MOST_ID <= ordinal <= _MOST_ID and _FIRST_PART <= part <= _LAST_PART):
        raise UsageError("`cursor` is not one that this API gave")
    return ordinal, part


def _values(key: str, request: MessagesRequest) -> dict[str, Any]:
    return {
        "key": key,
        "roles": list(request.roles) or None,
        "kinds": list(request.kinds) or None,
        "max_chars": request.max_chars,
        "last": None,
    }


def _around(
    connection: Connection, key: str, request: MessagesRequest, ordinal: int
) -> list[Answer]:
    sql = load("sessions")
    values = {**_values(key, request), "ordinal": ordinal, "limit": request.context}
    before = fetch(connection, sql["messages_before"], {**values, "part": _FIRST_PART})
    at = {**values, "part": _FIRST_PART, "last": ordinal, "limit": request.limit}
    after = {**values, "part": _LAST_PART}
    return [
        *reversed(before),
        *fetch(connection, sql["messages_after"], at),
        *fetch(connection, sql["messages_after"], after),
    ]


def parse_id(text: str) -> int:
    """The number of a message id. Raises :class:`UsageError` for anything else."""
    if text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= _MOST_ID:
        return int(text)
    raise UsageError(
        "a message id is a whole number, such as the `id` of a search hit",
        hint="a session is found under `/sessions/{key}`",
    )


def get_message(
    connection: Connection, message_id: str, *, context: int = 0, max_chars: int = DEFAULT_CHARS
) -> Answer:
    """One message in full: of a session, of a prompt history, or one that a client took back; or a
    note in the same form.

    ``context`` messages of its session on each side come with it, each cut at ``max_chars``.
    """
    number = parse_id(message_id)
    found = fetch_one(connection, load("sessions")["get_message"], {"id": number})
    if found is None:
        return _get_other(connection, number, message_id)
    copy_key = found.pop("copy_key")
    count, places = _copies(connection, number, copy_key)
    before, after = _neighbours(connection, found, context, max_chars)
    place = {name: found[name] for name in ("ordinal", "part")} | {"key": found["session_key"]}
    limited = {**place, "id": number, "limit": _MOST_LISTED}
    return {
        **found,
        "session": _session(connection, found["session_key"]),
        "note": None,
        "occurrence_count": count,
        "occurrences": places,
        "versions": fetch(connection, load("sessions")["message_versions"], limited),
        "before": before,
        "after": after,
    }


def _get_other(connection: Connection, number: int, message_id: str) -> Answer:
    """What is no message of a session: a prompt or a note."""
    found = _find_prompt(connection, number)
    if found is None:
        found = find_note(connection, number, most_versions=_MOST_LISTED)
    if found is None:
        raise NotFoundError(
            f"no message `{message_id}` is in the store",
            hint="ids come from `recall search`; a purge removes them",
        )
    return found


def _find_prompt(connection: Connection, number: int) -> Answer | None:
    found = fetch_one(connection, load("sessions")["get_prompt"], {"id": number})
    if found is None:
        return None
    session = _session(connection, found["session_key"]) if found["session_key"] else None
    absent = ("part", "ts_origin", "branch", "tool", "call_id", "native_id", "model")
    return {
        **found,
        **dict.fromkeys(absent),
        "role": "user",
        "kind": "prompt",
        "is_error": False,
        "is_damaged": False,
        "on_active_branch": True,
        "redactions": None,
        "retracted_at": None,
        "current_id": found["id"],
        "session": session,
        "note": None,
        "occurrence_count": 0,
        "occurrences": [],
        "versions": [],
        "before": [],
        "after": [],
    }


def _session(connection: Connection, key: str) -> Answer | None:
    return fetch_one(connection, load("sessions")["session_line"], {"key": key})


def _copies(connection: Connection, number: int, copy_key: int | None) -> tuple[int, list[Answer]]:
    """How many other places there are, and the first of them."""
    if copy_key is None:
        return 0, []
    values = {"copy_key": copy_key, "id": number, "limit": _MOST_LISTED}
    places = fetch(connection, load("sessions")["message_copies"], values)
    counts = [place.pop("places") for place in places]
    return (counts[0] if counts else 0), places


def _neighbours(
    connection: Connection, message: Answer, context: int, max_chars: int
) -> tuple[list[Answer], list[Answer]]:
    if context == 0:
        return [], []
    values = {
        **_values(message["session_key"], MessagesRequest(max_chars=max_chars)),
        "ordinal": message["ordinal"],
        "part": message["part"],
        "limit": context,
    }
    sql = load("sessions")
    before = fetch(connection, sql["messages_before"], values)
    return before[::-1], fetch(connection, sql["messages_after"], values)
