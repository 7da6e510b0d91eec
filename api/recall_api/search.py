"""Search: one request, one answer that says what was asked, what was used, and what was seen."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import psycopg

from recall.errors import ModelError, UsageError
from recall_api.closeness import Closeness
from recall_api.cursor import SearchCursor
from recall_api.filters import parse_when
from recall_api.fusion import fuse
from recall_api.query_vectors import QueryVectors
from recall_api.reading import Answer, Connection, utc_text, with_times
from recall_api.search_plan import Mode, SearchPlan, SearchRequest, make_plan, unquoted
from recall_sql.connection import translate_errors
from recall_sql.loader import load

__all__ = ["Mode", "SearchRequest", "parse_when", "search"]

#: A statement ends by itself this long after the time that the search may take.
_GRACE_SECONDS = 2.0

_ONLY_NEAR = "no message has these words or this text; these are near in meaning"
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


@dataclass(slots=True)
class _Found:
    """What one mode found; ``next`` is where it goes on."""

    hits: list[Answer]
    next: SearchCursor | None
    reasons: list[str]
    degraded: bool = False
    #: What was used instead of the mode that was asked for.
    used: str | None = None
    #: Whether no message has the words; what was found, if anything, is near in meaning.
    only_near: bool = False
    #: Of the first page by words or meaning.
    closeness: Closeness = field(default_factory=Closeness)


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
        plan = make_plan(conn, request, started + budget_seconds, stored, vectors)
        found = _run(conn, plan)
        if request.mode == "auto" and request.cursor is None and _has_no_words(found):
            plan, found = _run_as_exact(conn, plan, found)
        coverage = {**_one(conn, "coverage", {}), "vectors": stored}
    mode_used = found.used or plan.mode
    weak = _is_weak(found, mode_used, stored)
    found.reasons += _unheeded(request, found, mode_used, weak, stored)
    if weak and request.strict:
        found.hits, found.next = [], None
        found.reasons = [reason for reason in found.reasons if reason != _ONLY_NEAR]
    return {
        "query": request.query,
        "mode_requested": request.mode,
        "mode_used": mode_used,
        "degraded": found.degraded,
        "reasons": found.reasons,
        "weak": weak,
        "weak_reason": found.closeness.told() if weak else None,
        "closeness": found.closeness.as_json(),
        "coverage": with_times(coverage),
        "hits": found.hits,
        "next_cursor": found.next.encode(plan.search_name()) if found.next else None,
        "took_ms": round((time.monotonic() - started) * 1000, 1),
    }


def _is_weak(found: _Found, mode: str, stored: Answer | None) -> bool | None:
    """Whether no hit is close to the query; ``None`` where that cannot be told."""
    if not found.hits or mode in ("exact", "regex"):
        return False
    return found.closeness.is_weak(stored["model"] if stored else None)


def _unheeded(
    request: SearchRequest, found: _Found, mode: str, weak: bool | None, stored: Answer | None
) -> list[str]:
    """Which wishes made no difference, and which one left nothing."""
    reasons = []
    if request.min_similarity is not None and mode not in ("semantic", "hybrid"):
        reasons.append("`min_similarity` changes nothing, as meaning was not searched")
    elif found.closeness.none_near:
        reasons.append(f"no passage has a similarity of {request.min_similarity:g} or more")
    if request.strict and weak is None and found.closeness.meaning is not None and stored:
        reasons.append(
            f"`strict` changes nothing, as it is not known what is near for `{stored['model']}`"
        )
    return reasons


def _run_as_exact(conn: Connection, plan: SearchPlan, empty: _Found) -> tuple[SearchPlan, _Found]:
    """The same query as an exact text, after its words found nothing."""
    place = replace(plan.place, mode="exact", skip=0)
    exact = replace(plan, query=unquoted(plan.query), mode="exact", ignore_case=True, place=place)
    found = _run(conn, exact)
    if empty.only_near and not found.hits:
        empty.reasons.append(
            _ONLY_NEAR if empty.hits else "no message has these words or this text"
        )
        return plan, empty
    told = "no message has these words" if not empty.reasons else empty.reasons[0]
    found.reasons = [f"{told}; searched for the exact text, ignoring case", *found.reasons]
    return exact, found


def _has_no_words(found: _Found) -> bool:
    return found.only_near or (not found.hits and not found.degraded)


def _run(conn: Connection, plan: SearchPlan) -> _Found:
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


def _query_vector(plan: SearchPlan) -> list[float]:
    if plan.vectors is None:
        raise ModelError("this door has no model for queries")
    if not plan.stored or not plan.stored["passages"]:
        raise ModelError("there are no vectors yet")
    return plan.vectors.of(plan.query, plan.stored["model"])


def _in_full(conn: Connection, plan: SearchPlan, page: list[Answer]) -> list[Answer]:
    """The hits of a page with everything that an answer says of them."""
    by_text = [int(hit["id"]) for hit in page if "text" in hit["ranks"]]
    places = [{"id": hit["id"], **hit["passage"]} for hit in page if "text" not in hit["ranks"]]
    values = {"q": plan.query, "by_text": by_text, "places": json.dumps(places)}
    with conn.transaction():
        full = {hit["id"]: hit for hit in _one(conn, "full_hits", values)}
    return [{**with_times(full[hit["id"]]), **hit} for hit in page if hit["id"] in full]


def _run_near(
    conn: Connection, plan: SearchPlan, wanted: list[float], *, brief: bool = False
) -> _Found:
    stored = plan.stored or {}
    more = {
        "query_vector": wanted,
        "model": stored.get("model"),
        "least_similarity": plan.min_similarity,
        "brief": brief,
    }
    found = _run_statement(conn, plan, "semantic", more)
    if not plan.place.skip:
        nearest = found.hits[0]["score"] if found.hits else None
        none_near = nearest is None and plan.min_similarity is not None and not found.degraded
        found.closeness = Closeness(meaning=nearest, none_near=none_near)
    return found


def _run_hybrid(conn: Connection, plan: SearchPlan, wanted: list[float]) -> _Found:
    """Both searches as deep as needed, and their lists fused."""
    end = plan.place.skip + plan.limit
    depth = _FUSED_HITS if end * 2 <= _FUSED_HITS else _MOST_FUSED_HITS
    deep = replace(plan, limit=depth, place=replace(plan.place, skip=0))
    text = _run_statement(conn, deep, "text", {"brief": True})
    near = _run_near(conn, deep, wanted, brief=True)
    fused = fuse(text.hits, near.hits)
    page = _in_full(conn, plan, fused[plan.place.skip : end])
    following = replace(plan.place, skip=end) if len(fused) > end else None
    cut_short = text.degraded or near.degraded
    closeness = replace(near.closeness, words=text.closeness.words)
    return _Found(
        page,
        following,
        text.reasons + near.reasons,
        degraded=cut_short,
        only_near=not text.hits and not text.degraded,
        # Of one that ran out of time, nothing is known: it might have found what is close.
        closeness=closeness if plan.place.skip == 0 and not cut_short else Closeness(),
    )


def _run_statement(
    conn: Connection, plan: SearchPlan, name: str, more: Mapping[str, Any] | None = None
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
    return _Found(
        hits,
        _next(plan, answer, name),
        _reasons(answer),
        answer["reason"] == "budget",
        closeness=Closeness(answer.get("held")),
    )


def _next(plan: SearchPlan, answer: Answer, name: str) -> SearchCursor | None:
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
