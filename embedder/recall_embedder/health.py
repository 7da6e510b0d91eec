"""What an embedder knows about itself: is it alive, does it get anywhere, what did it do."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: A part that was not heard of for this long is taken for dead.
STALE_SECONDS = 180.0
#: Errors that go on for this long are not a moment of bad luck.
_FAILING_SECONDS = 60.0
#: If all batches of this time failed, the model does not work.
_BATCH_SECONDS = 300.0
_RATE_SECONDS = 60.0


@dataclass(slots=True)
class Part:
    """One loop of the embedder."""

    expected_at: float
    beat_at: float | None = None
    died: str | None = None
    failing_since: float | None = None
    reason: str = ""


@dataclass(slots=True)
class Health:
    """Shared by all threads of an embedder, and read by whoever asks for its health."""

    clock: Callable[[], float] = time.monotonic
    embedded_total: int = 0
    failed_total: int = 0
    batches: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    #: By generation: passages that wait.
    queue: dict[str, int] = field(default_factory=dict)
    #: Why texts get no vectors at all, such as a model that cannot be loaded.
    problem: str | None = None
    hint: str | None = None
    #: Why a generation beside the active one gets none.
    unfilled: Mapping[int, str] = field(default_factory=dict)
    model: str | None = None
    _parts: dict[str, Part] = field(default_factory=dict)
    _recent_batches: deque[tuple[float, bool]] = field(default_factory=deque)
    _recent_passages: deque[tuple[float, int]] = field(default_factory=deque)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def expect(self, names: Iterable[str]) -> None:
        """These parts are to be heard of from now on."""
        with self._lock:
            for name in names:
                self._parts[name] = Part(self.clock())

    def beat(self, name: str) -> None:
        """A part is alive and gets on."""
        with self._lock:
            part = self._parts[name]
            part.beat_at = self.clock()
            part.failing_since = None

    def failing(self, name: str, reason: str) -> None:
        """A part is alive, but what it tried did not work."""
        with self._lock:
            part = self._parts[name]
            part.beat_at = self.clock()
            part.reason = reason
            if part.failing_since is None:
                part.failing_since = self.clock()

    def died(self, name: str, reason: str) -> None:
        """A part has ended that should not have."""
        with self._lock:
            self._parts[name].died = reason

    def stage(self, name: str, seconds: float) -> None:
        """Seconds that a stage of the work took."""
        with self._lock:
            self.seconds[name] += seconds  # type: ignore[assignment]  # a Counter adds any number

    def batch(self, *, failed: bool) -> None:
        """A batch that the model has answered, or not."""
        with self._lock:
            self.batches["failed" if failed else "done"] += 1
            self._recent_batches.append((self.clock(), failed))

    def embedded(self, passages: int) -> None:
        """Passages that were stored."""
        with self._lock:
            self.embedded_total += passages
            self._recent_passages.append((self.clock(), passages))

    def failed(self, passages: int) -> None:
        """Passages that have failed for good."""
        with self._lock:
            self.failed_total += passages

    def rate_per_minute(self) -> float:
        """Passages a minute, over the last minute."""
        with self._lock:
            _forget(self._recent_passages, self.clock() - _RATE_SECONDS)
            if not self._recent_passages:
                return 0.0
            span = max(self.clock() - self._recent_passages[0][0], 1.0)
            return sum(count for _, count in self._recent_passages) * 60.0 / span

    def beat_age(self) -> float:
        """Seconds since the part spoke that was silent for longest."""
        with self._lock:
            return max((self._age(part) for part in self._parts.values()), default=0.0)

    def reasons(self) -> list[str]:
        """Everything that is wrong; empty for an embedder that is well."""
        with self._lock:
            wrong = [
                reason for name, part in self._parts.items() if (reason := self._wrong(name, part))
            ]
            if self.problem:
                wrong.append(self.problem)
            wrong += self.unfilled.values()
            _forget(self._recent_batches, self.clock() - _BATCH_SECONDS)
            if self._recent_batches and all(failed for _, failed in self._recent_batches):
                minutes = int(_BATCH_SECONDS // 60)
                wrong.append(f"every batch of the last {minutes} minutes failed")
            return wrong

    def report(self) -> dict[str, Any]:
        """The answer of ``/health``."""
        with self._lock:
            wrong = self.reasons()
            return {
                "ok": not wrong,
                "reasons": wrong,
                "problem": self.problem,
                "hint": self.hint if self.problem else None,
                "model": self.model,
                "beat_age_seconds": round(self.beat_age(), 1),
                "stale_after_seconds": STALE_SECONDS,
                "passages_per_minute": round(self.rate_per_minute(), 1),
                "embedded": self.embedded_total,
                "failed": self.failed_total,
                "threads": {name: round(self._age(part), 1) for name, part in self._parts.items()},
            }

    def _wrong(self, name: str, part: Part) -> str | None:
        if part.died is not None:
            return f"{name} ended: {part.died}"
        age = self._age(part)
        if age > STALE_SECONDS:
            what = "never started" if part.beat_at is None else "was not heard of"
            return f"{name} {what} for {int(age)} s"
        if part.failing_since is not None:
            failing = self.clock() - part.failing_since
            if failing >= _FAILING_SECONDS:
                return f"{name} fails for {int(failing)} s: {part.reason}"
        return None

    def _age(self, part: Part) -> float:
        return self.clock() - (part.expected_at if part.beat_at is None else part.beat_at)


def _forget(entries: deque[Any], before: float) -> None:
    while entries and entries[0][0] < before:
        entries.popleft()
