"""What one pass did, in numbers that add up."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from recall_ingester.checkpoint import Counts


@dataclass(slots=True)
class Summary:
    """One pass. ``stored + merged + quarantined + skipped == lines_seen``, all in lines.

    ``messages`` counts rows written (new or changed), ``sessions`` the sessions they belong to,
    ``retired`` messages that a client took back; they are kept and left out of search.
    ``raw_bytes`` is the size of the original bytes that were new to the store, as it keeps them.
    """

    files_seen: int = 0
    files_opened: int = 0
    bytes_read: int = 0
    lines_seen: int = 0
    stored: int = 0
    merged: int = 0
    quarantined: int = 0
    skipped: int = 0
    messages: int = 0
    retired: int = 0
    raw_bytes: int = 0
    sessions: int = 0
    seconds: float = 0.0
    unreadable: dict[str, str] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)

    def add(self, counts: Counts) -> None:
        """Add the lines of a piece of a file."""
        self.lines_seen += counts.seen
        self.stored += counts.stored
        self.merged += counts.merged
        self.quarantined += counts.quarantined
        self.skipped += counts.skipped

    def as_json(self) -> dict[str, Any]:
        """For ``--json`` and the heartbeat."""
        return asdict(self)
