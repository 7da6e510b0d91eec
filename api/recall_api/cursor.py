"""Where the next page of a search begins, bound to the search that it belongs to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from recall.errors import UsageError
from recall_api.reading import decode_cursor, encode_cursor

_MOST_SKIPPED = 1_000_000
_LARGEST_ID = (1 << 63) - 1
#: Two clocks, or one that was set, may differ by this much.
_SLACK = timedelta(seconds=5)
_TEXT_OR_NONE = (str, type(None))


@dataclass(frozen=True, slots=True)
class SearchCursor:
    """A place in the answer of one search.

    A text search goes on behind ``skip`` hits, a scan behind the message ``(ts, id)``. The window
    of the first page is kept, because an age such as "7d" would move it from page to page.
    """

    mode: str
    first_asked: datetime
    since: datetime | None = None
    until: datetime | None = None
    skip: int = 0
    ts: datetime | None = None
    id: int | None = None

    def encode(self, search: str) -> str:
        """The cursor as one opaque word; ``search`` is :func:`fingerprint`."""
        times = (self.first_asked, self.since, self.until, self.ts)
        texts = [moment.isoformat() if moment else None for moment in times]
        place = str(self.id) if self.id is not None else None
        return encode_cursor(search, self.mode, self.skip, place, *texts)


def fingerprint(parts: Sequence[Any]) -> str:
    """A short hash of everything that makes a search what it is."""
    raw = json.dumps(parts, ensure_ascii=True).encode()
    return hashlib.blake2b(raw, digest_size=9).hexdigest()


def read_cursor(text: str) -> tuple[SearchCursor, str]:
    """The cursor and the fingerprint of its search; :class:`UsageError` for anything else."""
    kinds = [(str,), (str,), (int,), _TEXT_OR_NONE, (str,), *[_TEXT_OR_NONE] * 3]
    search, mode, skip, place, *texts = decode_cursor(text, kinds)
    try:
        first_asked, since, until, ts = (_moment(text) for text in texts)
        identity = int(place) if place is not None else None
    except ValueError:
        raise _foreign() from None
    if first_asked is None or not 0 <= skip <= _MOST_SKIPPED:
        raise _foreign()
    if identity is not None and not 0 <= identity <= _LARGEST_ID:
        raise _foreign()
    if identity is None and ts is not None:
        raise _foreign()
    return SearchCursor(mode, first_asked, since, until, skip, ts, identity), search


def check_same_window(
    cursor: SearchCursor, since: datetime | None, until: datetime | None, now: datetime
) -> None:
    """Refuse a cursor whose window is not the one asked for, also if an age has moved it since."""
    passed = now - cursor.first_asked
    for asked, kept in ((since, cursor.since), (until, cursor.until)):
        if (asked is None) != (kept is None):
            raise _foreign()
        if asked and kept and not -_SLACK <= asked - kept <= passed + _SLACK:
            raise _foreign()


def check_same_search(expected: str, search: str) -> None:
    """Refuse a cursor of another search."""
    if expected != search:
        raise _foreign()


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return moment


def _foreign() -> UsageError:
    return UsageError(
        "this cursor belongs to another search",
        hint="repeat the query and filters that gave it, or start without a cursor",
    )
