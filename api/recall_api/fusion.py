"""One answer out of two: by words and by meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: How much the similarity of a hit counts beside its text score. Tuned on one half of ops/eval and
#: checked on the other (docs/quality.md).
MEANING_WEIGHT = 1.6

#: What a fused score is multiplied by, by the same tuning: a title repeats what a session is about,
#: a question is seldom its own answer, and what a tool printed is what was searched for.
KIND_WEIGHTS = {"summary": 0.8, "tool_result": 1.2}
USER_WEIGHT = 0.9


def fuse(
    text: Sequence[dict[str, Any]],
    meaning: Sequence[dict[str, Any]],
    *,
    meaning_weight: float = MEANING_WEIGHT,
) -> list[dict[str, Any]]:
    """Hits of both lists, each message once, best first.

    A hit has an ``id``, a ``score``, a ``role`` and a ``kind``, ``copy``, which it shares with its
    copies, and maybe a ``passage``. Its fused score is its text score as a share of the best one,
    plus the weighted cosine similarity of its passage. That takes more from the lists than their
    order: a text that has all the rare words of a query stays first although nothing near it in
    meaning is embedded, which a fusion of ranks would put behind whatever stands in both lists.
    ``ranks`` tells a hit's place and score in each list. A message and its copy are the same hit,
    under the id that the text search gave it.
    """
    fused: dict[str, dict[str, Any]] = {}
    best = max((hit["score"] or 0.0 for hit in text), default=0.0) or 1.0
    for name, scale, hits in (
        ("text", 1.0 / best, text), ("semantic", meaning_weight, meaning),
    ):  # fmt: skip
        for rank, hit in enumerate(hits, 1):
            key = f"copy {hit['copy']}" if hit["copy"] else hit["id"]
            target = fused.setdefault(
                key, {"id": hit["id"], "score": 0.0, "ranks": {}, "passage": None}
            )
            if name in target["ranks"]:
                continue
            target["ranks"][name] = {"rank": rank, "score": hit["score"]}
            target["score"] += scale * _weight(hit) * max(0.0, hit["score"] or 0.0)
            target["passage"] = target["passage"] or hit["passage"]
    ordered = sorted(fused.values(), key=_order)
    for hit in ordered:
        hit["score"] = round(hit["score"], 4)
    return ordered


def _weight(hit: dict[str, Any]) -> float:
    weight = KIND_WEIGHTS.get(hit["kind"], 1.0)
    return weight * USER_WEIGHT if hit["role"] == "user" else weight


def _order(hit: dict[str, Any]) -> tuple[Any, ...]:
    best = min(place["rank"] for place in hit["ranks"].values())
    return (-hit["score"], best, hit["id"])
