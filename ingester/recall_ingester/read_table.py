"""Reading the rows of one SQLite table, on from the highest id."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recall.errors import SourceError
from recall.jsontext import MalformedLine, loads
from recall_ingester.checkpoint import Checkpoint, Stat
from recall_ingester.faults import attempt
from recall_ingester.original import Spans
from recall_ingester.pieces import PieceWriter, Place
from recall_ingester.sources.base import Parser, Table

_ROWS = 500
#: Below every id that SQLite can hold but one.
_BEFORE_FIRST = -(1 << 63)


class TableReader:
    """Reads rows as if they were appended lines: what is kept of them is one line of JSON a row.

    The checkpoint holds the highest id and the hash of its row. If that row is not there any more,
    or differs, the table was replaced, and is read from its start.
    """

    def __init__(self, parser: Parser, writer: PieceWriter, *, keep_raw: bool) -> None:
        self._parser = parser
        self._writer = writer
        self._keep_raw = keep_raw
        self.bytes_read = 0

    def read(self, table: Table, stat: Stat, state: Mapping[str, Any], *, from_start: bool) -> None:
        """Read the rows that are new; with ``from_start`` all, to see edits of earlier ones."""
        writer = self._writer
        known = writer.known
        last_id = self._last_id(known)
        raw_is_kept = not self._keep_raw or known.raw_bytes >= known.byte_offset
        if from_start or not raw_is_kept or not self._stands(table, known, last_id):
            again = known.restart(stat)
            writer.restart(again if known.lines else replace(again, generation=known.generation))
            last_id = None
        rereading = writer.known.rereading
        writer.start()
        writer.goes_on()
        if self._keep_raw:
            writer.raw_from(writer.known.byte_offset)
        first = _BEFORE_FIRST
        while rows := table.rows(_BEFORE_FIRST if last_id is None else last_id, _ROWS):
            for row_id, line in rows:
                if last_id is not None and row_id <= last_id:
                    raise SourceError(f"the table is damaged: row {row_id} comes behind {last_id}")
                last_id = row_id
                self._row(row_id, line)
            if rereading:
                writer.retire(first, rows[-1][0] + 1)
                first = rows[-1][0] + 1
            self._end(stat, state, rows[-1], len(rows), b"".join(row[1] for row in rows))
            if writer.is_full:
                writer.hand_over()
            writer.start()
            writer.goes_on()
        if rereading:
            writer.retire(first, None)
        writer.end(replace(writer.known, stat=stat, parser_state=self._state(state, last_id),
                           rereading=False, unreadable=None, missing=False))  # fmt: skip

    def _row(self, row_id: int, line: bytes) -> None:
        self.bytes_read += len(line)
        try:
            value, damaged = loads(line)
            parsed = attempt(self._parser.record, value, row_id)
        except MalformedLine as error:
            place = Place(row_id, self._writer.known.byte_offset, len(line), line)
            self._writer.quarantine(place, error.reason)
            return
        self._writer.parsed(parsed, row_id, damaged=damaged)

    def _end(
        self,
        stat: Stat,
        state: Mapping[str, Any],
        last: tuple[int, bytes],
        rows: int,
        data: bytes,
    ) -> None:
        writer = self._writer
        known = writer.known
        if self._keep_raw:
            spans = Spans(known.path, known.generation)
            writer.raw(spans.cut(known.byte_offset, data))
        end = known.byte_offset + len(data)
        writer.end(
            replace(
                known,
                stat=replace(stat, size=-1),
                byte_offset=end,
                raw_bytes=end if self._keep_raw else known.raw_bytes,
                lines=known.lines + rows,
                tail_hash=hashlib.sha256(last[1]).digest(),
                parser_state=self._state(state, last[0]),
            )
        )

    @staticmethod
    def _last_id(known: Checkpoint) -> int | None:
        last = (known.parser_state or {}).get("last_id")
        return last if isinstance(last, int) and known.lines else None

    @staticmethod
    def _state(state: Mapping[str, Any], last_id: int | None) -> dict[str, Any]:
        return {**state, "last_id": last_id}

    @staticmethod
    def _stands(table: Table, known: Checkpoint, last_id: int | None) -> bool:
        if last_id is None:
            return known.lines == 0
        rows = table.rows(last_id - 1, 1)
        return (
            len(rows) == 1
            and rows[0][0] == last_id
            and hashlib.sha256(rows[0][1]).digest() == known.tail_hash
        )
