"""One pass over every source, and the loop that repeats it."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock
from typing import IO

import zstandard

from recall.errors import SourceError
from recall.jsontext import MalformedLine, loads
from recall.keys import session_key
from recall_ingester.checkpoint import ANCHOR_BYTES, Checkpoint, Reason, Stat, judge
from recall_ingester.pipeline import RowBuilder
from recall_ingester.plan import Claims, Plan, Work, make_plan
from recall_ingester.read_file import FileReader
from recall_ingester.reader import decompressed, open_regular, read_lines, trim
from recall_ingester.sinks import Batch, Sink, Written
from recall_ingester.sources.base import Source
from recall_ingester.summary import Summary

_log = logging.getLogger(__name__)

#: Files are read and written by this many threads; the database works in as many processes beside.
#: One more than the cores of a small machine, so that one reads while the others wait for commits.
_WORKERS = 3
_FIRST_RECORDS = 5
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


@dataclass(slots=True)
class _Pass:
    """State that the workers of one pass share."""

    options: Options
    claims: Claims
    summary: Summary
    total_bytes: int
    progress: Progress | None
    stop: Event
    lock: Lock = field(default_factory=Lock)
    done_bytes: int = 0
    written_sessions: set[str] = field(default_factory=set)
    new_sessions: set[str] = field(default_factory=set)
    unreadable: dict[str, tuple[str, str]] = field(default_factory=dict)
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
            self.written_sessions.update(row.session_key for _, row in batch.messages)

    def advance(self, size: int) -> None:
        with self.lock:
            self.done_bytes += size
            if self.progress is not None:
                self.progress(self.done_bytes, self.total_bytes)


def run_pass(
    sources: Sequence[tuple[Source, Sequence[Path]]],
    make_sink: Callable[[], Sink],
    options: Options,
    *,
    progress: Progress | None = None,
    stop: Event | None = None,
) -> Summary:
    """Read everything new below the roots and store it. The caller holds the home's ingest lock.

    A file that cannot be read is noted and costs nothing else. Raises :class:`StoreError` if the
    store stays unreachable; what was stored until then has its checkpoints, so the next pass goes
    on from there.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        sinks = [make_sink() for _ in range(_WORKERS)]
        for sink in sinks:
            stack.callback(sink.close)
        main = sinks[0]
        known = main.checkpoints()
        plan = make_plan(sources, known)
        summary = Summary(files_seen=plan.files_seen, sources=plan.found)
        run = _Pass(
            options=options,
            claims=Claims(options.host, known),
            summary=summary,
            total_bytes=sum(_remaining(work) for work in plan.work),
            progress=progress,
            stop=stop or Event(),
            unreadable=plan.unreadable,
        )
        run.beat(main)
        main.begin(run.total_bytes)
        _run_workers(run, plan.work, sinks)
        _note_absences(main, plan, known)
        main.finish(run.new_sessions, wrote=summary.messages)
        summary.sessions = len(run.written_sessions)
        summary.unreadable = {path: reason for path, (_, reason) in plan.unreadable.items()}
        summary.seconds = round(time.monotonic() - started, 3)
        run.beat(main, state="waiting")
    return summary


def _note_absences(sink: Sink, plan: Plan, known: Mapping[str, Checkpoint]) -> None:
    news = {
        path: note
        for path, note in plan.unreadable.items()
        if path not in known or known[path].unreadable != note[1]
    }
    if plan.missing or news:
        sink.mark(missing=plan.missing, unreadable=news)
    if plan.back or plan.readable:
        sink.mark_present(plan.back, readable=plan.readable)


def _remaining(work: Work) -> int:
    offset = work.known.byte_offset if work.known and not work.file.compressed else 0
    return work.size - offset if work.size >= offset else work.size


def _run_workers(run: _Pass, work: Sequence[Work], sinks: Sequence[Sink]) -> None:
    if not work:
        return
    queue: SimpleQueue[Work] = SimpleQueue()
    for item in work:
        queue.put(item)
    with ThreadPoolExecutor(len(sinks), thread_name_prefix="ingest") as pool:
        futures = [pool.submit(_work, run, queue, sink) for sink in sinks]
        for future in futures:
            try:
                future.result()
            except BaseException:
                run.stop.set()  # the other workers end after their file
                raise


def _work(run: _Pass, queue: SimpleQueue[Work], sink: Sink) -> None:
    batch = Batch()

    def flush(full: Batch) -> Written:
        written = sink.write(full)
        run.settle(full, written)
        run.beat(sink)
        full.clear()
        return written

    while not run.stop.is_set():
        try:
            item = queue.get_nowait()
        except Empty:
            break
        try:
            _read(run, item, batch, flush)
        except (OSError, SourceError, zstandard.ZstdError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            _log.warning("file unreadable", extra={"path": item.key, "reason": reason})
            with run.lock:
                run.unreadable[item.key] = (item.source.name, reason)
        run.advance(_remaining(item))
        if batch.content_chars > 2_000_000 or len(batch.pieces) >= 200:
            flush(batch)
    if batch:
        flush(batch)


def _read(run: _Pass, item: Work, batch: Batch, flush: Callable[[Batch], Written]) -> None:
    """Read one file. What it has put into the batch when it fails stays: whole lines with their
    checkpoint, or a piece without one that the next pass merges."""
    with open_regular(item.file.path) as opened:
        stat = Stat.of(os.fstat(opened.fileno()))
        checkpoint, reason = _starting_point(run, item, opened, stat)
        if checkpoint is None:
            return
        with run.lock:
            run.summary.files_opened += 1
        if reason not in {"new", "append"}:
            _log.info("file read again", extra={"path": item.key, "reason": reason})
        external_id = _external_id(checkpoint)
        parser = item.source.parser(item.file, external_id, checkpoint.parser_state)
        reader = FileReader(
            item.file,
            checkpoint,
            parser,
            RowBuilder(
                source=item.source.name,
                host=run.options.host,
                path=item.key,
                redact_secrets=run.options.redact,
            ),
            host=run.options.host,
            batch=batch,
            flush=flush,
            max_line_bytes=run.options.max_line_bytes,
        )
        try:
            if item.file.shape == "whole":
                reader.read_whole(opened, stat)
            else:
                reader.read_lines(opened, stat)
        finally:
            with run.lock:
                run.summary.bytes_read += reader.bytes_read


def _starting_point(
    run: _Pass, item: Work, opened: IO[bytes], stat: Stat
) -> tuple[Checkpoint | None, Reason | None]:
    known = item.known
    if known is None or (known.lines == 0 and known.session_key is None and known.unreadable):
        return _first_checkpoint(run, item, opened, stat)
    if item.file.compressed or item.file.shape == "whole":
        return known.restart(stat), "changed"
    reason = judge(known, opened, stat)
    if reason is None or reason == "append":
        return known, reason or "append"
    return known.restart(stat), reason


def _first_checkpoint(
    run: _Pass, item: Work, opened: IO[bytes], stat: Stat
) -> tuple[Checkpoint, Reason]:
    if not item.file.owns_session:
        return Checkpoint(item.key, item.source.name, None, stat), "new"
    natural = item.file.natural_id or _id_inside(item, opened, run.options.max_line_bytes)
    external_id, taken_over = run.claims.claim(
        natural or item.file.relative, item.file, lambda owner: _begins_as(item, opened, owner)
    )
    key = session_key(item.source.name, run.options.host, external_id)
    with run.lock:
        run.new_sessions.add(key)
    checkpoint = Checkpoint(item.key, item.source.name, key, stat, rereading=taken_over)
    return checkpoint, "moved" if taken_over else "new"


def _begins_as(item: Work, opened: IO[bytes], owner: Checkpoint) -> bool:
    """Whether a file begins with the bytes that were read from another one."""
    width = min(ANCHOR_BYTES, owner.byte_offset)
    stream = decompressed(opened) if item.file.compressed else opened
    head = b""
    while len(head) < width and (piece := stream.read(width - len(head))):
        head += piece
    opened.seek(0)
    # A compressed file has no anchor; its name, made of date and id, has to do.
    return owner.head_hash == b"" or hashlib.sha256(head).digest() == owner.head_hash


def _id_inside(item: Work, opened: IO[bytes], max_line_bytes: int) -> str | None:
    """The session id that one of the first records gives; the file is left at its start."""
    if item.file.shape == "whole":
        return None
    stream = decompressed(opened) if item.file.compressed else opened
    found = None
    for line in read_lines(stream, byte_offset=0, ordinal=0, max_line_bytes=max_line_bytes):
        if line.ordinal >= _FIRST_RECORDS or found:
            break
        try:
            value, _ = loads(trim(line.data or b"", line.ordinal))
        except MalformedLine:
            continue
        if isinstance(value, dict):
            found = item.source.first_id(value)
    opened.seek(0)
    return found


def _external_id(checkpoint: Checkpoint) -> str:
    return checkpoint.session_key.split(":", 2)[2] if checkpoint.session_key else ""
