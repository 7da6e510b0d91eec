"""One pass over every source."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event

import zstandard

from recall.errors import SourceError
from recall_ingester.checkpoint import Checkpoint
from recall_ingester.plan import Claims, Plan, Work, make_plan
from recall_ingester.read_work import read_work
from recall_ingester.run_state import Options, Output, Pass, Progress
from recall_ingester.sinks import Batch, Sink, Written
from recall_ingester.sources.base import Source
from recall_ingester.starting_point import may_claim
from recall_ingester.summary import Summary
from recall_ingester.turns import Turns

_log = logging.getLogger(__name__)

#: Files are read and written by this many threads; the database works in as many processes beside.
#: One more than the cores of a small machine, so that one reads while the others wait for commits.
_WORKERS = 3


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
        plan = make_plan(sources, known, keep_raw=options.keep_raw)
        summary = Summary(files_seen=plan.files_seen, sources=plan.found)
        run = Pass(
            options=options,
            claims=Claims(options.host, known),
            turns=Turns(item for item in plan.work if may_claim(item)),
            summary=summary,
            total_bytes=sum(_remaining(work) for work in plan.work),
            progress=progress,
            stop=stop or Event(),
            unreadable=plan.unreadable,
            members=_by_container(known),
        )
        run.beat(main)
        main.begin(run.total_bytes)
        _run_workers(run, plan.work, sinks)
        plan.missing.extend(run.gone)
        _note_absences(main, plan, known)
        main.finish(run.new_sessions, wrote=summary.messages, replaced_raw=run.replaced_raw)
        summary.sessions = len(run.written_sessions)
        summary.unreadable = {path: reason for path, (_, reason) in plan.unreadable.items()}
        summary.seconds = round(time.monotonic() - started, 3)
        run.beat(main, state="waiting")
    return summary


def _by_container(known: Mapping[str, Checkpoint]) -> dict[str, dict[str, Checkpoint]]:
    found: dict[str, dict[str, Checkpoint]] = {}
    for path, checkpoint in known.items():
        if checkpoint.container is not None:
            found.setdefault(checkpoint.container, {})[path] = checkpoint
    return found


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


def _run_workers(run: Pass, work: Sequence[Work], sinks: Sequence[Sink]) -> None:
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


def _work(run: Pass, queue: SimpleQueue[Work], sink: Sink) -> None:
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
            read_work(run, item, Output(batch, flush, sink))
        except (OSError, SourceError, zstandard.ZstdError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            _log.warning("file unreadable", extra={"path": item.key, "reason": reason})
            with run.lock:
                run.unreadable[item.key] = (item.source.name, reason)
        finally:
            run.turns.done(item)
        run.advance(_remaining(item))
        if batch.content_chars + batch.raw_bytes > 2_000_000 or len(batch.pieces) >= 200:
            flush(batch)
    if batch:
        flush(batch)
