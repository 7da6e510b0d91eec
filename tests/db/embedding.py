"""A store with passages for tests: a model that is a hash, and an embedder driven step by step."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recall import keys
from recall.config import Settings
from recall.errors import ModelError
from recall_embedder.cutter import Cutter, drafts_of, no_step, pieces
from recall_embedder.generations import shape_of
from recall_embedder.health import Health
from recall_embedder.model import Model
from recall_embedder.passages import Entry
from recall_embedder.store import EmbedStore, Generation
from recall_embedder.worker import Worker
from recall_sql.connection import connect

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
_WORD = re.compile(r"\S+")


@dataclass
class HashModel:
    """A word is a token; the vector of a text comes from its hash. It counts what it is given."""

    name: str = "hash-model"
    dimension: int = 8
    pooling: str = "mean"
    max_tokens: int = 64
    threads_safe: bool = True
    given: list[str] = field(default_factory=list)
    #: Whether it fails on a text.
    fails: Callable[[str], bool] = lambda _text: False
    fails_to_cut: Callable[[str], bool] = lambda _text: False

    def spans(self, text: str) -> list[tuple[int, int]]:
        if self.fails_to_cut(text):
            raise ValueError("cannot be cut")
        return [match.span() for match in _WORD.finditer(text)]

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.given += texts
        if any(self.fails(text) for text in texts):
            raise ModelError("the model fails")
        return np.stack([self._vector(text) for text in texts])

    def _vector(self, text: str) -> NDArray[np.float32]:
        digest = blake2b(f"{self.name}/{text}".encode(), digest_size=2 * self.dimension).digest()
        vector = np.frombuffer(digest, dtype="<u2").astype(np.float32) / 65_535 - 0.5
        vector = np.round(vector, 2) + np.float32(0.003)
        return np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)


SETTINGS = Settings(embed_model="hash-model", embed_tokens=32, embed_overlap_tokens=4)


def say(
    url: str,
    key: str,
    texts: Sequence[str | tuple[str, str] | None],
    *,
    first: int = 0,
    kind: str = "text",
    mark: bool = True,
) -> None:
    """Store messages of a session as the ingester does, and mark them: a text is of the user, or
    given with its role; ``None`` takes the message away. Equal calls write equal rows."""
    source, host, external = key.split(":", 2)
    with connect(url, application="tests") as connection:
        connection.execute(
            "insert into recall.session (session_key, source, host, external_id, project)"
            " values (%s, %s, %s, %s, '/shop') on conflict do nothing",
            (key, source, host, external),
        )
        for ordinal, text in enumerate(texts, first):
            connection.execute(
                "delete from recall.message where session_key = %s and ordinal = %s", (key, ordinal)
            )
            if text is None:
                continue
            role, content = ("user", text) if isinstance(text, str) else text
            connection.execute(
                "insert into recall.message (session_key, ordinal, part, id, role, kind, ts,"
                " content, content_hash, project) values (%s, %s, 0, %s, %s, %s, %s, %s, %s, %s)",
                (
                    key, ordinal, keys.message_id(key, ordinal, 0), role, kind,
                    START + timedelta(minutes=ordinal), content, keys.content_hash(content),
                    "/shop",
                ),
            )  # fmt: skip
        if mark:
            connection.execute(
                "select recall.mark_dirty(array[%s], array[%s]::bigint[], array[%s]::bigint[],"
                " array[%s]::timestamptz[])",
                (key, first, len(texts), START + timedelta(minutes=first + len(texts))),
            )


def add_note(url: str, number: int, content: str, *, shelf: str = "memory") -> None:
    """Store a memory or ledger entry and mark it."""
    with connect(url, application="tests") as connection:
        connection.execute(
            "insert into recall.note (id, shelf, source, host, path, entry_key, ordinal, content,"
            " content_hash, project)"
            " values (%s, %s, 'memory', 'laptop', '/m', %s, 0, %s, %s, '/s')",
            (number, shelf, str(number), content, keys.content_hash(content)),
        )
        mark_note(connection, number)


def mark_note(connection: Any, number: int) -> None:
    connection.execute(
        "select recall.mark_dirty(array[%s], array[0::bigint], array[1::bigint],"
        " array[null::timestamptz])",
        (f"note:{number}",),
    )


@dataclass
class Bench:
    """One embedder process that runs only when it is told to."""

    url: str
    model: HashModel = field(default_factory=HashModel)
    models: dict[str, HashModel] = field(default_factory=dict)
    health: Health = field(default_factory=Health)
    step: Callable[[str], None] = no_step
    store_class: type[EmbedStore] = EmbedStore
    claim_rows: int = 4
    queue_rows: int = 20_000
    application: str = "tests"

    def __post_init__(self) -> None:
        self.store = self.store_class(self.url, application=self.application)
        self.cutter = Cutter(
            self.store, self.model_of, step=self.step, queue_rows=self.queue_rows, pause_seconds=0
        )
        self.worker = Worker(
            self.store, self.model_of, self.health, step=self.step, claim_rows=self.claim_rows,
            batch_tokens=64, pause_seconds=0,
        )  # fmt: skip

    def model_of(self, generation: Generation) -> HashModel:
        return self.models.get(generation.model, self.model)

    def begin(self, settings: Settings = SETTINGS) -> None:
        """Make the first generation."""
        self.store.create_generation(shape_of(settings, self.model), only_first=True)

    def drain(self) -> None:
        """Cut and embed until nothing is left to do."""
        while self.cutter.cut_next() or self.worker.embed_next():
            pass

    def close(self) -> None:
        self.store.close()


def passages(url: str, generation: int = 1) -> list[tuple[Any, ...]]:
    """What is stored of passages, without which of equal texts stands for them."""
    return fetch(
        url,
        "select id, entry_id, session_key, ordinal, source, host, project, role, kind, ts,"
        " start_char, length, encode(text_hash, 'hex') from recall.passage"
        " where generation = %s order by id",
        generation,
    )


def expected(url: str, model: Model, generation: int = 1) -> list[tuple[Any, ...]]:
    """The same from all that is stored, computed at once and without a database's help."""
    store = EmbedStore(url, application="tests")
    wanted = next(one for one in store.generations() if one.number == generation)
    store.close()
    found = []
    for (key,) in fetch(url, "select distinct session_key from recall.message"):
        source, host, _ = key.split(":", 2)
        entries = [
            Entry(row[0], row[1], row[2], key, source, host, *row[3:])
            for row in fetch(
                url,
                "select id, ordinal, part, project, role, kind, ts, content from recall.message"
                " where session_key = %s and kind = any(%s) order by ordinal, part",
                key, list(wanted.kinds),
            )
        ]  # fmt: skip
        for piece in pieces(entries):
            ordinals = {entry.id: entry.ordinal for entry in piece.entries}
            found += [
                (ordinals[draft.entry_id], draft)
                for draft in drafts_of(piece.entries, model, wanted)
            ]
    rows: list[tuple[Any, ...]] = [
        (
            draft.id, draft.entry_id, draft.session_key, ordinal, draft.source, draft.host,
            draft.project, draft.role, draft.kind, draft.ts, draft.start_char, draft.length,
            draft.text_hash.hex(),
        )
        for ordinal, draft in found
    ]  # fmt: skip
    return sorted(rows)


def check_store(url: str) -> None:
    """What holds for passages at any time: one representative a text, which knows of its copies,
    and one vector a text."""
    assert (
        fetch(
            url,
            "select generation, text_hash from recall.passage group by generation, text_hash"
            " having count(*) filter (where is_representative) <> 1"
            " or bool_or(has_copies) filter (where is_representative) <> (count(*) > 1)"
            " or count(distinct v::text) > 1",
        )
        == []
    )


def fetch(url: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with connect(url, application="tests") as connection:
        return connection.execute(statement.encode(), values or None).fetchall()
