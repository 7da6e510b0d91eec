"""A lock file that names its holder and ends with the holder's process."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from recall.errors import BusyError


class HomeLock:
    """An exclusive ``flock`` on a file in the home; a second holder gets :class:`BusyError`."""

    def __init__(self, path: Path, *, what: str) -> None:
        self._path = path
        self._what = what
        self._fd: int | None = None

    def __enter__(self) -> Self:
        folder = self._path.parent
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o700)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise BusyError(
                f"another {self._what} holds `{self._path}` ({describe_holder(self._path)})",
                hint="wait for it to end, or stop it with `recall down`",
            ) from error
        os.ftruncate(fd, 0)
        os.write(fd, json.dumps({"pid": os.getpid(), "what": self._what}).encode())
        self._fd = fd
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def describe_holder(path: Path) -> str:
    """``pid N``, or that the holder is not known."""
    try:
        return f"pid {int(json.loads(path.read_text())['pid'])}"
    except (OSError, ValueError, KeyError, TypeError):
        return "holder unknown"
