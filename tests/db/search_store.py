"""Messages in a database for the tests of search, as the ingester stores them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from recall import keys
from recall.document import documents
from recall_api.search import SearchRequest, search
from recall_sql.connection import connect

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Said:
    """One message; ``age`` is in minutes before :data:`NOW`, ``None`` for no time at all."""

    content: str
    age: float | None = 0
    session: str = "session-one"
    source: str = "claude-code"
    host: str = "laptop"
    project: str | None = "/home/dev/shop"
    role: str = "user"
    kind: str = "text"
    tool: str | None = None
    copy: int | None = None

    @property
    def key(self) -> str:
        return keys.session_key(self.source, self.host, self.session)

    @property
    def ts(self) -> datetime | None:
        return None if self.age is None else NOW - timedelta(minutes=self.age)


class Messages:
    """A database to put messages into and to search in."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._ordinal = 0

    def session(
        self,
        said: Said,
        *,
        parent: str | None = None,
        relation: str | None = None,
        title: str | None = None,
    ) -> str:
        """Store the session of a message; its key."""
        self.connection.execute(
            "insert into recall.session (session_key, source, host, external_id, parent_key,"
            " relation, title, project, started_at, ended_at)"
            " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
            " on conflict (session_key) do nothing",
            (
                said.key, said.source, said.host, said.session, parent, relation, title,
                said.project, said.ts, said.ts,
            ),
        )  # fmt: skip
        return said.key

    def add(self, *given: Said | str) -> list[str]:
        """Store messages; their ids as text."""
        said = [Said(one) if isinstance(one, str) else one for one in given]
        numbers = []
        with self.connection.cursor() as cursor:
            for one in said:
                self.session(one)
                self._ordinal += 1
                number = keys.message_id(one.key, self._ordinal, 0)
                numbers.append(str(number))
                cursor.execute(
                    "insert into recall.message (session_key, ordinal, part, id, role, kind, ts,"
                    " content, content_hash, copy_key, project, tool)"
                    " values (%s, %s, 0, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                    (
                        one.key, self._ordinal, number, one.role, one.kind, one.ts, one.content,
                        keys.content_hash(one.content), one.copy, one.project, one.tool,
                    ),
                )  # fmt: skip
                self._index(number, one, one.key)
        return numbers

    def prompt(self, said: Said, *, session: str | None) -> str:
        """Store an entry of a prompt history; its id."""
        number = keys.stable_id("prompt", said.content, said.age)
        self.connection.execute(
            "insert into recall.prompt (id, source, host, ordinal, session_key, project, ts,"
            " content, content_hash) values (%s, %s, %s, 0, %s, %s, %s, %s, %s)",
            (
                number, said.source, said.host, session, said.project, said.ts, said.content,
                keys.content_hash(said.content),
            ),
        )  # fmt: skip
        self._index(number, said, session, kind="prompt")
        return str(number)

    def retract(self, number: str) -> str:
        """Let the client take a message back; the id under which it is kept."""
        row = self.connection.execute(
            "with gone as (delete from recall.message where id = %s returning *), kept as ("
            " insert into recall.message_retracted (session_key, ordinal, part, id, message_id,"
            "  generation, role, kind, ts, content, content_hash, copy_key, project, tool)"
            " select session_key, ordinal, part, recall.retracted_id(id, content_hash), id, 1,"
            "  role, kind, ts, content, content_hash, copy_key, project, tool from gone"
            " returning id, message_id)"
            " select id::text, recall.move_index(message_id, id)::text from kept",
            (number,),
        ).fetchone()
        assert row is not None
        return str(row[0])

    def _index(self, number: int, said: Said, key: str | None, *, kind: str | None = None) -> None:
        for chunk, document in enumerate(documents(said.content)):
            self.connection.execute(
                "insert into recall.message_text (id, chunk, ts, source, host, project, role, kind,"
                " tool, session_key, tsv)"
                " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, recall.index_document(%s))",
                (
                    number, chunk, said.ts, said.source, said.host, said.project, said.role,
                    kind or said.kind, said.tool, key, document,
                ),
            )  # fmt: skip

    def analyze(self) -> None:
        """Statistics, as autovacuum would make them."""
        self.connection.execute("analyze recall.message_text, recall.message, recall.session")

    def search(self, query: str, *, budget: float = 30, **options: Any) -> dict[str, Any]:
        """The answer to a search."""
        return search(self.connection, SearchRequest(query, **options), budget_seconds=budget)

    def ids(self, query: str, **options: Any) -> list[str]:
        """The ids that a search finds, in order."""
        return [hit["id"] for hit in self.search(query, **options)["hits"]]

    def contents(self, query: str, **options: Any) -> list[str]:
        """The texts that a search finds, in order."""
        rows = self.connection.execute(
            "select e.content from unnest(%s::bigint[]) with ordinality f (id, place)"
            " join recall.entry e using (id) order by f.place",
            (self.ids(query, **options),),
        ).fetchall()
        return [row[0] for row in rows]


@contextmanager
def searching(url: str) -> Iterator[Messages]:
    """The messages of a database, over one connection."""
    with connect(url, application="tests", autocommit=True) as connection:
        yield Messages(connection)
