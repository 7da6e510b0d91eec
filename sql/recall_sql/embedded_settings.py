"""What the embedded server is configured with, and where its socket stands."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from recall.errors import StoreError

_MEGABYTE = 1 << 20
_SOCKET_NAME = ".s.PGSQL.5432"
#: The smallest limit of the supported systems (macOS: 104 with the final zero; Linux: 108).
_LONGEST_SOCKET_PATH = 103
#: libpq and the server split lists of hosts and folders at commas and unquote some characters.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/+@=~-]+")

_FIXED: Mapping[str, str] = {
    "listen_addresses": "",
    "port": "5432",
    "unix_socket_permissions": "0700",
    "max_connections": "50",
    "maintenance_work_mem": "128MB",
    "max_wal_size": "2GB",
    "wal_compression": "off",  # the wheel has only pglz, which costs more than it saves
    "synchronous_commit": "on",
    "random_page_cost": "1.1",
    "jit": "off",
    "autovacuum": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Content never reaches the log. `log` is above `error`: what a statement did wrong quotes rows
    # and parameters, and the client gets it anyway. `terse` leaves out the detail of a crash, which
    # is the text of the statement.
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_statement": "none",
    "log_min_duration_statement": "-1",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
    "log_lock_waits": "off",
    "log_temp_files": "-1",
    "log_autovacuum_min_duration": "-1",
    "log_checkpoints": "off",
}


def settings_file(socket_folder: Path, extra: Mapping[str, str]) -> str:
    """The text of the settings file; ``extra`` wins."""
    settings = {
        "unix_socket_directories": str(socket_folder),
        "shared_buffers": f"{_shared_buffers_megabytes(memory_bytes())}MB",
        **_FIXED,
        **extra,
    }
    lines = ["# Written by Recall at each start. Add your own at the end of postgresql.conf."]
    lines += [f"{name} = '{_escape(value)}'" for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")


def _shared_buffers_megabytes(memory_bytes: int) -> int:
    return max(16, min(512, memory_bytes // 8 // _MEGABYTE))


def memory_bytes() -> int:
    """The memory of the machine, or of the control group if that has less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return memory


def socket_path(folder: Path) -> Path:
    """The socket in its folder."""
    return folder / _SOCKET_NAME


def choose_socket_folder(home: Path) -> Path:
    """``run`` in the home, or a folder with a short plain name where that path does not serve.

    The name depends on the home alone: a shell and a timer with different environments must come to
    the same server.
    """
    folder = home.resolve() / "run"
    path = str(socket_path(folder))
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH and _PLAIN_PATH.fullmatch(path):
        return folder
    digest = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:16]
    # TMPDIR differs between a shell and a timer; make_private_folder refuses what it did not make.
    return Path("/tmp") / f"recall-{digest}"  # noqa: S108


def make_private_folder(folder: Path, uid: int) -> bool:
    """Make a folder that only its owner can enter; whether it was made now.

    One that exists must be just that, else :class:`StoreError`: whoever owns the folder of a socket
    can put another server behind it.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        check_private_folder(folder, uid)
        return False
    return True


def check_private_folder(folder: Path, uid: int) -> None:
    """Raise :class:`StoreError` unless only this user can enter the folder."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        problem = "is not a folder"
    elif status.st_uid != uid:
        problem = "belongs to another user"
    elif status.st_mode & 0o077:
        problem = "is open to other users"
    else:
        return
    raise StoreError(
        f"`{folder}` {problem}, so the database socket cannot stand there",
        hint=f"look at `{folder}` and remove it",
    )
