"""The right answers of the vector benchmark: all vectors compared with each query, outside SQL."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ops.bench.search_store import Connection
from ops.bench.vectors_filters import Filter
from ops.bench.vectors_space import Vectors

#: How much the database's arithmetic with half-precision numbers may differ from this one.
TOLERANCE = 3e-4
_CHUNK = 20_000


class Exact:
    """Cosine distances of the distinct texts of a store to some queries."""

    def __init__(self, conn: Connection, queries: Vectors) -> None:
        self._places: dict[bytes, int] = {}
        distances = []
        for hashes, vectors in _stored(conn):
            for digest in hashes:
                self._places[digest] = len(self._places)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            distances.append(1 - (vectors / lengths) @ queries.T)
        self._distances = np.concatenate(distances)

    def rows_and_texts(self, conn: Connection, which: Filter) -> tuple[int, NDArray[np.integer]]:
        """How many passages a filter lets through, and which texts they have."""
        rows = conn.execute(
            "select p.text_hash, count(*) from recall.passage_1 p"
            f" where {which.condition} group by p.text_hash".encode(),
            binary=True,
        ).fetchall()
        texts = np.array([self._places[bytes(digest)] for digest, _ in rows], np.int64)
        return sum(count for _, count in rows), texts

    def nearest(self, texts: NDArray[np.integer], most: int) -> Vectors:
        """Distances of the nearest of these texts, nearest first; a row for each query."""
        behind = self._distances[texts]
        most = min(most, len(texts))
        nearest: Vectors = np.sort(np.partition(behind, max(0, most - 1), axis=0)[:most], axis=0).T
        return nearest


def recall_of(found: NDArray[np.floating], right: NDArray[np.floating]) -> float:
    """Share of the right answer that was found; one that is as near as the last is as good."""
    if not len(right):
        return 1.0
    return min(1.0, float(np.sum(found[: len(right)] <= right[-1] + TOLERANCE)) / len(right))


def _stored(conn: Connection) -> Iterator[tuple[list[bytes], Vectors]]:
    """Hash and vector of each distinct text."""
    with conn.cursor().copy(
        "copy (select text_hash, v from recall.passage_1 where is_representative)"
        " to stdout (format binary)"
    ) as copy:
        hashes: list[bytes] = []
        halves: list[bytes] = []
        for row in copy.rows():
            digest, value = row
            (dimension,) = struct.unpack(">h", value[:2])
            hashes.append(bytes(digest))
            halves.append(value[4 : 4 + 2 * dimension])
            if len(hashes) == _CHUNK:
                yield hashes, _decode(halves)
                hashes, halves = [], []
        if hashes:
            yield hashes, _decode(halves)


def _decode(halves: list[bytes]) -> Vectors:
    numbers = np.frombuffer(b"".join(halves), ">f2").astype(np.float32)
    return numbers.reshape(len(halves), -1)
