"""Reading what is replaced as a whole: a document, or one session of a container."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from recall.jsontext import MalformedLine
from recall.records import RawSpan
from recall_ingester.checkpoint import Checkpoint, Stat
from recall_ingester.earlier_states import Kept
from recall_ingester.faults import attempt
from recall_ingester.original import SPAN_BYTES, Spans, span_hash
from recall_ingester.pieces import PieceWriter, Place
from recall_ingester.sources.base import Document, DocumentParser

#: So much of a session in a database takes the place of other rows in one batch.
_FEW_BYTES = 4_000_000


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
            self._keep(spans.cut(kept_from, memoryview(data)[kept_from:]))
        self._parse(data, replace(checkpoint, head_hash=_hash(data, len(data))))

    def read_slots(self, slots: list[bytes], stat: Stat, watermark: str, kept: Kept) -> None:
        """Read one session of a container from its rows. Empties the list, so that a long session
        is not in memory twice.

        ``kept`` is what is kept of its bytes. Rows that are as they were are not stored again. If
        there are fewer rows now, or very many that differ, they are a new generation.
        """
        places = list(_places(map(len, slots)))
        data = b"".join(slots)
        slots.clear()
        known = self._writer.known
        digest = _hash(data, len(data))
        mark = hashlib.sha256(watermark.encode("utf-8", "surrogatepass")).digest()
        stat = replace(stat, size=len(data))
        keeps = self._keep_raw and known.raw_bytes < len(data)
        if digest == known.head_hash and known.lines and not known.rereading and not keeps:
            self._unchanged(stat, mark)
            return
        first = _standing(data, places, kept)
        differ = len(data) - places[first][0] if first < len(places) else 0
        grew = first == len(kept)
        same = grew or (len(kept) <= len(places) and differ <= _FEW_BYTES)
        checkpoint = self._begin(known, stat, len(data), same=same)
        if self._keep_raw:
            self._keep_slots(
                checkpoint, data, places, first if same else 0, at_once=same and not grew
            )
        self._parse(data, replace(checkpoint, head_hash=digest, tail_hash=mark))

    def too_large(
        self, chunks: Iterable[bytes], stat: Stat, limit: int, watermark: str = ""
    ) -> None:
        """A file that is too large to be parsed as a whole; its bytes are kept."""
        known = self._writer.known
        mark = hashlib.sha256(watermark.encode("utf-8", "surrogatepass")).digest()
        checkpoint = self._begin(known, stat, stat.size, same=False)
        spans = Spans(checkpoint.path, checkpoint.generation)
        digest = hashlib.sha256()
        if self._keep_raw:
            self._writer.raw_from(0)
        length = 0
        for data in chunks:
            digest.update(data)
            if self._keep_raw:
                self._keep(spans.cut(length, data))
            length += len(data)
        place = Place(0, 0, length, None, digest.digest())
        self._writer.quarantine(place, f"larger than max_document_bytes ({limit})")
        checkpoint = replace(checkpoint, stat=replace(stat, size=length), byte_offset=length)
        self._finish(replace(checkpoint, head_hash=digest.digest(), tail_hash=mark), lines=1)

    def _unchanged(self, stat: Stat, mark: bytes | None = None) -> None:
        known = self._writer.known
        self._writer.start()
        self._writer.goes_on()
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
        if same:
            self._writer.goes_on(known.lines)
        return replace(
            again,
            byte_offset=length,
            tail_hash=known.tail_hash,
            parser_state=self._state,
            rereading=False,
            missing=False,
        )

    def _keep(self, spans: Iterable[RawSpan]) -> None:
        """Keep original bytes; what is too much for one batch goes ahead of the rest."""
        for span in spans:
            self._writer.raw((span,))
            if self._writer.is_full:
                self._writer.raw_ahead(())

    def _keep_slots(
        self,
        checkpoint: Checkpoint,
        data: bytes,
        places: Sequence[tuple[int, int]],
        first: int,
        *,
        at_once: bool,
    ) -> None:
        spans = Spans(checkpoint.path, checkpoint.generation)
        self._writer.raw_from(places[first][0] if first < len(places) else len(data))
        rest = (spans.make(at, data[at : at + length]) for at, length in places[first:])
        if at_once:
            self._writer.raw(rest)
        else:
            self._keep(rest)

    def _parse(self, data: bytes, checkpoint: Checkpoint) -> None:
        try:
            document = attempt(self._parser.document, data)
        except MalformedLine as error:
            self._writer.quarantine(Place(0, 0, len(data), data), error.reason)
            self._finish(checkpoint, lines=1)
            return
        lines = self._store(document)
        if self._keep_raw and _is_complete(document):
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
        complete = _is_complete(document)
        for unit in document.units:
            if writer.is_full and unit.ordinal > first:
                if complete:
                    writer.retire(first, unit.ordinal)
                writer.sessions(self._parser.session)
                writer.hand_over()
                writer.start()
                first = unit.ordinal
            writer.parsed(unit.parsed, unit.ordinal, damaged=unit.is_damaged)
        if complete:
            writer.retire(first, None)
        for unit in document.taken_back:
            writer.taken_back(unit.parsed, unit.ordinal)
        skipped = sum(document.skipped.values())
        return len(document.units) + len(document.bad) + document.merged + skipped

    def _finish(self, checkpoint: Checkpoint, *, lines: int) -> None:
        raw_bytes = checkpoint.byte_offset if self._keep_raw else checkpoint.raw_bytes
        self._writer.end(replace(checkpoint, lines=lines, raw_bytes=raw_bytes))
        self._writer.sessions(self._parser.session)


def _is_complete(document: Document) -> bool:
    """Whether what a document does not hold was taken back. What is missing may stand in what could
    not be read; and a document that holds nothing at all was emptied by a client that lost it as
    often as by one that deleted it."""
    return not document.bad and bool(document.units or document.taken_back or document.merged)


def _standing(data: bytes, places: Sequence[tuple[int, int]], kept: Kept) -> int:
    """How many of the kept spans stand in the rows as they are now, from the first on."""
    for number, ((at, length), known) in enumerate(zip(places, kept, strict=False)):
        if known != (at, length, span_hash(data[at : at + length])):
            return number
    return min(len(places), len(kept))


def _hash(data: bytes, length: int) -> bytes:
    return hashlib.sha256(memoryview(data)[:length]).digest()


def _places(lengths: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Offset and length of each span of rows: one a row, unless it is too long for one."""
    start = 0
    for length in lengths:
        end = start + length
        for at in range(start, end, SPAN_BYTES):
            yield at, min(SPAN_BYTES, end - at)
        start = end
