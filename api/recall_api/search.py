"""Search: one request, one answer that says what was asked, what was used, and what was seen."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import psycopg

from recall.errors import ModelError, UsageError
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
from recall_api.fusion import fuse
from recall_api.query_vectors import QueryVectors
from recall_api.reading import Answer, Connection, utc_text, with_times
from recall_sql.connection import translate_errors
from recall_sql.loader import load

__all__ = ["Mode", "SearchRequest", "parse_when", "search"]

Mode = Literal["auto", "text", "exact", "regex", "semantic", "hybrid"]

MOST_HITS = 200
MOST_QUERY_CHARS = 2_000
#: A statement ends by itself this long after the time that the search may take.
_GRACE_SECONDS = 2.0

_REASONS = {
    "no-words": "the query has no words",
    "only-excluded": "the query only says what to leave out",
    "depth": "only the newest 5,000 matches of each word were looked at",
}
#: The modes that go on behind a number of hits. The others go on behind a message.
_COUNTED = ("text", "semantic", "hybrid")
#: How many hits of each search a hybrid answer is made of.
_FUSED_HITS = 50
_MOST_FUSED_HITS = 200


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
    #: What the store tells about its vectors, and the model for queries; either may be missing.
    stored: Answer | None
    vectors: QueryVectors | None

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
    #: What was used instead of the mode that was asked for.
    used: str | None = None
    #: Whether no message has the words, though some are near in meaning.
    only_near: bool = False


def search(
    conn: Connection,
    request: SearchRequest,
    *,
    budget_seconds: float,
    vectors: QueryVectors | None = None,
) -> Answer:
    """Search the store.

    ``auto`` searches by words and meaning where there are vectors, else by words; where no message
    has the words, it looks for the query as an exact text. An answer that the time limit cut short
    is ``degraded``; its cursor goes on from there. So is one by words in the place of one by
    meaning, which is given where ``vectors`` (the model for queries) or the store have none. Raises
    :class:`UsageError` for what cannot be searched and :class:`NotFoundError` for a session that
    is not in the store.
    """
    started = time.monotonic()
    with translate_errors(), conn.transaction():
        stored = _one(conn, "vector_coverage", {})
        plan = _plan(conn, request, started + budget_seconds, stored, vectors)
        found = _run(conn, plan)
        if request.mode == "auto" and request.cursor is None and _has_no_words(found):
            plan, found = _run_as_exact(conn, plan, found)
        coverage = {**_one(conn, "coverage", {}), "vectors": stored}
    return {
        "query": request.query,
        "mode_requested": request.mode,
        "mode_used": found.used or plan.mode,
        "degraded": found.degraded,
        "reasons": found.reasons,
        "coverage": with_times(coverage),
        "hits": found.hits,
        "next_cursor": found.next.encode(plan.search_name()) if found.next else None,
        "took_ms": round((time.monotonic() - started) * 1000, 1),
    }


def _plan(
    conn: Connection,
    request: SearchRequest,
    deadline: float,
    stored: Answer | None,
    vectors: QueryVectors | None,
) -> _Plan:
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
    if request.cursor is None:
        return _Plan(
            query,
            place.mode,
            request.ignore_case,
            request.limit,
            filters,
            place,
            deadline,
            stored,
            vectors,
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
        stored,
        vectors,
    )
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


def _run_as_exact(conn: Connection, plan: _Plan, empty: _Found) -> tuple[_Plan, _Found]:
    """The same query as an exact text, after its words found nothing."""
    place = replace(plan.place, mode="exact", skip=0)
    exact = replace(plan, query=_unquoted(plan.query), mode="exact", ignore_case=True, place=place)
    found = _run(conn, exact)
    if empty.only_near and not found.hits:
        empty.reasons.append("no message has these words or this text; these are near in meaning")
        return plan, empty
    told = "no message has these words" if not empty.reasons else empty.reasons[0]
    found.reasons = [f"{told}; searched for the exact text, ignoring case", *found.reasons]
    return exact, found


def _has_no_words(found: _Found) -> bool:
    return found.only_near or (not found.hits and not found.degraded)


def _unquoted(query: str) -> str:
    """What a query that is one quoted phrase says."""
    inner = query.strip()[1:-1]
    if query.strip() == f'"{inner}"' and inner and '"' not in inner:
        return inner
    return query


def _run(conn: Connection, plan: _Plan) -> _Found:
    """Run one mode, or what can stand for it."""
    if plan.mode not in ("semantic", "hybrid"):
        return _run_statement(conn, plan, plan.mode)
    try:
        wanted = _query_vector(plan)
    except ModelError as error:
        text = _run_statement(conn, plan, "text")
        text.used, text.degraded = "text", True
        text.reasons.insert(0, f"by words only: {error.message}")
        return text
    found = (
        _run_hybrid(conn, plan, wanted) if plan.mode == "hybrid" else _run_near(conn, plan, wanted)
    )
    if plan.stored and plan.stored["share"] < 1:
        found.degraded = True
        found.reasons.append(
            f"{float(plan.stored['share']):.0%} of the passages have vectors by now; by meaning, "
            "only those were searched"
        )
    return found


def _query_vector(plan: _Plan) -> list[float]:
    if plan.vectors is None:
        raise ModelError("this door has no model for queries")
    if not plan.stored or not plan.stored["passages"]:
        raise ModelError("there are no vectors yet")
    return plan.vectors.of(plan.query, plan.stored["model"])


def _in_full(conn: Connection, plan: _Plan, page: list[Answer]) -> list[Answer]:
    """The hits of a page with everything that an answer says of them."""
    by_text = [int(hit["id"]) for hit in page if "text" in hit["ranks"]]
    places = [{"id": hit["id"], **hit["passage"]} for hit in page if "text" not in hit["ranks"]]
    values = {"q": plan.query, "by_text": by_text, "places": json.dumps(places)}
    with conn.transaction():
        full = {hit["id"]: hit for hit in _one(conn, "full_hits", values)}
    return [{**with_times(full[hit["id"]]), **hit} for hit in page if hit["id"] in full]


def _run_near(conn: Connection, plan: _Plan, wanted: list[float], *, brief: bool = False) -> _Found:
    stored = plan.stored or {}
    more = {"query_vector": wanted, "model": stored.get("model"), "brief": brief}
    return _run_statement(conn, plan, "semantic", more)


def _run_hybrid(conn: Connection, plan: _Plan, wanted: list[float]) -> _Found:
    """Both searches as deep as needed, and their lists fused."""
    end = plan.place.skip + plan.limit
    depth = _FUSED_HITS if end * 2 <= _FUSED_HITS else _MOST_FUSED_HITS
    deep = replace(plan, limit=depth, place=replace(plan.place, skip=0))
    text = _run_statement(conn, deep, "text", {"brief": True})
    near = _run_near(conn, deep, wanted, brief=True)
    fused = fuse(text.hits, near.hits)
    page = _in_full(conn, plan, fused[plan.place.skip : end])
    following = replace(plan.place, skip=end) if len(fused) > end else None
    return _Found(
        page,
        following,
        text.reasons + near.reasons,
        degraded=text.degraded or near.degraded,
        only_near=not text.hits and not text.degraded,
    )


def _run_statement(
    conn: Connection, plan: _Plan, name: str, more: Mapping[str, Any] | None = None
) -> _Found:
    """One function of the database; one that ran out of time is an empty degraded answer."""
    budget = max(0.0, plan.deadline - time.monotonic())
    values = {
        "q": plan.query,
        "limit": plan.limit,
        "skip": plan.place.skip,
        "ignore_case": plan.ignore_case,
        "before_ts": plan.place.ts,
        "before_id": plan.place.id,
        "budget": budget,
        "brief": False,
        **plan.filters.values(),
        **(more or {}),
    }
    limit = {"milliseconds": str(round((budget + _GRACE_SECONDS) * 1000))}
    try:
        with conn.transaction():
            conn.execute(load("search")["limit_time"], limit)
            answer: Answer = _one(conn, name, values)
    except psycopg.errors.InvalidRegularExpression as error:
        raise UsageError(str(error.diag.message_primary)) from None
    except psycopg.errors.QueryCanceled:
        reason = "the time was over before anything was found; narrow the search with filters"
        return _Found([], None, [reason], degraded=True)
    hits = [{**with_times(hit), "passage": None, "ranks": None} for hit in answer["hits"]]
    for hit, place in zip(hits, answer.get("places", ()), strict=False):
        hit["passage"] = {"start_char": place["start_char"], "length": place["length"]}
    return _Found(hits, _next(plan, answer, name), _reasons(answer), answer["reason"] == "budget")


def _next(plan: _Plan, answer: Answer, name: str) -> SearchCursor | None:
    if not answer["more"]:
        return None
    if name in _COUNTED:
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
    elif answer["reason"] in _REASONS:
        reasons.append(_REASONS[answer["reason"]])
    if answer.get("left_out"):
        reasons.append(f"{answer['left_out']} of the more common words were not looked for")
    return reasons


def _one(conn: Connection, name: str, values: dict[str, Any]) -> Any:
    row = conn.execute(load("search")[name], values).fetchone()
    assert row is not None, "a function without a set gives one row"
    return row[0]
