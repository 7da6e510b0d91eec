"""The database of the search benchmark: built fast, kept if wanted, started cold or warm."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from ops.bench import search_corpus
from ops.bench.search_corpus import Message, Session
from recall import keys
from recall.document import documents
from recall_sql.connection import connect
from recall_sql.embedded import EmbeddedServer
from recall_sql.migrate import migrate

Connection = psycopg.Connection[tuple[Any, ...]]

#: While it is built, the database need not survive a crash.
_BUILD_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "16GB",
    "autovacuum": "off",
}
_BATCH = 1_000
_MARK = "bench.json"

_MESSAGE_COLUMNS = (
    "session_key", "ordinal", "part", "id", "role", "kind", "ts", "ts_origin", "content",
    "content_hash", "copy_key", "project", "tool",
)  # fmt: skip
_TEXT_COLUMNS = (
    "id", "chunk", "ts", "source", "host", "project", "role", "kind", "tool", "session_key",
)  # fmt: skip


class Store:
    """The server of one folder with the messages of the benchmark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = EmbeddedServer(folder)

    @property
    def url(self) -> str:
        """The URL of its database."""
        return self.server.url

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection with the settings of a search."""
        with connect(self.url, application="bench", autocommit=True) as conn:
            yield conn

    def about(self) -> dict[str, Any]:
        """What was built here, ``{}`` where nothing was."""
        mark = self.folder / _MARK
        told: dict[str, Any] = json.loads(mark.read_text()) if mark.exists() else {}
        return told

    def restart(self, *, drop_cache: bool) -> bool:
        """Restart with the settings of the product; whether the page cache was dropped."""
        self.server.stop()
        dropped = drop_cache and drop_page_cache(self.folder / "pg")
        self.server.start()
        return dropped


def open_store(folder: Path, rows: int, jobs: int) -> Store:
    """The store of a folder, built if it is not there with this many messages."""
    store = Store(folder)
    if store.about().get("rows") == rows:
        store.server.start()
        migrate(store.url)
        return store
    if (folder / "pg").exists():
        raise SystemExit(f"`{folder}` holds another database; remove it or name another folder")
    started = time.monotonic()
    builder = EmbeddedServer(folder, extra_settings=_BUILD_SETTINGS)
    builder.start()
    migrate(builder.url)
    timings = _fill(builder.url, rows, jobs)
    builder.stop()
    store.server.start()
    about = {"rows": rows, "build_seconds": round(time.monotonic() - started, 1), **timings}
    (folder / _MARK).write_text(json.dumps(about))
    return store


def _fill(url: str, rows: int, jobs: int) -> dict[str, float]:
    sessions = search_corpus.plan(rows)
    search_corpus.vocabulary()  # made once, before the processes part
    started = time.monotonic()
    with connect(url, application="bench", autocommit=True) as conn:
        later = _drop_indexes(conn)
        _copy_sessions(conn, sessions)
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        shares = [(url, sessions, job, jobs) for job in range(jobs)]
        pool.starmap(_copy_share, shares)
    loaded = time.monotonic()
    seconds: dict[str, float] = {"load_seconds": round(loaded - started, 1)}
    with connect(url, application="bench", autocommit=True) as conn:
        conn.execute("set maintenance_work_mem = '1GB'")
        for name, definition in later.items():
            before = time.monotonic()
            conn.execute(definition.encode())
            seconds[f"index_{name}_seconds"] = round(time.monotonic() - before, 1)
        before = time.monotonic()
        conn.execute("vacuum (analyze, parallel 0)")
        seconds["vacuum_seconds"] = round(time.monotonic() - before, 1)
        conn.execute("checkpoint")
    return seconds


def _drop_indexes(conn: Connection) -> dict[str, str]:
    """Drop what can be built at the end; name and definition of each."""
    rows = conn.execute(
        "select i.indexname, i.indexdef from pg_indexes i"
        " where i.schemaname = 'recall' and i.tablename in ('message', 'message_text')"
        "  and not exists (select from pg_constraint c where c.conname = i.indexname)"
    ).fetchall()
    for name, _ in rows:
        conn.execute(f"drop index recall.{name}".encode())
    return dict(rows)


def _copy_sessions(conn: Connection, sessions: Sequence[Session]) -> None:
    with conn.cursor().copy(
        "copy recall.session (session_key, source, host, external_id, parent_key, relation,"
        " title, title_rank, project, started_at, ended_at) from stdin"
    ) as copy:
        for one in sessions:
            parent = None if one.parent is None else sessions[one.parent]
            copy.write_row(
                (
                    _key(one), one.source, one.host, one.external_id,
                    None if parent is None else _key(parent),
                    None if parent is None else "resume",
                    f"session {one.number}", 1, one.folder, one.started, one.started,
                )
            )  # fmt: skip


def _key(session: Session) -> str:
    return keys.session_key(session.source, session.host, session.external_id)


def _copy_share(url: str, sessions: Sequence[Session], job: int, jobs: int) -> None:
    writer = search_corpus.Writer(sessions)
    with connect(url, application="bench", autocommit=True) as conn:
        conn.execute(
            "create temp table document (id bigint, chunk smallint, ts timestamptz, source text,"
            " host text, project text, role text, kind text, tool text, session_key text,"
            " document text) on commit delete rows"
        )
        waiting: list[tuple[Session, Message]] = []
        for session in sessions[job::jobs]:
            waiting += ((session, message) for message in writer.messages(session))
            if len(waiting) >= _BATCH:
                _store(conn, waiting)
                waiting.clear()
        _store(conn, waiting)


def _store(conn: Connection, batch: Sequence[tuple[Session, Message]]) -> None:
    columns = ", ".join(_TEXT_COLUMNS)
    with conn.transaction(), conn.cursor() as cursor:
        with cursor.copy(
            f"copy recall.message ({', '.join(_MESSAGE_COLUMNS)}) from stdin".encode()
        ) as copy:
            for session, message in batch:
                copy.write_row(_message_row(session, message))
        with cursor.copy(
            f"copy pg_temp.document ({columns}, document) from stdin".encode()
        ) as copy:
            for session, message in batch:
                for row in _document_rows(session, message):
                    copy.write_row(row)
        cursor.execute(
            f"insert into recall.message_text ({columns}, tsv)"
            f" select {columns}, recall.index_document(document) from pg_temp.document".encode()
        )


def _message_row(session: Session, message: Message) -> tuple[Any, ...]:
    key = _key(session)
    digest = keys.content_hash(message.content)
    scope = f"{message.origin} {message.ts.isoformat()}"
    return (
        key, message.ordinal, 0, keys.message_id(key, message.ordinal, 0), message.role,
        message.kind, message.ts, "record", message.content, digest,
        keys.copy_key(session.source, scope, digest), session.folder, message.tool,
    )  # fmt: skip


def _document_rows(session: Session, message: Message) -> Iterator[tuple[Any, ...]]:
    key = _key(session)
    number = keys.message_id(key, message.ordinal, 0)
    for chunk, document in enumerate(documents(message.content)):
        yield (
            number, chunk, message.ts, session.source, session.host, session.folder, message.role,
            message.kind, message.tool, key, document,
        )  # fmt: skip


def sizes(conn: Connection) -> Mapping[str, int]:
    """Bytes of the database, its larger tables (with TOAST) and their indexes."""
    rows = conn.execute(
        "select 'database', pg_database_size(current_database())"
        " union all"
        " select 'table ' || c.relname, pg_table_size(c.oid) from pg_class c"
        "  where c.relnamespace = 'recall'::regnamespace and c.relkind = 'r'"
        "   and pg_table_size(c.oid) > 1000000"
        " union all"
        " select 'index ' || c.relname, pg_relation_size(c.oid) from pg_class c"
        "  where c.relnamespace = 'recall'::regnamespace and c.relkind = 'i'"
        "   and pg_relation_size(c.oid) > 1000000"
        " union all"
        " select 'text', sum(octet_length(content)) from recall.message"
        " order by 1"
    ).fetchall()
    return {name: int(size) for name, size in rows}


def drop_page_cache(folder: Path) -> bool:
    """Drop the files below a folder from the page cache, where the system can do that."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
    return True
