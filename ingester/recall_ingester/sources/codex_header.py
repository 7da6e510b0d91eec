"""What a Codex rollout says about its session: the header, and the lines of the two index files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from recall.hygiene import clean
from recall.records import Prompt, SessionDraft
from recall.timestamps import parse_timestamp
from recall_ingester.sources.codex_records import Payload, mapping, string

TITLE_CHARS = 120
#: A name given to the thread beats the first words of its first message.
NAME_RANK = 50
FIRST_MESSAGE_RANK = 10
_REQUEST_MARKER = "## My request for Codex:"
_DATES = ("started_at", "ended_at")
_TEXTS = ("parent_id", "relation", "title", "cwd", "branch", "model", "client_version")


def word(value: object) -> str | None:
    """A string that may stand in a session row and in saved state, else ``None``."""
    text = string(value)
    return clean(text)[0][:1000] if text else None


def moment(value: object) -> datetime | None:
    """A timestamp of any of the client's shapes."""
    if isinstance(value, int) and abs(value) > 10**18:
        return None  # too large for a float, let alone for a date
    return parse_timestamp(value)


def one_line(text: str) -> str | None:
    """The start of a text as a title; a request that an IDE wrapped begins after its marker."""
    _, marker, request = text.rpartition(_REQUEST_MARKER)
    words = " ".join((request if marker else text)[: TITLE_CHARS * 20].split())
    return clean(words)[0][:TITLE_CHARS].rstrip() or None


def header_id(value: Payload) -> str | None:
    """The thread id that a first record gives, in any era."""
    if value.get("type") == "session_meta":
        return _id_of(mapping(value.get("payload")))
    if isinstance(value.get("session"), Mapping) and isinstance(value.get("items"), list):
        return _id_of(value["session"])
    return _id_of(value) if is_bare_header(value) else None


def _id_of(header: Payload) -> str | None:
    return word(header.get("id")) or word(header.get("session_id"))


def is_bare_header(value: Payload) -> bool:
    """Whether this is the first line of the era without record types."""
    if string(value.get("id")) is None or "timestamp" not in value:
        return False
    return not any(isinstance(value.get(key), str) for key in ("type", "role", "record_type"))


def history_entry(value: Payload) -> Prompt | None:
    """One line of ``history.jsonl``."""
    text, session = string(value.get("text")), word(value.get("session_id"))
    if text is None or session is None or "ts" not in value or "payload" in value:
        return None
    return Prompt(text, moment(value["ts"]), session)


def index_entry(value: Payload) -> SessionDraft | None:
    """One line of ``session_index.jsonl``."""
    thread, name = word(value.get("id")), string(value.get("thread_name"))
    title = one_line(name) if name else None
    if thread is None or title is None:
        return None
    return SessionDraft(thread, title=title, title_rank=NAME_RANK)


def adopt(session: SessionDraft, header: Payload) -> None:
    """Fill a session from its header. What is known already stays."""
    session.cwd = session.cwd or word(header.get("cwd"))
    session.branch = session.branch or word(mapping(header.get("git")).get("branch"))
    version = word(header.get("cli_version")) or word(header.get("version"))
    session.client_version = session.client_version or version
    if session.relation is None:
        _relate(session, header)
    widen(session, moment(header.get("timestamp")))


def _relate(session: SessionDraft, header: Payload) -> None:
    own, root = word(header.get("id")), word(header.get("session_id"))
    forked, parent = word(header.get("forked_from_id")), word(header.get("parent_thread_id"))
    source = mapping(header.get("source"))
    spawned = mapping(mapping(source.get("subagent")).get("thread_spawn"))
    parent = parent or word(spawned.get("parent_thread_id"))
    root = root if own and root != own else None
    base = word(mapping(header.get("history_base")).get("thread_id"))
    # A subagent may start from a copy of its parent's history; it is a subagent all the same.
    if source.get("subagent"):
        session.relation, session.parent_id = "subagent", parent or forked or root
    elif forked or (base and base != own):
        session.relation, session.parent_id = "fork", forked or base
    elif parent or root:
        session.relation, session.parent_id = "subagent", parent or root


def widen(session: SessionDraft, ts: datetime | None) -> None:
    """Let a session last at least from and until ``ts``."""
    if ts is None:
        return
    session.started_at = min(session.started_at or ts, ts)
    session.ended_at = max(session.ended_at or ts, ts)


def session_state(session: SessionDraft) -> dict[str, Any]:
    """A session as JSON."""
    state: dict[str, Any] = {name: getattr(session, name) for name in (*_TEXTS, "title_rank")}
    for name in _DATES:
        value = getattr(session, name)
        state[name] = value.isoformat() if value else None
    return state


def restore_session(session: SessionDraft, state: Mapping[str, Any]) -> None:
    """The reverse of :func:`session_state`."""
    for name in (*_TEXTS, "title_rank"):
        setattr(session, name, state[name])
    for name in _DATES:
        setattr(session, name, parse_timestamp(state[name]))
