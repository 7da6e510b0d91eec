"""What the commands on original bytes share: the local store, this machine's name and its files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recall.cli.extras import need_server
from recall.cli.terminal import one_line
from recall.config import Settings
from recall.errors import NotFoundError, UsageError
from recall.identity import load_identity

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_ESCAPED = re.compile("%([89A-F][0-9A-F])")


@contextmanager
def open_originals(settings: Settings, application: str) -> Iterator[Connection]:
    """A connection to the local database, in autocommit mode. Original bytes, which no rule has
    redacted, are never asked for over HTTP."""
    if settings.url:
        raise UsageError(
            "the original bytes can only be read where the database is",
            hint="run this command on the server, without RECALL_URL",
        )
    need_server()
    if settings.database_url is None and not (settings.home / "pg").exists():
        raise NotFoundError(
            "nothing has been ingested yet", hint="`recall up` reads the logs of this machine"
        )
    from recall_sql.connection import connect, translate_errors
    from recall_sql.store import open_store

    with (
        open_store(settings) as url,
        translate_errors(),
        connect(url, application=application, autocommit=True) as connection,
    ):
        yield connection


def this_host(settings: Settings) -> str | None:
    """The name under which this home feeds the store; ``None`` if it never did."""
    if not (settings.home / "identity.json").exists():
        return None
    return load_identity(settings.home).host


def local_path(stored: str) -> Path:
    """The file that a stored path means on this machine.

    :func:`recall.keys.path_key` escapes bytes that are not UTF-8, and leaves a ``%`` that stood
    there as it is; what is on the disk decides.
    """
    path = Path(stored)
    if os.path.lexists(path) or not _ESCAPED.search(stored):
        return path
    meant = Path(_ESCAPED.sub(lambda found: os.fsdecode(bytes.fromhex(found[1])), stored))
    if os.path.lexists(meant) or (meant.parent.exists() and not path.parent.exists()):
        return meant
    return path


def shown_path(stored: str) -> str:
    """A stored path on one line, without what could steer a terminal."""
    return one_line(stored, 400)
