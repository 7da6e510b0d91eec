"""What `recall up` tells about the vectors: a bar while many are missing, and if there are none."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from recall.cli.embedding_progress import EmbeddingProgress
from recall.cli.output import note
from recall.config import Settings
from recall.errors import StoreError
from recall.identity import load_identity

if TYPE_CHECKING:
    import psycopg

_LOOK_SECONDS = 5.0


class EmbeddingWatch:
    """Called at each look of the supervisor; asks the store now and then."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._progress = EmbeddingProgress(url)
        self._connection: psycopg.Connection[Any] | None = None
        self._next_look = 0.0
        self._told: set[str] = set()

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.close()
        if self._connection is not None:
            self._connection.close()

    def tick(self) -> None:
        """Bring the bar up to date, and say once what keeps texts from getting vectors."""
        self._progress.show()
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_SECONDS
        with suppress(StoreError):  # the API tells that the database is away
            for reason, hint in self._problems():
                if reason not in self._told:
                    self._told.add(reason)
                    note(f"search by meaning is off: {reason}")
                    if hint:
                        note(f"hint: {hint}")

    def _problems(self) -> list[tuple[str, str | None]]:
        from recall_sql.connection import connect, translate_errors
        from recall_sql.loader import load

        with translate_errors():
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._url, application="recall up", autocommit=True)
            return self._connection.execute(load("embed")["problems"]).fetchall()


def forget_embedders(settings: Settings, url: str) -> None:
    """No embedder runs here, so none is missed, though one may have been killed."""
    from recall_sql.connection import connect, translate_errors
    from recall_sql.loader import load

    host = load_identity(settings.home, host=settings.host).host
    with (
        suppress(StoreError),
        translate_errors(),
        connect(url, application="recall up", autocommit=True) as connection,
    ):
        connection.execute(load("embed")["forget_host"], {"host": host})
