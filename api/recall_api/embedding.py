"""How far the passages are: what has a vector, what waits, and for how long at this speed."""

from __future__ import annotations

from recall_api.reading import Answer, Connection, fetch
from recall_sql.loader import load

#: From this many rows on, the number of passages is the planner's estimate and not counted.
_ESTIMATE_FROM = 500_000
#: Passages that an entry gives, until enough of them are cut to know.
_FIRST_GUESS = 0.5
_KNOWN_FROM = 1_000


def list_embedding(
    connection: Connection, *, entries: int, components: list[Answer]
) -> list[Answer]:
    """Each generation that is active or being filled, the active one first.

    ``entries`` is how many entries are stored, ``components`` are the signs of life. What is not
    cut yet is estimated from what was cut; ``eta_seconds`` is null while nothing moves.
    """
    rate = sum(_rate(row) for row in components)
    rows = fetch(connection, load("status")["embedding"], {"estimate_from": _ESTIMATE_FROM})
    for row in rows:
        cut = row["embedded"] + row["waiting"]
        read = entries - row["uncut_entries"]
        each = cut / read if cut >= _KNOWN_FROM and read > 0 else _FIRST_GUESS
        left = row["waiting"] + round(row["uncut_entries"] * each)
        total = row["embedded"] + left
        row["remaining"] = left
        row["share"] = round(row["embedded"] / total, 4) if total else 1.0
        row["passages_per_minute"] = round(rate, 1)
        row["eta_seconds"] = round(left / rate * 60) if rate and left else None if left else 0
    return rows


def is_well(component: Answer) -> bool:
    """Whether a component that was heard of says that it gets on."""
    detail = component["detail"]
    return not (isinstance(detail, dict) and detail.get("ok") is False)


def reasons(component: Answer) -> list[str]:
    """Why it does not."""
    detail = component["detail"]
    given = detail.get("reasons") if isinstance(detail, dict) else None
    return [str(reason) for reason in given] if isinstance(given, list) else []


def _rate(component: Answer) -> float:
    detail = component["detail"]
    if component["component"] != "embedder" or component["stale"] or not isinstance(detail, dict):
        return 0.0
    rate = detail.get("passages_per_minute")
    return float(rate) if isinstance(rate, int | float) else 0.0
