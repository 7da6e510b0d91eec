"""The one message of commands that need a store of this machine, where it feeds a server."""

from __future__ import annotations

from recall.config import Settings
from recall.errors import UsageError


def need_own_store(settings: Settings) -> None:
    """Raise :class:`UsageError` where this machine feeds a server and has no store of its own."""
    from recall_ingester.run import feeds_server

    if feeds_server(settings):
        raise UsageError(
            f"this machine feeds `{settings.url}` and has no store of its own",
            hint="run the command on the server; `RECALL_URL=` (empty) means the store that this"
            " machine had before it joined",
        )
