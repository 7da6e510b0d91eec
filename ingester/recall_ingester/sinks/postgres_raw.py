"""Original bytes on their way into PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from recall.records import RawSpan
from recall_ingester.sinks import Batch


class RawWriter:
    """Writes the original bytes of a batch: only those that the store does not have travel."""

    def __init__(self, sql: Mapping[str, Any], host: str) -> None:
        self._sql = sql
        self._host = host

    def write(self, cursor: psycopg.Cursor[Any], batch: Batch) -> tuple[int, list[bytes]]:
        """The stored size of what was new, and the hashes of what made room."""
        replaced: list[bytes] = []
        for piece in batch.pieces:
            where = {"host": self._host, "path": piece.path, "generation": piece.generation}
            if piece.raw_from is not None:
                cursor.execute(
                    self._sql["drop_raw_segments"], {**where, "byte_offset": piece.raw_from}
                )
                replaced.extend(bytes(row[0]) for row in cursor.fetchall())
            if piece.supersedes_raw and piece.generation > 1:
                cursor.execute(
                    self._sql["supersede_raw"], {**where, "session_key": piece.session_key}
                )
                replaced.extend(bytes(row[0]) for row in cursor.fetchall())
        sources = {piece.path: piece.source for piece in batch.pieces}
        new_bytes = self._write_spans(cursor, batch.raw, sources) if batch.raw else 0
        kept = {span.hash for span in batch.raw}
        return new_bytes, [digest for digest in replaced if digest not in kept]

    def _write_spans(
        self, cursor: psycopg.Cursor[Any], spans: list[RawSpan], sources: Mapping[str, str]
    ) -> int:
        by_hash = {span.hash: span for span in spans}
        cursor.execute(self._sql["known_blobs"], {"hashes": list(by_hash)})
        known = {bytes(row[0]) for row in cursor.fetchall()}
        new = [span for digest, span in sorted(by_hash.items()) if digest not in known]
        # Also where nothing is new: the statement holds the blobs that are there until the commit.
        cursor.execute(
            self._sql["insert_blobs"],
            {
                "hashes": [span.hash for span in new],
                "lengths": [span.byte_length for span in new],
                "codecs": [span.codec for span in new],
                "data": [span.data for span in new],
            },
        )
        # A span that came twice in a batch (a piece that was handed over early): the later one.
        last = {(span.path, span.generation, span.byte_offset): span for span in spans}
        rows = list(last.values())
        cursor.execute(
            self._sql["upsert_raw_segments"],
            {
                "host": self._host,
                "paths": [span.path for span in rows],
                "sources": [sources[span.path] for span in rows],
                "generations": [span.generation for span in rows],
                "offsets": [span.byte_offset for span in rows],
                "lengths": [span.byte_length for span in rows],
                "hashes": [span.hash for span in rows],
                "unfinished": [span.unfinished for span in rows],
            },
        )
        return sum(len(span.data) for span in new)
