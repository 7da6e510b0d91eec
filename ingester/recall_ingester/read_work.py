"""Reading one file, by its shape."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import IO, Any

from recall.errors import SourceError
from recall.jsontext import MalformedLine
from recall.timestamps import parse_timestamp
from recall_ingester import starting_point
from recall_ingester.checkpoint import Checkpoint, Stat, has_raw
from recall_ingester.earlier_states import Kept
from recall_ingester.faults import attempt, unreadable_reason
from recall_ingester.file_keys import bounded
from recall_ingester.original import SPAN_BYTES
from recall_ingester.pieces import PieceWriter
from recall_ingester.pipeline import RowBuilder, safe_id
from recall_ingester.plan import Work
from recall_ingester.read_document import DocumentReader
from recall_ingester.read_file import FileReader
from recall_ingester.read_table import TableReader
from recall_ingester.reader import open_regular
from recall_ingester.run_state import Output, Pass
from recall_ingester.sources.base import Container, Member

_log = logging.getLogger(__name__)
_MILLION = 1 << 20
#: Documents above this are read one at a time: each takes several times its size in memory.
_LARGE_BYTES = 32 << 20
#: So many earlier states of a file that is read again are looked for in it.
_STATES = 3


def read_work(run: Pass, item: Work, output: Output) -> None:
    """Read what is new in one file, database or folder.

    What was put into the batch when reading fails stays: whole lines with their checkpoint, or a
    piece without one that the next pass merges. Raises ``OSError`` or :class:`SourceError`.
    """
    if item.file.shape == "container":
        _read_container(run, item, output)
        return
    if item.file.shape == "table":
        _read_table(run, item, output)
        return
    with open_regular(item.file.path) as opened:
        stat = Stat.of(os.fstat(opened.fileno()))
        if item.file.shape == "document":
            _read_document(run, item, output, opened, stat)
        else:
            _read_lines(run, item, output, opened, stat)


def _read_lines(run: Pass, item: Work, output: Output, opened: IO[bytes], stat: Stat) -> None:
    checkpoint, reason = starting_point.of_lines(run, item, opened, stat)
    if checkpoint is None:
        return
    _note_opening(run, item, reason)
    external = starting_point.external_id(checkpoint)
    reader = FileReader(
        item.file,
        item.source.parser(item.file, external, checkpoint.parser_state),
        writer_for(run, item, output, _described(checkpoint, item), item.known),
        max_line_bytes=run.options.max_line_bytes,
        keep_raw=run.options.keep_raw,
        earlier=_earlier_states(run, item, output, checkpoint),
    )
    try:
        if item.file.shape == "whole":
            reader.read_whole(opened, stat)
        else:
            reader.read_lines(opened, stat)
    finally:
        _count_bytes(run, reader.bytes_read)


def _earlier_states(
    run: Pass, item: Work, output: Output, checkpoint: Checkpoint
) -> dict[int, Kept]:
    """What is kept of the states before, where a file of lines is read again from its beginning."""
    newest = checkpoint.generation - 1
    starts_again = checkpoint.rereading and checkpoint.byte_offset == 0
    if not (run.options.keep_raw and starts_again and item.file.shape == "lines"):
        return {}
    numbers = range(newest, max(newest - _STATES, 0), -1)
    return {number: output.sink.raw_spans(item.key, number) for number in numbers}


def _read_document(run: Pass, item: Work, output: Output, opened: IO[bytes], stat: Stat) -> None:
    is_large = stat.size > _LARGE_BYTES
    if is_large:
        run.turns.wait(item)  # the file before may wait for the lock
    with run.large_document if is_large else nullcontext():
        _read_whole_document(run, item, output, opened, stat)


def _read_whole_document(
    run: Pass, item: Work, output: Output, opened: IO[bytes], stat: Stat
) -> None:
    limit = run.options.max_document_bytes
    data = b"" if stat.size > limit else opened.read(limit + 1)
    while stat.size <= limit and len(data) <= limit and (more := opened.read(_MILLION)):
        data += more
    too_large = stat.size > limit or len(data) > limit
    if too_large:
        data = b""
    checkpoint, reason = starting_point.of_document(run, item, data, stat)
    _note_opening(run, item, reason)
    if item.companions != (checkpoint.parser_state or {}).get("companions", []):
        checkpoint = replace(checkpoint, rereading=True)
    reader = DocumentReader(
        item.source.document_parser(item.file, starting_point.external_id(checkpoint)),
        writer_for(run, item, output, _described(checkpoint, item), item.known),
        keep_raw=run.options.keep_raw,
        state={"companions": item.companions} if item.companions else None,
    )
    if too_large:
        opened.seek(0)
        reader.too_large(iter(lambda: opened.read(SPAN_BYTES), b""), stat, limit)
    else:
        reader.read(data, stat)
    _count_bytes(run, stat.size if too_large else len(data))


def _read_container(run: Pass, item: Work, output: Output) -> None:
    """Read the sessions that changed in a database or folder; a failed one costs itself."""
    stat = Stat.of(item.file.path.stat())
    state = dict((item.known.parser_state if item.known else None) or {})
    everything = item.known is None or item.known.stat.inode != stat.inode
    everything = everything or _is_due(run, state)
    members = run.members.get(item.key, {})
    seen: set[str] = set()
    failed = False
    with item.source.container(item.file) as container:
        if not item.file.always:
            _note_opening(run, item, "changed")
        for member in container.members():
            path = f"{item.key}#{safe_id(member.external_id)}"
            path = path if path in members else bounded(path)
            seen.add(path)
            known = members.get(path)
            if known and not everything and _is_same(run, known, member):
                continue
            try:
                _read_member(run, item, output, container, member, path, known, stat)
            except (OSError, SourceError, MalformedLine) as error:
                failed = True
                note_unreadable(run, item, path, error)
            if run.stop.is_set():
                failed = True
                break
    if not failed:
        gone = [path for path, known in members.items() if path not in seen and not known.missing]
        with run.lock:
            run.gone.extend(gone)
    if everything and not failed:
        state["reconciled_at"] = datetime.now(UTC).isoformat()
    state["companions"] = item.companions
    _end_container(run, item, output, state, replace(stat, size=-1) if failed else stat)


def _end_container(
    run: Pass, item: Work, output: Output, state: Mapping[str, Any], stat: Stat
) -> None:
    known = item.known or Checkpoint(item.key, item.source.name, None, stat)
    writer = writer_for(run, item, output, known, item.known)
    writer.start()
    writer.end(
        replace(
            known,
            stat=stat,
            parser_state=state,
            described=starting_point.describe(item.file),
            missing=False,
            unreadable=None,
        )
    )


def _read_member(
    run: Pass,
    item: Work,
    output: Output,
    container: Container,
    member: Member,
    path: str,
    known: Checkpoint | None,
    stat: Stat,
) -> None:
    if item.file.always:
        _note_opening(run, item, "changed")
    stored = known
    limit = run.options.max_document_bytes
    rows = container.slots(member.external_id)
    slots, size = attempt(_up_to, rows, limit)
    _count_bytes(run, size)
    if known is None or starting_point.is_new(known):
        known = starting_point.of_member(run, item, member.external_id, path, stat)
    kept = output.sink.raw_spans(path, known.generation) if run.options.keep_raw else []
    reader = DocumentReader(
        item.source.document_parser(item.file, starting_point.external_id(known)),
        writer_for(run, item, output, known, stored),
        keep_raw=run.options.keep_raw,
    )
    stat = replace(stat, mtime_ns=0, ctime_ns=0)
    if size > limit:
        reader.too_large(_emptied(slots, rows), stat, limit, member.watermark)
    else:
        reader.read_slots(slots, stat, member.watermark, kept)
    batch = output.batch
    if batch.content_chars + batch.raw_bytes > 2_000_000 or len(batch.pieces) >= 200:
        output.flush(output.batch)


def _up_to(rows: Iterator[bytes], limit: int) -> tuple[list[bytes], int]:
    """Rows until they are longer than a limit together, and how long those are."""
    slots: list[bytes] = []
    size = 0
    for row in rows:
        slots.append(row)
        size += len(row)
        if size > limit:
            break
    return slots, size


def _emptied(slots: list[bytes], rows: Iterator[bytes]) -> Iterator[bytes]:
    """What was read already, given away as it goes, and the rest."""
    slots.reverse()
    while slots:
        yield slots.pop()
    yield from rows


def _is_same(run: Pass, known: Checkpoint, member: Member) -> bool:
    mark = hashlib.sha256(member.watermark.encode("utf-8", "surrogatepass")).digest()
    complete = not run.options.keep_raw or has_raw(known)
    return known.tail_hash == mark and not known.missing and not known.unreadable and complete


def _is_due(run: Pass, state: Mapping[str, Any]) -> bool:
    """Whether everything in a database that changed is to be compared, whatever its watermarks."""
    last = parse_timestamp(state.get("reconciled_at"))
    if last is None:
        return True
    return (datetime.now(UTC) - last).total_seconds() >= run.options.reconcile_seconds


def _read_table(run: Pass, item: Work, output: Output) -> None:
    stat = Stat.of(item.file.path.stat())
    known = item.known
    if known is None or starting_point.is_new(known):
        known = Checkpoint(item.key, item.source.name, None, stat)
    state = dict(known.parser_state or {})
    reconcile = known.lines > 0 and _is_due(run, state)
    if known.lines == 0 or reconcile:
        state["reconciled_at"] = datetime.now(UTC).isoformat()
    state["companions"] = item.companions
    with item.source.open_table(item.file) as table:
        _note_opening(run, item, "changed")
        reader = TableReader(
            item.source.parser(item.file, "", None),
            writer_for(run, item, output, _described(known, item), item.known),
            keep_raw=run.options.keep_raw,
        )
        reader.read(table, stat, state, from_start=reconcile)
        _count_bytes(run, reader.bytes_read)


def writer_for(
    run: Pass, item: Work, output: Output, known: Checkpoint, stored: Checkpoint | None
) -> PieceWriter:
    """What puts the rows of a file, or of a session of it, into the worker's batch. It is read on
    from ``known``; ``stored`` is what the store has."""
    output.items[known.path] = item
    rows = RowBuilder(
        source=item.source.name,
        host=run.options.host,
        path=known.path,
        redact_secrets=run.options.redact,
    )
    return PieceWriter(
        known,
        rows,
        host=run.options.host,
        batch=output.batch,
        flush=output.flush,
        provisional=starting_point.is_provisional(known, item.file),
        stored=stored,
    )


def note_unreadable(run: Pass, item: Work, path: str, error: Exception) -> None:
    """One file or session could not be read; everything else goes on."""
    reason = unreadable_reason(error)
    _log.warning("file unreadable", extra={"path": path, "reason": reason})
    with run.lock:
        run.unreadable[path] = (item.source.name, reason)


def _described(checkpoint: Checkpoint, item: Work) -> Checkpoint:
    return replace(checkpoint, described=starting_point.describe(item.file))


def _note_opening(run: Pass, item: Work, reason: str | None) -> None:
    with run.lock:
        run.summary.files_opened += 1
    if reason not in {"new", "append", "changed"}:
        _log.info("file read again", extra={"path": item.key, "reason": reason})


def _count_bytes(run: Pass, number: int) -> None:
    with run.lock:
        run.summary.bytes_read += number
