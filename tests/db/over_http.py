"""Writing over HTTP, for tests: a server for a database, and sinks that hosts write with."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from psycopg import sql

from recall.identity import Identity
from recall_ingester.loop import run_pass
from recall_ingester.run_state import Options
from recall_ingester.sinks.postgrest import PostgrestSink
from recall_ingester.sinks.postgrest_http import SinkErrors
from recall_ingester.sources import get_source
from recall_ingester.summary import Summary
from recall_sql.connection import connect
from recall_sql.embedded import EmbeddedServer
from tests.db.ingesting import IDENTITY, MAX_LINE_BYTES
from tests.double.config import Config
from tests.double.fixtures import SECRET, Served, start, with_user

#: What a server is started with in front of a migrated database.
SERVED: dict[str, Any] = {
    "user": "recall_authenticator",
    "anon_role": "recall_anon",
    "pre_request": "api.check_request",
    "jwt_aud": "recall",
}

_EMPTY = """
    truncate recall.host, recall.token, recall.session, recall.message, recall.message_retracted,
        recall.message_text, recall.prompt, recall.note, recall.quarantine, recall.ingest_state,
        recall.raw_segment, recall.raw_blob, recall.worker_heartbeat, recall.stored_batch,
        recall.incoming_session, recall.incoming_key, recall.incoming_message
    cascade
"""
_HOST = """
    insert into recall.host (host, install_id) values (%s, %s) on conflict (host) do nothing
"""
_TOKEN = "insert into recall.token (jti, host, install_id) values (%s, %s, %s)"
_REVOKE = "update recall.token set revoked_at = now() where jti = %s"


@contextmanager
def serve(database: str) -> Iterator[Served]:
    """A server for a database, where the fixture `postgrest` lives too short."""
    user = SERVED["user"]
    rest = {name: value for name, value in SERVED.items() if name != "user"}
    served = start(Config(db_uri=with_user(database, user), jwt_secret=SECRET, **rest))
    try:
        yield served
    finally:
        served.stop()


@contextmanager
def copy_of(server: EmbeddedServer, template: str) -> Iterator[str]:
    """A database that several tests use one after the other."""
    name = f"test_{uuid.uuid4().hex}"

    def execute(statement: str, *names: str) -> None:
        with connect(server.url_for("postgres"), application="tests", autocommit=True) as one:
            one.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    execute("create database {} template {}", name, template)
    try:
        yield server.url_for(name)
    finally:
        execute("drop database {} with (force)", name)


def empty(database: str) -> None:
    """Take away everything that hosts wrote, and the hosts."""
    with connect(database, application="tests", autocommit=True) as connection:
        connection.execute(_EMPTY)


Sink = TypeVar("Sink", bound=PostgrestSink)


@dataclass
class Member:
    """A host that joined: its token, and every pause that its sinks made."""

    served: Served
    database: str
    identity: Identity
    token: str
    jti: str
    errors: SinkErrors = field(default_factory=SinkErrors)
    pauses: list[float] = field(default_factory=list)

    def sink(self) -> PostgrestSink:
        """A sink of this host, which takes no time to wait."""
        return self.make(PostgrestSink)

    def make(self, kind: Callable[..., Sink]) -> Sink:
        """The same of another kind."""
        return kind(
            self.served.url,
            self.token,
            self.identity,
            errors=self.errors,
            wait=self.pauses.append,
        )

    def revoke(self) -> None:
        """What `recall token revoke` does."""
        with connect(self.database, application="tests", autocommit=True) as connection:
            connection.execute(_REVOKE, (self.jti,))


def join(served: Served, database: str, identity: Identity = IDENTITY) -> Member:
    """What `recall join` does to the database, and its token."""
    jti = str(uuid.uuid4())
    with connect(database, application="tests", autocommit=True) as connection:
        connection.execute(_HOST, (identity.host, identity.install_id))
        connection.execute(_TOKEN, (jti, identity.host, identity.install_id))
    token = served.token(
        "recall_writer", host=identity.host, install_id=identity.install_id, jti=jti
    )
    return Member(served, database, identity, token, jti)


def read(
    member: Member,
    folder: Path,
    source: str = "claude-code",
    kind: Callable[..., PostgrestSink] = PostgrestSink,
) -> Summary:
    """One pass over a folder as one source."""
    options = Options(member.identity.host, MAX_LINE_BYTES, redact=True)
    return run_pass([(get_source(source), [folder])], lambda: member.make(kind), options)
