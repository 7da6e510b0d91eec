"""``recall verify --repair``: damaged stored bytes, taken again from files that still have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recall.cli.originals import local_path
from recall.errors import SourceError

if TYPE_CHECKING:
    from recall.cli.originals import Connection

#: The same bytes can stand in very many files; so many of them are tried.
_MOST_PLACES = 100


@dataclass(frozen=True, slots=True)
class Repaired:
    """How many stored pieces were written again, and how many are found in no file."""

    pieces: int = 0
    not_found: int = 0


def repair(
    connection: Connection, this_host: str | None, files: Sequence[tuple[str, str]]
) -> Repaired:
    """Write the damaged and missing pieces of files again, each given by host and path.

    A piece comes from any file of this machine that, at the place where the store has this piece,
    still holds bytes with its hash. Nothing else is changed.
    """
    from recall_sql.raw import damaged_blobs

    wanted = {
        digest: None for host, path in files for digest in damaged_blobs(connection, host, path)
    }
    pieces = sum(_repair_blob(connection, this_host, digest) for digest in wanted)
    return Repaired(pieces, len(wanted) - pieces)


def _repair_blob(connection: Connection, this_host: str | None, digest: bytes) -> bool:
    from recall_ingester.original import Spans, span_hash
    from recall_sql.loader import load

    values = {"hash": digest, "host": this_host, "limit": _MOST_PLACES}
    places = connection.execute(load("raw")["places_of_blob"], values).fetchall()
    for path, byte_offset, byte_length in places:
        data = _bytes_at(local_path(path), byte_offset, byte_length)
        if data is None or span_hash(data) != digest:
            continue
        span = Spans(path, 1).make(byte_offset, data)
        blob = {
            "hash": digest,
            "byte_length": span.byte_length,
            "codec": span.codec,
            "data": span.data,
        }
        connection.execute(load("raw")["replace_blob"], blob)
        return True
    return False


def _bytes_at(path: Path, byte_offset: int, byte_length: int) -> bytes | None:
    from recall_ingester.reader import open_regular

    try:
        with open_regular(path) as file:
            file.seek(byte_offset)
            return file.read(byte_length)
    except (OSError, SourceError):  # gone, or not to be read: another place may have it
        return None
