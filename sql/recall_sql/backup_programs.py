"""`pg_dump`, `pg_restore` and `pg_amcheck`: which serve, how they get their password, what they
say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from psycopg.pq import Conninfo

from recall.errors import MissingExtraError, StoreError
from recall_sql.server_programs import server_binaries

_LOOK_SECONDS = 0.5
_STOP_SECONDS = 10.0
_NAME = re.compile(r"[\w.]+")
_MOST_CHARS = 300


@dataclass(frozen=True, slots=True)
class Program:
    """A program of PostgreSQL, such as ``pg_dump`` 18.6."""

    path: Path
    version: str

    @property
    def major(self) -> int:
        """The version that decides what it can read and write."""
        return _major(self.version)


def find_program(name: str, least_major: int) -> Program:
    """The program beside the embedded server, else the one on the PATH, that is not older than the
    server; :class:`StoreError` if both are, or there is none.

    A program that is older than the server does not know all that the server has.
    """
    found = [program for path in _places(name) if (program := _program(path)) is not None]
    for program in found:
        if program.major >= least_major:
            return program
    hint = (
        f"install the client programs of PostgreSQL {least_major}, "
        f"such as the package postgresql-client-{least_major}"
    )
    if not found:
        raise StoreError(f"`{name}` is not installed", hint=hint)
    newest = max(found, key=lambda program: program.major)
    raise StoreError(
        f"`{name}` {newest.version} is older than what it has to work with, which is of "
        f"PostgreSQL {least_major}",
        hint=hint,
    )


def has_program(name: str, least_major: int) -> bool:
    """Whether :func:`find_program` finds one."""
    try:
        find_program(name, least_major)
    except StoreError:
        return False
    return True


def _places(name: str) -> Iterator[Path]:
    try:
        beside = server_binaries() / name
        if beside.exists():
            yield beside
    except MissingExtraError:
        pass
    if found := shutil.which(name):
        yield Path(found)


@cache
def _program(path: Path) -> Program | None:
    try:
        done = subprocess.run(
            [str(path), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        version = re.search(r"\(PostgreSQL\) (\S+)", done.stdout)
    except (OSError, subprocess.CalledProcessError):
        return None
    return Program(path, version[1]) if version and re.match(r"\d", version[1]) else None


def _major(version: str) -> int:
    digits = re.match(r"\d+", version)
    return int(digits[0]) if digits else 0


def program_environment(
    database_url: str, options: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The database as variables of libpq: arguments are visible to everybody on the machine.

    ``options`` are settings of the session. Tokens and settings of our own are not passed on.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith("RECALL_")}
    given = {
        option.envvar.decode(): option.val.decode()
        for option in Conninfo.parse(database_url.encode())
        if option.envvar and option.val
    }
    session = [f"-c {name}={text}" for name, text in (options or {}).items()]
    if before := given.get("PGOPTIONS", kept.get("PGOPTIONS")):
        session.insert(0, before)
    return {**kept, "LC_ALL": "C", **given, "PGOPTIONS": " ".join(session)}


@contextmanager
def running(
    command: Sequence[str], env: Mapping[str, str], *, stdout: int
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """A program, and what it complained about so far. It does not outlive the block."""
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            list(command),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=errors,
            cwd="/",
        ) as process,
    ):

        def complaint() -> str:
            errors.seek(0)
            return first_error(errors.read().decode(errors="replace"))

        try:
            yield process, complaint
        finally:
            if process.poll() is None:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop it with the children that a parallel restore has, which it ends by itself if asked."""
    if process.stdout is not None:
        process.stdout.close()
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def run_program(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    look: Callable[[], None] | None = None,
) -> tuple[int, str]:
    """Run a program to its end: its exit code, and its first complaint. ``look`` is called now and
    then meanwhile."""
    with running(command, env, stdout=subprocess.DEVNULL) as (process, complaint):
        while True:
            try:
                process.wait(_LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                if look is not None:
                    look()
                continue
            return process.returncode, complaint()


def read_output(command: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, output and first complaint of a program that needs no database."""
    done = subprocess.run(list(command), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    complaint = first_error(done.stderr.decode(errors="replace"))
    return done.returncode, done.stdout.decode(errors="replace"), complaint


def first_error(text: str) -> str:
    """The first line that tells of an error, up to a quotation that is not the name of an object:
    stored text never reaches a log. Details of the server stand on lines of their own."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    told = [line for line in lines if re.match(r"\w+: (error|fatal): ", line)] or lines[-1:]
    if not told:
        return "it said nothing"
    said = re.sub(r"^\w+: (error|fatal): ", "", told[0])
    before = ""
    for place, piece in enumerate(said.split('"')):
        if place % 2 and not _NAME.fullmatch(piece):
            return f'{before}"…"'[:_MOST_CHARS]
        before += f'"{piece}"' if place % 2 else piece
    return before[:_MOST_CHARS]
