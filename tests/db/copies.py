"""Two copies of one home, for tests: passes of one host over one path, whose content is that of one
copy or of the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recall.errors import DamagedError
from recall.keys import path_key
from recall_ingester.loop import run_pass
from recall_ingester.run_state import Options
from recall_ingester.sinks import Batch, Sink, Written
from recall_ingester.sources import get_source
from recall_ingester.summary import Summary
from recall_sql.connection import connect
from recall_sql.raw import find_file, generations, read_chunks
from tests.db.ingesting import HOST, MAX_LINE_BYTES, rows

OPTIONS = Options(HOST, MAX_LINE_BYTES, redact=True)


class Interrupted(Exception):
    """What a pass dies of."""


class _Watched:
    """A sink that tells somebody before each batch is stored, and has everything else done."""

    def __init__(self, sink: Sink, before: Callable[[Batch], object]) -> None:
        self._sink = sink
        self._before = before

    def write(self, batch: Batch) -> Written:
        self._before(batch)
        return self._sink.write(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


@dataclass
class Copies:
    """Passes into one database through one door."""

    database: str
    make_sink: Callable[[], Sink]
    root: Path
    source: str = "claude-code"

    def read(self, before: Callable[[Batch], object] | None = None, **options: Any) -> Summary:
        """One pass; ``before`` is told before each batch is stored."""

        def make() -> Any:
            sink = self.make_sink()
            return _Watched(sink, before) if before is not None else sink

        chosen = [(get_source(self.source), [self.root])]
        return run_pass(chosen, make, replace(OPTIONS, **options))

    def read_beside(self, other: Callable[[], object], *, batch: int = 1) -> Summary:
        """One pass, and between reading and storing of its nth batch all of another one."""
        seen = 0

        def before(_: Batch) -> None:
            nonlocal seen
            seen += 1
            if seen == batch:
                other()

        summary = self.read(before)
        assert seen >= batch
        return summary


def dies_at(batch: int) -> Callable[[Batch], None]:
    """For ``before``: the pass ends there."""
    seen = 0

    def before(_: Batch) -> None:
        nonlocal seen
        seen += 1
        if seen == batch:
            raise Interrupted

    return before


def states(url: str, path: Path | str) -> dict[int, bytes]:
    """What is kept of a path, by generation, as `recall restore` gives it. Raises
    :class:`DamagedError` where `recall verify` finds something."""
    name = path if isinstance(path, str) else path_key(path)
    found: dict[int, bytes] = {}
    with connect(url, application="tests", autocommit=True) as connection:
        file = find_file(connection, HOST, name)
        for kept in generations(connection, HOST, name):
            with closing(read_chunks(connection, HOST, name, kept.number, file=file)) as chunks:
                found[kept.number] = b"".join(chunks)
    if file is not None and file.generation not in found and file.kept_bytes:
        raise DamagedError("nothing is kept of the newest generation")
    return found


def newest(url: str, path: Path | str) -> bytes:
    """What is kept of the newest generation."""
    name = path if isinstance(path, str) else path_key(path)
    sql = "select generation from recall.ingest_state where path = %s"
    return states(url, name)[rows(url, sql, name)[0][0]]
