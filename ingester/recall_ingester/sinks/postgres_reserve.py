"""The sink of a store whose disk this machine sees: it stops before the disk is full."""

from __future__ import annotations

from collections.abc import Callable

from recall import disk
from recall.errors import StoreUnavailableError
from recall.identity import Identity
from recall_ingester.sinks import Batch, Written
from recall_ingester.sinks.postgres import PostgresSink


class ReservingSink(PostgresSink):
    """Looks at the free space before each batch. Raises :class:`StoreUnavailableError` where it is
    too little; checkpoints stay where they are, so a later pass goes on there."""

    def __init__(self, url: str, identity: Identity, room: Callable[[], disk.Room | None]) -> None:
        super().__init__(url, identity)
        self._room = room

    def write(self, batch: Batch) -> Written:
        """Store a batch, if there is room."""
        room = self._room()
        if room is not None and room.is_short:
            raise StoreUnavailableError(room.told, hint=disk.HINT)
        return super().write(batch)
