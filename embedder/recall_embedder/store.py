"""What the embedder asks of the store: claims, results and signs of life.

Every call is one statement on a connection in autocommit, so a thread that waits or runs the model
never has a transaction open. A connection that breaks is opened again by the next call.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from recall_embedder.passages import Entry, PassageDraft
from recall_sql.connection import connect, translate_errors
from recall_sql.loader import load

#: Tries of a session before it is left alone until it changes.
MOST_CUTS = 5
#: Tries of a passage alone before it has failed for good.
MOST_FAILURES = 3
#: Claims of a passage that nobody came back from: one in a batch, and then as many alone.
_MOST_CLAIMS = 1 + MOST_FAILURES
#: Of a longer entry only this much is embedded.
ENTRY_CHARS = 262_144
#: A title of a higher rank was given by somebody; the others repeat the first prompt.
_PROMPT_TITLE_RANK = 10


@dataclass(frozen=True, slots=True)
class Generation:
    """One row of ``recall.embedding_generation``."""

    number: int
    model: str
    dimension: int
    pooling: str
    max_tokens: int
    overlap_tokens: int
    kinds: tuple[str, ...]
    state: str


@dataclass(frozen=True, slots=True)
class DirtyKey:
    """A session or note that is leased to be cut."""

    generation: Generation
    key: str
    from_ordinal: int
    version: int
    lease: uuid.UUID

    @property
    def note_id(self) -> int | None:
        """The id of the note, if it is one."""
        kind, _, number = self.key.partition(":")
        return int(number) if kind == "note" and number.isdigit() else None


@dataclass(frozen=True, slots=True)
class QueuedPassage:
    """A passage that is leased to be embedded; ``vector`` if its text is embedded already."""

    id: int
    text_hash: bytes
    tokens: int
    text: str
    attempts: int
    vector: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """Passages of one generation that are leased together."""

    generation: Generation
    lease: uuid.UUID
    passages: Sequence[QueuedPassage]


class EmbedStore:
    """The store as one thread sees it."""

    def __init__(self, url: str, *, application: str = "recall embedder") -> None:
        self._url = url
        self._application = application
        self._sql = load("embed")
        self._connection: psycopg.Connection[Any] | None = None

    def generations(self) -> list[Generation]:
        """What is to be filled: the active generation first."""
        return [
            Generation(number, model, dimension, pooling, tokens, overlap, tuple(kinds), state)
            for number, model, dimension, pooling, tokens, overlap, kinds, state in self._rows(
                "generations", {}
            )
        ]

    def create_generation(self, values: Mapping[str, Any], *, only_first: bool) -> int | None:
        """Its number; ``None`` if it was to be the first one and is not."""
        name = "create_first_generation" if only_first else "create_generation"
        return self._value(name, values)  # type: ignore[no-any-return]

    def activate(self, number: int) -> None:
        """Put a filled generation in the place of the active one."""
        self._rows("activate_generation", {"number": number})

    def drop(self, number: int) -> None:
        """Delete a generation that is not active."""
        self._rows("drop_generation", {"number": number})

    def refresh_signs(self) -> int | None:
        """Make the second vector index where it is due: of which generation, or ``None``."""
        return self._value("refresh_signs", {})  # type: ignore[no-any-return]

    def retired(self) -> list[int]:
        """Generations whose vectors nobody compares with any more."""
        return [int(row[0]) for row in self._rows("retired_generations", {})]

    def is_filled(self, number: int) -> bool:
        """Whether nothing waits for a generation but what failed for good."""
        return bool(self._value("is_filled", {"number": number, "most_cuts": MOST_CUTS}))

    def tell_workers(self) -> None:
        """Wake the embedders."""
        self._rows("tell_workers", {})

    def listen(self) -> None:
        """Be told by the database when there is something to do."""
        self._do("listen", {})

    def waiting(self) -> dict[int, int]:
        """Passages that wait, by generation."""
        return {int(row[0]): int(row[1]) for row in self._rows("waiting", {})}

    def queue_is_full(self, generation: Generation, rows: int) -> bool:
        """Whether so many passages wait already."""
        values = {"generation": generation.number, "rows": rows}
        return bool(self._value("queue_is_full", values))

    def claim_dirty(self, generation: Generation, *, seconds: float) -> DirtyKey | None:
        """Lease the newest session or note that is to be cut."""
        lease = uuid.uuid4()
        values = {
            "generation": generation.number,
            "lease": lease,
            "seconds": seconds,
            "most": MOST_CUTS,
        }
        for key, from_ordinal, version in self._rows("claim_dirty", values):
            return DirtyKey(generation, key, from_ordinal, version, lease)
        return None

    def release_dirty(self, dirty: DirtyKey) -> None:
        """Give it back as if it had not been claimed."""
        self._do("release_dirty", self._of(dirty))

    def fail_dirty(self, dirty: DirtyKey, reason: str, *, pause_seconds: float) -> None:
        """Note why it cannot be cut."""
        self._do("fail_dirty", {**self._of(dirty), "error": reason, "pause": pause_seconds})

    def cut_from(self, dirty: DirtyKey, floor: int) -> int:
        """The ordinal of the document's first entry, not below ``floor``."""
        values = {
            "key": dirty.key,
            "floor": floor,
            "from_ordinal": dirty.from_ordinal,
            "kinds": list(dirty.generation.kinds),
        }
        return int(self._value("cut_from", values))

    def read_entries(
        self, dirty: DirtyKey, behind: tuple[int, int], *, rows: int, chars: int
    ) -> list[Entry]:
        """Entries of a session behind ``(ordinal, part)``, in order; none at its end."""
        values = {
            "key": dirty.key,
            "kinds": list(dirty.generation.kinds),
            "ordinal": behind[0],
            "part": behind[1],
            "rows": rows,
            "chars": chars,
            "entry_chars": ENTRY_CHARS,
        }
        source, host, _ = dirty.key.split(":", 2)
        return [
            Entry(number, ordinal, part, dirty.key, source, host, project, role, kind, ts, content)
            for number, ordinal, part, project, role, kind, ts, content in self._rows(
                "read_entries", values
            )
        ]

    def read_title(self, dirty: DirtyKey) -> list[Entry]:
        """The title as an entry of its own, if no message holds it and titles are embedded."""
        if "summary" not in dirty.generation.kinds:
            return []
        source, host, _ = dirty.key.split(":", 2)
        values = {"key": dirty.key, "prompt_rank": _PROMPT_TITLE_RANK}
        return [
            Entry(number, -1, 0, dirty.key, source, host, project, "system", "summary", ts, title)
            for number, project, ts, title in self._rows("read_title", values)
        ]

    def read_note(self, dirty: DirtyKey) -> list[Entry]:
        """The note as an entry, if it is current and notes of its shelf are embedded."""
        values = {
            "id": dirty.note_id,
            "kinds": list(dirty.generation.kinds),
            "entry_chars": ENTRY_CHARS,
        }
        return [
            Entry(number, 0, 0, None, source, host, project, "assistant", shelf, ts, content)
            for number, source, host, project, shelf, ts, content in self._rows("read_note", values)
        ]

    def replace_passages(
        self,
        dirty: DirtyKey,
        wanted: Iterable[tuple[int, PassageDraft]],
        *,
        first: int,
        before: int | None,
        then_from: int | None,
        entries_read: int = 0,
    ) -> bool:
        """Store what was cut of ``[first, before)``, each with its ordinal.

        False, and nothing is stored, if the key changed or its lease is over.
        """
        values = {
            **self._of(dirty),
            "version": dirty.version,
            "first_ordinal": first,
            "before_ordinal": before,
            "then_from": then_from,
            "entries_read": entries_read,
            "wanted": json.dumps([_as_json(ordinal, draft) for ordinal, draft in wanted]),
        }
        return bool(self._value("replace_passages", values))

    def claim_passages(
        self, generation: Generation, *, rows: int, seconds: float
    ) -> tuple[Claim, int]:
        """Lease the newest passages, or one that was tried before.

        Also says how many were given up, because whoever worked on them was never heard of again.
        """
        lease = uuid.uuid4()
        values = {"generation": generation.number, "lease": lease, "seconds": seconds}
        fresh = self._rows("claim_passages", {**values, "rows": rows})
        if fresh:
            return Claim(generation, lease, [QueuedPassage(*row) for row in fresh]), 0
        again = self._rows("claim_again", {**values, "most": _MOST_CLAIMS})
        passages = [QueuedPassage(*row[:6]) for row in again if not row[6]]
        return Claim(generation, lease, passages), len(again) - len(passages)

    def store_passages(
        self, claim: Claim, ids: Collection[int], vectors: Mapping[bytes, str]
    ) -> int:
        """Store vectors by the hash of their text; how many passages have one now."""
        values = {
            "generation": claim.generation.number,
            "lease": claim.lease,
            "ids": list(ids),
            "hashes": list(vectors),
            "vectors": list(vectors.values()),
        }
        return int(self._value("store_passages", values))

    def release_passages(self, claim: Claim, ids: Collection[int]) -> None:
        """Give passages back as if they had not been claimed."""
        values = {"generation": claim.generation.number, "lease": claim.lease, "ids": list(ids)}
        self._do("release_passages", values)

    def extend(self, claim: Claim, ids: Collection[int], *, seconds: float) -> None:
        """Hold on to passages of a claim that takes long."""
        values = {
            "generation": claim.generation.number,
            "lease": claim.lease,
            "ids": list(ids),
            "seconds": seconds,
        }
        self._do("extend", values)

    def fail_passage(self, claim: Claim, number: int, reason: str, *, pause_seconds: float) -> bool:
        """Note that a passage failed alone; whether that was for good."""
        values = {
            "generation": claim.generation.number,
            "lease": claim.lease,
            "id": number,
            "error": reason,
            "pause": pause_seconds,
            "most": MOST_FAILURES,
        }
        return bool(self._value("fail_passage", values))

    def beat(self, instance: str, host: str, pid: int, detail: Mapping[str, Any]) -> None:
        """Say that this embedder is alive."""
        values = {"instance": instance, "host": host, "pid": pid, "detail": json.dumps(detail)}
        self._do("beat", values)

    def stop_beating(self, instance: str) -> None:
        """Say that this embedder ended in order."""
        self._do("stop_beating", {"instance": instance})

    def forget_instances(self, host: str, *, here_seconds: float, seconds: float) -> None:
        """Embedders that were killed are not missed for ever, on this machine not for long.

        One that was only slow is back with its next beat.
        """
        values = {"host": host, "here_seconds": here_seconds, "seconds": seconds}
        self._do("forget_instances", values)

    def running_embedders(self, number: int, *, seconds: float) -> int:
        """How many embedders were heard of lately, of those that can fill a generation."""
        return int(self._value("running_embedders", {"number": number, "seconds": seconds}))

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connection(self) -> psycopg.Connection[Any]:
        """The connection, opened if it is not."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(
                self._url, application=self._application, lock_timeout_seconds=30, autocommit=True
            )
        return self._connection

    def _rows(self, name: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with translate_errors():
            return self.connection().execute(self._sql[name], values).fetchall()

    def _value(self, name: str, values: Mapping[str, Any]) -> Any:
        rows = self._rows(name, values)
        return rows[0][0] if rows else None

    def _do(self, name: str, values: Mapping[str, Any]) -> None:
        with translate_errors():
            self.connection().execute(self._sql[name], values)

    def _of(self, dirty: DirtyKey) -> dict[str, Any]:
        return {"generation": dirty.generation.number, "key": dirty.key, "lease": dirty.lease}


def _as_json(ordinal: int, draft: PassageDraft) -> dict[str, Any]:
    return {
        "id": draft.id,
        "entry_id": draft.entry_id,
        "session_key": draft.session_key,
        "ordinal": ordinal,
        "source": draft.source,
        "host": draft.host,
        "project": draft.project,
        "role": draft.role,
        "kind": draft.kind,
        "ts": draft.ts.isoformat() if draft.ts else None,
        "start_char": draft.start_char,
        "length": draft.length,
        "tokens": draft.tokens,
        "text_hash": f"\\x{draft.text_hash.hex()}",
        "passage": draft.passage,
    }
