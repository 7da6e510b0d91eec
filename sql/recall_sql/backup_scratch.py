"""Where a backup is restored to prove it: a database that is thrown away afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from recall.config import Settings
from recall.errors import BusyError, TargetError
from recall.lock import HomeLock
from recall_sql.backup_databases import scratch_database
from recall_sql.backup_manifest import Manifest
from recall_sql.backup_restore import Strength, strength
from recall_sql.embedded import EmbeddedServer
from recall_sql.embedded_settings import choose_socket_folder, memory_bytes

_NAME = "recall-scratch"
#: It need not survive anything, and what is copied into a new table needs no log.
_CARELESS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "512MB",
    "autovacuum": "off",
}
_MORE_THAN_BEFORE = 1.2
_SPARE_BYTES = 512 << 20
_ELSEWHERE = "make room, or name a folder on another disk with --scratch"


@contextmanager
def restore_lock(home: Path) -> Iterator[None]:
    """One restore at a time in a home; a second one gets :class:`BusyError`."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ExitStack() as held:
        try:
            lock = HomeLock(home / "run" / "restore.lock", what="recall restore-backup")
            held.enter_context(lock)
        except BusyError as error:
            raise BusyError(error.message, hint="wait for it to end") from error
        yield


def own_strength() -> Strength:
    """What a server on this machine may take."""
    return strength(memory_bytes())


@contextmanager
def open_scratch(
    settings: Settings, manifest: Manifest, folder: Path | None = None
) -> Iterator[tuple[str, Strength]]:
    """The URL of an empty database, and what may be taken to fill it. Nothing of it is left.

    With ``database_url`` it is one on that server; else it is that of a server of its own, with its
    data in ``folder`` or the home. Call it while holding :func:`restore_lock`: that is what tells
    what a killed call left from what is in use.
    """
    if settings.database_url:
        if settings.database_volume:
            require_room(settings.database_volume, manifest, hint="make room there")
        with scratch_database(settings.database_url, "verify") as scratch:
            yield scratch.url, strength(None)
        return
    home = (folder or settings.home).absolute() / _NAME
    server = EmbeddedServer(home, extra_settings=_CARELESS)
    try:
        with _target_errors(home):
            _remove(home)
            home.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            require_room(home.parent, manifest)
            server.start()
        yield server.url, own_strength()
    finally:
        with _target_errors(home):
            _remove(home)


@contextmanager
def _target_errors(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TargetError(
            f"`{error.filename or home}` cannot be used: {error.strerror}", hint=_ELSEWHERE
        ) from error


def require_room(folder: Path, manifest: Manifest, *, hint: str = _ELSEWHERE) -> None:
    """Raise :class:`TargetError` where the restored database would not fit on the disk."""
    needed = round(manifest.database_bytes * _MORE_THAN_BEFORE) + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise TargetError(
            f"`{folder}` has {free / 1e6:,.0f} MB free, and the restored database needs about "
            f"{needed / 1e6:,.0f} MB",
            hint=hint,
        )


def _remove(home: Path) -> None:
    """Stop the server of a scratch folder, whoever started it, and delete both."""
    if not os.path.lexists(home):
        return
    server = EmbeddedServer(home)
    if server.is_running():
        server.stop("immediate")
    sockets = choose_socket_folder(home)
    shutil.rmtree(home)
    if home.resolve() not in sockets.parents:
        shutil.rmtree(sockets, ignore_errors=True)
