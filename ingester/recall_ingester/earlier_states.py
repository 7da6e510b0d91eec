"""Which earlier states of a file stand in it again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from recall_ingester.original import SPAN_DIGEST_BYTES
from recall_ingester.reader import ByteStream

#: Offset, length and hash of original bytes that the store keeps.
Kept = Sequence[tuple[int, int, bytes]]


class EarlierStates:
    """Compares what is read of a file, from its first byte on, with states of it that are kept.

    Copies of one home that take turns, and files that only got a new time, would otherwise leave a
    state behind each time.
    """

    def __init__(self, stream: ByteStream, states: Mapping[int, Kept]) -> None:
        self._stream = stream
        self._states = {number: _State(kept) for number, kept in states.items() if kept}

    def read(self, size: int, /) -> bytes:
        """The next bytes of the file."""
        data = self._stream.read(size)
        for state in self._states.values():
            state.add(data)
        return data

    def standing(self) -> list[int]:
        """The states all of whose bytes were read."""
        return [number for number, state in self._states.items() if state.is_read]


class _State:
    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._number = self._position = 0
        self._found = hashlib.blake2b(digest_size=SPAN_DIGEST_BYTES)
        self._differs = False

    @property
    def is_read(self) -> bool:
        return not self._differs and self._number == len(self._kept)

    def add(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._differs and self._number < len(self._kept):
            start, length, digest = self._kept[self._number]
            part = view[: start + length - self._position]
            self._found.update(part)
            self._position += len(part)
            view = view[len(part) :]
            if self._position >= start + length:
                self._differs = self._position > start + length or self._found.digest() != digest
                self._found = hashlib.blake2b(digest_size=SPAN_DIGEST_BYTES)
                self._number += 1
