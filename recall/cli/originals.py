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
from recall.keys import path_key

if TYPE_CHECKING:
    import psycopg

    from recall_sql.raw import StoredFile

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


def find_stored(
    connection: Connection, ref: str, *, this_host: str | None, host: str | None
) -> list[StoredFile]:
    """The file that a path or the end of one means; for a database, all of its sessions.

    A whole path goes before the end of another one, and a file of this machine before those of
    others. Raises :class:`NotFoundError`, or :class:`UsageError` if several files fit.
    """
    from recall_sql.raw import files_of_path

    name = path_key(Path(ref))
    found = files_of_path(connection, name, host=host)
    found = [file for file in found if name in (file.path, file.container, file.full_path)] or found
    found = [file for file in found if file.host == this_host] or found
    if not found:
        raise NotFoundError(
            f"no session and no file `{shown_path(ref)}` is in the store",
            hint="`recall sessions` lists sessions; of a file give the path, or the end of it",
        )
    fitting = sorted({(file.host, _named(file, name)) for file in found})
    if len(fitting) > 1:
        listed = ", ".join(
            f"`{shown_path(path)}` of {one_line(at, 40)}" for at, path in fitting[:5]
        )
        more = f" and {len(fitting) - 5} more" if len(fitting) > 5 else ""
        raise UsageError(
            f"`{shown_path(ref)}` fits {len(fitting)} files: {listed}{more}",
            hint="give more of the path"
            + (", or the machine with --host" if len({at for at, _ in fitting}) > 1 else ""),
        )
    return found


def _named(file: StoredFile, name: str) -> str:
    """What of a file the name fits: its own path, or that of the database that it stands in."""
    container = file.container
    if container is not None and f"/{container}".endswith(f"/{name}"):
        return container
    return file.path


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
