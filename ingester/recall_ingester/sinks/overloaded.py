"""What a machine is told when the server cannot store anything now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recall.errors import StoreUnavailableError

#: The code of PostgreSQL for a full disk. The API says it too, while there is still some room.
_DISK_FULL = "53100"


class NoRoomError(StoreUnavailableError):
    """The disk of the server is full. Asking again within this pass would not help."""


def overloaded(
    server: str, status: int, code: str | None, problem: Mapping[str, Any]
) -> StoreUnavailableError:
    """Why a server refused what may succeed later; ``problem`` is its answer."""
    if code != _DISK_FULL:
        return StoreUnavailableError(
            f"the Recall server at `{server}` cannot store anything now"
            f" ({code or f'status {status}'})",
            hint="does PostgREST run there? `docker compose ps` and the log of the API say",
        )
    free = problem.get("free_bytes")
    told = f" ({free / 1e9:.1f} GB free)" if isinstance(free, int) else ""
    return NoRoomError(
        f"the disk of the Recall server at `{server}` is almost full{told}, and it stores nothing",
        hint="make room there; nothing is lost, what it does not have is sent by a later pass",
    )
