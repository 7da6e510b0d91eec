"""By which bytes a file of lines is known again."""

from __future__ import annotations

import hashlib
import os
from typing import IO

from recall_ingester.checkpoint import ANCHOR_BYTES, Checkpoint


class ReadAnchors:
    """Hashes of the first and the last bytes before a place, as they were read.

    A client may write over a file while it is read. Taken from the file afterwards, they would say
    that what was read still stands. It holds what was read last and 4 KiB.
    """

    def __init__(self, opened: IO[bytes], known: Checkpoint) -> None:
        self._opened = opened
        self._place = self._end = self._kept_place = known.byte_offset
        width = min(ANCHOR_BYTES, self._end)
        self._head = os.pread(opened.fileno(), width, 0)
        self._data = self._kept = os.pread(opened.fileno(), width, self._end - width)
        found = _hash(self._head), _hash(self._data)
        self._stands = self._end == 0 or found == (known.head_hash, known.tail_hash)

    def read(self, size: int, /) -> bytes:
        """The next bytes of the file."""
        data = self._opened.read(size)
        # More is only asked for behind the last complete line: the next one ends in this.
        self._kept, self._kept_place = self._before(self._place), self._place
        self._head += data[: ANCHOR_BYTES - len(self._head)]
        self._data = self._data[-ANCHOR_BYTES:] + data
        self._end += len(data)
        return data

    def advance(self, place: int) -> None:
        """Everything before this place was read as lines."""
        self._place = place

    def at(self, place: int) -> tuple[bytes, bytes]:
        """The hashes for the place that was advanced to. If the file had been written over when
        reading began, they fit no file."""
        tail = _hash(self._before(place)) if self._stands else b""
        return _hash(self._head[:place]), tail

    def _before(self, place: int) -> bytes:
        if place == self._kept_place:
            return self._kept
        stop = len(self._data) - (self._end - place)
        return self._data[max(stop - ANCHOR_BYTES, 0) : stop]


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
