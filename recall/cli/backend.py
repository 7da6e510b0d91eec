"""Where the reading commands get their answers: a server over HTTP, or the local database.

Both give the same answers, because the routes of the server and :mod:`recall_api.local` check
parameters with the same models and call the same functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Protocol

from recall.cli.extras import JOIN_OR_INSTALL
from recall.client import Answer, Params, RecallClient
from recall.config import Settings
from recall.errors import MissingExtraError, NotFoundError

#: A statement ends by itself this much after the time that a search may take.
_GRACE_SECONDS = 2.0
_NEEDED = ("psycopg", "pydantic")


class Backend(Protocol):
    """Everything that can be asked. Parameters and answers are those of the HTTP API."""

    def search(self, params: Params) -> Answer:
        """Find messages."""
        ...

    def sessions(self, params: Params) -> Answer:
        """List sessions."""
        ...

    def session(self, ref: str) -> Answer:
        """One session by its key, its own id, or a unique beginning of that."""
        ...

    def messages(self, ref: str, params: Params) -> Answer:
        """A stretch of a session."""
        ...

    def message(self, message_id: str, params: Params) -> Answer:
        """One message in full."""
        ...

    def ledger(self, params: Params) -> Answer:
        """Search or list entries of work ledgers."""
        ...

    def memories(self, params: Params) -> Answer:
        """Search or list memories."""
        ...

    def status(self, params: Params) -> Answer:
        """What is in the store and which parts are alive."""
        ...


@contextmanager
def open_backend(settings: Settings) -> Iterator[Backend]:
    """The server at ``url`` if that is set, else the local database.

    The embedded database is started for the length of the block where it does not run. A home in
    which nothing was ever stored gives :class:`NotFoundError` instead of a new database.
    """
    if settings.url:
        with RecallClient(settings) as client:
            yield client
        return
    if not all(find_spec(name) for name in _NEEDED):
        raise MissingExtraError(
            "this machine has joined no server, and a store of its own needs the server part",
            hint=JOIN_OR_INSTALL,
        )
    embedded = settings.database_url is None
    if embedded and not (settings.home / "pg").exists():
        raise NotFoundError(
            "nothing has been ingested yet", hint="`recall up` reads the logs of this machine"
        )
    from recall_api.local import LocalBackend
    from recall_sql.connection import connect
    from recall_sql.migrate import require_current
    from recall_sql.store import open_store

    # A command that only reads does not migrate a database that others share.
    with (
        open_store(settings, migrate=embedded) as url,
        connect(
            url,
            application="recall command",
            statement_timeout_seconds=settings.search_timeout_seconds + _GRACE_SECONDS,
        ) as connection,
    ):
        require_current(connection)
        connection.rollback()
        yield LocalBackend(settings, connection)
