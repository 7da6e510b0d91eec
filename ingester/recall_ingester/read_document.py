"""Reading what is replaced as a whole: a document, or one session of a container."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

from recall.jsontext import MalformedLine
from recall_ingester.checkpoint import Checkpoint, Stat
from recall_ingester.original import SPAN_BYTES, Spans
from recall_ingester.pieces import PieceWriter, Place
from recall_ingester.sources.base import Document, DocumentParser

#: Offset, length and hash of original bytes that the store keeps.
Kept = Sequence[tuple[int, int, bytes]]


class DocumentReader:
    """Puts a document in the place of what was stored of it.

    Only rows that differ are written by the store. What does not come again is kept as taken back.
    A document that cannot be read, wholly or in part, takes nothing back.
    """

    def __init__(
        self,
        parser: DocumentParser,
        writer: PieceWriter,
        *,
        keep_raw: bool,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._parser = parser
        self._writer = writer
        self._keep_raw = keep_raw
        #: What the checkpoint is to remember besides.
        self._state = state

    def read(self, data: bytes, stat: Stat) -> None:
        """Read a file from its bytes."""
        known = self._writer.known
        grew = 0 < known.byte_offset <= len(data) and _hash(data, known.byte_offset) == (
            known.head_hash
        )
        keeps = self._keep_raw and known.raw_bytes < len(data)
        if grew and known.byte_offset == len(data) and not known.rereading and not keeps:
            self._unchanged(stat)
            return
        kept_from = min(known.raw_bytes, known.byte_offset) if grew else 0
        checkpoint = self._begin(known, stat, len(data), same=grew)
        if self._keep_raw:
            spans = Spans(checkpoint.path, checkpoint.generation)
            self._writer.raw_from(kept_from)
            self._writer.raw(spans.cut(kept_from, data[kept_from:]))
        self._parse(data, replace(checkpoint, head_hash=_hash(data, len(data))))

    def read_slots(self, slots: Iterable[bytes], stat: Stat, watermark: str, kept: Kept) -> None:
        """Read one session of a container from its rows.

        ``kept`` is what is kept of its bytes. Rows that are as they were are not stored again; if
        there are fewer rows now, the bytes of before stay as an earlier generation.
        """
        rows = list(slots)
        data = b"".join(rows)
        known = self._writer.known
        digest = _hash(data, len(data))
        mark = hashlib.sha256(watermark.encode("utf-8", "surrogatepass")).digest()
        stat = replace(stat, size=len(data))
        keeps = self._keep_raw and known.raw_bytes < len(data)
        if digest == known.head_hash and known.lines and not known.rereading and not keeps:
            self._unchanged(stat, mark)
            return
        pieces = list(_pieces(rows))
        checkpoint = self._begin(known, stat, len(data), same=len(kept) <= len(pieces))
        if self._keep_raw:
            self._keep_slots(checkpoint, pieces, kept)
        self._parse(data, replace(checkpoint, head_hash=digest, tail_hash=mark))

    def too_large(self, opened: IO[bytes], stat: Stat, limit: int) -> None:
        """A file that is too large to be parsed as a whole; its bytes are kept."""
        known = self._writer.known
        checkpoint = self._begin(known, stat, stat.size, same=False)
        spans = Spans(checkpoint.path, checkpoint.generation)
        digest = hashlib.sha256()
        if self._keep_raw:
            self._writer.raw_from(0)
        opened.seek(0)
        length = 0
        while data := opened.read(SPAN_BYTES):
            digest.update(data)
            if self._keep_raw:
                self._writer.raw(spans.cut(length, data))
            length += len(data)
            if self._writer.is_full:
                self._writer.raw_ahead(())
        place = Place(0, 0, length, None, digest.digest())
        self._writer.quarantine(place, f"larger than max_document_bytes ({limit})")
        self._finish(replace(checkpoint, byte_offset=length, head_hash=digest.digest()), lines=1)

    def _unchanged(self, stat: Stat, mark: bytes | None = None) -> None:
        known = self._writer.known
        self._writer.start()
        self._writer.end(
            replace(
                known,
                stat=stat,
                tail_hash=known.tail_hash if mark is None else mark,
                parser_state=self._state,
                unreadable=None,
                missing=False,
            )
        )

    def _begin(self, known: Checkpoint, stat: Stat, length: int, *, same: bool) -> Checkpoint:
        """Start from nothing: the counts are those of the document as it is now."""
        fresh = known.byte_offset == 0 and known.lines == 0
        again = known.restart(stat)
        if same or fresh:
            again = replace(again, generation=known.generation, raw_bytes=known.raw_bytes)
        self._writer.restart(again)
        self._writer.start()
        return replace(
            again,
            byte_offset=length,
            tail_hash=known.tail_hash,
            parser_state=self._state,
            rereading=False,
            missing=False,
        )

    def _keep_slots(self, checkpoint: Checkpoint, pieces: Sequence[bytes], kept: Kept) -> None:
        spans = Spans(checkpoint.path, checkpoint.generation)
        offset = number = 0
        made = [spans.make(at, piece) for at, piece in _at_offsets(pieces)]
        if len(kept) <= len(pieces):
            for span, (at, length, digest) in zip(made, kept, strict=False):
                if (span.byte_offset, span.byte_length, span.hash) != (at, length, digest):
                    break
                number += 1
                offset = span.byte_offset + span.byte_length
        self._writer.raw_from(offset)
        self._writer.raw(made[number:])

    def _parse(self, data: bytes, checkpoint: Checkpoint) -> None:
        try:
            document = self._parser.document(data)
        except MalformedLine as error:
            self._writer.quarantine(Place(0, 0, len(data), data), error.reason)
            self._finish(checkpoint, lines=1)
            return
        lines = self._store(document)
        if self._keep_raw:
            self._writer.supersedes_raw()
        self._finish(checkpoint, lines=lines)

    def _store(self, document: Document) -> int:
        writer = self._writer
        for bad in document.bad:
            place = Place(bad.ordinal, bad.byte_offset, len(bad.data), bad.data)
            writer.quarantine(place, bad.reason)
        for reason, count in document.skipped.items():
            for _ in range(count):
                writer.skip(reason)
        for _ in range(document.merged):
            writer.merge()
        first = 0
        complete = not document.bad
        for unit in document.units:
            if writer.is_full and unit.ordinal > first:
                if complete:
                    writer.retire(first, unit.ordinal)
                writer.sessions(self._parser.session)
                writer.hand_over()
                writer.start()
                first = unit.ordinal
            writer.parsed(unit.parsed, unit.ordinal, damaged=unit.is_damaged)
        if complete:  # else what is missing may stand in what could not be read
            writer.retire(first, None)
        for unit in document.taken_back:
            writer.taken_back(unit.parsed, unit.ordinal)
        skipped = sum(document.skipped.values())
        return len(document.units) + len(document.bad) + document.merged + skipped

    def _finish(self, checkpoint: Checkpoint, *, lines: int) -> None:
        raw_bytes = checkpoint.byte_offset if self._keep_raw else checkpoint.raw_bytes
        self._writer.end(replace(checkpoint, lines=lines, raw_bytes=raw_bytes))
        self._writer.sessions(self._parser.session)


def _hash(data: bytes, length: int) -> bytes:
    return hashlib.sha256(memoryview(data)[:length]).digest()


def _pieces(rows: Sequence[bytes]) -> Iterable[bytes]:
    """Rows as the store keeps them: one span a row, unless it is too long for one."""
    for row in rows:
        for at in range(0, len(row), SPAN_BYTES):
            yield row[at : at + SPAN_BYTES]


def _at_offsets(pieces: Sequence[bytes]) -> Iterable[tuple[int, bytes]]:
    at = 0
    for piece in pieces:
        yield at, piece
        at += len(piece)
