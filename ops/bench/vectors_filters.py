"""The filters of the vector benchmark, as a request and as a condition in SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ops.bench.search_corpus import NEWEST, TINY_SOURCE
from ops.bench.search_store import Connection

_MONTH = NEWEST - timedelta(days=30)
_LARGEST, _TENTH = "/home/dev/project-0", "/home/dev/project-10"


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter: its values by the name in ``api.search_semantic``, and the same as SQL."""

    name: str
    values: Mapping[str, Any]
    condition: str


def filters(conn: Connection) -> list[Filter]:
    """From none to one that lets nothing through. The store tells of a session of about 50 rows."""
    row = conn.execute(
        "select session_key from recall.passage group by session_key"
        " order by abs(count(*) - 50), session_key limit 1"
    ).fetchone()
    assert row is not None, "the store has sessions"
    month = f"p.ts >= '{_MONTH}'"
    quarter = NEWEST - timedelta(days=90)
    old = (NEWEST - timedelta(days=400), NEWEST - timedelta(days=370))
    never = NEWEST - timedelta(days=900)
    return [
        Filter("none", {}, "true"),
        Filter("broad source", {"sources": ["claude-code"]}, "p.source = 'claude-code'"),
        Filter("tiny source", {"sources": [TINY_SOURCE]}, f"p.source = '{TINY_SOURCE}'"),
        Filter("source 2", {"sources": ["codex"]}, "p.source = 'codex'"),
        Filter("session", {"sessions": [row[0]]}, f"p.session_key = '{row[0]}'"),
        Filter("project 10", {"projects": [_TENTH]}, f"p.project = '{_TENTH}'"),
        Filter("project 0", {"projects": [_LARGEST]}, f"p.project = '{_LARGEST}'"),
        Filter("role user", {"roles": ["user"]}, "p.role = 'user'"),
        Filter("last 30 d", {"since": _MONTH}, month),
        Filter(
            "old 30 d", {"since": old[0], "until": old[1]},
            f"p.ts >= '{old[0]}' and p.ts < '{old[1]}'",
        ),
        Filter(
            "project 10, user, 90 d", {"projects": [_TENTH], "roles": ["user"], "since": quarter},
            f"p.project = '{_TENTH}' and p.role = 'user' and p.ts >= '{quarter}'",
        ),
        Filter(
            "project 0, 30 d", {"projects": [_LARGEST], "since": _MONTH},
            f"p.project = '{_LARGEST}' and {month}",
        ),
        Filter("empty", {"sources": [TINY_SOURCE], "until": never},
               f"p.source = '{TINY_SOURCE}' and p.ts < '{never}'"),
    ]  # fmt: skip
