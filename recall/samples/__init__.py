"""Sample sessions for a machine on which no coding agent has left a log yet.

They are invented, in the format of Claude Code, and small. They are stored under the source name
``sample`` and never mix with real sessions unnoticed.
"""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path


def copy_to(directory: Path) -> Path:
    """Copy the sample logs into the directory and return the root that the source reads.

    A file that is already there with the same bytes is left alone, so that its modification time,
    and with it the checkpoint of an earlier read, stays as it is.
    """
    _copy(resources.files(__name__).joinpath("data"), directory)
    return directory


def _copy(entry: Traversable, target: Path) -> None:
    if entry.is_dir():
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        for child in entry.iterdir():
            _copy(child, target / child.name)
        return
    content = entry.read_bytes()
    if not target.is_file() or target.read_bytes() != content:
        target.write_bytes(content)
