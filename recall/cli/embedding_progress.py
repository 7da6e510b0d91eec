"""How far the vectors are, as a bar on stderr while someone is there to see it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recall.cli.output import notes
from recall.errors import StoreError

if TYPE_CHECKING:
    import psycopg

_LOOK_SECONDS = 2.0
#: An embedder that works is seen in the speed of the last minutes.
_SPEED_SECONDS = 120.0


class EmbeddingProgress:
    """Asks the store now and then; costs nothing while nobody looks."""

    def __init__(self, url: str, number: int | None = None) -> None:
        self._url = url
        self._number = number
        self._connection: psycopg.Connection[Any] | None = None
        self._next_look = 0.0
        columns = (
            TextColumn("giving texts their vectors"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(
            *columns,
            console=notes,
            transient=True,
            disable=not notes.is_terminal,
            speed_estimate_period=_SPEED_SECONDS,
        )
        self._task = self._bar.add_task("embed", total=None, visible=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()
        if self._connection is not None:
            self._connection.close()

    def show(self) -> None:
        """Bring the bar up to date, if it is time to; hidden while nothing waits."""
        if self._bar.disable or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_SECONDS
        with suppress(StoreError):  # the bar is no reason to fail
            rows = [row for row in self._ask() if self._number in (None, row["number"])]
            done = sum(row["embedded"] for row in rows)
            left = sum(row["remaining"] for row in rows)
            self._bar.update(self._task, completed=done, total=done + left, visible=left > 0)

    def _ask(self) -> list[dict[str, Any]]:
        from recall_api.embedding import list_embedding
        from recall_api.reading import reading
        from recall_api.status import get_totals
        from recall_sql.connection import connect

        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url, application="recall progress")
        with reading(self._connection) as connection:
            totals = get_totals(connection)
            entries = totals["messages"] + totals["notes"]
            return list_embedding(connection, entries=entries, components=[])
