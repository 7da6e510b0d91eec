"""The database of the vector benchmark: a passage for each message, the vector index at the end."""

from __future__ import annotations

import json
import random
import re
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ops.bench import search_corpus, search_text, vectors_space
from ops.bench.search_corpus import Session
from ops.bench.search_store import Connection, Store
from ops.bench.vectors_space import DIMENSION, Space
from recall import keys
from recall_sql.connection import connect
from recall_sql.embedded import EmbeddedServer
from recall_sql.migrate import migrate

_MARK = "vectors.json"
_CACHE = "vectors_space.npz"
#: While it is built, the database need not survive a crash.
_BUILD_SETTINGS = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off"}
_BUILD_MEMORY = "1GB"
_BUILD_WORKERS = 2
#: Passages that are stored one batch after the other, to tell what the indexes cost.
_INSERTED = 2_000
_INSERT_BATCH = 250
_BOILERPLATE_SHARE = 0.075
_WORDS = 14
#: Share, role and kind of the messages that the benchmark makes.
_KINDS = (
    (0.09, "user", "text"),
    (0.25, "assistant", "text"),
    (0.03, "assistant", "thinking"),
    (0.29, "assistant", "tool_call"),
    (0.34, "tool", "tool_result"),
)
_COLUMNS = (
    "generation", "id", "entry_id", "session_key", "source", "host", "project", "role", "kind",
    "ts", "start_char", "length", "text_hash", "is_representative", "has_copies", "ordinal", "v",
)  # fmt: skip
_COPY = f"copy recall.passage_1 ({', '.join(_COLUMNS)}) from stdin (format binary)".encode()


def open_store(folder: Path, rows: int, index: str | None = None) -> tuple[Store, Space]:
    """The store of a folder with its vectors; what is missing is built.

    ``index`` are parameters of the vector index other than the product's.

    Messages that ``search.py`` left there are used. Without them, messages of a few words are made,
    which a search by meaning finds and one by words does not.
    """
    store = Store(folder)
    space = vectors_space.load_space(folder / _CACHE)
    built = about(store)
    if not built:
        has_texts = store.about().get("rows") == rows
        if not has_texts and (folder / "pg").exists():
            raise SystemExit(f"`{folder}` holds another database; remove it or name another folder")
        _build(folder, rows, space, index, has_texts=has_texts)
    elif (built["rows"], built["index"]) != (rows, index):
        told = f"{built['rows']:,} passages, vector index: {built['index'] or 'as in the product'}"
        raise SystemExit(f"`{folder}` holds another database: {told}")
    store.server.start()
    migrate(store.url)
    return store, space


def about(store: Store) -> dict[str, Any]:
    """What was built here, ``{}`` where nothing was."""
    mark = store.folder / _MARK
    told: dict[str, Any] = json.loads(mark.read_text()) if mark.exists() else {}
    return told


def _build(folder: Path, rows: int, space: Space, index: str | None, *, has_texts: bool) -> None:
    started = time.monotonic()
    server = EmbeddedServer(folder, extra_settings=_BUILD_SETTINGS)
    server.start()
    try:
        migrate(server.url)
        with connect(server.url, application="bench", autocommit=True) as conn:
            if not has_texts:
                _fill_messages(conn, search_corpus.plan(rows))
            told = _fill_passages(conn, space, index)
    finally:
        server.stop()
    told |= {"rows": rows, "index": index, "seconds": time.monotonic() - started}
    (folder / _MARK).write_text(json.dumps(told))


def _fill_messages(conn: Connection, sessions: Sequence[Session]) -> None:
    with conn.cursor().copy(
        "copy recall.session (session_key, source, host, external_id, title, project, started_at)"
        " from stdin"
    ) as copy:
        for one in sessions:
            copy.write_row(
                (_key(one), one.source, one.host, one.external_id, f"session {one.number}",
                 one.folder, one.started)
            )  # fmt: skip
    with conn.cursor().copy(
        "copy recall.message (session_key, ordinal, part, id, role, kind, ts, ts_origin, content,"
        " content_hash, copy_key, project) from stdin"
    ) as copy:
        for one in sessions:
            for row in _messages(one, sessions):
                copy.write_row(row)
    conn.execute("analyze recall.message, recall.session")


def _messages(session: Session, sessions: Sequence[Session]) -> Iterator[tuple[Any, ...]]:
    copied = 0
    if session.parent is not None:
        copied = min(sessions[session.parent].messages, session.messages // 2, 40)
    key = _key(session)
    for ordinal in range(session.messages):
        origin = session.parent if ordinal < copied else session.number
        chance = random.Random(f"{vectors_space.SEED} {origin} {ordinal}")
        if chance.random() < _BOILERPLATE_SHARE:
            content = chance.choice(search_text.BOILERPLATE)
        else:
            content = " ".join(chance.choices(search_corpus.vocabulary().words, k=_WORDS))
        _, role, kind = chance.choices(_KINDS, [kind[0] for kind in _KINDS])[0]
        digest = keys.content_hash(content)
        yield (
            key, ordinal, 0, keys.message_id(key, ordinal, 0), role, kind,
            session.started + timedelta(seconds=25 * ordinal), "record", content,
            digest, keys.copy_key(session.source, f"{origin} {ordinal}", digest), session.folder,
        )  # fmt: skip


def _key(session: Session) -> str:
    return keys.session_key(session.source, session.host, session.external_id)


def _fill_passages(conn: Connection, space: Space, index: str | None) -> dict[str, Any]:
    """Store the passages, each kind of index when its turn comes; seconds of each step."""
    told: dict[str, Any] = {}
    conn.execute(
        "select recall.create_embedding_generation(%s, %s, 'mean', 256, 32, '{text}')",
        (vectors_space.MODEL, DIMENSION),
    )
    conn.execute("delete from recall.embed_dirty")
    later = _drop_indexes(conn)
    vector_index = later.pop("passage_1_vector")
    if index:
        vector_index = re.sub(r"WITH \(.*?\)", f"WITH ({index})", vector_index)
    conn.execute(f"set maintenance_work_mem = '{_BUILD_MEMORY}'".encode())
    conn.execute(f"set max_parallel_maintenance_workers = {_BUILD_WORKERS}".encode())
    waiting = _copy_passages(conn, space, told)
    started = time.monotonic()
    for statement in later.values():
        conn.execute(statement.encode())
    conn.execute("alter table recall.passage attach partition recall.passage_1 for values in (1)")
    told["btree_seconds"] = time.monotonic() - started
    told["btree_rows_a_second"] = _insert(conn, waiting[:_INSERTED])
    started = time.monotonic()
    conn.execute(vector_index.encode())
    told["vector_index_seconds"] = time.monotonic() - started
    started = time.monotonic()
    conn.execute("analyze recall.passage_1")
    conn.execute("select recall.refresh_signs()")
    told["signs_seconds"] = time.monotonic() - started
    told["vector_rows_a_second"] = _insert(conn, waiting[_INSERTED:])
    conn.execute("vacuum (analyze, parallel 0) recall.passage_1")
    (told["copies"],) = conn.execute(
        "select count(*) from recall.passage_1 where not is_representative"
    ).fetchall()[0]
    conn.execute("analyze recall.passage, recall.message, recall.session")
    conn.execute("checkpoint")
    return told


def _drop_indexes(conn: Connection) -> dict[str, str]:
    """Take the partition out and its indexes away; what makes each of them again."""
    conn.execute("alter table recall.passage detach partition recall.passage_1")
    constraints = conn.execute(
        "select conname, pg_get_constraintdef(oid) from pg_constraint"
        " where conrelid = 'recall.passage_1'::regclass and contype = 'p'"
    ).fetchall()
    for name, _ in constraints:
        conn.execute(f"alter table recall.passage_1 drop constraint {name}".encode())
    indexes = conn.execute(
        "select indexname, indexdef from pg_indexes where schemaname = 'recall'"
        " and tablename = 'passage_1'"
    ).fetchall()
    for name, _ in indexes:
        conn.execute(f"drop index recall.{name}".encode())
    return dict(indexes) | {
        name: f"alter table recall.passage_1 add constraint {name} {definition}"
        for name, definition in constraints
    }


def _copy_passages(conn: Connection, space: Space, told: dict[str, Any]) -> list[bytes]:
    """Store all passages but the last few, and give those as rows of a binary COPY."""
    repeated = {row[0] for row in conn.execute(
        "select content_hash from recall.message group by content_hash having count(*) > 1"
    ).fetchall()}  # fmt: skip
    kept: dict[bytes, NDArray[Any]] = {}
    waiting: list[bytes] = []
    written = 0
    started = time.monotonic()
    with (
        connect(conn.info.dsn, application="bench") as reader,
        conn.cursor().copy(_COPY) as copy,
    ):
        copy.write(_HEADER)
        for messages in _sessions(reader):
            for row in _rows(messages, space, repeated, kept):
                waiting.append(row)
                written += 1
            while len(waiting) > 2 * _INSERTED:
                copy.write(b"".join(waiting[: -2 * _INSERTED]))
                del waiting[: -2 * _INSERTED]
        copy.write(_TRAILER)
    told["bare_rows_a_second"] = written / (time.monotonic() - started)
    return waiting


def _sessions(reader: Connection) -> Iterator[list[tuple[Any, ...]]]:
    """The messages of each session, through a cursor of the server."""
    with reader.cursor("messages") as cursor:
        cursor.itersize = 5_000
        cursor.execute(
            "select m.session_key, m.id, s.source, s.host, m.project, m.role, m.kind,"
            " (extract(epoch from m.ts - timestamptz '2000-01-01Z') * 1000000)::bigint,"
            " least(length(m.content), 1000), m.content_hash, m.ordinal"
            " from recall.message m join recall.session s using (session_key)"
            " order by m.session_key, m.ordinal, m.part"
        )
        messages: list[tuple[Any, ...]] = []
        for row in cursor:
            if messages and messages[0][0] != row[0]:
                yield messages
                messages = []
            messages.append(row)
        yield messages


def _rows(
    messages: Sequence[tuple[Any, ...]],
    space: Space,
    repeated: set[bytes],
    kept: dict[bytes, NDArray[Any]],
) -> Iterator[bytes]:
    """Rows of a session as a binary COPY has them. A text that is repeated keeps its first vector,
    which is the one in the vector index."""
    vectors = space.session_vectors(messages[0][0], messages[0][4], len(messages)).astype(">f2")
    for message, made in zip(messages, vectors, strict=True):
        session, number, source, host, project, role, kind, ts, length, digest, ordinal = message
        is_first = digest not in kept
        vector = kept.setdefault(digest, made.copy()) if digest in repeated else made
        yield _encode(
            (
                struct.pack(">i", 1), struct.pack(">q", number), struct.pack(">q", number),
                session.encode(), source.encode(), host.encode(), project.encode(), role.encode(),
                kind.encode(), struct.pack(">q", ts), struct.pack(">i", 0),
                struct.pack(">i", length), bytes(digest), struct.pack("?", is_first),
                struct.pack("?", is_first and digest in repeated), struct.pack(">q", ordinal),
                struct.pack(">hh", DIMENSION, 0) + vector.tobytes(),
            )
        )  # fmt: skip


_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_TRAILER = struct.pack(">h", -1)


def _encode(values: Iterable[bytes]) -> bytes:
    parts = [struct.pack(">h", len(_COLUMNS))]
    for value in values:
        parts += (struct.pack(">i", len(value)), value)
    return b"".join(parts)


def _insert(conn: Connection, rows: Sequence[bytes]) -> float:
    """Store rows as the embedder does, a batch in a transaction; how many in a second."""
    started = time.monotonic()
    for first in range(0, len(rows), _INSERT_BATCH):
        with conn.cursor().copy(_COPY) as copy:
            copy.write(_HEADER + b"".join(rows[first : first + _INSERT_BATCH]) + _TRAILER)
    return len(rows) / (time.monotonic() - started)


def sizes(conn: Connection) -> Mapping[str, int]:
    """Bytes of the passages and of each of their indexes."""
    rows = conn.execute(
        "select 'table ' || c.relname, pg_table_size(c.oid) from pg_class c"
        " where c.oid = 'recall.passage_1'::regclass"
        " union all"
        " select 'index ' || c.relname, pg_relation_size(c.oid) from pg_class c"
        "  join pg_index i on i.indexrelid = c.oid"
        " where i.indrelid = 'recall.passage_1'::regclass"
        " order by 1"
    ).fetchall()
    return {name: int(size) for name, size in rows}
