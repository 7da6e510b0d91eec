"""Asking a store every query of a set in one mode, through the search that everybody uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recall.errors import NotFoundError, RecallError, UsageError
from recall_api.evaluation.queries import Query, message_key
from recall_api.evaluation.scores import Judged, judge

#: Takes the parameters of ``GET /search`` and gives its answer.
Search = Callable[[Mapping[str, Any]], Mapping[str, Any]]
Progress = Callable[[int], None]

#: Hits of these kinds are no messages, and a label never means them.
_OTHER_KINDS = frozenset({"prompt", "ledger", "memory"})
#: This mode chooses among the others, so what it used is its answer and no fallback.
_CHOOSES = "auto"
_PROBE = "probe"


class ModeUnavailableError(UsageError):
    """The store cannot search in this mode."""

    def __init__(self, mode: str, reason: str) -> None:
        super().__init__(
            f"mode `{mode}` is not available: {reason}",
            hint="leave the mode out of `--mode`; without `--mode` it is only reported as missing",
        )
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one query got in one mode.

    ``keys`` has the first key of each hit; ``weak`` is what the answer says of itself.
    """

    query: Query
    judged: Judged
    keys: tuple[str, ...]
    best_score: float | None
    degraded: bool
    weak: bool = False


def require_mode(search: Search, mode: str) -> None:
    """Raise :class:`ModeUnavailableError` if the store would refuse the mode or use another one."""
    try:
        answer = search({"q": _PROBE, "mode": mode, "limit": 1})
    except UsageError as error:
        raise ModeUnavailableError(mode, error.message) from None
    _require_used(answer, mode)


def run_mode(
    search: Search, queries: Sequence[Query], mode: str, k: int, progress: Progress | None = None
) -> list[Outcome]:
    """Ask every query for ``k`` hits.

    A mode that falls back to another one in the middle is not available: scores of two modes under
    the name of one would mean nothing.
    """
    outcomes = []
    for query in queries:
        answer = search({"q": query.text, "mode": mode, "limit": k, **query.filters})
        _require_used(answer, mode)
        outcomes.append(_outcome(query, answer))
        if progress:
            progress(1)
    return outcomes


def missing_sessions(session: Callable[[str], object], queries: Sequence[Query]) -> set[str]:
    """The sessions that labels name and the store does not have, as ``<source>:<external id>``."""
    missing = set()
    for name in sorted(set().union(*(query.sessions() for query in queries))):
        try:
            session(name.partition(":")[2])
        except NotFoundError:
            missing.add(name)
        except RecallError as error:
            if error.retryable or not isinstance(error, UsageError):
                raise  # else several machines have a session of this id, so it is there
    return missing


def _require_used(answer: Mapping[str, Any], mode: str) -> None:
    used = answer["mode_used"]
    if mode not in (used, _CHOOSES):
        reasons = "; ".join(answer["reasons"]) or "the store did not say why"
        raise ModeUnavailableError(mode, f"the answer came from `{used}` ({reasons})")


def _outcome(query: Query, answer: Mapping[str, Any]) -> Outcome:
    hits = answer["hits"]
    names = [_keys(hit) for hit in hits]
    scores = [hit["score"] for hit in hits if hit.get("score") is not None]
    return Outcome(
        query,
        judge(names, query.relevant),
        tuple(keys[0] if keys else "" for keys in names),
        max(scores, default=None),
        bool(answer["degraded"]),
        bool(answer.get("weak")),
    )


def _keys(hit: Mapping[str, Any]) -> list[str]:
    """How labels may name a hit: as this part, as the whole record, and so for each of its copies.

    Hits that are no messages have no name.
    """
    if hit["kind"] in _OTHER_KINDS or hit["session_key"] is None:
        return []
    keys = []
    for place in (hit, *hit["occurrences"]):
        session, ordinal = place["session_key"], place["ordinal"]
        keys.append(message_key(session, ordinal, place["part"]))
        keys.append(message_key(session, ordinal, None))
    return keys
