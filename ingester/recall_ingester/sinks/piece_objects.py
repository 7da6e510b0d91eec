"""The files of a batch as JSON, which the functions of the store take and give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from recall.hygiene import clean_json
from recall_ingester.checkpoint import Checkpoint, Counts, Stat
from recall_ingester.sinks import Batch, Piece, Written


def piece_objects(batch: Batch) -> list[dict[str, Any]]:
    """The pieces of a batch in order (``recall.begin_batch`` of migration 16)."""
    files: dict[int, int] = {}
    return [
        _object_of(piece, number, files.setdefault(id(piece.before), len(files)))
        for number, piece in enumerate(batch.pieces)
    ]


def _object_of(piece: Piece, number: int, file_number: int) -> dict[str, Any]:
    first, last = piece.retire or (None, None)
    checkpoint = piece.checkpoint
    return {
        "number": number,
        "path": piece.path,
        "source": piece.source,
        "generation": piece.generation,
        "session_key": piece.session_key,
        "has_retire": piece.retire is not None,
        "retire_first": first,
        "retire_last": last,
        "raw_from": piece.raw_from,
        "supersedes_raw": piece.supersedes_raw,
        "counted": piece.counted,
        "row_lines": piece.row_lines,
        "counts": clean_json(asdict(piece.counts)),
        "file_number": file_number,
        "before": clean_json(asdict(piece.before)),
        "checkpoint": None if checkpoint is None else _checkpoint_object(checkpoint),
        "goes_on_from": piece.goes_on_from,
        "builds_on": None if piece.builds_on is None else _reading(piece.builds_on),
        "continues": piece.continues,
        "contains": piece.contains,
    }


def _reading(checkpoint: Checkpoint) -> dict[str, Any]:
    """What tells one stored state of a file from another (``recall.reading``)."""
    return {
        "generation": checkpoint.generation,
        "byte_offset": checkpoint.byte_offset,
        "lines": checkpoint.lines,
        "raw_bytes": checkpoint.raw_bytes,
        "unfinished_length": checkpoint.unfinished_length,
        "head_hash": bytes_text(checkpoint.head_hash),
        "tail_hash": bytes_text(checkpoint.tail_hash),
        "unfinished_hash": bytes_text(checkpoint.unfinished_hash),
    }


def _checkpoint_object(checkpoint: Checkpoint) -> dict[str, Any]:
    stat = checkpoint.stat
    return {
        "path": checkpoint.path,
        "source": checkpoint.source,
        "session_key": checkpoint.session_key,
        "size": stat.size,
        "mtime_ns": stat.mtime_ns,
        "ctime_ns": stat.ctime_ns,
        "inode": stat.inode,
        "byte_offset": checkpoint.byte_offset,
        "lines": checkpoint.lines,
        "head_hash": bytes_text(checkpoint.head_hash),
        "tail_hash": bytes_text(checkpoint.tail_hash),
        "generation": checkpoint.generation,
        "rereading": checkpoint.rereading,
        "parser_state": clean_json(checkpoint.parser_state),
        "unreadable": checkpoint.unreadable,
        "described": clean_json(checkpoint.described),
        "container": checkpoint.container,
        "raw_bytes": checkpoint.raw_bytes,
        "unfinished_length": checkpoint.unfinished_length,
        "unfinished_hash": bytes_text(checkpoint.unfinished_hash),
    }


def written_of(answer: Mapping[str, Any]) -> Written:
    """What ``api.store_batch`` says about a batch."""
    return Written(
        [counts_of(counts) for counts in answer["counts"]],
        answer["messages"],
        answer["retired"],
        answer["raw_bytes"],
        [bytes_of(digest) for digest in answer["replaced_raw"]],
    )


def counts_of(counts: Mapping[str, Any]) -> Counts:
    """The settled counts of a piece."""
    return Counts(**counts)


def checkpoint_of_object(state: Mapping[str, Any]) -> Checkpoint:
    """A row of ``recall.ingest_state``, as ``api.checkpoints`` gives it."""
    return Checkpoint(
        path=state["path"],
        source=state["source"],
        session_key=state["session_key"],
        stat=Stat(state["size"], state["mtime_ns"], state["ctime_ns"], state["inode"]),
        byte_offset=state["byte_offset"],
        lines=state["lines"],
        head_hash=bytes_of(state["head_hash"]),
        tail_hash=bytes_of(state["tail_hash"]),
        generation=state["generation"],
        rereading=state["rereading"],
        parser_state=state["parser_state"],
        counts=Counts(
            state["lines_seen"],
            state["lines_stored"],
            state["lines_merged"],
            state["lines_quarantined"],
            state["lines_skipped"],
            dict(state["skip_reasons"]),
        ),
        missing=state["source_missing_at"] is not None,
        unreadable=state["unreadable"],
        described=state["described"],
        container=state["container"],
        raw_bytes=state["raw_bytes"],
        unfinished_length=state["unfinished_length"],
        unfinished_hash=bytes_of(state["unfinished_hash"]),
    )


def bytes_text(value: bytes) -> str:
    r"""Bytes as PostgreSQL reads and writes them in text: ``\x0a0b``."""
    return rf"\x{value.hex()}"


def bytes_of(text: str) -> bytes:
    r"""The bytes that such a text stands for."""
    return bytes.fromhex(text.removeprefix(r"\x"))
