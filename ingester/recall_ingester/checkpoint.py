"""How far a file was read, and whether that place still means anything."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import IO, Any, Literal

#: Bytes at the start and before the offset whose hashes prove that a file was only appended to.
ANCHOR_BYTES = 4096
_NO_HASH = hashlib.sha256(b"").digest()

#: Why a file is read: ``append`` goes on at the offset; all others start at zero.
Reason = Literal["new", "append", "truncated", "replaced", "rewritten", "moved", "changed"]


@dataclass(frozen=True, slots=True)
class Stat:
    """What the file system says about a file without opening it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stat:
        """From ``os.stat``."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@dataclass(slots=True)
class Counts:
    """Lines of one file by what became of them. The last four add up to the first."""

    seen: int = 0
    stored: int = 0
    merged: int = 0
    quarantined: int = 0
    skipped: int = 0
    skip_reasons: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        """Count one line that holds nothing to store."""
        self.seen += 1
        self.skipped += 1
        self.skip_reasons[reason] = self.skip_reasons.get(reason, 0) + 1

    def add(self, other: Counts) -> None:
        """Add the counts of a later piece of the same file."""
        self.seen += other.seen
        self.stored += other.stored
        self.merged += other.merged
        self.quarantined += other.quarantined
        self.skipped += other.skipped
        for reason, count in other.skip_reasons.items():
            self.skip_reasons[reason] = self.skip_reasons.get(reason, 0) + count


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One row of ``recall.ingest_state``.

    ``byte_offset`` is the place after the last complete line and ``lines`` the number of lines
    before it (both in decompressed bytes for compressed files). ``rereading`` says that a pass
    from zero over a rewritten file has not reached its end yet.
    """

    path: str
    source: str
    session_key: str | None
    stat: Stat
    byte_offset: int = 0
    lines: int = 0
    head_hash: bytes = _NO_HASH
    tail_hash: bytes = _NO_HASH
    generation: int = 1
    rereading: bool = False
    parser_state: Mapping[str, Any] | None = None
    counts: Counts = field(default_factory=Counts)
    missing: bool = False
    unreadable: str | None = None
    #: What the file is, as its source described it (label, shape, ...), so that its kept bytes can
    #: be parsed when it is gone.
    described: Mapping[str, Any] | None = None
    #: Of a session in a database or folder: the path of that.
    container: str | None = None
    #: Length of the beginning of the file whose original bytes are kept.
    raw_bytes: int = 0
    #: The bytes behind ``byte_offset`` at the last read, which were no complete line.
    unfinished_length: int = 0
    unfinished_hash: bytes = b""

    @property
    def file(self) -> str:
        """The path of the file, or of the container of the session, where it is longer than its
        key can be."""
        return (self.described or {}).get("path") or self.container or self.path

    def restart(self, stat: Stat) -> Checkpoint:
        """The checkpoint from which a rewritten file is read from zero."""
        return replace(
            self,
            stat=stat,
            byte_offset=0,
            lines=0,
            head_hash=_NO_HASH,
            tail_hash=_NO_HASH,
            generation=self.generation + 1,
            rereading=True,
            parser_state=None,
            counts=Counts(),
            unreadable=None,
            raw_bytes=0,
            unfinished_length=0,
            unfinished_hash=b"",
        )


def is_unchanged(known: Checkpoint, now: Stat, *, keep_raw: bool) -> bool:
    """Whether a file need not be opened at all: nothing about it changed, and its original bytes
    are kept as far as they should be."""
    return known.stat == now and known.unreadable is None and (not keep_raw or has_raw(known))


def has_raw(known: Checkpoint) -> bool:
    """Whether the original bytes are kept of all that was read. A file that the client compressed
    is smaller than the place in its content."""
    described = known.described or {}
    has_end = described.get("shape") != "lines" or described.get("compressed")
    kept = known.raw_bytes if has_end else known.raw_bytes + known.unfinished_length
    return kept >= (min(known.byte_offset, known.stat.size) if has_end else known.stat.size)


def judge(known: Checkpoint, file: IO[bytes], now: Stat, *, keep_raw: bool = True) -> Reason | None:
    """Why a file that differs from its checkpoint must be read, or ``None`` if only its inode data
    changed (a new link, a new mode) and its content did not.

    The offset counts only if the bytes at the start of the file and before the offset are still the
    ones that were read: size, time and inode all repeat after a truncation, a copy or a restore.
    """
    if now.size < known.byte_offset:
        return "truncated"
    if anchors(file, known.byte_offset) != (known.head_hash, known.tail_hash):
        return "rewritten" if now.inode == known.stat.inode else "replaced"
    if not unfinished_stands(known, file):
        return "rewritten"
    if now.size == known.stat.size and now.mtime_ns != known.stat.mtime_ns:
        # Same size and a new time: nothing was appended, so something inside may have changed.
        return "rewritten"
    settled = not known.rereading and known.unreadable is None
    if now.size == known.stat.size and settled and (not keep_raw or has_raw(known)):
        return None
    return "append"


def unfinished_stands(known: Checkpoint, file: IO[bytes]) -> bool:
    """Whether what stood behind the last complete line is still there, be it finished or not."""
    digest = hashlib.sha256()
    at, end = known.byte_offset, known.byte_offset + known.unfinished_length
    while at < end:
        piece = os.pread(file.fileno(), min(1 << 20, end - at), at)
        if not piece:
            return False
        digest.update(piece)
        at += len(piece)
    return known.unfinished_length == 0 or digest.digest() == known.unfinished_hash


def anchors(file: IO[bytes], byte_offset: int) -> tuple[bytes, bytes]:
    """SHA-256 of the first and of the last bytes before an offset, at most 4 KiB each."""
    descriptor = file.fileno()
    width = min(ANCHOR_BYTES, byte_offset)
    head = os.pread(descriptor, width, 0)
    tail = os.pread(descriptor, width, byte_offset - width)
    return hashlib.sha256(head).digest(), hashlib.sha256(tail).digest()
