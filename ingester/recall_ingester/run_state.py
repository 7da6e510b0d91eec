"""What the workers of one pass share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock

from recall import __version__
from recall_ingester.checkpoint import Checkpoint
from recall_ingester.plan import Claims, Work
from recall_ingester.sinks import Batch, Sink, Written
from recall_ingester.summary import Summary
from recall_ingester.turns import Turns

#: A pass that takes long says that it is alive this often.
_BEAT_SECONDS = 20.0

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What a pass needs to know besides its sources."""

    host: str
    max_line_bytes: int
    redact: bool
    #: Seconds from one pass to the next, for those who watch the heartbeat; ``None``: only one.
    interval_seconds: float | None = None
    keep_raw: bool = True
    max_document_bytes: int = 134_217_728
    #: How old the last comparison of everything in a changed database may be.
    reconcile_seconds: float = 86_400.0


@dataclass(slots=True)
class Pass:
    """State that the workers of one pass share."""

    options: Options
    claims: Claims
    turns: Turns
    summary: Summary
    total_bytes: int
    progress: Progress | None
    stop: Event
    lock: Lock = field(default_factory=Lock)
    #: Held by the worker that reads a large document.
    large_document: Lock = field(default_factory=Lock)
    done_bytes: int = 0
    written_sessions: set[str] = field(default_factory=set)
    new_sessions: set[str] = field(default_factory=set)
    unreadable: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: Sessions that their container does not have any more.
    gone: list[str] = field(default_factory=list)
    #: Hashes of original bytes that made room for others.
    replaced_raw: set[bytes] = field(default_factory=set)
    #: By container: what is known of its sessions.
    members: dict[str, dict[str, Checkpoint]] = field(default_factory=dict)
    #: By key: what another ingester of the host read meanwhile.
    overtaken: dict[str, Work] = field(default_factory=dict)
    last_beat: float = 0.0

    def beat(self, sink: Sink, *, state: str = "reading") -> None:
        """Say that the ingester lives and what the pass did so far, but not for every batch."""
        now = time.monotonic()
        with self.lock:
            if state == "reading" and now - self.last_beat < _BEAT_SECONDS:
                return
            self.last_beat = now
            detail = self.summary.as_json()
        detail |= {
            "state": state,
            "version": __version__,
            "unreadable": len(self.unreadable),
            "interval_seconds": self.options.interval_seconds,
        }
        sink.beat(detail)

    def settle(self, batch: Batch, written: Written) -> None:
        with self.lock:
            for counts in written.counts:
                self.summary.add(counts)
            self.summary.messages += written.messages
            self.summary.retired += written.retired
            self.summary.raw_bytes += written.raw_bytes
            self.replaced_raw.update(written.replaced_raw)
            self.written_sessions.update(row.session_key for _, row in batch.messages)

    def advance(self, size: int) -> None:
        with self.lock:
            self.done_bytes += size
            if self.progress is not None:
                self.progress(self.done_bytes, self.total_bytes)


@dataclass(frozen=True, slots=True)
class Output:
    """Where one worker puts what it reads: ``flush`` stores the batch and empties it."""

    batch: Batch
    flush: Callable[[Batch], Written]
    sink: Sink
    #: By path: what was read for it. The sessions of a database are read with that.
    items: dict[str, Work]
