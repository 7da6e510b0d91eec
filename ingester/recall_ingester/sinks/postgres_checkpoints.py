"""Rows of ``recall.ingest_state`` as checkpoints."""

from __future__ import annotations

from typing import Any

from recall_ingester.checkpoint import Checkpoint, Counts, Stat


def checkpoint_of(row: tuple[Any, ...]) -> Checkpoint:
    """A row of ``checkpoints``."""
    (
        path, source, session_key, size, mtime_ns, ctime_ns, inode, byte_offset, lines, head, tail,
        generation, rereading, parser_state, seen, stored, merged, quarantined, skipped, reasons,
        missing, unreadable, described, container, raw_bytes, unfinished_length, unfinished_hash,
    ) = row  # fmt: skip
    return Checkpoint(
        path=path,
        source=source,
        session_key=session_key,
        stat=Stat(size, mtime_ns, ctime_ns, inode),
        byte_offset=byte_offset,
        lines=lines,
        head_hash=bytes(head),
        tail_hash=bytes(tail),
        generation=generation,
        rereading=rereading,
        parser_state=parser_state,
        counts=Counts(seen, stored, merged, quarantined, skipped, dict(reasons)),
        missing=missing,
        unreadable=unreadable,
        described=described,
        container=container,
        raw_bytes=raw_bytes,
        unfinished_length=unfinished_length,
        unfinished_hash=bytes(unfinished_hash),
    )
