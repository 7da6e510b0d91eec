"""Original bytes in a store, for tests: rows in the form in which the ingester would write them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import psycopg
import zstandard

from recall_sql.connection import connect


def digest_of(data: bytes) -> bytes:
    """The name of a blob."""
    return hashlib.blake2b(data, digest_size=32).digest()


@dataclass(frozen=True)
class Kept:
    """One file to keep: its complete lines, and what stands behind them."""

    path: str
    data: bytes
    unfinished: bytes = b""
    host: str = "laptop"
    source: str = "claude-code"
    session_key: str | None = None
    generation: int = 1
    container: str | None = None
    shape: str = "lines"
    mtime_ns: int = 1_770_000_000_123_456_789
    size: int | None = None
    keep: bool = True
    earlier: dict[int, bytes] = field(default_factory=dict)


def keep(url: str, file: Kept, *, cut: int = 1000) -> None:
    """Store a checkpoint and the segments of all generations of a file."""
    with connect(url, application="tests") as connection:
        _add_checkpoint(connection, file)
        if not file.keep:
            return
        for generation, data in file.earlier.items():
            add_segments(connection, file, generation, data, cut=cut)
        add_segments(connection, file, file.generation, file.data, cut=cut)
        add_segments(
            connection, file, file.generation, file.unfinished, cut=cut, start=len(file.data)
        )


def add_segments(
    connection: psycopg.Connection,
    file: Kept,
    generation: int,
    data: bytes,
    *,
    cut: int,
    start: int | None = None,
) -> None:
    """Cut bytes into segments; with ``start`` they are unfinished ones that begin there."""
    for at in range(0, len(data), cut):
        piece = data[at : at + cut]
        add_blob(connection, piece)
        connection.execute(
            "insert into recall.raw_segment (host, path, source, generation, byte_offset,"
            " byte_length, hash, unfinished) values (%s, %s, %s, %s, %s, %s, %s, %s)",
            (
                file.host, file.path, file.source, generation, (start or 0) + at, len(piece),
                digest_of(piece), start is not None,
            ),
        )  # fmt: skip


def add_blob(connection: psycopg.Connection, data: bytes) -> None:
    """A blob under its hash, compressed if that makes it smaller."""
    packed = zstandard.ZstdCompressor().compress(data)
    smaller = len(packed) < len(data)
    connection.execute(
        "insert into recall.raw_blob (hash, byte_length, codec, data) values (%s, %s, %s, %s)"
        " on conflict (hash) do nothing",
        (
            digest_of(data),
            len(data),
            "zstd" if smaller else "none",
            packed if smaller else data,
        ),
    )


def _add_checkpoint(connection: psycopg.Connection, file: Kept) -> None:
    length = len(file.data) + len(file.unfinished)
    connection.execute(
        "insert into recall.ingest_state (host, path, source, session_key, size, mtime_ns,"
        " ctime_ns, inode, byte_offset, lines, head_hash, tail_hash, generation, rereading,"
        " lines_seen, lines_stored, lines_merged, lines_quarantined, lines_skipped, skip_reasons,"
        " container, raw_bytes, unfinished_length, unfinished_hash, described)"
        " values (%s, %s, %s, %s, %s, %s, 1, 1, %s, 1, 'head', 'tail', %s, false, 1, 1, 0, 0, 0,"
        " '{}', %s, %s, %s, %s, jsonb_build_object('shape', %s::text))",
        (
            file.host, file.path, file.source, file.session_key,
            length if file.size is None else file.size, file.mtime_ns, len(file.data),
            file.generation, file.container, len(file.data) if file.keep else 0,
            len(file.unfinished) if file.keep else 0, hashlib.sha256(file.unfinished).digest(),
            file.shape,
        ),
    )  # fmt: skip
