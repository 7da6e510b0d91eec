"""The API without HTTP: parameters are checked and answered as by the routes, over a connection."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from recall import disk
from recall.config import Settings
from recall_api.messages import get_message, list_messages
from recall_api.models import (
    LedgerParams,
    MemoriesParams,
    MessageParams,
    MessagesParams,
    SearchParams,
    SessionsParams,
    StatusParams,
)
from recall_api.notes import list_notes
from recall_api.query_vectors import QueryVectors
from recall_api.reading import Answer, Connection, reading
from recall_api.search import search
from recall_api.sessions import get_session, list_sessions
from recall_api.status import get_status

Params = Mapping[str, Any]


class LocalBackend:
    """What :class:`recall.client.RecallClient` does for a server, for a local database."""

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self._settings = settings
        self._connection = connection
        self._vectors = QueryVectors(settings)

    def search(self, params: Params) -> Answer:
        """``GET /search``."""
        request = SearchParams.read(params).request(datetime.now(UTC))
        with reading(self._connection) as connection:
            budget = self._settings.search_timeout_seconds
            return search(connection, request, budget_seconds=budget, vectors=self._vectors)

    def sessions(self, params: Params) -> Answer:
        """``GET /sessions``."""
        request = SessionsParams.read(params).request(datetime.now(UTC))
        with reading(self._connection) as connection:
            return list_sessions(connection, request)

    def session(self, ref: str) -> Answer:
        """``GET /sessions/{key}``."""
        with reading(self._connection) as connection:
            return get_session(connection, ref)

    def messages(self, ref: str, params: Params) -> Answer:
        """``GET /sessions/{key}/messages``."""
        request = MessagesParams.read(params).request()
        with reading(self._connection) as connection:
            return list_messages(connection, ref, request)

    def message(self, message_id: str, params: Params) -> Answer:
        """``GET /messages/{id}``."""
        asked = MessageParams.read(params)
        with reading(self._connection) as connection:
            return get_message(
                connection, message_id, context=asked.context, max_chars=asked.max_chars
            )

    def ledger(self, params: Params) -> Answer:
        """``GET /ledger``."""
        request = LedgerParams.read(params).request(datetime.now(UTC))
        with reading(self._connection) as connection:
            return list_notes(connection, request)

    def memories(self, params: Params) -> Answer:
        """``GET /memories``."""
        request = MemoriesParams.read(params).request(datetime.now(UTC))
        with reading(self._connection) as connection:
            return list_notes(connection, request)

    def status(self, params: Params) -> Answer:
        """``GET /status``."""
        asked = StatusParams.read(params)
        interval = self._settings.ingest_every_seconds
        with reading(self._connection) as connection:
            return get_status(
                connection,
                interval_seconds=interval,
                problems=asked.problems,
                room=disk.look(self._settings),
            )
