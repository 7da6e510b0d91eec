"""The first read of `recall up`, and the samples for a machine that has no session log."""

from __future__ import annotations

from recall import disk, samples
from recall.cli.ingest import pass_with_progress
from recall.cli.output import note
from recall.cli.purge import SAMPLE, samples_are_purged
from recall.config import Settings
from recall.errors import BusyError, StoreUnavailableError


def first_pass(settings: Settings, database_url: str) -> None:
    """Read every source once; where there is nothing at all to read, load the samples.

    A folder that cannot be read is not an empty one, and a store that others feed as well gets no
    samples. A disk without room for more is no reason not to serve what is there.
    """
    try:
        summary = pass_with_progress(settings, database_url)
        nothing = summary.files_seen == 0 and not summary.unreadable
        if nothing and not samples_are_purged(settings) and not _has_sessions(database_url):
            _load_samples(settings, database_url)
    except BusyError as error:
        note(f"{error.message}; going on with what is stored")
    except StoreUnavailableError as error:
        room = disk.look(settings)
        if room is None or not room.is_short:
            raise
        note(f"{error.message}; going on with what is stored")
        note(f"hint: {disk.HINT}")


def _load_samples(settings: Settings, database_url: str) -> None:
    from recall_ingester.sources import get_source

    root = samples.copy_to(settings.home / "samples")
    pass_with_progress(settings, database_url, [(get_source(SAMPLE), [root])])


def _has_sessions(database_url: str) -> bool:
    from recall_sql.connection import connect, translate_errors
    from recall_sql.loader import load

    with translate_errors(), connect(database_url, application="recall up") as connection:
        row = connection.execute(load("operate")["has_real_sessions"]).fetchone()
    return bool(row and row[0])
