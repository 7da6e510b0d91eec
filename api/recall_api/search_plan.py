"""A request that was checked: what to search for, where, from which place, and in which time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, get_args

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
from recall_api.query_vectors import QueryVectors
from recall_api.reading import Answer, Connection

Mode = Literal["auto", "text", "exact", "regex", "semantic", "hybrid"]

MOST_HITS = 200
MOST_QUERY_CHARS = 2_000


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
    #: By meaning, only passages that are at least so similar.
    min_similarity: float | None = None
    #: Nothing instead of hits of which none is close to the query.
    strict: bool = False


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A request that was checked: what to run, from where, and within which time."""

    query: str
    mode: str
    ignore_case: bool
    limit: int
    filters: Filters
    place: SearchCursor
    deadline: float
    #: What the store tells about its vectors, and the model for queries; either may be missing.
    stored: Answer | None
    vectors: QueryVectors | None
    min_similarity: float | None = None

    def search_name(self) -> str:
        """The fingerprint that binds a cursor to this search. The window is checked apart."""
        kept = self.filters.values()
        window = [kept.pop("since") is None, kept.pop("until") is None]
        parts = [self.query, self.mode, self.ignore_case, sorted(kept.items()), window]
        return fingerprint(parts if self.min_similarity is None else [*parts, self.min_similarity])


def make_plan(
    conn: Connection,
    request: SearchRequest,
    deadline: float,
    stored: Answer | None,
    vectors: QueryVectors | None,
) -> SearchPlan:
    """Check a request. ``auto`` becomes the mode that the store is good for.

    Raises :class:`UsageError` for what cannot be searched, a cursor of another search included.
    """
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
        mode=_first_mode(stored, vectors) if request.mode == "auto" else request.mode,
        first_asked=now,
        since=filters.since,
        until=filters.until,
    )
    plan = SearchPlan(
        query,
        place.mode,
        request.ignore_case,
        request.limit,
        filters,
        place,
        deadline,
        stored,
        vectors,
        request.min_similarity,
    )
    if request.cursor is None:
        return plan
    place, search_name = read_cursor(request.cursor)
    check_same_window(place, filters.since, filters.until, now)
    plan = replace(
        plan,
        mode=place.mode,
        filters=replace(filters, since=place.since, until=place.until),
        place=place,
    )
    if request.mode == "auto" and place.mode == "exact":
        plan = replace(plan, query=unquoted(query), ignore_case=True)
    allowed = ("text", "exact", "hybrid") if request.mode == "auto" else (request.mode,)
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


def _first_mode(stored: Answer | None, vectors: QueryVectors | None) -> str:
    return "hybrid" if stored and stored["passages"] and vectors else "text"


def unquoted(query: str) -> str:
    """What a query that is one quoted phrase says."""
    inner = query.strip()[1:-1]
    if query.strip() == f'"{inner}"' and inner and '"' not in inner:
        return inner
    return query
