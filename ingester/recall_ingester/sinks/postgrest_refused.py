"""A batch without the rows that the store refused: those are quarantined, the rest goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from recall.records import MessageRow, NoteRow, PromptRow, QuarantineRow, SessionRow
from recall_ingester.checkpoint import Counts
from recall_ingester.sinks import Batch, Piece
from recall_ingester.sinks.postgrest_rows import Origin

#: A larger text is named by its hash alone.
_RAW_BYTES = 1_048_576

Row = MessageRow | PromptRow | NoteRow
_Line = tuple[int, int]


@dataclass(slots=True)
class Refused:
    """Which records of a batch were refused, and with which code.

    A record that is refused in part is refused: what else was made of its line is stored as what is
    found in a damaged line is, and counts as quarantined. What is told of a session costs no line:
    of one that is refused only the name is sent, and if that is refused too, its lines are.
    """

    told: set[str] = field(default_factory=set)
    sessions: dict[str, str] = field(default_factory=dict)
    rows: dict[int, tuple[str, Origin]] = field(default_factory=dict)
    taken_back: dict[tuple[int, bytes], tuple[str, Origin]] = field(default_factory=dict)

    def add(self, origin: Origin, code: str) -> bool:
        """Note one; whether there is something that can be left out."""
        if origin.session_key is not None:
            if origin.session_key in self.told:
                self.sessions.setdefault(origin.session_key, code)
            self.told.add(origin.session_key)
        elif origin.row is None:
            return False
        elif origin.is_taken_back:
            self.taken_back.setdefault((origin.row.id, origin.row.content_hash), (code, origin))
        else:
            self.rows.setdefault(origin.row.id, (code, origin))
        return True

    def __bool__(self) -> bool:
        return bool(self.told or self.sessions or self.rows or self.taken_back)

    def without(self, batch: Batch, host: str) -> Batch:
        """The batch without what was refused; the batch itself stays as it is.

        Its first pieces are those of the batch, with other counts.
        """
        left = _Left(batch, self, host)
        left.leave_out()
        return left.batch


class _Left:
    """Makes the batch that is left."""

    def __init__(self, batch: Batch, refused: Refused, host: str) -> None:
        self._refused = refused
        self._host = host
        self._places = batch.places
        self.batch = Batch(
            pieces=list(batch.pieces),
            sessions={
                key: _bare(row) if row.session_key in refused.told else row
                for key, row in batch.sessions.items()
                if row.session_key not in refused.sessions
            },
            messages=list(batch.messages),
            taken_back=list(batch.taken_back),
            prompts=list(batch.prompts),
            notes=list(batch.notes),
            quarantine=list(batch.quarantine),
            raw=batch.raw,
            places=batch.places,
        )

    def leave_out(self) -> None:
        batch = self.batch
        lines: dict[_Line, tuple[str, Row]] = {}
        for rows in (batch.messages, batch.prompts, batch.notes):
            for piece, row in rows:
                if (code := self._code_of(row)) is not None:
                    lines.setdefault((piece, row.ordinal), (code, row))
        gone = [
            (piece, row, code)
            for piece, row in batch.taken_back
            if (code := self._code_of_taken_back(row)) is not None
        ]
        batch.taken_back[:] = [
            (piece, row) for piece, row in batch.taken_back if self._code_of_taken_back(row) is None
        ]
        rest = self._split(lines)
        for (piece, _), (code, row) in lines.items():
            is_salvaged = (piece, row.ordinal) in rest
            if batch.pieces[piece].counted:  # the line of another one is quarantined already
                self._quarantine(piece, row, code, salvaged=is_salvaged)
        for piece, row, code in gone:
            # The versions of one record that were taken back are told apart by their text.
            place = -(1 << 62) + int.from_bytes(row.content_hash[:7], "big"), 0
            self._quarantine(piece, row, code, salvaged=False, place=place)

    def _code_of(self, row: Row) -> str | None:
        if found := self._refused.rows.get(row.id):
            return found[0]
        key = row.session_key if isinstance(row, MessageRow) else None
        return None if key is None else self._refused.sessions.get(key)

    def _code_of_taken_back(self, row: MessageRow) -> str | None:
        if found := self._refused.taken_back.get((row.id, row.content_hash)):
            return found[0]
        return self._refused.sessions.get(row.session_key)

    def _split(self, lines: Mapping[_Line, object]) -> set[_Line]:
        """Move the other rows of these lines to pieces that do not count, and count the lines as
        quarantined; the lines that have such rows."""
        batch = self.batch
        beside: dict[int, int] = {}
        rest: set[_Line] = set()
        for rows in (batch.messages, batch.prompts, batch.notes):
            kept = []
            for piece, row in rows:
                line = (piece, row.ordinal)
                if line not in lines:
                    kept.append((piece, row))
                elif self._code_of(row) is None:
                    rest.add(line)
                    kept.append((self._beside(piece, beside), row))
            rows[:] = kept  # type: ignore[assignment]
        for piece, _ in lines:
            if batch.pieces[piece].counted:
                batch.pieces[piece] = _one_quarantined(batch.pieces[piece])
        return rest

    def _beside(self, piece: int, beside: dict[int, int]) -> int:
        if not self.batch.pieces[piece].counted:
            return piece
        if piece not in beside:
            of = self.batch.pieces[piece]
            extra = Piece(of.path, of.source, of.generation, counted=False)
            self.batch.pieces.append(replace(extra, session_key=of.session_key))
            beside[piece] = len(self.batch.pieces) - 1
        return beside[piece]

    def _quarantine(
        self,
        number: int,
        row: Row,
        code: str,
        *,
        salvaged: bool,
        place: tuple[int, int] | None = None,
    ) -> None:
        piece = self.batch.pieces[number]
        text = row.content.encode("utf-8", "replace")
        # A record of a document has no place of its own: a negative number cannot be one.
        place = place or self._places.get((number, row.ordinal), (-1 - row.ordinal, 0))
        self.batch.quarantine.append(
            QuarantineRow(
                host=self._host,
                path=piece.path,
                generation=piece.generation,
                byte_offset=place[0],
                byte_length=place[1],
                ordinal=row.ordinal,
                source=piece.source,
                session_key=piece.session_key,
                reason=f"refused by the store ({code})",
                sha256=hashlib.sha256(text).digest(),
                raw=text if len(text) <= _RAW_BYTES else None,
                salvaged=salvaged,
            )
        )


def _bare(row: SessionRow) -> SessionRow:
    return replace(
        row,
        parent_key=None,
        relation=None,
        title=None,
        title_rank=0,
        project=None,
        branch=None,
        model=None,
        client_version=None,
        started_at=None,
        ended_at=None,
    )


def _one_quarantined(piece: Piece) -> Piece:
    counts = Counts()
    counts.add(piece.counts)
    counts.quarantined += 1
    return replace(piece, counts=counts, row_lines=piece.row_lines - 1)
