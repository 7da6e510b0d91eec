"""Wakes idle threads when there is something to do. Only a hint: every thread also looks itself."""

from __future__ import annotations

import logging
import threading

from recall.errors import StoreError
from recall_embedder.store import EmbedStore
from recall_sql.connection import translate_errors

_log = logging.getLogger(__name__)

_LISTEN_SECONDS = 1.0
_RECONNECT_SECONDS = 10.0


class Waker:
    """Counts wake-ups, so that one that comes while a thread still works is not lost."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """How often somebody was woken; remember it before looking for work."""
        return self._count

    def wake(self) -> None:
        """Wake every thread that waits."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> bool:
        """Wait until somebody wakes or woke since ``seen``; false if time ran out."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count != seen, seconds)


def listen(url: str, waker: Waker, stop: threading.Event) -> None:
    """Wake whenever the database says so, until stopped."""
    store = EmbedStore(url, application="recall embedder listener")
    try:
        while not stop.is_set():
            try:
                _listen(store, waker, stop)
            except StoreError as error:
                _log.warning("not listening", extra={"reason": error.message})
                store.close()
                stop.wait(_RECONNECT_SECONDS)
    finally:
        store.close()


def _listen(store: EmbedStore, waker: Waker, stop: threading.Event) -> None:
    store.listen()
    waker.wake()  # what was told before is not told again
    connection = store.connection()
    with translate_errors():
        while not stop.is_set():
            for _ in connection.notifies(timeout=_LISTEN_SECONDS, stop_after=1):
                waker.wake()
