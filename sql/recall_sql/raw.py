"""The original bytes of session logs, read back and proved to be what was stored.

Nothing of a file is handed out before its hash, its length and its place were checked. One segment
is held at a time, whatever the size of the file.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, LiteralString

import psycopg
import zstandard

from recall.errors import DamagedError
from recall_sql.connection import translate_errors
from recall_sql.loader import load

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Connection = psycopg.Connection[tuple[Any, ...]]

#: No segment is as long as this, stored or unpacked; what claims to be is damaged.
_MOST_BYTES = 1 << 24
#: What the frame of a segment may ask for; without a limit its header decides.
_MOST_WINDOW_BYTES = 1 << 24
_PLACES = 500


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file, or one session of a container, as its checkpoint describes it.

    ``size`` is that of the file at the last read; it is -1 where the next pass has to read on.
    ``shape`` is how it is read; ``None`` where that was not recorded yet. ``full_path`` is given
    where the path is longer than a key of the store can be.
    """

    host: str
    path: str
    source: str
    session_key: str | None
    generation: int
    container: str | None
    size: int
    mtime_ns: int
    byte_offset: int
    raw_bytes: int
    unfinished_length: int
    shape: str | None = None
    full_path: str | None = None

    @property
    def original(self) -> str:
        """The path of the file, whole."""
        return self.full_path or self.path

    @property
    def is_rows(self) -> bool:
        """Whether what is kept is not a file, but rows of a database or an export, as JSON."""
        return self.container is not None or self.shape == "table"

    @property
    def kept_bytes(self) -> int:
        """How many bytes the segments of the newest generation have to cover."""
        return self.raw_bytes + self.unfinished_length

    @property
    def why_not_kept(self) -> str | None:
        """Why the bytes of the newest generation are not all there; ``None`` if they are."""
        if self.container is not None:
            whole = self.raw_bytes > 0
        elif self.size >= 0 and not self.is_rows:
            whole = self.kept_bytes >= self.size
        elif self.path.endswith(".zst"):  # of such a file the offset counts decompressed bytes
            whole = self.raw_bytes > 0
        else:
            whole = self.raw_bytes >= self.byte_offset
        if whole:
            return None
        when = "it was read by a version that did not keep them, or with `keep_raw = false`"
        return f"only its first {self.kept_bytes:,} bytes: {when}" if self.kept_bytes else when


@dataclass(frozen=True, slots=True)
class Generation:
    """What is kept of one generation of a file."""

    number: int
    byte_length: int
    stored_at: datetime


@contextmanager
def snapshot(connection: Connection) -> Iterator[None]:
    """One view of the store for a checkpoint and its segments, on a connection in autocommit mode.

    The ingester moves both in one transaction; read apart, they can contradict each other.
    """
    with translate_errors(), connection.transaction():
        connection.execute("set transaction isolation level repeatable read read only")
        yield


def files_of_sessions(connection: Connection, keys: Sequence[str]) -> list[StoredFile]:
    """The files that sessions were read from."""
    rows = connection.execute(load("raw")["files_of_sessions"], {"keys": list(keys)}).fetchall()
    return [StoredFile(*row) for row in rows]


def files_of_path(connection: Connection, path: str, *, host: str | None) -> list[StoredFile]:
    """The files that a path, or its last parts, may mean, and the sessions of such a database."""
    values = {"path": path, "host": host}
    rows = connection.execute(load("raw")["files_of_path"], values).fetchall()
    found = {(row[0], row[1]): StoredFile(*row) for row in rows}
    return list(found.values())


def find_file(connection: Connection, host: str, path: str) -> StoredFile | None:
    """The checkpoint of one file."""
    row = connection.execute(load("raw")["find_file"], {"host": host, "path": path}).fetchone()
    return StoredFile(*row) if row else None


def damaged_blobs(connection: Connection, host: str, path: str) -> list[bytes]:
    """The hashes of the blobs of a file, in any generation, that are missing or damaged."""
    place = {"host": host, "path": path, "most": _MOST_BYTES}
    found: list[bytes] = []
    with (
        translate_errors(),
        connection.cursor() as cursor,
        closing(_stream(cursor, load("raw")["blobs_of_file"], place)) as rows,
    ):
        for digest, byte_length, *blob in rows:
            try:
                _unpack(byte_length, bytes(digest), blob, "")
            except DamagedError:
                found.append(bytes(digest))
    return found


def places(
    connection: Connection, *, source: str | None = None, session_key: str | None = None
) -> Iterator[tuple[str, str]]:
    """Host and path of every file, of one source or session if given."""
    values = {"source": source, "session_key": session_key, "limit": _PLACES}
    after = ("", "")
    while True:
        values |= {"after_host": after[0], "after_path": after[1]}
        page = connection.execute(load("raw")["places_after"], values).fetchall()
        yield from page
        if len(page) < _PLACES:
            break
        after = page[-1]
    if source is None and session_key is None:
        yield from connection.execute(load("raw")["places_without_checkpoint"]).fetchall()


def generations(connection: Connection, host: str, path: str) -> list[Generation]:
    """The generations of which bytes are kept, oldest first."""
    rows = connection.execute(load("raw")["generations"], {"host": host, "path": path}).fetchall()
    return [Generation(*row) for row in rows]


def read_chunks(
    connection: Connection, host: str, path: str, generation: int, *, file: StoredFile | None
) -> Generator[bytes, None, None]:
    """The bytes of one generation, segment by segment, each checked before it is given.

    ``file`` is the checkpoint, which says how long the newest generation is; of an earlier one only
    the segments tell. Raises :class:`DamagedError` at the first thing that is wrong. The connection
    is taken until the iterator ends or is closed.
    """
    place = {"host": host, "path": path, "generation": generation, "most": _MOST_BYTES}
    name = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in path)
    where = f"generation {generation} of `{name}`"
    known = file if file is not None and file.generation == generation else None
    position, finished_end = 0, None
    with (
        translate_errors(),
        connection.cursor() as cursor,
        closing(_stream(cursor, load("raw")["segments"], place)) as rows,
    ):
        for byte_offset, byte_length, digest, unfinished, *blob in rows:
            _check_place(byte_offset, byte_length, position, where)
            if unfinished and finished_end is None:
                finished_end = position
            elif finished_end is not None and not unfinished:
                raise _damaged(where, position, "a finished segment behind an unfinished one")
            yield _unpack(byte_length, bytes(digest), blob, f"{where}, byte {position:,}")
            position += byte_length
    if known is not None:
        _check_end(known, position, position if finished_end is None else finished_end, where)


def _stream(
    cursor: psycopg.Cursor[tuple[Any, ...]], statement: LiteralString, values: Mapping[str, Any]
) -> Generator[tuple[Any, ...], None, None]:
    """Row by row as the server sends them; closing it early cancels the statement."""
    yield from cursor.stream(statement, values)


def open_stream(
    connection: Connection, file: StoredFile, generation: int | None = None
) -> io.BufferedReader:
    """The bytes of one generation (the newest) as a file that can only be read forwards.

    Close it before the connection is used for anything else.
    """
    number = file.generation if generation is None else generation
    chunks = read_chunks(connection, file.host, file.path, number, file=file)
    return io.BufferedReader(_RawStream(chunks))


class _RawStream(io.RawIOBase):
    """Checked chunks as a raw file; holds one of them."""

    def __init__(self, chunks: Generator[bytes, None, None]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: WriteableBuffer, /) -> int:
        """Fill a buffer as far as the current chunk reaches; 0 at the end."""
        view = memoryview(target).cast("B")
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        """Give the connection back, also in the middle."""
        self._chunks.close()
        super().close()


class Comparison:
    """Finds the first byte in which a file differs from stored bytes that come chunk by chunk."""

    def __init__(self, opened: IO[bytes]) -> None:
        self._opened = opened
        self._position = 0
        self.first_difference: int | None = None

    def add(self, chunk: bytes) -> None:
        """The next stored bytes. Where the file ends before them, that place is the difference."""
        if self.first_difference is None:
            found = _read_fully(self._opened, len(chunk))
            if found != chunk:
                self.first_difference = self._position + _common_length(found, chunk)
        self._position += len(chunk)

    def has_more(self) -> bool:
        """After the last chunk: whether the file goes on."""
        return bool(self._opened.read(1))


def _check_place(byte_offset: int, byte_length: int, position: int, where: str) -> None:
    if byte_offset > position:
        raise _damaged(where, position, f"{byte_offset - position:,} bytes are missing")
    if byte_offset < position:
        raise _damaged(where, byte_offset, "two segments overlap")
    if not 0 < byte_length <= _MOST_BYTES:
        raise _damaged(where, position, f"a segment of {byte_length:,} bytes cannot be")


def _check_end(file: StoredFile, end: int, finished_end: int, where: str) -> None:
    if end != file.kept_bytes:
        expected = f"the checkpoint says {file.kept_bytes:,}"
        raise _damaged(where, min(end, file.kept_bytes), f"{end:,} bytes are kept, {expected}")
    if finished_end != file.raw_bytes:
        raise _damaged(where, finished_end, "the unfinished bytes begin at another place")


def _unpack(byte_length: int, digest: bytes, blob: Sequence[Any], where: str) -> bytes:
    """The original bytes of a segment, or :class:`DamagedError`."""
    blob_length, codec, stored_length, data = blob
    if blob_length is None:
        raise DamagedError(f"{where}: the blob of a segment is missing", hint=_HINT)
    if blob_length != byte_length:
        raise DamagedError(f"{where}: segment and blob differ in length", hint=_HINT)
    if data is None:
        raise DamagedError(f"{where}: a blob of {stored_length:,} bytes cannot be", hint=_HINT)
    if codec == "zstd":
        data = _decompress(data, byte_length)
    if data is None or len(data) != byte_length:
        raise DamagedError(f"{where}: the blob does not unpack to its length", hint=_HINT)
    if hashlib.blake2b(data, digest_size=32).digest() != digest:
        raise DamagedError(f"{where}: the bytes do not match their hash", hint=_HINT)
    return bytes(data)


def _decompress(data: bytes, byte_length: int) -> bytes | None:
    """At most one byte more than there should be, whatever the frame claims."""
    reader = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES).stream_reader(data)
    try:
        return _read_fully(reader, byte_length + 1)
    except zstandard.ZstdError:
        return None


def _read_fully(opened: Any, size: int) -> bytes:
    """``size`` bytes, or fewer at the end; a raw file may give less than it is asked for."""
    pieces: list[bytes] = []
    while size > 0 and (piece := opened.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _common_length(one: bytes, other: bytes) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


_HINT = (
    "`recall verify` lists everything that is damaged, and `recall verify --repair` takes what it "
    "can from the files themselves; the rest is in a backup of the database"
)


def _damaged(where: str, position: int, what: str) -> DamagedError:
    return DamagedError(f"{where}, byte {position:,}: {what}", hint=_HINT)
