"""Elements of JSON documents of any size."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.errors import SourceError
from recall_ingester.exports.json_stream import Element, elements

texts = st.text() | st.text(alphabet='[]{}",:\\ \n\té', max_size=12)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=24,
)
sizes = st.lists(st.integers(1, 9), min_size=1, max_size=8)
indents = st.sampled_from([None, 1, "\t"])


class Pieces:
    """A stream that gives as many bytes at a time as it wants to."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data = data
        self._sizes = sizes
        self._at = 0
        self._turn = 0

    def read(self, size: int, /) -> bytes:
        take = min(size, self._sizes[self._turn % len(self._sizes)])
        piece = self._data[self._at : self._at + take]
        self._at += take
        self._turn += 1
        return piece


class Generated:
    """A stream of pieces that are made when they are asked for."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


def scan(data: bytes, sizes: list[int] | None = None, **limits: int) -> list[Element]:
    return list(elements(Pieces(data, sizes or [1 << 20]), **limits))


def loaded(found: list[Element]) -> list[Any]:
    return [json.loads(element.data or b"") for element in found]


@given(st.lists(values, max_size=6), sizes, indents, st.booleans())
def test_array_gives_its_elements_wherever_chunks_end(
    document: list[Any], sizes: list[int], indent: int | str | None, ascii_only: bool
) -> None:
    data = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    found = scan(data, sizes)
    assert loaded(found) == document
    for element in found:
        end = element.byte_offset + element.byte_length
        assert data[element.byte_offset : end] == element.data


@given(st.dictionaries(texts, values, max_size=5), sizes, indents)
def test_bare_object_is_one_element(
    document: dict[str, Any], sizes: list[int], indent: int | str | None
) -> None:
    data = b"\xef\xbb\xbf\n" + json.dumps(document, indent=indent).encode() + b"\n"
    (element,) = scan(data, sizes)
    assert json.loads(element.data or b"") == document
    assert element.byte_offset == 4


@given(st.lists(values.filter(lambda v: not isinstance(v, list)), max_size=6), sizes)
def test_lines_give_one_element_each(documents: list[Any], sizes: list[int]) -> None:
    data = "\n".join(json.dumps(document) for document in documents).encode()
    assert loaded(scan(data, sizes)) == documents


@given(st.lists(values, min_size=1, max_size=4), sizes, st.data())
def test_array_that_is_cut_off_is_an_error(
    document: list[Any], sizes: list[int], data: st.DataObject
) -> None:
    whole = json.dumps(document).encode()
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(SourceError, match=rf"ends at byte {cut}\b") as caught:
        scan(whole[:cut], sizes)
    assert "cut off" in (caught.value.hint or "")


@given(st.binary(max_size=60), sizes)
def test_any_bytes_are_framed_or_refused(data: bytes, sizes: list[int]) -> None:
    try:
        found = scan(data, sizes)
    except SourceError:
        return
    at = 0
    for element in found:
        assert element.byte_offset >= at
        at = element.byte_offset + element.byte_length
        assert element.byte_length > 0
        assert data[element.byte_offset : at] == element.data


def test_object_that_is_cut_off_names_where_it_begins() -> None:
    with pytest.raises(SourceError, match="element that begins at byte 10"):
        scan(b'{"a": 1}\n\n{"b": "x')


@pytest.mark.parametrize("sizes", [[1], [3], [1000]])
def test_element_above_the_limit_keeps_its_length_and_hash(sizes: list[int]) -> None:
    long = b'{"text": "' + b"x" * 200 + b'"}'
    found = scan(b"[1, " + long + b", 2]", sizes, max_element_bytes=100)
    assert [element.data for element in found] == [b"1", None, b"2"]
    assert (found[1].byte_offset, found[1].byte_length) == (4, len(long))
    assert found[1].sha256 == hashlib.sha256(long).digest()


def test_element_of_the_limit_is_kept() -> None:
    (element,) = scan(b'["12345678"]', [4], max_element_bytes=10)
    assert element.data == b'"12345678"'


def test_deep_nesting_is_framed() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    (element,) = scan(b"[" + deep + b"]", [700])
    assert element.data == deep


def test_something_that_is_not_json_costs_one_element() -> None:
    found = scan(b'[{"a": 1}, oops, {"b": 2}]')
    assert [element.data for element in found] == [b'{"a": 1}', b"oops", b'{"b": 2}']


def test_long_line_is_read_in_the_memory_of_one_element() -> None:
    part = json.dumps({"a": ['[\\"}' * 20, {"b": {"c": [1, 2, {"d": "x" * 4000}]}}]}).encode()
    element = b"[" + b",".join([part] * 100) + b"]"
    count = 40_000_000 // len(element)

    def document() -> Iterator[bytes]:
        yield b"["
        for number in range(count):
            yield element if number == 0 else b"," + element
        yield b"]"

    tracemalloc.start()
    try:
        seen = sum(1 for found in elements(Generated(document())) if found.data == element)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seen == count
    # One element, one chunk, what the stream of this test holds, and the copies between them.
    assert peak < 4_000_000 + 2 * len(element)


def test_long_string_of_escapes_is_one_element() -> None:
    chunks = (b"x\\" + b"\\" * 4093 + b"y" for _ in range(2_000))

    def document() -> Iterator[bytes]:
        yield b'{"a": "'
        yield from chunks
        yield b'"}'

    (element,) = elements(Generated(document()))
    assert element.byte_length == 7 + 2_000 * 4096 + 2
