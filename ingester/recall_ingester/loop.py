"""One pass over every source."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event

import zstandard

from recall.errors import RecallError, SourceError
from recall_ingester.checkpoint import Checkpoint
from recall_ingester.plan import Claims, Plan, Work, make_plan
from recall_ingester.read_work import note_unreadable, read_work
from recall_ingester.run_state import Options, Output, Pass, Progress
from recall_ingester.sinks import Batch, Sink, Written
from recall_ingester.sinks.overtaken import OvertakenError, Remainder, leave_out
from recall_ingester.sources.base import Source
from recall_ingester.starting_point import may_claim
from recall_ingester.summary import Summary
from recall_ingester.turns import Turns

_log = logging.getLogger(__name__)

#: Files are read and written by this many threads; the database works in as many processes beside.
#: One more than the cores of a small machine, so that one reads while the others wait for commits.
_WORKERS = 3
#: How often a pass reads what other ingesters of the host read at the same time.
_ROUNDS = 3


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
        _read_overtaken(run, sinks)
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


def _read_overtaken(run: Pass, sinks: Sequence[Sink]) -> None:
    """Read what another ingester of this host read at the same time, from where that left it.

    What is overtaken again and again waits for the next pass.
    """
    for _ in range(_ROUNDS):
        if not run.overtaken or run.stop.is_set():
            return
        known = sinks[0].checkpoints()
        work = [replace(item, known=known.get(item.key)) for item in run.overtaken.values()]
        run.overtaken = {}
        run.claims = Claims(run.options.host, known)
        run.turns = Turns(item for item in work if may_claim(item))
        run.members = _by_container(known)
        _run_workers(run, work, sinks)
    for key in run.overtaken:
        _log.warning("file left for the next pass", extra={"path": key, "reason": "overtaken"})


def _store(run: Pass, output: Output, full: Batch) -> Written:
    """Store a batch without the files that another ingester of this host read meanwhile; those are
    noted, each with everything that was read with it."""
    left_out: set[str] = set()
    while True:
        rest = Remainder(full, left_out)
        try:
            if not rest.batch:
                return rest.as_of_whole(Written([], 0, 0))
            return rest.as_of_whole(output.sink.write(rest.batch if left_out else full))
        except OvertakenError as error:
            items = {output.items[path].key for path in error.paths if path in output.items}
            paths = {path for path, item in output.items.items() if item.key in items}
            if not paths - left_out:
                raise
            left_out |= paths
            for key in sorted(items):
                _log.warning("file read again", extra={"path": key, "reason": "overtaken"})
            with run.lock:
                run.overtaken.update((output.items[path].key, output.items[path]) for path in paths)


def _work(run: Pass, queue: SimpleQueue[Work], sink: Sink) -> None:
    batch = Batch()
    current: Work | None = None
    storing = False

    def flush(full: Batch) -> Written:
        nonlocal storing
        storing = True
        written = _store(run, output, full)
        storing = False
        run.settle(full, written)
        run.beat(sink)
        full.clear()
        if current is not None and current.key in run.overtaken:
            raise OvertakenError([current.key])
        return written

    output = Output(batch, flush, sink, {})
    while not run.stop.is_set():
        try:
            item = current = queue.get_nowait()
        except Empty:
            break
        storing = False
        try:
            read_work(run, item, output)
        except OvertakenError:
            _leave_out(output, item)
        except (OSError, SourceError, zstandard.ZstdError) as error:
            note_unreadable(run, item, item.key, error)
        except (RecallError, MemoryError):
            raise
        except Exception as error:
            if storing:
                raise
            _leave_out(output, item)
            note_unreadable(run, item, item.key, error)
        finally:
            run.turns.done(item)
        current = None
        run.advance(_remaining(item))
        if batch.content_chars + batch.raw_bytes > 2_000_000 or len(batch.pieces) >= 200:
            flush(batch)
    if batch:
        flush(batch)


def _leave_out(output: Output, item: Work) -> None:
    """Take away what was read of a file and is not stored."""
    leave_out(output.batch, {path for path, owner in output.items.items() if owner is item})
