"""Where rows go. A sink stores a batch whole or not at all, and only then says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from recall.records import MessageRow, NoteRow, PromptRow, QuarantineRow, RawSpan, SessionRow
from recall_ingester.checkpoint import Checkpoint, Counts


@dataclass(slots=True)
class Piece:
    """The part of one file that stands in one batch, and where its checkpoint moves.

    ``counts`` holds the lines whose fate is known before storing; ``row_lines`` is the number of
    lines that gave rows, which the store divides into stored (something new) and merged.
    ``checkpoint`` is ``None`` for an unfinished last line: it is stored, but read again next time.
    ``retire`` is the range of ordinals ``[first, last)`` that was read again; stored messages in it
    that did not come again were taken back by the client.
    """

    path: str
    source: str
    generation: int
    counts: Counts = field(default_factory=Counts)
    row_lines: int = 0
    checkpoint: Checkpoint | None = None
    #: What was counted before; pieces of one file in one batch share the object.
    before: Counts = field(default_factory=Counts)
    session_key: str | None = None
    retire: tuple[int, int | None] | None = None
    #: From this offset on, the original bytes kept of the path and generation are replaced.
    raw_from: int | None = None
    #: A document was read to its end under a new generation: the bytes of the one before are kept
    #: only if something that stood in them was taken back.
    supersedes_raw: bool = False
    #: How many lines of the generation the store was said to have where this goes on behind them; a
    #: store that has fewer now refuses the batch.
    goes_on_from: int | None = None
    #: False for rows out of quarantined lines, which are counted as quarantined already.
    counted: bool = True
    #: What the reader saw that the store has of the file, before this piece. A store that has
    #: something else refuses the batch (:mod:`recall_ingester.sinks.overtaken`). ``None``: not
    #: told.
    builds_on: Checkpoint | None = None
    #: The file was found to begin with all that the store has of it, the unfinished end included.
    continues: bool = False
    #: Earlier generations of the file that stand in it as it was read to its end.
    contains: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Batch:
    """Rows of some files, bounded in size, stored in one transaction.

    ``messages`` and ``prompts`` carry the place of their piece in ``pieces``.
    """

    pieces: list[Piece] = field(default_factory=list)
    #: By session key and the path of the file that tells about it; the store merges them.
    sessions: dict[tuple[str, str], SessionRow] = field(default_factory=dict)
    messages: list[tuple[int, MessageRow]] = field(default_factory=list)
    #: Messages that a file itself says were taken back.
    taken_back: list[tuple[int, MessageRow]] = field(default_factory=list)
    prompts: list[tuple[int, PromptRow]] = field(default_factory=list)
    notes: list[tuple[int, NoteRow]] = field(default_factory=list)
    quarantine: list[QuarantineRow] = field(default_factory=list)
    raw: list[RawSpan] = field(default_factory=list)
    #: By piece and ordinal: offset and length in the file, where the record has such a place.
    places: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    content_chars: int = 0
    raw_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def clear(self) -> None:
        """Make room for the next rows, after the store has these."""
        for rows in (
            self.pieces, self.sessions, self.messages, self.taken_back, self.prompts, self.notes,
            self.quarantine, self.raw, self.places,
        ):  # fmt: skip
            rows.clear()
        self.content_chars = self.raw_bytes = 0


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a batch: settled counts per piece, how many rows were new or changed, the size
    of the original bytes that were new, as stored, and the hashes of those that made room."""

    counts: list[Counts]
    messages: int
    retired: int
    raw_bytes: int = 0
    replaced_raw: list[bytes] = field(default_factory=list)


class Sink(Protocol):
    """A store that accepts rows. Every call may raise :class:`recall.errors.StoreError`."""

    def checkpoints(self) -> dict[str, Checkpoint]:
        """How far every file of this host was read, by path."""
        ...

    def begin(self, expected_bytes: int) -> None:
        """Prepare for a pass that reads about so many bytes of logs; ``finish`` ends it."""
        ...

    def write(self, batch: Batch) -> Written:
        """Store a batch and its checkpoints together. Sending it again changes nothing.

        Raises :class:`OvertakenError` if it builds on what is not stored (any more).
        """
        ...

    def mark(self, *, missing: Iterable[str], unreadable: Mapping[str, tuple[str, str]]) -> None:
        """Note files that are gone (their rows stay), and by path the source and reason of what
        could not be read."""
        ...

    def mark_present(self, paths: Iterable[str], *, readable: Iterable[str]) -> None:
        """Note files that are back unchanged, and folders that can be listed again."""
        ...

    def raw_spans(self, path: str, generation: int) -> list[tuple[int, int, bytes]]:
        """Offset, length and hash of the original bytes that are kept of a path, by offset."""
        ...

    def finish(
        self, session_keys: Iterable[str], *, wrote: int, replaced_raw: Iterable[bytes] = ()
    ) -> None:
        """End a pass that wrote so many rows, saw these sessions first and replaced these bytes."""
        ...

    def beat(self, detail: Mapping[str, Any]) -> None:
        """Say that the ingester is alive and what its last pass did."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...
