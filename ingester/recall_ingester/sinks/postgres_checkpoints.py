"""Checkpoints as rows of ``recall.ingest_state``, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from recall.hygiene import clean_json
from recall_ingester.checkpoint import Checkpoint, Counts, Stat
from recall_ingester.sinks import Piece


def states_of(pieces: Sequence[Piece], counts: Sequence[Counts], host: str) -> list[dict[str, Any]]:
    """The checkpoints of a batch, each with what all pieces up to it counted."""
    totals: dict[int, Counts] = {}
    states = []
    for piece, count in zip(pieces, counts, strict=True):
        total = totals.get(id(piece.before))
        if total is None:
            total = totals[id(piece.before)] = Counts()
            total.add(piece.before)
        total.add(count)
        if piece.checkpoint is not None:
            states.append(_state_of(piece.checkpoint, total, host))
    return states


def _state_of(checkpoint: Checkpoint, total: Counts, host: str) -> dict[str, Any]:
    stat = checkpoint.stat
    return {
        "host": host,
        "path": checkpoint.path,
        "source": checkpoint.source,
        "session_key": checkpoint.session_key,
        "size": stat.size,
        "mtime_ns": stat.mtime_ns,
        "ctime_ns": stat.ctime_ns,
        "inode": stat.inode,
        "byte_offset": checkpoint.byte_offset,
        "lines": checkpoint.lines,
        "head_hash": checkpoint.head_hash,
        "tail_hash": checkpoint.tail_hash,
        "generation": checkpoint.generation,
        "rereading": checkpoint.rereading,
        "parser_state": as_json(checkpoint.parser_state),
        "lines_seen": total.seen,
        "lines_stored": total.stored,
        "lines_merged": total.merged,
        "lines_quarantined": total.quarantined,
        "lines_skipped": total.skipped,
        "skip_reasons": as_json(total.skip_reasons),
        "unreadable": checkpoint.unreadable,
        "described": None if checkpoint.described is None else as_json(checkpoint.described),
        "container": checkpoint.container,
        "raw_bytes": checkpoint.raw_bytes,
        "unfinished_length": checkpoint.unfinished_length,
        "unfinished_hash": checkpoint.unfinished_hash,
    }


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


def as_json(value: Mapping[str, Any] | None) -> str | None:
    """JSON that the database accepts."""
    return None if value is None else json.dumps(clean_json(value))
