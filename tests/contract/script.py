"""What a case of the contract is: a client's files in several states, and every word in them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from recall_ingester.sources import get_source
from recall_ingester.sources.base import Source

DAY = datetime(2026, 3, 4, 10, 0, tzinfo=UTC)
_LETTERS = "bcdfghjklmnpqrtvwxz"

#: Takes the folder of a client from one state to the next.
State = Callable[[Path], None]
#: How a case gets into the store: by a pass over its folder, or as an export that is given once.
Way = Literal["pass", "export", "recall-jsonl"]


def at(minute: int) -> datetime:
    """The instant of a record that a case writes."""
    return DAY + timedelta(minutes=minute)


def iso(minute: int) -> str:
    """That instant as most clients write it."""
    return at(minute).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def elsewhere(minute: int) -> str:
    """The same instant with the offset of another zone."""
    zoned = at(minute) + timedelta(hours=5, minutes=30)
    return zoned.strftime("%Y-%m-%dT%H:%M:%S+05:30")


def ms(minute: int) -> int:
    """That instant in milliseconds since the epoch."""
    return int(at(minute).timestamp() * 1000)


@dataclass
class Words:
    """Unique words by the place that they are written to, and the instant that belongs to each.

    ``live`` are in the last state of the client's files. ``gone`` were in an earlier one.
    """

    case: str
    live: dict[str, datetime | None] = field(default_factory=dict)
    gone: dict[str, datetime | None] = field(default_factory=dict)

    def say(self, place: str, minute: int | None = None) -> str:
        """A word that stands in the last state."""
        word = self._new(place)
        self.live[word] = None if minute is None else at(minute)
        return word

    def lose(self, place: str, minute: int | None = None) -> str:
        """A word that a later state does not have any more."""
        word = self._new(place)
        self.gone[word] = None if minute is None else at(minute)
        return word

    def _new(self, place: str) -> str:
        number = len(self.live) + len(self.gone)
        first, second = divmod(number, len(_LETTERS))
        return f"{self.case}{place}x{_LETTERS[first]}{_LETTERS[second]}"


@dataclass(frozen=True)
class Case:
    """One kind of client file.

    ``states`` are applied one after the other; ``folder`` is the root below the test's folder.
    ``main`` is the file that hostile tests replace and that resuming tests cut. ``neighbour`` puts
    a word into another file of the same client.
    ``statements`` build the last state of an SQLite database one commit at a time.
    """

    name: str
    source: str
    words: Words
    states: Sequence[State]
    main: str
    folder: str = "root"
    root: str = "."
    way: Way = "pass"
    make: Callable[[Path], Source] | None = None
    neighbour: Callable[[Path, str], None] | None = None
    statements: Sequence[tuple[str, tuple[Any, ...]]] = ()
    #: The table that has a client's texts, and its text column and id column.
    table: tuple[str, str, str] | None = None
    #: Edits that move no watermark are seen when everything is compared.
    compares_all: bool = False
    #: Each message is a file, and one that is gone was taken back.
    takes_back_files: bool = False

    def open_source(self, folder: Path) -> Source:
        """The source, with the settings that it needs to find the folder."""
        return self.make(folder) if self.make else get_source(self.source)


def put(path: Path, data: bytes | str) -> None:
    """Write a file over, in place, as most clients do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def put_new(path: Path, data: bytes | str) -> None:
    """Write a file beside and rename it over the old one, as careful clients do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    other = path.with_name(f".{path.name}.new")
    other.write_bytes(data if isinstance(data, bytes) else data.encode())
    other.replace(path)


def add(path: Path, *records: object) -> None:
    """Append records as lines of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(lines(*records))


def lines(*records: object) -> bytes:
    """Records as lines of JSON."""
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def run_sql(path: Path, *statements: tuple[str, Sequence[Any]]) -> None:
    """Execute statements on a database, each committed on its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for sql, values in statements:
            connection.execute(sql, tuple(values))


def insert(table: str, **row: Any) -> tuple[str, tuple[Any, ...]]:
    """The statement that inserts a row; what is no plain value goes in as JSON."""
    values = tuple(
        json.dumps(value) if isinstance(value, dict | list) else value for value in row.values()
    )
    columns, places = ", ".join(row), ", ".join("?" * len(row))
    return f"insert into {table} ({columns}) values ({places})", values
