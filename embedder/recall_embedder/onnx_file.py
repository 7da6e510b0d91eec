"""Reads the weights of an ONNX file and writes small graphs, without the ``onnx`` package.

An ONNX file is one protocol buffer. Only what the bundled model needs is here; the numbers of the
fields are those of ``onnx.proto``, and no others are looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_TYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f4"),
    3: np.dtype("i1"),
    6: np.dtype("<i4"),
    7: np.dtype("<i8"),
}
_TYPE_NUMBERS = {dtype: number for number, dtype in _TYPES.items()}
FLOAT, INT32, INT64 = 1, 6, 7

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_IR_VERSION = 9
_OPSETS = (("", 18), ("com.microsoft", 1))


@dataclass(slots=True)
class Weights:
    """The constants of a graph by name, and the names that its nodes multiply by, in order."""

    arrays: dict[str, Array] = field(default_factory=dict)
    factors: list[str] = field(default_factory=list)


def read_weights(model: bytes) -> Weights:
    """The constants of a model. ``ValueError`` or ``KeyError`` if it is none."""
    found = Weights()
    for number, graph in _fields(memoryview(model)):
        if number != 7:
            continue
        for part, value in _fields(graph):
            if part == 5:
                name, array = _tensor(value)
                found.arrays[name] = array
            elif part == 1:
                node = list(_fields(value))
                if any(key == 4 and bytes(item) == b"MatMul" for key, item in node):
                    found.factors.append([str(item, "utf-8") for key, item in node if key == 1][1])
    return found


class GraphBuilder:
    """A graph that is written node by node; each node gives one value, whose name is returned."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []
        self._count = 0

    def constant(self, value: Array) -> str:
        """A constant of the graph."""
        name = self._new_name()
        dims = b"".join(_int(1, size) for size in value.shape)
        kind = _int(2, _TYPE_NUMBERS[value.dtype])
        self._constants.append(dims + kind + _text(8, name) + _bytes(9, value.tobytes()))
        return name

    def node(self, operator: str, *inputs: str, **attributes: int | float) -> str:
        """A node of the standard operators; an input that is left out is an empty name."""
        return self._node("", operator, inputs, attributes)

    def contrib(self, operator: str, *inputs: str, **attributes: int | float) -> str:
        """A node of onnxruntime's own operators."""
        return self._node("com.microsoft", operator, inputs, attributes)

    def model(self, inputs: Sequence[str], output: str, width: int) -> bytes:
        """The model: inputs are whole numbers (batch, length), the output has ``width`` columns."""
        graph = [_bytes(1, node) for node in self._nodes]
        graph.append(_text(2, "encoder"))
        graph += [_bytes(5, constant) for constant in self._constants]
        graph += [_bytes(11, _value(name, INT64, ("batch", "length"))) for name in inputs]
        graph.append(_bytes(12, _value(output, FLOAT, ("batch", "length", width))))
        opsets = [_bytes(8, _text(1, domain) + _int(2, version)) for domain, version in _OPSETS]
        return _int(1, _IR_VERSION) + _bytes(7, b"".join(graph)) + b"".join(opsets)

    def _node(
        self, domain: str, operator: str, inputs: Sequence[str], attributes: dict[str, int | float]
    ) -> str:
        name = self._new_name()
        body = b"".join(_text(1, value) for value in inputs) + _text(2, name) + _text(4, operator)
        for key, value in attributes.items():
            body += _bytes(5, _text(1, key) + _number(value))
        self._nodes.append(body + _text(7, domain))
        return name

    def _new_name(self) -> str:
        self._count += 1
        return f"v{self._count}"


def _number(value: int | float) -> bytes:
    if isinstance(value, float):
        return _key(2, _FIXED32) + struct.pack("<f", value) + _int(20, 1)
    return _int(3, value) + _int(20, 2)


def _value(name: str, kind: int, shape: Sequence[str | int]) -> bytes:
    dims = (_text(2, size) if isinstance(size, str) else _int(1, size) for size in shape)
    tensor = _int(1, kind) + _bytes(2, b"".join(_bytes(1, dim) for dim in dims))
    return _text(1, name) + _bytes(2, _bytes(1, tensor))


def _tensor(data: memoryview) -> tuple[str, Array]:
    parts = list(_fields(data))
    shape = [value for key, value in parts if key == 1]
    last: dict[int, Any] = dict(parts)
    name = str(last[8], "utf-8")
    dtype = _TYPES.get(last[2])
    if dtype is None or 9 not in last:
        return name, np.zeros(0)  # a truth value or a list of small numbers: no weights
    array: Array = np.frombuffer(last[9], dtype=dtype)
    return name, array.reshape(shape)


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Number and value of each field: a whole number, or the bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, place = _varint(data, place)
            yield number, value
            continue
        if wire == _BYTES:
            length, place = _varint(data, place)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"not an ONNX file: wire type {wire}")
        yield number, data[place : place + length]
        place += length


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
        shift += 7


def _key(number: int, wire: int) -> bytes:
    return _encoded(number << 3 | wire)


def _int(number: int, value: int) -> bytes:
    return _key(number, _VARINT) + _encoded(value & 0xFFFF_FFFF_FFFF_FFFF)


def _bytes(number: int, value: bytes) -> bytes:
    return _key(number, _BYTES) + _encoded(len(value)) + value


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode())


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
