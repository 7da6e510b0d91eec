"""Whether a server is one that the store can be trusted to: a pgvector without the known damage,
pages with checksums, and data that outlives the container of the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import psycopg

from recall.errors import StoreError
from recall_sql.connection import connect, translate_errors
from recall_sql.loader import load

#: 0.8.2 repaired a buffer overflow, 0.8.3 indexes that vacuum damaged, 0.8.4 graphs that stayed so.
LEAST_PGVECTOR = (0, 8, 4)
#: What container engines call a volume that nobody named.
_ANONYMOUS = re.compile(r"(^|/)volumes/[0-9a-f]{64}/_data$")
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a server is refused. ``part`` is ``pgvector``, ``checksums`` or ``volume``."""

    part: str
    message: str
    hint: str


def require_safe(url: str) -> None:
    """Raise :class:`StoreError` for the first problem of a server."""
    with translate_errors(), connect(url, application="recall check") as connection:
        for problem in find_problems(connection):
            raise StoreError(problem.message, hint=problem.hint)


def find_problems(connection: psycopg.Connection[tuple[Any, ...]]) -> Iterator[Problem]:
    """Everything that speaks against a server, the gravest first.

    Where its data stands is looked at only as a role that may, which a managed server grants to
    nobody.
    """
    sql = load("operate")
    row = connection.execute(sql["may_see_mounts"]).fetchone()
    if row and row[0]:
        found = connection.execute(sql["server_mounts"]).fetchone()
        if found and found[1] and (problem := judge_mounts(found[0], found[1])):
            yield problem
    row = connection.execute(sql["server_versions"]).fetchone()
    if problem := judge_pgvector(row[1] if row else None):
        yield problem
    row = connection.execute(sql["checksums"]).fetchone()
    if row and row[0] != "on":
        yield Problem(
            "checksums",
            "the pages of this database have no checksums, so damage by the disk is not seen",
            "stop the server and run `pg_checksums --enable`, or make it anew with"
            " `initdb --data-checksums`",
        )


def judge_pgvector(version: str | None) -> Problem | None:
    """Whether a version of pgvector is too old; ``None`` stands for a server without it."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version or ""))
    if numbers >= LEAST_PGVECTOR:
        return None
    needed = ".".join(map(str, LEAST_PGVECTOR))
    return Problem(
        "pgvector",
        f"pgvector {needed} or later is needed, and this server has {version or 'none'}",
        "pull the newest image `pgvector/pgvector:pg18`, or upgrade the package of pgvector",
    )


def judge_mounts(data_directory: str, mountinfo: str) -> Problem | None:
    """Whether the data of a server goes away with its container.

    ``mountinfo`` is that of the server. PostgreSQL of image 18 keeps its data in another place than
    before: a volume at the old place stays empty, and the data is in a volume without a name.
    """
    where = PurePosixPath(data_directory)
    covering: tuple[PurePosixPath, str, str] | None = None
    for line in mountinfo.split("\n"):
        mount = _mount_of(line)
        if mount is None or not where.is_relative_to(mount[0]):
            continue
        # of several at one place, the last one is on top
        if covering is None or len(mount[0].parts) >= len(covering[0].parts):
            covering = mount
    if covering is None:
        return None
    place, root, kind = covering
    if _ANONYMOUS.search(root):
        told = "in a volume without a name, which a new container does not get"
    elif kind in ("overlay", "aufs") and place == PurePosixPath("/"):
        told = "in the container itself and gone with it"
    elif kind == "tmpfs":
        told = "in memory and gone with the next stop"
    else:
        return None
    return Problem(
        "volume",
        f"the data of the database, `{where}`, is {told}",
        "mount a named volume at /var/lib/postgresql, where image 18 keeps its data; what is there"
        " now is saved with `recall backup`",
    )


def _mount_of(line: str) -> tuple[PurePosixPath, str, str] | None:
    """Where something is mounted, which folder of its file system that is, and of which kind."""
    before, dash, after = line.partition(" - ")
    fields = before.split(" ")
    if not dash or len(fields) < 5:
        return None
    return PurePosixPath(_plain(fields[4])), _plain(fields[3]), after.split(" ")[0]


def _plain(text: str) -> str:
    """Spaces stand as ``\\040`` in the list."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
