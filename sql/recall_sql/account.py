"""The system account of the embedded server.

PostgreSQL refuses to run as root. For root the server runs in a user namespace in which root has
another number: its files stay root's own and no permission of any folder changes. Where the kernel
refuses namespaces, an unprivileged account serves if it can reach the files; nothing is opened up
for it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from recall.errors import StoreError

_UNPRIVILEGED = "nobody"
_NAMESPACE_ID = 65534
_HINT = "run Recall as a normal user, or set RECALL_DATABASE_URL to another PostgreSQL"


@dataclass(frozen=True, slots=True)
class Account:
    """Who owns the files of the server, and how a program is started in that name."""

    uid: int
    gid: int
    prefix: tuple[str, ...] = ()
    changes_user: bool = False

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str], output: IO[bytes] | int
    ) -> int:
        """Run a program to its end; its exit code.

        Its output goes to a file and never to a pipe: the server inherits it and would keep a pipe
        open for ever.
        """
        done = subprocess.run(
            [*self.prefix, *command],
            env=dict(env),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            user=self.uid if self.changes_user else None,
            group=self.gid if self.changes_user else None,
            extra_groups=[] if self.changes_user else None,
            umask=0o077,
            check=False,
        )
        return done.returncode

    def own(self, path: Path) -> None:
        """Give a file or folder that this process made to the account."""
        if self.changes_user:
            os.chown(path, self.uid, self.gid)


def choose_account(home: Path, data: Path, binaries: Path) -> Account:
    """The account for a data folder that exists, or else for one to be made in the home."""
    owner = (data if data.exists() else home).stat().st_uid
    mine = os.geteuid()
    if mine != 0:
        if data.exists() and owner != mine:
            raise StoreError(
                f"`{data}` belongs to another user ({_name(owner)})", hint="run Recall as that user"
            )
        return Account(mine, os.getegid())
    prefix = _namespace()
    if owner == 0 and prefix:
        return Account(0, 0, prefix)
    return _unprivileged(owner, data, binaries)


@cache
def _namespace() -> tuple[str, ...]:
    """The command that starts a program in a user namespace; empty where that is refused."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    number = _NAMESPACE_ID
    prefix = (unshare, "--user", f"--map-user={number}", f"--map-group={number}", "--")
    tried = subprocess.run(
        [*prefix, unshare, "--version"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return prefix if tried.returncode == 0 else ()


def _unprivileged(owner: int, data: Path, binaries: Path) -> Account:
    if owner == 0 and data.exists():
        raise StoreError(
            f"PostgreSQL does not run as root, and user namespaces are refused here; `{data}` "
            "belongs to root",
            hint=_HINT,
        )
    try:
        entry = pwd.getpwnam(_UNPRIVILEGED) if owner == 0 else pwd.getpwuid(owner)
    except KeyError:
        raise StoreError("PostgreSQL does not run as root", hint=_HINT) from None
    for folder in (data.parent, binaries):
        closed = _closed_folder(folder, entry)
        if closed is not None:
            raise StoreError(
                f"PostgreSQL does not run as root, and the account `{entry.pw_name}` cannot reach "
                f"`{closed}`",
                hint=_HINT,
            )
    return Account(entry.pw_uid, entry.pw_gid, changes_user=True)


def _closed_folder(folder: Path, entry: pwd.struct_passwd) -> Path | None:
    """The first folder on the way to this one that the account cannot pass."""
    resolved = folder.resolve()
    for step in [*reversed(resolved.parents), resolved]:
        status = step.stat()
        if status.st_uid == entry.pw_uid:
            allowed = status.st_mode & stat.S_IXUSR
        elif status.st_gid == entry.pw_gid:
            allowed = status.st_mode & stat.S_IXGRP
        else:
            allowed = status.st_mode & stat.S_IXOTH
        if not allowed:
            return step
    return None


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
