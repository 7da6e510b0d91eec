"""Every string of an original, found without knowing the client that wrote it.

JSON, JSON Lines, SQLite, zip and Zstandard are recognised by their content; any other UTF-8 text
counts line by line, and what is no text holds none.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import zstandard

from recall.jsontext import MalformedLine, loads

_SQLITE = b"SQLite format 3\x00"
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_ZIP = b"PK\x03\x04"
_BOM = b"\xef\xbb\xbf"
_OPENINGS = ("{", "[")


@dataclass(frozen=True, slots=True)
class Text:
    """One string. ``path`` are the keys and indexes from its record down, ``holders`` the mappings
    and lists that they lead through; ``place`` is the number of its line, ``member`` its file in a
    zip or folder. A line that is no JSON is one string, and ``is_torn`` if the file ends in it.
    """

    value: str
    path: tuple[str, ...] = ()
    holders: tuple[object, ...] = ()
    place: int | None = None
    member: str | None = None
    is_torn: bool = False

    def inside(self) -> list[Text] | None:
        """The strings of the JSON that this string is, or ``None`` if it is none."""
        if not self.value.lstrip().startswith(_OPENINGS):
            return None
        try:
            value, _ = loads(self.value.encode("utf-8", "surrogatepass"))
        except MalformedLine:
            return None
        if not isinstance(value, Mapping | list):
            return None
        return list(strings(value, self.path, self.holders, self.place, self.member))


def read_file(path: Path) -> Iterator[Text]:
    """Every string in a file, or in all files of a folder."""
    if path.is_dir():
        for below in sorted(path.rglob("*")):
            if below.is_file():
                member = below.relative_to(path).as_posix()
                yield from (replace(text, member=member) for text in read_file(below))
        return
    with path.open("rb") as opened:
        head = opened.read(len(_SQLITE))
        opened.seek(0)
        if head == _SQLITE:
            yield from _database(path)
        elif head.startswith(_ZIP):
            yield from _zip(path)
        elif head.startswith(_ZSTANDARD):
            with zstandard.ZstdDecompressor().stream_reader(opened) as stream:
                yield from _content(stream.read())
        else:
            yield from _content(opened.read())


def strings(
    value: object,
    path: tuple[str, ...] = (),
    holders: tuple[object, ...] = (),
    place: int | None = None,
    member: str | None = None,
) -> Iterator[Text]:
    """The strings with a letter inside a value, in order.

    A key counts if no format would use it as the name of a field: one with white space or a slash.
    """
    stack = [(value, path, holders)]
    while stack:
        current, at, above = stack.pop()
        if isinstance(current, str):
            if has_letter(current):
                yield Text(current, at, above, place, member)
        elif isinstance(current, Mapping | list):
            below = (*above, current)
            pairs: Iterable[tuple[object, object]] = (
                current.items() if isinstance(current, Mapping) else enumerate(current)
            )
            children = [(item, (*at, str(key)), below) for key, item in pairs]
            for _, inner, _ in children:
                if _is_text(inner[-1]):
                    yield Text(inner[-1], inner, below, place, member)
            stack.extend(reversed(children))


def has_letter(text: str) -> bool:
    """Whether a text holds a letter of any script."""
    return any(map(str.isalpha, text))


def _is_text(key: str) -> bool:
    return ("/" in key or any(map(str.isspace, key))) and has_letter(key)


def _content(data: bytes, member: str | None = None) -> Iterator[Text]:
    data = data.removeprefix(_BOM)
    first, newline, _ = data.partition(b"\n")
    if not (newline and isinstance(_json(first), Mapping)) and (value := _json(data)) is not None:
        records = value if isinstance(value, list) else [value]
        for record in records:
            yield from strings(record, member=member)
        return
    lines = data.split(b"\n")
    if any(isinstance(_json(line), Mapping) for line in lines):
        yield from _lines(lines, member)
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    if "\x00" not in text:
        for place, written in enumerate(text.split("\n")):
            if has_letter(written):
                yield Text(written, place=place, member=member)


def _lines(lines: list[bytes], member: str | None) -> Iterator[Text]:
    for place, line in enumerate(lines):
        value = _json(line)
        if value is not None or line.strip() == b"null":
            yield from strings(value, place=place, member=member)
            continue
        text = line.decode("utf-8", "replace")
        if has_letter(text):
            yield Text(text, place=place, member=member, is_torn=place == len(lines) - 1)


def _json(data: bytes) -> object:
    if not data.lstrip().startswith((b"{", b"[")):
        return None
    try:
        value, _ = loads(data)
    except MalformedLine:
        return None
    return value


def _database(path: Path) -> Iterator[Text]:
    """The rows of all tables, read from a copy so that the original and its folder stay as they
    are."""
    with tempfile.TemporaryDirectory(prefix="recall-fidelity-") as folder:
        copy = Path(folder) / path.name
        for name in (path.name, f"{path.name}-wal"):
            if (beside := path.with_name(name)).is_file():
                shutil.copyfile(beside, copy.with_name(name))
        with closing(sqlite3.connect(copy)) as database:
            database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            tables = database.execute(
                "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'"
                " order by name"
            ).fetchall()
            for (table,) in tables:
                yield from _table(database, table)


def _table(database: sqlite3.Connection, table: str) -> Iterator[Text]:
    quoted = table.replace('"', '""')
    rows = database.execute(f'select * from "{quoted}"')
    names = [column[0] for column in rows.description]
    for row in rows:
        record = dict(zip(names, map(_column, row), strict=True))
        yield from strings({table: record})


def _column(value: object) -> object:
    """A column's value; text that is JSON as what it says, bytes only if they are text."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    if isinstance(value, str) and value.startswith(_OPENINGS):
        parsed = _json(value.encode("utf-8", "surrogatepass"))
        return value if parsed is None else parsed
    return value


def _zip(path: Path) -> Iterator[Text]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            data = archive.read(info)
            if data.startswith(_ZIP):
                with tempfile.NamedTemporaryFile(suffix=".zip") as inner:
                    inner.write(data)
                    inner.flush()
                    yield from _zip(Path(inner.name))
                continue
            yield from _content(data, info.filename)
