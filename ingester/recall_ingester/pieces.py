"""What reading a file adds to a batch, and what its checkpoint counts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from recall.records import MessageRow, Parsed, QuarantineRow, RawSpan, SessionDraft
from recall.timestamps import parse_timestamp
from recall_ingester.checkpoint import Checkpoint, Counts, Stat
from recall_ingester.pipeline import RowBuilder
from recall_ingester.sinks import Batch, Piece, Written

_BATCH_MESSAGES = 2_000
_BATCH_CHARS = 4_000_000
_BATCH_RAW_BYTES = 8_000_000
_QUARANTINE_RAW_BYTES = 1_048_576


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of a file that are one record, or should have been."""

    ordinal: int
    byte_offset: int
    byte_length: int
    data: bytes | None
    sha256: bytes | None = None


class PieceWriter:
    """Puts the rows of one file into the batch, piece by piece, and hands full batches over.

    ``flush`` stores a batch and returns only when the store has it; the next piece's checkpoint
    builds on that. ``stored`` is what the store has of the file, if it has anything.
    """

    def __init__(
        self,
        known: Checkpoint,
        rows: RowBuilder,
        *,
        host: str,
        batch: Batch,
        flush: Callable[[Batch], Written],
        provisional: bool = False,
        stored: Checkpoint | None = None,
    ) -> None:
        self.known = known
        #: What the store has of the file, as far as this pass knows.
        self._stored = stored or Checkpoint(known.path, known.source, None, Stat(0, 0, 0, 0))
        #: Whether the session's id is only the file's place, until a record tells it.
        self.provisional = provisional
        self.rows = rows
        self.host = host
        self._batch = batch
        self._flush = flush
        self._piece = self._new_piece()
        self._number = 0
        self._salvaged: int | None = None
        self._totals = Counts()
        self._totals.add(known.counts)
        self.last_ts: datetime | None = parse_timestamp((known.parser_state or {}).get("last_ts"))

    def restart(self, known: Checkpoint) -> None:
        """Forget what was counted: the file is read from nothing, under this checkpoint."""
        self.known = known
        self._totals = Counts()
        self.last_ts = None

    def start(self) -> None:
        """A new piece; what comes next is part of it."""
        self._piece = self._new_piece(before=self._totals)
        self._batch.pieces.append(self._piece)
        self._number = len(self._batch.pieces) - 1
        self._salvaged = None

    def goes_on(self, lines: int | None = None) -> None:
        """The piece builds on lines that the store has: so many, or those of the checkpoint."""
        self._piece.goes_on_from = self.known.lines if lines is None else lines

    def _new_piece(self, **values: Any) -> Piece:
        known = self.known
        return Piece(
            known.path,
            known.source,
            known.generation,
            session_key=known.session_key,
            builds_on=self._stored,
            continues=_place_in(known) == _place_in(self._stored),
            **values,
        )

    def retire(self, first: int, last: int | None) -> None:
        """Ordinals ``[first, last)`` were read again whole: what did not come was taken back."""
        self._piece.retire = (first, last)

    def contains(self, generations: list[int]) -> None:
        """Earlier generations that stand in the file as it was read to its end."""
        self._piece.contains = generations

    def stands_no_more(self) -> None:
        """The unfinished end that is kept was not read again after all."""
        self._piece.continues = False

    def end(self, checkpoint: Checkpoint) -> None:
        """The piece reaches up to this checkpoint, which is stored with it."""
        self.known = self._stored = checkpoint
        self._piece.checkpoint = checkpoint

    def start_uncounted(self) -> int:
        """A piece for rows whose lines are counted elsewhere; its number."""
        extra = self._new_piece(counted=False)
        self._batch.pieces.append(extra)
        return len(self._batch.pieces) - 1

    def skip(self, reason: str) -> None:
        """Count a record that holds nothing to store."""
        self._piece.counts.skip(reason)

    def merge(self) -> None:
        """Count a record that told something about the session, or repeated another one."""
        self._piece.counts.seen += 1
        self._piece.counts.merged += 1

    def parsed(
        self,
        parsed: Parsed,
        ordinal: int,
        *,
        damaged: bool,
        place: tuple[int, int] | None = None,
    ) -> None:
        """The rows of one record, and what became of it. ``place`` is its offset and length in the
        file, to be named if the store refuses it."""
        if place is not None:
            self._batch.places[self._number, ordinal] = place
        if self.store(parsed, ordinal, self._number, damaged=damaged):
            self._piece.counts.seen += 1
            self._piece.row_lines += 1
        elif parsed.session_info:
            self.merge()
        else:
            self.skip(parsed.skipped or "no text")

    def salvaged(self, parsed: Parsed, ordinal: int) -> None:
        """The rows of a record found inside a line that is quarantined, and counted as that."""
        if self._salvaged is None:
            self._salvaged = self.start_uncounted()
        self.store(parsed, ordinal, self._salvaged, damaged=True)

    def taken_back(self, parsed: Parsed, ordinal: int) -> None:
        """Messages that the file itself says are gone: kept, and out of search."""
        self._batch.taken_back.extend(
            (self._number, row) for row in self._messages(parsed, ordinal, damaged=False)
        )

    def store(self, parsed: Parsed, ordinal: int, number: int, *, damaged: bool) -> bool:
        """Put the rows of a record into the batch; whether there were any."""
        rows = self._messages(parsed, ordinal, damaged=damaged)
        prompts = self.rows.prompts(parsed.prompts, ordinal=ordinal)
        notes = self.rows.notes(parsed.notes, ordinal=ordinal)
        batch = self._batch
        batch.messages.extend((number, row) for row in rows)
        batch.prompts.extend((number, row) for row in prompts)
        batch.notes.extend((number, row) for row in notes)
        batch.content_chars += sum(len(row.content) for row in rows)
        batch.content_chars += sum(len(row.content) for row in prompts)
        batch.content_chars += sum(len(row.content) for row in notes)
        self.last_ts = parsed.ts or self.last_ts
        return bool(rows or prompts or notes)

    def _messages(self, parsed: Parsed, ordinal: int, *, damaged: bool) -> list[MessageRow]:
        if not parsed.messages or not self.known.session_key:
            return []
        return self.rows.messages(
            parsed,
            session_key=self.known.session_key,
            ordinal=ordinal,
            before=self.last_ts,
            damaged=damaged,
        )

    def quarantine(self, place: Place, reason: str, *, salvaged: bool = False) -> None:
        """Note bytes that could not be read as a record, with the bytes themselves if few."""
        self._piece.counts.seen += 1
        self._piece.counts.quarantined += 1
        data = place.data
        known = self.known
        self._batch.quarantine.append(
            QuarantineRow(
                host=self.host,
                path=known.path,
                generation=known.generation,
                byte_offset=place.byte_offset,
                byte_length=place.byte_length,
                ordinal=place.ordinal,
                source=known.source,
                session_key=known.session_key,
                reason=reason,
                sha256=place.sha256 or hashlib.sha256(data or b"").digest(),
                raw=data if data is not None and len(data) <= _QUARANTINE_RAW_BYTES else None,
                salvaged=salvaged,
            )
        )
        self._batch.content_chars += min(len(data or b""), _QUARANTINE_RAW_BYTES)

    def raw(self, spans: Iterable[RawSpan]) -> None:
        """Keep original bytes with the current piece."""
        for span in spans:
            self._batch.raw.append(span)
            self._batch.raw_bytes += len(span.data)

    def raw_from(self, byte_offset: int) -> None:
        """Original bytes from this offset on come again: what is kept of them now makes room."""
        self._piece.raw_from = byte_offset

    def supersedes_raw(self) -> None:
        """The document was read whole: the bytes of the generation before may go, unless something
        that stood in them was taken back."""
        self._piece.supersedes_raw = True

    def raw_ahead(self, spans: Iterable[RawSpan]) -> None:
        """Keep original bytes at once, before their checkpoint is; a next pass replaces them.

        They go in a batch of their own: the rows of the current piece stay together, because what
        the client took back is found among the rows of one batch.
        """
        mine = [span for span in self._batch.raw if span.path == self.known.path]
        self._batch.raw[:] = [span for span in self._batch.raw if span.path != self.known.path]
        self._batch.raw_bytes -= sum(len(span.data) for span in mine)
        first = next(piece for piece in self._batch.pieces if piece.path == self.known.path)
        piece = replace(
            self._new_piece(counted=False),
            builds_on=first.builds_on,
            continues=self._piece.continues,
            goes_on_from=self._piece.goes_on_from,
            raw_from=self._piece.raw_from,
        )
        self._piece.raw_from = None
        self._flush(Batch(pieces=[piece], raw=[*mine, *spans]))

    def sessions(self, own: SessionDraft | None, labels: Iterable[SessionDraft] = ()) -> None:
        """What the file tells about its own session and about others.

        A session whose id is not known yet is not told of before a whole record was read.
        """
        drafts = [(draft, False) for draft in labels]
        if own is not None and self.known.session_key and self._holds_something():
            drafts.append((own, True))
        for draft, is_own in drafts:
            row = self.rows.session(draft, from_transcript=is_own)
            self._batch.sessions[row.session_key, self.known.path] = row

    def _holds_something(self) -> bool:
        if not self.provisional:
            return True
        # A document that cannot be read may be half written; a line that cannot be read is whole.
        is_document = (self.known.described or {}).get("shape") == "document"
        return self._piece.row_lines > 0 or any(
            counts.seen > (counts.quarantined if is_document else 0)
            for counts in (self._totals, self._piece.counts)
        )

    def state(self, state: dict[str, Any]) -> dict[str, Any]:
        """A parser's state with what the piece writer itself has to remember."""
        if self.last_ts is not None:
            state["last_ts"] = self.last_ts.isoformat()
        return state

    @property
    def is_full(self) -> bool:
        """Whether the batch should be handed over at the next place where that is possible."""
        batch = self._batch
        rows = len(batch.messages) + len(batch.prompts) + len(batch.notes) + len(batch.quarantine)
        return (
            rows >= _BATCH_MESSAGES
            or batch.content_chars >= _BATCH_CHARS
            or batch.raw_bytes >= _BATCH_RAW_BYTES
        )

    def hand_over(self) -> None:
        """Store what there is; the file's totals go on from what the store settled."""
        before = self._totals
        mine = [n for n, piece in enumerate(self._batch.pieces) if piece.before is before]
        written = self._flush(self._batch)
        totals = Counts()
        totals.add(before)
        for number in mine:
            totals.add(written.counts[number])
        self._totals = totals

    def interrupted(self, checkpoint: Checkpoint) -> Checkpoint:
        """A checkpoint inside a file: the next pass must open it even if it did not change."""
        return replace(checkpoint, stat=replace(checkpoint.stat, size=-1))


def _place_in(checkpoint: Checkpoint) -> tuple[object, ...]:
    """Where reading goes on, and what stood behind that."""
    return (
        checkpoint.generation,
        checkpoint.byte_offset,
        checkpoint.unfinished_length,
        checkpoint.unfinished_hash,
    )
