"""Makes the second vector index again when a store has outgrown it. Searches work without it."""

from __future__ import annotations

import logging
import threading

from recall.errors import StoreError
from recall_embedder.store import EmbedStore

_log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0


def keep_indexes(url: str, stop: threading.Event) -> None:
    """Look every minute, until stopped; of several embedders one does the work."""
    store = EmbedStore(url, application="recall embedder indexes")
    try:
        while not stop.is_set():
            refresh(store)
            stop.wait(LOOK_SECONDS)
    finally:
        store.close()


def refresh(store: EmbedStore) -> None:
    """Make every index that is due; a failure is logged, and the next look tries again."""
    try:
        while (number := store.refresh_signs()) is not None:
            _log.info("second vector index made", extra={"generation": number})
    except StoreError as error:
        _log.warning("second vector index not made", extra={"reason": error.message})
        store.close()
