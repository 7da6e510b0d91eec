"""A filled store and the API in front of it, for tests: real rows, a real server, real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from recall.config import Settings
from recall.document import documents
from recall.keys import content_hash, message_id, session_key, stable_id
from recall_api.app import create_app
from recall_sql.connection import connect

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Line:
    """One message to store. Messages with equal ``copy`` are copies of each other."""

    content: str
    role: str = "user"
    kind: str = "text"
    part: int = 0
    ordinal: int | None = None
    tool: str | None = None
    copy: int | None = None
    on_active_branch: bool = True


@dataclass
class Store:
    """Puts rows into a database in the form in which the ingester would."""

    url: str
    keys: list[str] = field(default_factory=list)

    def add_session(
        self,
        external_id: str,
        lines: Sequence[Line | str] = (),
        *,
        source: str = "claude-code",
        host: str = "laptop",
        title: str | None = None,
        project: str | None = "/home/dev/shop",
        parent_key: str | None = None,
        relation: str | None = None,
        started_at: datetime | None = START,
    ) -> str:
        """A session with messages a minute apart; its key."""
        key = session_key(source, host, external_id)
        messages = [Line(line) if isinstance(line, str) else line for line in lines]
        with connect(self.url, application="tests") as connection:
            connection.execute(
                "insert into recall.session (session_key, source, host, external_id, parent_key,"
                " relation, title, project, started_at, ended_at)"
                " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                (
                    key, source, host, external_id, parent_key, relation, title, project,
                    started_at, started_at + timedelta(minutes=len(lines)) if started_at else None,
                ),
            )  # fmt: skip
            for number, line in enumerate(messages):
                moment = (started_at or START) + timedelta(minutes=number)
                self._add_message(connection, key, number, line, moment, project)
        self.keys.append(key)
        return key

    def _add_message(
        self,
        connection: Any,
        key: str,
        number: int,
        line: Line,
        moment: datetime,
        project: str | None,
    ) -> None:
        ordinal = number if line.ordinal is None else line.ordinal
        number = message_id(key, ordinal, line.part)
        connection.execute(
            "insert into recall.message (session_key, ordinal, part, id, role, kind, ts, content,"
            " content_hash, copy_key, project, tool, on_active_branch)"
            " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                key, ordinal, line.part, number, line.role, line.kind, moment, line.content,
                content_hash(line.content), line.copy, project, line.tool, line.on_active_branch,
            ),
        )  # fmt: skip
        self._add_text(connection, number, line, moment, key, project)

    def _add_text(
        self,
        connection: Any,
        number: int,
        line: Line,
        moment: datetime,
        key: str,
        project: str | None,
    ) -> None:
        source, host, _ = key.split(":", 2)
        for chunk, document in enumerate(documents(line.content)):
            connection.execute(
                "insert into recall.message_text (id, chunk, ts, source, host, project, role, kind,"
                " tool, session_key, tsv)"
                " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, recall.index_document(%s))",
                (
                    number, chunk, moment, source, host, project, line.role, line.kind, line.tool,
                    key, document,
                ),
            )  # fmt: skip

    def add_prompt(self, content: str, *, session: str | None = None) -> str:
        """An entry of a prompt history; its id."""
        number = stable_id("prompt", content)
        with connect(self.url, application="tests") as connection:
            connection.execute(
                "insert into recall.prompt (id, source, host, ordinal, session_key, ts, content,"
                " content_hash) values (%s, 'claude-code', 'laptop', 0, %s, %s, %s, %s)",
                (number, session, START, content, content_hash(content)),
            )
        return str(number)

    def retract(self, key: str, ordinal: int, old_content: str) -> str:
        """Let a message have had another text before; the id of the old text."""
        number = message_id(key, ordinal, 0)
        with connect(self.url, application="tests") as connection:
            row = connection.execute(
                "insert into recall.message_retracted (session_key, ordinal, part, id, message_id,"
                " generation, role, kind, content, content_hash)"
                " values (%s, %s, 0, recall.retracted_id(%s, %s), %s, 1, 'user', 'text', %s, %s)"
                " returning id::text",
                (
                    key, ordinal, number, content_hash(old_content), number, old_content,
                    content_hash(old_content),
                ),
            ).fetchone()  # fmt: skip
        assert row is not None
        return str(row[0])

    def add_file(
        self,
        path: str,
        *,
        key: str | None = None,
        host: str = "laptop",
        source: str = "claude-code",
        lines: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0),
        missing: bool = False,
        unreadable: str | None = None,
    ) -> None:
        """A file that was read: lines seen, stored, merged, quarantined and skipped."""
        with connect(self.url, application="tests") as connection:
            connection.execute(
                "insert into recall.ingest_state (host, path, source, session_key, size, mtime_ns,"
                " ctime_ns, inode, byte_offset, lines, head_hash, tail_hash, generation, rereading,"
                " lines_seen, lines_stored, lines_merged, lines_quarantined, lines_skipped,"
                " skip_reasons, source_missing_at, unreadable)"
                " values (%s, %s, %s, %s, 10, 1, 1, 1, 10, 1, '', '', 1, false, %s, %s, %s, %s, %s,"
                " '{}', %s, %s)",
                (host, path, source, key, *lines, START if missing else None, unreadable),
            )

    def add_quarantine(self, path: str, offset: int, *, reason: str = "not JSON") -> None:
        """A line that could not be read."""
        with connect(self.url, application="tests") as connection:
            connection.execute(
                "insert into recall.quarantine (host, path, generation, byte_offset, byte_length,"
                " ordinal, source, reason, sha256, salvaged)"
                " values ('laptop', %s, 1, %s, 7, 3, 'claude-code', %s, %s, false)",
                (path, offset, reason, bytes(32)),
            )

    def beat(self, *, seconds_ago: float = 0, detail: str = "{}") -> None:
        """A sign of life of the ingester."""
        with connect(self.url, application="tests") as connection:
            connection.execute(
                "insert into recall.worker_heartbeat (component, host, pid, beat_at, detail)"
                " values ('ingester', 'laptop', 4711, now() - make_interval(secs => %s), %s)"
                " on conflict (component, instance) do update set beat_at = excluded.beat_at,"
                " detail = excluded.detail",
                (seconds_ago, detail),
            )


@contextmanager
def serving(database_url: str, settings: Settings | None = None) -> Iterator[httpx.Client]:
    """The API of a database on a port of its own."""
    settings = settings or Settings(search_timeout_seconds=60)
    with running(create_app(settings, database_url)) as client:
        yield client


@contextmanager
def running(app: FastAPI) -> Iterator[httpx.Client]:
    """An application on a port of its own, yielded when it has started."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, proxy_headers=False, http="h11")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        _await_start(server, thread)
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        listener.close()
    assert not thread.is_alive()


def _await_start(server: uvicorn.Server, thread: threading.Thread) -> None:
    """Wait until the application has run its start. Its socket listens before, so that a request
    waits by itself; a test that looks at the state of the application does not."""
    deadline = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive(), "the application ended while it started"
        assert time.monotonic() < deadline, "the application did not start"
        time.sleep(0.005)
