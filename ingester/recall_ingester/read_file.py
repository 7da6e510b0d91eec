"""Reading one file of lines, or one small record: from its bytes to pieces of a batch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import IO, Any

from recall.jsontext import MalformedLine, loads
from recall.records import Parsed
from recall_ingester.checkpoint import Checkpoint, Stat, anchors, unfinished_stands
from recall_ingester.earlier_states import EarlierStates, Kept
from recall_ingester.faults import attempt
from recall_ingester.original import SPAN_BYTES, Recorder, Spans
from recall_ingester.pieces import PieceWriter, Place
from recall_ingester.read_anchors import ReadAnchors
from recall_ingester.reader import ByteStream, Line, decompressed, read_lines, trim
from recall_ingester.salvage import salvage
from recall_ingester.sources.base import Parser, SourceFile
from recall_ingester.sources.toolinput import leaves


class FileReader:
    """Reads what is new in one file and hands it over in bounded batches."""

    def __init__(
        self,
        file: SourceFile,
        parser: Parser,
        writer: PieceWriter,
        *,
        max_line_bytes: int,
        keep_raw: bool,
        kept: Checkpoint | None = None,
        earlier: Mapping[int, Kept] | None = None,
    ) -> None:
        self._file = file
        self._parser = parser
        self._writer = writer
        self._max_line_bytes = max_line_bytes
        self._keep_raw = keep_raw
        self._spans = Spans(writer.known.path, writer.known.generation)
        self._first_ordinal = writer.known.lines
        #: Where the file is read from its kept bytes: what is known of those.
        self._kept = kept
        #: By generation: what is kept of earlier states of the file.
        self._earlier = earlier or {}
        self._anchors: ReadAnchors | None = None
        self.bytes_read = 0

    def read_lines(self, opened: IO[bytes], stat: Stat) -> None:
        """Read from the checkpoint to the end of the file."""
        writer = self._writer
        compressed = self._file.compressed
        writer.start()
        writer.goes_on()
        if self._keep_raw:
            writer.raw_from(0 if compressed else writer.known.raw_bytes)
            self._catch_up(opened, stat)
        if not compressed:
            opened.seek(writer.known.byte_offset)
        stream: ByteStream
        if compressed:
            stream = decompressed(opened)
        else:
            stream = self._anchors = ReadAnchors(opened, writer.known)
        recorder = states = None
        if self._earlier and not compressed:
            stream = states = EarlierStates(stream, self._earlier)
        if self._keep_raw and not compressed:
            stream = recorder = Recorder(
                stream, self._spans, writer.known.byte_offset, writer.raw_ahead
            )
        end, ordinal, unfinished = self._all_lines(stream, recorder, opened, stat)
        if states is not None:
            writer.contains(states.standing())
        self._end(opened, stat, end, ordinal, recorder, finished=True)
        if unfinished is not None:
            self._unfinished(unfinished)

    def _all_lines(
        self, stream: ByteStream, recorder: Recorder | None, opened: IO[bytes], stat: Stat
    ) -> tuple[int, int, Line | None]:
        """Every complete line; where they end, how many there are, and what stands behind them."""
        writer = self._writer
        offset, ordinal = writer.known.byte_offset, writer.known.lines
        for line in read_lines(
            stream, byte_offset=offset, ordinal=ordinal, max_line_bytes=self._max_line_bytes
        ):
            self.bytes_read += line.byte_length
            if not line.terminated:
                return offset, ordinal, line
            self._line(line)
            offset, ordinal = line.end, line.ordinal + 1
            if self._anchors is not None:
                self._anchors.advance(offset)
            if recorder is not None:
                recorder.advance(offset)
            if writer.is_full:
                self._end(opened, stat, offset, ordinal, recorder, finished=False)
                writer.hand_over()
                writer.start()
                writer.goes_on()
        return offset, ordinal, None

    def read_whole(self, opened: IO[bytes], stat: Stat) -> None:
        """Read a small file as one record: JSON if it is an object, else text."""
        self._writer.start()
        if self._keep_raw:
            self._writer.raw_from(0)
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
        if self._keep_raw:
            self._copy(opened, 0, line.byte_length)
        checkpoint = self._next(opened, stat, line.byte_length, 1, finished=True)
        if self._keep_raw:
            checkpoint = replace(checkpoint, raw_bytes=line.byte_length)
        self._writer.end(checkpoint)
        self._add_sessions()

    def _catch_up(self, opened: IO[bytes], stat: Stat) -> None:
        """Keep the bytes of what was read at a time when they were not kept, and of a file that the
        client compressed."""
        known = self._writer.known
        if self._file.compressed:
            opened.seek(0)
            self._copy(opened, 0, stat.size)
            opened.seek(0)
            self._writer.known = replace(known, raw_bytes=stat.size)
        elif known.raw_bytes < known.byte_offset:
            self._copy(opened, known.raw_bytes, known.byte_offset)

    def _copy(self, opened: IO[bytes], start: int, end: int) -> None:
        """Keep a range of the file; what is too much for one batch goes ahead of the rest."""
        writer = self._writer
        opened.seek(start)
        at = start
        while at < end:
            data = opened.read(min(SPAN_BYTES - at % SPAN_BYTES, end - at))
            if not data:
                return
            writer.raw(self._spans.cut(at, data))
            at += len(data)
            if writer.is_full:
                writer.raw_ahead(())

    def _whole(self, line: Line) -> None:
        if line.data is None:
            self._writer.quarantine(_place(line), "longer than max_line_bytes")
            return
        try:
            value, damaged = loads(line.data)
        except MalformedLine:
            value, damaged = None, False
        if isinstance(value, dict):
            self._record(line, value, damaged=damaged)
            return
        try:
            text, damaged = line.data.decode(), False
        except UnicodeDecodeError:
            text, damaged = line.data.decode("utf-8", "replace"), True
        try:
            parsed = attempt(self._parser.text, text)
        except MalformedLine as error:
            self._writer.quarantine(_place(line), error.reason)
            return
        self._writer.parsed(parsed, 0, damaged=damaged, place=line.place)

    def _record(self, line: Line, value: dict[str, Any], *, damaged: bool) -> None:
        try:
            parsed = attempt(self._parser.record, value, line.ordinal)
        except MalformedLine as error:
            self._writer.quarantine(_place(line), error.reason)
            return
        self._writer.parsed(parsed, line.ordinal, damaged=damaged, place=line.place)

    def _salvaged(self, line: Line, data: bytes) -> Parsed | None:
        """What is left of a line that is no JSON."""
        found = salvage(data)
        try:
            return None if found is None else attempt(self._parser.record, found, line.ordinal)
        except MalformedLine:
            return None

    def _line(self, line: Line) -> None:
        writer = self._writer
        if line.data is None:
            writer.quarantine(_place(line), "longer than max_line_bytes")
            return
        data = trim(line.data, line.ordinal)
        if not data:
            writer.skip("blank line")
            return
        try:
            value, damaged = loads(data)
        except MalformedLine as error:
            found = self._salvaged(line, data)
            writer.quarantine(_place(line), error.reason, salvaged=found is not None)
            if found is not None:
                writer.salvaged(found, line.ordinal)
            return
        if isinstance(value, dict):
            self._record(line, value, damaged=damaged)
        elif any(isinstance(leaf, str) and leaf.strip() for leaf in leaves(value)):
            writer.quarantine(_place(line), "not an object")  # no client's record, but a text
        else:
            writer.skip("not an object")

    def _unfinished(self, line: Line) -> None:
        """The last bytes without a newline. A record that is complete is stored now, but the
        checkpoint stays before it: whatever the client appends, the line is read again whole."""
        if line.data is None:
            return
        data = trim(line.data, line.ordinal)
        try:
            value, damaged = loads(data) if data else (None, False)
            if not isinstance(value, dict):
                return
            parsed = attempt(self._parser.record, value, line.ordinal)
        except MalformedLine:
            return
        self._writer.start()
        self._writer.parsed(parsed, line.ordinal, damaged=damaged, place=line.place)
        self._add_sessions()

    def _end(
        self,
        opened: IO[bytes],
        stat: Stat,
        byte_offset: int,
        lines: int,
        recorder: Recorder | None,
        *,
        finished: bool,
    ) -> None:
        if not unfinished_stands(self._writer.known, opened):
            self._writer.stands_no_more()  # it was written over while it was read
        checkpoint = self._next(opened, stat, byte_offset, lines, finished=finished)
        if recorder is not None:
            self._writer.raw(recorder.cut(byte_offset))
            checkpoint = replace(checkpoint, raw_bytes=byte_offset)
        if recorder is not None and finished:
            spans, length, digest = recorder.rest()
            self._writer.raw(spans)
            checkpoint = replace(checkpoint, unfinished_length=length, unfinished_hash=digest)
        self._writer.end(checkpoint)
        self._add_sessions()

    def _next(
        self, opened: IO[bytes], stat: Stat, byte_offset: int, lines: int, *, finished: bool
    ) -> Checkpoint:
        """The checkpoint behind what was read, and in the piece what was read again until there."""
        known = self._writer.known
        head, tail = self._anchors_at(opened, byte_offset)
        if known.rereading:
            self._writer.retire(self._first_ordinal, None if finished else lines)
            self._first_ordinal = lines
        checkpoint = replace(
            known,
            stat=stat,
            byte_offset=byte_offset,
            lines=lines,
            head_hash=head,
            tail_hash=tail,
            rereading=known.rereading and not finished,
            parser_state=self._writer.state(self._parser.state()),
            unreadable=None,
            missing=False,
            unfinished_length=self._kept.unfinished_length if self._kept else 0,
            unfinished_hash=self._kept.unfinished_hash if self._kept else b"",
        )
        if self._kept:
            checkpoint = replace(checkpoint, raw_bytes=self._kept.raw_bytes)
        elif known.unfinished_length and not self._keep_raw:
            checkpoint = self._with_kept_end(opened, known, checkpoint)
        return checkpoint if finished else self._writer.interrupted(checkpoint)

    def _anchors_at(self, opened: IO[bytes], byte_offset: int) -> tuple[bytes, bytes]:
        if self._file.compressed:
            return b"", b""
        if self._anchors is not None:
            return self._anchors.at(byte_offset)
        return anchors(opened, byte_offset)

    def _with_kept_end(
        self, opened: IO[bytes], known: Checkpoint, checkpoint: Checkpoint
    ) -> Checkpoint:
        """The unfinished end that was kept before bytes were not kept any more stays kept. Once its
        line is whole, it is a part of the beginning like all before it."""
        end = known.raw_bytes + known.unfinished_length
        if checkpoint.byte_offset == known.byte_offset:
            length, digest = known.unfinished_length, known.unfinished_hash
            return replace(checkpoint, unfinished_length=length, unfinished_hash=digest)
        at = known.raw_bytes
        while at < end and (
            data := os.pread(opened.fileno(), min(SPAN_BYTES - at % SPAN_BYTES, end - at), at)
        ):
            self._writer.raw(self._spans.cut(at, data))
            at += len(data)
        return replace(checkpoint, raw_bytes=at)

    def _add_sessions(self) -> None:
        self._writer.sessions(self._parser.session, self._parser.labels())


def _place(line: Line) -> Place:
    return Place(line.ordinal, line.byte_offset, line.byte_length, line.data, line.sha256)
