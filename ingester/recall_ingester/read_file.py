"""Reading one file: from its lines to pieces of a batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import IO, Any

from recall.jsontext import MalformedLine, loads
from recall.keys import path_key
from recall.records import MessageRow, Parsed, QuarantineRow
from recall.timestamps import parse_timestamp
from recall_ingester.checkpoint import Checkpoint, Counts, Stat, anchors
from recall_ingester.pipeline import RowBuilder
from recall_ingester.reader import Line, decompressed, read_lines, trim
from recall_ingester.salvage import salvage
from recall_ingester.sinks import Batch, Piece, Written
from recall_ingester.sources.base import Parser, SourceFile

_BATCH_MESSAGES = 2_000
_BATCH_CHARS = 4_000_000
_QUARANTINE_RAW_BYTES = 1_048_576


class FileReader:
    """Reads what is new in one file and hands it over in bounded batches.

    ``flush`` stores a batch and returns only when the store has it; the next batch's checkpoint
    builds on that.
    """

    def __init__(
        self,
        file: SourceFile,
        known: Checkpoint,
        parser: Parser,
        rows: RowBuilder,
        *,
        host: str,
        batch: Batch,
        flush: Callable[[Batch], Written],
        max_line_bytes: int,
    ) -> None:
        self._file = file
        self._known = known
        self._parser = parser
        self._rows = rows
        self._host = host
        self._batch = batch
        self._flush = flush
        self._max_line_bytes = max_line_bytes
        self._piece = Piece()
        self._number = 0
        self._salvaged: int | None = None
        self._first_ordinal = known.lines
        state = known.parser_state or {}
        self._last_ts = parse_timestamp(state.get("last_ts"))
        self._totals = Counts()
        self._totals.add(known.counts)
        self.bytes_read = 0

    def read_lines(self, opened: IO[bytes], stat: Stat) -> None:
        """Read from the checkpoint to the end of the file."""
        known = self._known
        stream = decompressed(opened) if self._file.compressed else opened
        if not self._file.compressed:
            opened.seek(known.byte_offset)
        offset, ordinal = known.byte_offset, known.lines
        lines: Iterator[Line] = read_lines(
            stream, byte_offset=offset, ordinal=ordinal, max_line_bytes=self._max_line_bytes
        )
        self._start_piece()
        unfinished: Line | None = None
        for line in lines:
            self.bytes_read += line.byte_length
            if not line.terminated:
                unfinished = line
                break
            self._line(line)
            offset, ordinal = line.end, line.ordinal + 1
            if self._is_full():
                self._end_piece(opened, stat, offset, ordinal, finished=False)
                self._hand_over()
                self._start_piece()
        self._end_piece(opened, stat, offset, ordinal, finished=True)
        if unfinished is not None:
            self._unfinished(unfinished)

    def read_whole(self, opened: IO[bytes], stat: Stat) -> None:
        """Read a small file as one record: JSON if it is an object, else text."""
        self._start_piece()
        data = opened.read(self._max_line_bytes + 1)
        self.bytes_read += len(data)
        line = Line(0, 0, len(data), data, None, terminated=True)
        if len(data) > self._max_line_bytes:
            digest = hashlib.sha256(data)
            while chunk := opened.read(1 << 20):
                digest.update(chunk)
                self.bytes_read += len(chunk)
            line = replace(line, data=None, sha256=digest.digest(), byte_length=self.bytes_read)
        self._whole(line)
        self._end_piece(opened, stat, line.byte_length, 1, finished=True)

    def _whole(self, line: Line) -> None:
        if line.data is None:
            self._quarantine(line, "longer than max_line_bytes")
            return
        try:
            value, damaged = loads(line.data)
        except MalformedLine:
            value, damaged = None, False
        if isinstance(value, dict):
            self._parsed(self._parser.record(value, 0), line, damaged=damaged)
            return
        try:
            text, damaged = line.data.decode(), False
        except UnicodeDecodeError:
            text, damaged = line.data.decode("utf-8", "replace"), True
        self._parsed(self._parser.text(text), line, damaged=damaged)

    def _line(self, line: Line) -> None:
        if line.data is None:
            self._quarantine(line, "longer than max_line_bytes")
            return
        data = trim(line.data, line.ordinal)
        if not data:
            self._piece.counts.skip("blank line")
            return
        try:
            value, damaged = loads(data)
        except MalformedLine as error:
            found = salvage(data)
            self._quarantine(line, error.reason, salvaged=found is not None)
            if found is not None:
                parsed = self._parser.record(found, line.ordinal)
                self._store(parsed, line, self._salvage_piece(), damaged=True)
            return
        if isinstance(value, dict):
            self._parsed(self._parser.record(value, line.ordinal), line, damaged=damaged)
        else:
            self._piece.counts.skip("not an object")

    def _parsed(self, parsed: Parsed, line: Line, *, damaged: bool) -> None:
        if self._store(parsed, line, self._number, damaged=damaged):
            self._piece.counts.seen += 1
            self._piece.row_lines += 1
        elif parsed.session_info:
            self._piece.counts.seen += 1
            self._piece.counts.merged += 1
        else:
            self._piece.counts.skip(parsed.skipped or "no text")

    def _store(self, parsed: Parsed, line: Line, number: int, *, damaged: bool) -> bool:
        rows: list[MessageRow] = []
        if parsed.messages and self._known.session_key:
            rows = self._rows.messages(
                parsed,
                session_key=self._known.session_key,
                ordinal=line.ordinal,
                before=self._last_ts,
                damaged=damaged,
            )
        prompts = self._rows.prompts(parsed.prompts, ordinal=line.ordinal)
        self._batch.messages.extend((number, row) for row in rows)
        self._batch.prompts.extend((number, row) for row in prompts)
        self._batch.content_chars += sum(len(row.content) for row in rows)
        self._batch.content_chars += sum(len(row.content) for row in prompts)
        self._last_ts = parsed.ts or self._last_ts
        return bool(rows or prompts)

    def _salvage_piece(self) -> int:
        """The place of rows that came out of quarantined lines: stored, but counted with those."""
        if self._salvaged is None:
            self._batch.pieces.append(Piece(session_key=self._known.session_key, counted=False))
            self._salvaged = len(self._batch.pieces) - 1
        return self._salvaged

    def _quarantine(self, line: Line, reason: str, *, salvaged: bool = False) -> None:
        self._piece.counts.seen += 1
        self._piece.counts.quarantined += 1
        data = line.data
        self._batch.quarantine.append(
            QuarantineRow(
                host=self._host,
                path=path_key(self._file.path),
                generation=self._known.generation,
                byte_offset=line.byte_offset,
                byte_length=line.byte_length,
                ordinal=line.ordinal,
                source=self._file.source,
                session_key=self._known.session_key,
                reason=reason,
                sha256=line.sha256 or hashlib.sha256(data or b"").digest(),
                raw=data if data is not None and len(data) <= _QUARANTINE_RAW_BYTES else None,
                salvaged=salvaged,
            )
        )
        self._batch.content_chars += min(len(data or b""), _QUARANTINE_RAW_BYTES)

    def _unfinished(self, line: Line) -> None:
        """The last bytes without a newline. A record that is complete is stored now, but the
        checkpoint stays before it: whatever the client appends, the line is read again whole."""
        if line.data is None:
            return
        data = trim(line.data, line.ordinal)
        try:
            value, damaged = loads(data) if data else (None, False)
        except MalformedLine:
            return
        if not isinstance(value, dict):
            return
        self._start_piece()
        self._parsed(self._parser.record(value, line.ordinal), line, damaged=damaged)
        self._add_sessions()

    def _start_piece(self) -> None:
        self._piece = Piece(session_key=self._known.session_key, before=self._totals)
        self._batch.pieces.append(self._piece)
        self._number = len(self._batch.pieces) - 1
        self._salvaged = None

    def _end_piece(
        self, opened: IO[bytes], stat: Stat, byte_offset: int, lines: int, *, finished: bool
    ) -> None:
        known = self._known
        head, tail = (b"", b"") if self._file.compressed else anchors(opened, byte_offset)
        if known.rereading:
            last = None if finished else lines
            self._piece.retire = (self._first_ordinal, last)
            self._first_ordinal = lines
        self._known = replace(
            known,
            stat=stat,
            byte_offset=byte_offset,
            lines=lines,
            head_hash=head,
            tail_hash=tail,
            rereading=known.rereading and not finished,
            parser_state=self._state(),
            unreadable=None,
            missing=False,
        )
        if not finished:
            # Interrupted here, the next pass must open the file even if it did not change.
            self._known = replace(self._known, stat=replace(stat, size=-1))
        self._piece.checkpoint = self._known
        self._add_sessions()

    def _add_sessions(self) -> None:
        drafts = [(draft, False) for draft in self._parser.labels()]
        if self._parser.session is not None and self._known.session_key:
            drafts.append((self._parser.session, True))
        for draft, own in drafts:
            row = self._rows.session(draft, from_transcript=own)
            self._batch.sessions[row.session_key, self._known.path] = row

    def _state(self) -> dict[str, Any]:
        state = self._parser.state()
        if self._last_ts is not None:
            state["last_ts"] = self._last_ts.isoformat()
        return state

    def _is_full(self) -> bool:
        batch = self._batch
        rows = len(batch.messages) + len(batch.prompts) + len(batch.quarantine)
        return rows >= _BATCH_MESSAGES or batch.content_chars >= _BATCH_CHARS

    def _hand_over(self) -> None:
        """Store what there is; the file's totals go on from what the store settled."""
        number = self._number
        written = self._flush(self._batch)
        totals = Counts()
        totals.add(self._totals)
        totals.add(written.counts[number])
        self._totals = totals
