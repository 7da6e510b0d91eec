"""Complete lines of a growing file, from where the last read ended, in bounded memory."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import zstandard

from recall.errors import SourceError

_CHUNK_BYTES = 1 << 18
#: Compressed bytes that are decompressed at once.
_PACKED_BYTES = 2048


class ByteStream(Protocol):
    """What the reader needs of a file."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file, without its line ending.

    ``data`` is ``None`` if the line is longer than the reader's limit; its length and hash are
    known all the same. ``terminated`` is false only for the last bytes of a file that do not end
    with a newline. ``byte_length`` counts the line ending.
    """

    ordinal: int
    byte_offset: int
    byte_length: int
    data: bytes | None
    sha256: bytes | None
    terminated: bool

    @property
    def end(self) -> int:
        """The offset of the byte after the line."""
        return self.byte_offset + self.byte_length

    @property
    def place(self) -> tuple[int, int]:
        """Offset and length."""
        return self.byte_offset, self.byte_length


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file for reading; a FIFO or device in its place is refused, not read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceError("not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


def decompressed(file: IO[bytes]) -> ByteStream:
    """The content of a zstd file, decompressed as it is read.

    Reading raises :class:`SourceError` where the file ends within a frame, and
    ``zstandard.ZstdError`` for damaged bytes.
    """
    return _Decompressed(file)


class _Decompressed:
    """Small pieces go in, because each can come out some ten thousand times as long."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._given = b""
        self._ready = b""

    def read(self, size: int, /) -> bytes:
        while not self._ready:
            self._given = self._given or self._file.read(_PACKED_BYTES)
            if not self._given:
                if self._frame is not None:
                    raise SourceError("the compressed file ends too early")
                return b""
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            self._ready = self._frame.decompress(self._given)
            self._given = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
            else:
                self._given = b""
        data, self._ready = self._ready[:size], self._ready[size:]
        return data


def read_lines(
    stream: ByteStream, *, byte_offset: int, ordinal: int, max_line_bytes: int
) -> Iterator[Line]:
    """Lines from a stream that stands at ``byte_offset``, split at newline bytes only.

    Never holds more than one line of at most ``max_line_bytes`` and one chunk.
    """
    pending: list[bytes] = []
    length = 0
    digest = None
    while chunk := stream.read(_CHUNK_BYTES):
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            piece = chunk[start:end]
            start = end + 1
            total = length + len(piece)
            if digest is not None:
                digest.update(piece)
                line = Line(ordinal, byte_offset, total + 1, None, digest.digest(), True)
            elif total > max_line_bytes:
                line = _oversize(ordinal, byte_offset, [*pending, piece], terminated=True)
            else:
                data = b"".join([*pending, piece]) if pending else piece
                line = Line(ordinal, byte_offset, total + 1, data, None, True)
                del data
            pending, length, digest = [], 0, None
            byte_offset, ordinal = line.end, ordinal + 1
            yield line
            del line  # a long one must not live on while the next is read
        rest = chunk[start:]
        if not rest:
            continue
        length += len(rest)
        if digest is not None:
            digest.update(rest)
            continue
        pending.append(rest)
        if length > max_line_bytes:
            digest = hashlib.sha256()
            for piece in pending:
                digest.update(piece)
            pending = []
    if length and digest is not None:
        yield Line(ordinal, byte_offset, length, None, digest.digest(), terminated=False)
    elif length:
        yield Line(ordinal, byte_offset, length, b"".join(pending), None, terminated=False)


def _oversize(ordinal: int, byte_offset: int, pieces: list[bytes], *, terminated: bool) -> Line:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    length = sum(map(len, pieces)) + int(terminated)
    return Line(ordinal, byte_offset, length, None, digest.digest(), terminated)


def trim(data: bytes, ordinal: int) -> bytes:
    """A line without what surrounds its record: BOM, CR of a CRLF ending, runs of NUL, spaces.

    A crash or a power loss leaves runs of NUL bytes before or after a record.
    """
    if ordinal == 0:
        data = data.removeprefix(b"\xef\xbb\xbf")
    return data.strip(b"\x00 \t\r\x0b\x0c")
