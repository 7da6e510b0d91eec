"""Search: one request, one answer that says what was asked, what was used, and what was seen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import psycopg

from recall.errors import UsageError
from recall.hygiene import clean
from recall_api.cursor import (
    SearchCursor,
    check_same_search,
    check_same_window,
    fingerprint,
    read_cursor,
)
from recall_api.filters import (
    Filters,
    clean_values,
    excluded_sessions,
    named_sessions,
    parse_when,
)
from recall_api.reading import Answer, Connection, utc_text
from recall_sql.connection import translate_errors
from recall_sql.loader import load

__all__ = ["Mode", "SearchRequest", "parse_when", "search"]

Mode = Literal["auto", "text", "exact", "regex"]

MOST_HITS = 200
MOST_QUERY_CHARS = 2_000
#: A statement ends by itself this long after the time that the search may take.
_GRACE_SECONDS = 2.0

_REASONS = {
    "no-words": "the query has no words",
    "only-excluded": "the query only says what to leave out",
    "depth": "only the newest 5,000 matches of each word were looked at",
}


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What to search for, and where. Values of one filter are alternatives."""

    query: str
    mode: Mode = "auto"
    limit: int = 20
    cursor: str | None = None
    sources: Sequence[str] = ()
    hosts: Sequence[str] = ()
    projects: Sequence[str] = ()
    roles: Sequence[str] = ()
    kinds: Sequence[str] = ()
    tools: Sequence[str] = ()
    sessions: Sequence[str] = ()
    since: datetime | str | None = None
    until: datetime | str | None = None
    ignore_case: bool = False
    exclude_sessions: Sequence[str] = ()
    include_retracted: bool = False


@dataclass(frozen=True, slots=True)
class _Plan:
    """A request that was checked: what to run, from where, and within which time."""

    query: str
    mode: str
    ignore_case: bool
    limit: int
    filters: Filters
    place: SearchCursor
    deadline: float

    def search_name(self) -> str:
        """The fingerprint that binds a cursor to this search. The window is checked apart."""
        kept = self.filters.values()
        window = [kept.pop("since") is None, kept.pop("until") is None]
        return fingerprint([self.query, self.mode, self.ignore_case, sorted(kept.items()), window])


@dataclass(slots=True)
class _Found:
    """What one mode found; ``next`` is where it goes on."""

    hits: list[Answer]
    next: SearchCursor | None
    reasons: list[str]
    degraded: bool = False


def search(conn: Connection, request: SearchRequest, *, budget_seconds: float) -> Answer:
    """Search the store.

    ``auto`` searches by words and, where they find nothing, for the query as an exact text. An
    answer that the time limit cut short is ``degraded``; its cursor goes on from there. Raises
    :class:`UsageError` for what cannot be searched and :class:`NotFoundError` for a session that
    is not in the store.
    """
    started = time.monotonic()
    with translate_errors(), conn.transaction():
        plan = _plan(conn, request, started + budget_seconds)
        found = _run(conn, plan)
        if request.mode == "auto" and request.cursor is None and _is_empty(found):
            plan, found = _run_as_exact(conn, plan, found)
        coverage = _one(conn, "coverage", {})
    return {
        "query": request.query,
        "mode_requested": request.mode,
        "mode_used": plan.mode,
        "degraded": found.degraded,
        "reasons": found.reasons,
        "coverage": _with_times(coverage),
        "hits": found.hits,
        "next_cursor": found.next.encode(plan.search_name()) if found.next else None,
        "took_ms": round((time.monotonic() - started) * 1000, 1),
    }


def _plan(conn: Connection, request: SearchRequest, deadline: float) -> _Plan:
    query = clean(request.query)[0]
    if not 1 <= len(query) <= MOST_QUERY_CHARS:
        raise UsageError(
            f"the query has {len(query)} characters; 1 to {MOST_QUERY_CHARS} are possible",
            hint="search for a part of the text" if query else None,
        )
    if not 1 <= request.limit <= MOST_HITS:
        raise UsageError(f"`limit` is {request.limit}; 1 to {MOST_HITS} are possible")
    if request.mode not in get_args(Mode):
        raise UsageError(f"no such mode: `{request.mode}`")
    now = datetime.now(UTC)
    filters = _filters(conn, request, now)
    place = SearchCursor(
        mode="text" if request.mode == "auto" else request.mode,
        first_asked=now,
        since=filters.since,
        until=filters.until,
    )
    if request.cursor is None:
        return _Plan(
            query, place.mode, request.ignore_case, request.limit, filters, place, deadline
        )
    place, search_name = read_cursor(request.cursor)
    check_same_window(place, filters.since, filters.until, now)
    filters = replace(filters, since=place.since, until=place.until)
    as_exact = request.mode == "auto" and place.mode == "exact"
    plan = _Plan(
        _unquoted(query) if as_exact else query,
        place.mode,
        request.ignore_case or as_exact,
        request.limit,
        filters,
        place,
        deadline,
    )
    allowed = ("text", "exact") if request.mode == "auto" else (request.mode,)
    check_same_search(plan.search_name() if place.mode in allowed else "", search_name)
    return plan


def _filters(conn: Connection, request: SearchRequest, now: datetime) -> Filters:
    names = ("sources", "hosts", "projects", "roles", "kinds", "tools", "sessions")
    lists = {
        name: clean_values(name, getattr(request, name)) for name in (*names, "exclude_sessions")
    }
    lists["sessions"] = named_sessions(conn, lists["sessions"])
    lists["exclude_sessions"] = excluded_sessions(conn, lists["exclude_sessions"])
    return Filters(
        **lists,
        since=_when(request.since, now),
        until=_when(request.until, now),
        include_retracted=request.include_retracted,
    )


def _when(given: datetime | str | None, now: datetime) -> datetime | None:
    if isinstance(given, str):
        return parse_when(given, now)
    return given.replace(tzinfo=UTC) if given and given.tzinfo is None else given


def _run_as_exact(conn: Connection, plan: _Plan, empty: _Found) -> tuple[_Plan, _Found]:
    """The same query as an exact text, after its words found nothing."""
    place = replace(plan.place, mode="exact", skip=0)
    exact = replace(plan, query=_unquoted(plan.query), mode="exact", ignore_case=True, place=place)
    found = _run(conn, exact)
    told = "no message has these words" if not empty.reasons else empty.reasons[0]
    found.reasons = [f"{told}; searched for the exact text, ignoring case", *found.reasons]
    return exact, found


def _is_empty(found: _Found) -> bool:
    return not found.hits and not found.degraded


def _unquoted(query: str) -> str:
    """What a query that is one quoted phrase says."""
    inner = query.strip()[1:-1]
    if query.strip() == f'"{inner}"' and inner and '"' not in inner:
        return inner
    return query


def _run(conn: Connection, plan: _Plan) -> _Found:
    """Run one mode; a statement that ran out of time is an empty degraded answer."""
    budget = max(0.0, plan.deadline - time.monotonic())
    values = {
        "q": plan.query,
        "limit": plan.limit,
        "skip": plan.place.skip,
        "ignore_case": plan.ignore_case,
        "before_ts": plan.place.ts,
        "before_id": plan.place.id,
        "budget": budget,
        **plan.filters.values(),
    }
    limit = {"milliseconds": str(round((budget + _GRACE_SECONDS) * 1000))}
    try:
        with conn.transaction():
            conn.execute(load("search")["limit_time"], limit)
            answer = _one(conn, plan.mode, values)
    except psycopg.errors.InvalidRegularExpression as error:
        raise UsageError(str(error.diag.message_primary)) from None
    except psycopg.errors.QueryCanceled:
        reason = "the time was over before anything was found; narrow the search with filters"
        return _Found([], None, [reason], degraded=True)
    hits = [_with_times(hit) for hit in answer["hits"]]
    return _Found(hits, _next(plan, answer), _reasons(answer), answer["reason"] == "budget")


def _next(plan: _Plan, answer: Answer) -> SearchCursor | None:
    if not answer["more"]:
        return None
    if plan.mode == "text":
        return replace(plan.place, skip=plan.place.skip + len(answer["hits"]))
    ts = answer["next_ts"]
    return replace(
        plan.place, ts=datetime.fromisoformat(ts) if ts else None, id=int(answer["next_id"])
    )


def _reasons(answer: Answer) -> list[str]:
    reasons = []
    if answer["reason"] == "budget":
        back_to = answer["scanned_to"]
        moment = utc_text(datetime.fromisoformat(back_to)) if back_to else "the newest messages"
        reasons.append(
            f"searched back to {moment}; narrow with `since` or other filters, or raise the timeout"
        )
    elif answer["reason"] is not None:
        reasons.append(_REASONS[answer["reason"]])
    if answer.get("left_out"):
        reasons.append(f"{answer['left_out']} of the more common words were not looked for")
    return reasons


def _one(conn: Connection, name: str, values: dict[str, Any]) -> Answer:
    row = conn.execute(load("search")[name], values).fetchone()
    assert row is not None, "a function without a set gives one row"
    answer: Answer = row[0]
    return answer


def _with_times(value: Any) -> Any:
    """The same JSON with its times as every answer writes them."""
    if isinstance(value, list):
        return [_with_times(item) for item in value]
    if not isinstance(value, dict):
        return value
    times = ("ts", "newest", "last_read")
    return {
        name: utc_text(datetime.fromisoformat(item))
        if name in times and item is not None
        else _with_times(item)
        for name, item in value.items()
    }
