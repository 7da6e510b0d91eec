"""One search, timed: by the clock, and by the processor time of this process and the server's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.bench.search_queries import QuerySet
from ops.bench.search_store import Connection


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured."""

    queries: int
    rounds: int
    query_set: QuerySet
    cold: bool
    reference: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds. Without other work on the machine, the two differ by what is read from disk."""

    wall: float
    cpu: float | None


def timed(conn: Connection, run: Callable[[], Any]) -> tuple[Timing, Any]:
    """What a call costs, and what it gives."""
    before = _cpu_ms(conn)
    started = time.perf_counter()
    answer = run()
    wall = (time.perf_counter() - started) * 1000
    after = _cpu_ms(conn)
    return Timing(wall, None if before is None or after is None else after - before), answer


def median(timings: Sequence[Timing]) -> Timing:
    """The median of each."""
    cpu = [timing.cpu for timing in timings if timing.cpu is not None]
    wall = statistics.median(timing.wall for timing in timings)
    return Timing(wall, statistics.median(cpu) if cpu else None)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies, at least."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _cpu_ms(conn: Connection) -> float | None:
    """Processor time so far; ``None`` where the system does not tell that of another process."""
    own = time.process_time() * 1000
    try:
        told = Path(f"/proc/{conn.info.backend_pid}/schedstat").read_text()
    except OSError:
        return None
    return own + int(told.split()[0]) / 1e6
