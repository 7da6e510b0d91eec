"""Cuts what changed into passages and puts those that have no vector yet into the queue."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from recall.errors import StoreUnavailableError
from recall.keys import stable_id
from recall_embedder.model import Model
from recall_embedder.passages import Entry, PassageDraft, passages_of
from recall_embedder.store import DirtyKey, EmbedStore, Generation

_log = logging.getLogger(__name__)

#: A document ends before an ordinal that is a multiple of this, so that a session that one
#: assistant run fills is cut in bounded pieces, and always in the same ones.
BLOCK_ORDINALS = 512
#: A document also ends where it is longer than this.
_DOCUMENT_CHARS = 500_000
_PAGE_ROWS = 200
_PAGE_CHARS = 2_000_000
#: Passages of one transaction.
_STRETCH_PASSAGES = 256
#: Each stretch that is stored extends it.
_LEASE_SECONDS = 120.0
_PAUSE_SECONDS = 30.0
#: From this many waiting passages on nothing more is cut.
QUEUE_ROWS = 20_000

Step = Callable[[str], None]


def no_step(_name: str) -> None:
    """What happens between two steps outside of tests."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries that are cut together: nothing before or behind them changes their passages."""

    first: int
    entries: Sequence[Entry]


@dataclass(slots=True)
class Cutter:
    """Cuts for one thread. ``step`` is called between the steps of the work, for tests."""

    store: EmbedStore
    model_of: Callable[[Generation], Model | None]
    step: Step = no_step
    queue_rows: int = QUEUE_ROWS
    pause_seconds: float = _PAUSE_SECONDS
    should_stop: Callable[[], bool] = lambda: False
    #: Told how many seconds each session took.
    timed: Callable[[float], None] = lambda _seconds: None
    #: Sessions and notes that were cut, and that failed.
    done: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)

    def cut_next(self) -> bool:
        """Cut one session or note of the first generation that has one; whether there was any."""
        for generation in self.store.generations():
            if self.store.queue_is_full(generation, self.queue_rows):
                continue
            model = self.model_of(generation)
            if model is None:
                continue
            dirty = self.store.claim_dirty(generation, seconds=_LEASE_SECONDS)
            if dirty is not None:
                self.step("dirty claimed")
                started = time.monotonic()
                self._cut(dirty, model)
                self.timed(time.monotonic() - started)
                return True
        return False

    def _cut(self, dirty: DirtyKey, model: Model) -> None:
        try:
            if dirty.note_id is not None:
                finished = self._cut_note(dirty, model)
            else:
                finished = self._cut_session(dirty, model)
        except StoreUnavailableError:
            raise  # the lease runs out, or the next claim finds the connection well again
        except Exception as error:  # boundary: what one session holds must not stop the others
            self.failed += 1
            reason = type(error).__name__
            _log.warning("session not cut", extra={"reason": reason, "key": dirty.key})
            self.store.fail_dirty(dirty, reason, pause_seconds=self.pause_seconds)
        else:
            if finished:
                self.done += 1
            else:
                self.store.release_dirty(dirty)

    def _cut_note(self, dirty: DirtyKey, model: Model) -> bool:
        entries = self.store.read_note(dirty)
        drafts = [(0, draft) for draft in drafts_of(entries, model, dirty.generation)]
        self.step("note cut")
        return self.store.replace_passages(dirty, drafts, first=0, before=None, then_from=None)

    def _cut_session(self, dirty: DirtyKey, model: Model) -> bool:
        """Stretch by stretch: what was stored stays so, wherever the process is killed."""
        titles = [(-1, draft) for draft in self._titles(dirty, model)]
        floor = dirty.from_ordinal // BLOCK_ORDINALS * BLOCK_ORDINALS
        first = self.store.cut_from(dirty, floor)
        if not self.store.replace_passages(
            dirty, titles, first=-1, before=0, then_from=dirty.from_ordinal
        ):
            return False
        self.step("title stored")
        waiting: list[tuple[int, PassageDraft]] = []
        read = 0
        for piece in pieces(self._entries(dirty, first)):
            if len(waiting) >= _STRETCH_PASSAGES and piece.first > first:
                if self.should_stop() or not self.store.replace_passages(
                    dirty, waiting, first=first, before=piece.first, then_from=piece.first,
                    entries_read=read,
                ):  # fmt: skip
                    return False
                self.step("stretch stored")
                waiting, first, read = [], piece.first, 0
            ordinals = {entry.id: entry.ordinal for entry in piece.entries}
            waiting += (
                (ordinals[draft.entry_id], draft)
                for draft in drafts_of(piece.entries, model, dirty.generation)
            )
            read += len(piece.entries)
        self.step("session cut")
        return self.store.replace_passages(
            dirty, waiting, first=first, before=None, then_from=None, entries_read=read
        )

    def _titles(self, dirty: DirtyKey, model: Model) -> Iterator[PassageDraft]:
        for draft in drafts_of(self.store.read_title(dirty), model, dirty.generation):
            # Its entry is the first message, which has passages of its own.
            yield replace(draft, id=stable_id("title", draft.id))

    def _entries(self, dirty: DirtyKey, first: int) -> Iterator[Entry]:
        behind = (first - 1, 2_147_483_647)
        while page := self.store.read_entries(dirty, behind, rows=_PAGE_ROWS, chars=_PAGE_CHARS):
            yield from page
            behind = (page[-1].ordinal, page[-1].part)


def drafts_of(
    entries: Sequence[Entry], model: Model, generation: Generation
) -> Iterator[PassageDraft]:
    """The passages of a piece; the id of each comes from its place and its text.

    A text that changes under its place is thereby another passage, and never one whose vector
    belongs to the text before.
    """
    for draft in passages_of(
        entries, model, generation.max_tokens, generation.overlap_tokens, generation.kinds
    ):
        yield replace(draft, id=stable_id("passage", draft.id, draft.text_hash.hex()))


def pieces(entries: Iterable[Entry]) -> Iterator[Piece]:
    """Cut a session at each text of the user, at each block of ordinals, and in endless texts.

    Every piece begins with an ordinal of its own. The same session gives the same pieces from
    whichever of them the reading begins.
    """
    piece: list[Entry] = []
    chars = 0
    for entry in entries:
        if piece and entry.ordinal != piece[-1].ordinal and _begins(piece[0], entry, chars):
            yield Piece(piece[0].ordinal, piece)
            piece, chars = [], 0
        piece.append(entry)
        chars += len(entry.content)
    if piece:
        yield Piece(piece[0].ordinal, piece)


def _begins(first: Entry, entry: Entry, chars: int) -> bool:
    return (
        (entry.role, entry.kind) == ("user", "text")
        or entry.ordinal // BLOCK_ORDINALS != first.ordinal // BLOCK_ORDINALS
        or chars > _DOCUMENT_CHARS
    )
