"""The free space of the volume of the database, and how much of it is left to the database.

A full volume stops PostgreSQL, which then answers nobody. What stores something therefore looks
first, and stops while there is room to search, to vacuum and to delete.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from recall.config import Settings

#: Of a small volume no more than this share is kept free.
_MOST_SHARE = 0.1
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes of a volume: those that are free for users other than root, and all."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Room:
    """What is free, and what is to stay so."""

    free: int
    reserve: int

    @property
    def is_short(self) -> bool:
        """Whether nothing more should be stored."""
        return self.free < self.reserve

    @property
    def told(self) -> str:
        """In words that may be shown to everybody."""
        return (
            f"the disk of the database is almost full: {_size(self.free)} free, and nothing more is"
            f" stored below {_size(self.reserve)}"
        )


#: For whoever reads that message.
HINT = "make room on that disk, or lower `disk_reserve_mb`; searches go on meanwhile"


def database_folder(settings: Settings) -> Path | None:
    """A folder on the volume of the database, as far as this process can see it."""
    if settings.database_volume is None and settings.database_url is None:
        return settings.home / "pg"
    return settings.database_volume


def read_space(folder: Path) -> Space | None:
    """Ask the file system; ``None`` for a folder that is not there or not mounted here."""
    try:
        found = shutil.disk_usage(folder)
    except OSError:
        return None
    return Space(found.free, found.total)


def look(settings: Settings) -> Room | None:
    """The room on the volume of the database; ``None`` where it cannot be seen from here."""
    folder = database_folder(settings)
    space = read_space(folder) if folder else None
    if space is None:
        return None
    reserve = min(settings.disk_reserve_mb * _MEGABYTE, round(space.total * _MOST_SHARE))
    return Room(space.free, reserve)


def _size(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
