"""Framing: lines at newline bytes only, in bounded memory, with exact offsets."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from recall.errors import SourceError
from recall_ingester.reader import Line, decompressed, open_regular, read_lines, trim


class Dribble(io.BytesIO):
    """A stream that gives a few bytes a time, whatever is asked for."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__(data)
        self._step = step

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(self._step, size or self._step))


def lines(data: bytes, step: int = 1 << 18, limit: int = 1 << 20) -> list[Line]:
    stream = Dribble(data, step)
    return list(read_lines(stream, byte_offset=0, ordinal=0, max_line_bytes=limit))


PIECES = st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\r\n", b"\x00", b"\xe2\x80\xa8", b"\x85"]))


@given(PIECES.map(b"".join), st.integers(1, 7))
def test_lines_cover_the_file_whatever_the_chunks(data: bytes, step: int) -> None:
    found = lines(data, step)
    assert b"".join((line.data or b"") + b"\n" * line.terminated for line in found) == data
    assert [line.ordinal for line in found] == list(range(len(found)))
    assert [line.byte_offset for line in found] == [
        sum(earlier.byte_length for earlier in found[:place]) for place in range(len(found))
    ]
    assert all(line.terminated for line in found[:-1])


@given(st.integers(0, 40), st.integers(1, 7), st.booleans())
def test_line_over_the_limit_keeps_place_length_and_hash(size: int, step: int, end: bool) -> None:
    data = b"ab\n" + b"x" * size + b"\n" * end + (b"cd\n" if end else b"")
    found = lines(data, step, limit=20)
    long = found[1] if size or end else None
    if long is None:
        return
    assert long.byte_length == size + end
    assert (long.data is None) == (size > 20)
    if size > 20:
        assert long.sha256 == hashlib.sha256(b"x" * size).digest()
    if end:
        assert found[2].data == b"cd"
        assert found[2].byte_offset == 3 + size + 1


def test_compressed_file_reads_as_the_plain_one(tmp_path: Path) -> None:
    data = b"".join(b"line %d\n" % n for n in range(50_000))
    half = len(data) // 2
    frames = zstandard.compress(data[:half], 3) + zstandard.compress(data[half:], 3)
    path = tmp_path / "x.zst"
    path.write_bytes(frames)
    with open_regular(path) as file:
        stream = decompressed(file)
        found = list(read_lines(stream, byte_offset=0, ordinal=0, max_line_bytes=1000))
    assert b"".join((line.data or b"") + b"\n" for line in found) == data


def test_fifo_in_the_place_of_a_log_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "session.jsonl"
    os.mkfifo(fifo)
    with pytest.raises(SourceError, match="not a regular file"):
        open_regular(fifo)


@pytest.mark.parametrize(
    ("data", "ordinal", "trimmed"),
    [
        (b"\xef\xbb\xbf{}", 0, b"{}"),
        (b"\xef\xbb\xbf{}", 1, b"\xef\xbb\xbf{}"),
        (b"{}\r", 3, b"{}"),
        (b"\x00\x00{}\x00", 3, b"{}"),
        (b"\x00" * 4096, 3, b""),
        (b" \t", 3, b""),
        (b"\xc2\x85{}", 3, b"\xc2\x85{}"),
    ],
)
def test_what_surrounds_a_record_is_trimmed(data: bytes, ordinal: int, trimmed: bytes) -> None:
    assert trim(data, ordinal) == trimmed
