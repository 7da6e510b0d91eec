"""The elements of a JSON document of any size, as the exact bytes that stand in it.

Nothing is decoded here. The bytes are scanned for brackets outside strings with compiled patterns
that take whole runs at once; only one element and one chunk are ever in memory.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

from recall.errors import SourceError
from recall_ingester.reader import ByteStream

_CHUNK_BYTES = 1 << 18
DEFAULT_MAX_ELEMENT_BYTES = 1 << 28

_BOM = b"\xef\xbb\xbf"
#: Groups that close within this many levels are taken by one match. A group that does not is
#: scanned again from its inside, so this also bounds how often a byte is looked at.
_LEVELS = 4
_TEXT = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
_PLAIN = rb'[^"\[\]{}]*+'


def _run(levels: int) -> bytes:
    group = rb"|[\[{]" + _run(levels - 1) + rb"[\]}]" if levels else b""
    return _PLAIN + rb'(?:(?:"' + _TEXT + rb'"' + group + rb")" + _PLAIN + rb")*+"


_RUN = re.compile(_run(_LEVELS), re.DOTALL)
_STRING_REST = re.compile(_TEXT, re.DOTALL)
_BETWEEN_IN_ARRAY = re.compile(rb"[\s,]*+")
_BETWEEN_AT_TOP = re.compile(rb"\s*+")
#: What is neither a string nor a group: a number, a literal, or something that is not JSON.
_SCALAR_IN_ARRAY = re.compile(rb'[^,\]\s"\[{]*+')
_SCALAR_AT_TOP = re.compile(rb'[^\s"\[{]*+')

_QUOTE, _BACKSLASH = b'"\\'
_OPEN_ARRAY, _CLOSE_ARRAY, _OPEN_OBJECT, _CLOSE_OBJECT = b"[]{}"


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a document. ``data`` is ``None`` if it is longer than the limit."""

    byte_offset: int
    byte_length: int
    data: bytes | None
    sha256: bytes | None = None


def elements(
    stream: ByteStream, *, max_element_bytes: int = DEFAULT_MAX_ELEMENT_BYTES
) -> Iterator[Element]:
    """The elements of a top-level array, or each top-level value that is not an array.

    So a bare object is one element, and every line of JSON Lines is one. Only the framing is
    checked: whether an element is JSON shows when it is parsed. :class:`SourceError` names the
    place if the bytes end inside an element or an array.
    """
    scanner = _Scanner(max_element_bytes)
    while chunk := stream.read(_CHUNK_BYTES):
        yield from scanner.feed(chunk)
    yield from scanner.finish()


class _Scanner:
    def __init__(self, max_element_bytes: int) -> None:
        self._limit = max_element_bytes
        self._offset = 0  # of the chunk's first byte
        self._array_at: int | None = None
        self._element: _Pending | None = None
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the last chunk ended with the backslash of an escape
        self._head: bytes | None = b""  # the first bytes, until it is known whether they are a BOM

    def feed(self, chunk: bytes) -> Iterator[Element]:
        if self._head is not None:
            chunk = self._head + chunk
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._head = chunk
                return
            self._head = None
            if chunk.startswith(_BOM):
                chunk, self._offset = chunk[len(_BOM) :], len(_BOM)
        yield from self._scan(chunk)
        self._offset += len(chunk)

    def finish(self) -> Iterator[Element]:
        if self._head:
            raise SourceError("the file holds no JSON: it ends within its first bytes")
        pending = self._element
        if pending is not None and (self._depth or self._in_string):
            raise SourceError(
                f"the JSON ends at byte {self._offset}, in the middle of the element that begins "
                f"at byte {pending.byte_offset}",
                hint="the file was cut off; download the export again",
            )
        if pending is not None and self._array_at is None:
            yield pending.finish()
        elif self._array_at is not None:
            raise SourceError(
                f"the JSON ends at byte {self._offset}, before the array that begins at byte "
                f"{self._array_at} is closed",
                hint="the file was cut off; download the export again",
            )

    def _scan(self, chunk: bytes) -> Iterator[Element]:
        at, end = 0, len(chunk)
        while at < end:
            if self._element is None:
                at = self._between(chunk, at)
                continue
            start = at
            at, complete = self._inside(chunk, at)
            self._element.write(chunk[start:at] if at - start < end else chunk)
            if complete:
                done, self._element = self._element, None
                yield done.finish()
                del done  # a long one must not live on while the next is read

    def _between(self, chunk: bytes, at: int) -> int:
        between = _BETWEEN_AT_TOP if self._array_at is None else _BETWEEN_IN_ARRAY
        at = _end(between, chunk, at)
        if at == len(chunk):
            return at
        if chunk[at] == _OPEN_ARRAY and self._array_at is None:
            self._array_at = self._offset + at
            return at + 1
        if chunk[at] == _CLOSE_ARRAY and self._array_at is not None:
            self._array_at = None
            return at + 1
        self._element = _Pending(self._offset + at, self._limit)
        return at

    def _inside(self, chunk: bytes, at: int) -> tuple[int, bool]:
        """Go on in the current element; where it went to, and whether the element ends there."""
        end = len(chunk)
        while at < end:
            if self._in_string:
                at = self._string(chunk, at)
                if not self._in_string and not self._depth:
                    return at, True
                continue
            if self._depth:
                at = _end(_RUN, chunk, at)
            elif chunk[at] not in b'"[{':
                return self._scalar(chunk, at)
            elif self._element is not None and self._element.has_scalar:
                return at, True
            if at == end:
                break
            byte, at = chunk[at], at + 1
            if byte == _QUOTE:
                self._in_string = True
            elif byte in (_OPEN_ARRAY, _OPEN_OBJECT):
                self._depth += 1
            else:
                self._depth -= 1
                if not self._depth:
                    return at, True
        return at, False

    def _string(self, chunk: bytes, at: int) -> int:
        if self._escaped:
            self._escaped = False
            at += 1
        at = _end(_STRING_REST, chunk, at)
        if at == len(chunk):
            return at
        if chunk[at] == _BACKSLASH:  # the last byte, or the pattern had taken it
            self._escaped = True
        else:
            self._in_string = False
        return at + 1

    def _scalar(self, chunk: bytes, at: int) -> tuple[int, bool]:
        assert self._element is not None
        pattern = _SCALAR_AT_TOP if self._array_at is None else _SCALAR_IN_ARRAY
        end = _end(pattern, chunk, at)
        self._element.has_scalar = True
        return end, end < len(chunk)


def _end(pattern: re.Pattern[bytes], chunk: bytes, at: int) -> int:
    match = pattern.match(chunk, at)
    assert match is not None  # each pattern matches the empty run too
    return match.end()


class _Pending:
    """An element while it is read; beyond the limit only its length and hash are kept."""

    def __init__(self, byte_offset: int, limit: int) -> None:
        self.byte_offset = byte_offset
        self.has_scalar = False
        self._limit = limit
        self._length = 0
        self._bytes = io.BytesIO()  # its value is handed over without a copy
        self._digest = hashlib.sha256()

    def write(self, piece: bytes) -> None:
        before, self._length = self._length, self._length + len(piece)
        if self._length <= self._limit:
            self._bytes.write(piece)
            return
        if before <= self._limit:
            self._digest.update(self._bytes.getbuffer())
            self._bytes = io.BytesIO()
        self._digest.update(piece)

    def finish(self) -> Element:
        if self._length > self._limit:
            return Element(self.byte_offset, self._length, None, self._digest.digest())
        return Element(self.byte_offset, self._length, self._bytes.getvalue())
