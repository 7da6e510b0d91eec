"""One answer out of two: by words and by meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: How much the similarity of a hit counts beside its text score. Tuned on one half of ops/eval and
#: checked on the other (docs/quality.md).
MEANING_WEIGHT = 1.3


def fuse(
    text: Sequence[dict[str, Any]],
    meaning: Sequence[dict[str, Any]],
    *,
    meaning_weight: float = MEANING_WEIGHT,
) -> list[dict[str, Any]]:
    """Hits of both lists, each message once, best first.

    A hit's score is its text score as a share of the best one, plus the weighted cosine similarity
    of its passage. It takes more from the lists than their order: a text that has all the rare
    words of a query stays first although nothing near it in meaning is embedded, which a fusion of
    ranks would put behind whatever stands in both lists. ``ranks`` tells a hit's place and score in
    each list. A message and its copy are the same hit; the snippet of the text search is kept,
    because it marks the words.
    """
    fused: dict[str, dict[str, Any]] = {}
    places: dict[str, str] = {}
    best = max((hit["score"] or 0.0 for hit in text), default=0.0) or 1.0
    for name, scale, hits in (
        ("text", 1.0 / best, text), ("semantic", meaning_weight, meaning),
    ):  # fmt: skip
        for rank, hit in enumerate(hits, 1):
            key = places.get(hit["id"], hit["id"])
            if key not in fused:
                fused[key] = {**hit, "score": 0.0, "ranks": {}}
            target = fused[key]
            if name in target["ranks"]:
                continue
            target["ranks"][name] = {"rank": rank, "score": hit["score"]}
            target["score"] += scale * max(0.0, hit["score"] or 0.0)
            target["passage"] = target["passage"] or hit["passage"]
            places[hit["id"]] = key
            for other in hit["occurrences"]:
                places.setdefault(other["id"], key)
    ordered = sorted(fused.values(), key=_order)
    for hit in ordered:
        hit["score"] = round(hit["score"], 4)
    return ordered


def _order(hit: dict[str, Any]) -> tuple[Any, ...]:
    best = min(place["rank"] for place in hit["ranks"].values())
    return (-hit["score"], best, hit["id"])
