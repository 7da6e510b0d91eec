"""What a search may be narrowed to, and the times that people type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from recall.errors import NotFoundError, UsageError
from recall.hygiene import clean
from recall_api.reading import Connection
from recall_api.sessions import resolve_session

#: Values of one filter, at most.
MOST_VALUES = 50

_AGE = re.compile(r"(\d{1,9})\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters as the SQL functions take them: cleaned, and sessions by their whole key."""

    sources: Sequence[str] = ()
    hosts: Sequence[str] = ()
    projects: Sequence[str] = ()
    roles: Sequence[str] = ()
    kinds: Sequence[str] = ()
    tools: Sequence[str] = ()
    sessions: Sequence[str] = ()
    exclude_sessions: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    include_retracted: bool = False

    def values(self) -> dict[str, Any]:
        """Parameters of the search queries; an empty list is no filter."""
        return {
            "sources": list(self.sources) or None,
            "hosts": list(self.hosts) or None,
            "projects": list(self.projects) or None,
            "roles": list(self.roles) or None,
            "kinds": list(self.kinds) or None,
            "tools": list(self.tools) or None,
            "sessions": list(self.sessions) or None,
            "exclude_sessions": list(self.exclude_sessions) or None,
            "since": self.since,
            "until": self.until,
            "include_retracted": self.include_retracted,
        }


def parse_when(text: str, now: datetime) -> datetime:
    """A moment from a date, an ISO time, or an age such as ``7d`` before ``now``.

    A time without a zone is in the zone of ``now``; a date is its first moment.
    """
    given = text.strip()
    try:
        if match := _AGE.fullmatch(given.lower()):
            return now - timedelta(**{_UNITS[match[2]]: int(match[1])})
        moment = datetime.fromisoformat(given)
        return moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)
    except (ValueError, OverflowError):
        raise UsageError(
            f"not a time: `{clean(given)[0][:80]}`",
            hint="give a date (2026-08-01), a time (2026-08-01T12:00) or an age (30m, 12h, 7d, 2w)",
        ) from None


def clean_values(name: str, values: Sequence[str]) -> tuple[str, ...]:
    """The values of a filter as text that the database accepts."""
    if len(values) > MOST_VALUES:
        raise UsageError(f"`{name}` has {len(values)} values; at most {MOST_VALUES} are possible")
    return tuple(clean(value)[0] for value in values)


def named_sessions(connection: Connection, references: Sequence[str]) -> tuple[str, ...]:
    """The keys of sessions to search in; each reference has to name one session."""
    return tuple(resolve_session(connection, reference) for reference in references)


def excluded_sessions(connection: Connection, references: Sequence[str]) -> tuple[str, ...]:
    """The keys of sessions to leave out. The one that asks may not be stored yet."""
    keys = []
    for reference in references:
        try:
            keys.append(resolve_session(connection, reference))
        except NotFoundError:
            keys.append(reference)
    return tuple(keys)
