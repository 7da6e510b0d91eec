"""The original bytes of files, cut into spans that the store keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import zstandard

from recall.records import RawSpan
from recall_ingester.reader import ByteStream

#: A span ends at each multiple of this many bytes of its file: equal files give equal spans.
SPAN_BYTES = 262_144
SPAN_DIGEST_BYTES = 32
_LEVEL = 3
#: Below this, the frame of zstd costs more than it saves.
_LEAST_BYTES = 64
#: Compressed bytes of one long line that may wait in memory for its end.
_WAITING_BYTES = 4_000_000


class Spans:
    """Makes the spans of one generation of one file. Not for use by several threads."""

    def __init__(self, path: str, generation: int) -> None:
        self._path = path
        self._generation = generation
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)

    def make(self, byte_offset: int, data: bytes, *, unfinished: bool = False) -> RawSpan:
        """One span; the caller keeps to ``SPAN_BYTES``."""
        packed = self._compressor.compress(data) if len(data) >= _LEAST_BYTES else data
        smaller = len(packed) < len(data)
        return RawSpan(
            path=self._path,
            generation=self._generation,
            byte_offset=byte_offset,
            byte_length=len(data),
            hash=span_hash(data),
            codec="zstd" if smaller else "none",
            data=packed if smaller else data,
            unfinished=unfinished,
        )

    def cut(
        self, byte_offset: int, data: bytes | memoryview, *, unfinished: bool = False
    ) -> Iterator[RawSpan]:
        """The spans of bytes that stand at an offset of the file."""
        view = memoryview(data)
        at = 0
        while at < len(data):
            end = min(len(data), at + SPAN_BYTES - (byte_offset + at) % SPAN_BYTES)
            yield self.make(byte_offset + at, bytes(view[at:end]), unfinished=unfinished)
            at = end


def span_hash(data: bytes) -> bytes:
    """32 bytes of BLAKE2b, the name of these bytes in the store."""
    return hashlib.blake2b(data, digest_size=SPAN_DIGEST_BYTES).digest()


class Recorder:
    """Keeps what is read from a file until a place is reached at which a checkpoint can stand.

    It stands between the file and the reader of lines: :meth:`read` gives bytes on and keeps them.
    ``cut(end)`` gives the spans up to a line's end, and never one that reaches beyond it, so that
    the spans of a transaction end where its checkpoint does. Holds about one span. The spans of a
    line that is longer go to ``overflow`` from time to time.
    """

    def __init__(
        self,
        stream: ByteStream,
        spans: Spans,
        byte_offset: int,
        overflow: Callable[[list[RawSpan]], None],
    ) -> None:
        self._stream = stream
        self._overflow = overflow
        self._spans = spans
        self._start = byte_offset
        self._buffer = bytearray()
        self._consumed = byte_offset
        self._ready: list[RawSpan] = []
        #: Of a long line: the hash of what was made into spans before its end was seen.
        self._long = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        """The next bytes of the file."""
        data = self._stream.read(size)
        if len(self._buffer) + len(data) > 2 * SPAN_BYTES:
            # The reader asks for more only behind the last complete line: what stands before its
            # end is a span of its own, what stands behind it belongs to one long line.
            self._take(self._consumed)
            before = bytes(self._buffer)
            self._take(self._start + len(self._buffer), whole_spans=True)
            self._long.update(before[: len(before) - len(self._buffer)])
            if sum(len(span.data) for span in self._ready) >= _WAITING_BYTES:
                self._overflow(self.ready())
        self._buffer += data
        return data

    def advance(self, end: int) -> None:
        """Everything before this offset was read as lines."""
        if end != self._consumed:
            self._consumed = end
            self._long = hashlib.sha256()
        if end - self._start >= SPAN_BYTES:
            self._take(end, whole_spans=True)

    def ready(self) -> list[RawSpan]:
        """The spans that are ready, once each."""
        spans, self._ready = self._ready, []
        return spans

    def cut(self, end: int) -> list[RawSpan]:
        """The spans before an offset, once each."""
        self._take(end)
        return self.ready()

    def rest(self) -> tuple[list[RawSpan], int, bytes]:
        """What stands behind the last line, at the end of a file and after the last cut: its spans,
        marked as unfinished, its length, and the SHA-256 of its bytes."""
        data = bytes(self._buffer)
        spans = [replace(span, unfinished=True) for span in self.ready()]
        spans.extend(self._spans.cut(self._start, data, unfinished=True))
        self._long.update(data)
        return spans, self._start + len(data) - self._consumed, self._long.digest()

    def _take(self, end: int, *, whole_spans: bool = False) -> None:
        """Turn the bytes before an offset into spans; with ``whole_spans`` only up to the grid."""
        if whole_spans:
            end -= end % SPAN_BYTES
        length = end - self._start
        if length <= 0:
            return
        self._ready.extend(self._spans.cut(self._start, bytes(self._buffer[:length])))
        del self._buffer[:length]
        self._start = end
