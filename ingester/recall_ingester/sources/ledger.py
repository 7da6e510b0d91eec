"""A work ledger: one table of an SQLite database with a summary row for each session of work."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from recall.errors import SourceError
from recall.hygiene import REPLACEMENT
from recall.jsontext import compact
from recall.records import Note, Parsed, SessionDraft
from recall.timestamps import parse_timestamp
from recall_ingester.sources.base import LeavesOut, Parser, Reads, SourceBase, SourceFile
from recall_ingester.sources.notes import has_text, plain_fields
from recall_ingester.sources.toolinput import render_input
from recall_ingester.sqlite_reader import LiveDatabase, json_value, open_live

#: The column of each role, unless the setting says otherwise.
DEFAULT_COLUMNS = {
    "id": "id",
    "session": "session_id",
    "time": "created_at",
    "project": "project",
    "title": "title",
    "summary": "summary",
}
_REQUIRED = ("id", "summary")
_BINARY = "base64"


class Ledger(SourceBase):
    """The table that the settings name. Columns are found whatever their case.

    ``columns`` are ``role=column`` pairs; a column named there must exist, and so must those of the
    id and the summary. An empty one, and a default that the table does not have, is left out.
    """

    name = "ledger"
    title = "Work ledger"
    reads = (Reads("ledger_path", "rows of the table `ledger_table`, one entry each", "table"),)
    leaves_out = (
        LeavesOut(f"*.{_BINARY}", "binary columns are shown as their size and hash"),
    )  # fmt: skip

    def __init__(
        self, path: Path | None = None, table: str = "ledger", columns: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._path = path
        self._table = table
        given = dict(pair.split("=", 1) for pair in columns)
        self._named = {role: column for role, column in given.items() if column}
        merged = {**DEFAULT_COLUMNS, **given}
        self._columns = {role: column for role, column in merged.items() if column}

    def roots(self, env: Mapping[str, str], user_home: Path) -> list[Path]:  # noqa: ARG002
        """The database of the setting, if there is one."""
        return [self._path] if self._path else []

    def discover(self, root: Path) -> Iterator[SourceFile]:
        """The database itself; its write-ahead log tells that it changed."""
        self.unreadable = {}
        if root.is_dir():
            self.unreadable[root] = "a folder, not a database (setting `ledger_path`)"
            return
        yield SourceFile(
            root, self.name, "ledger", "table", root.stem,
            owns_session=False, companions=(root.with_name(f"{root.name}-wal"),),
        )  # fmt: skip

    def parser(self, file: SourceFile, external_id: str, state: Mapping[str, Any] | None) -> Parser:  # noqa: ARG002
        """A parser of rows."""
        return LedgerParser(self._columns)

    def open_table(self, file: SourceFile) -> AbstractContextManager[LedgerTable]:
        """Open the table for reading, beside whoever writes it.

        Raises :class:`SourceError`, which names the table or column that is missing and the setting
        that asks for it.
        """
        return self._opened(file)

    @contextmanager
    def _opened(self, file: SourceFile) -> Iterator[LedgerTable]:
        with open_live(file.path) as database:
            yield LedgerTable(database, self._table, self._columns, set(self._named))


class LedgerTable:
    """The open table. ``columns`` are all of its columns in their order."""

    columns: tuple[str, ...]

    def __init__(
        self,
        database: LiveDatabase,
        table: str,
        roles: Mapping[str, str],
        named: set[str],
    ) -> None:
        self._database = database
        described = "select name, type, pk from pragma_table_info(?) order by cid"
        found = list(database.rows(described, (table,)))
        self.columns = tuple(row[0] for row in found)
        if not found:
            raise SourceError(
                f"no table `{table}` in the ledger (setting `ledger_table`)",
                hint="set `ledger_table`, or RECALL_LEDGER_TABLE, to the name of the table",
            )
        for role in (*_REQUIRED, *sorted(named)):
            if _find(self.columns, roles[role]) is None:
                raise SourceError(
                    f"no column `{roles[role]}` in the table `{table}` (setting `ledger_columns`)",
                    hint=f"its columns: {', '.join(self.columns)}",
                )
        self._id = _find(self.columns, roles["id"]) or ""
        self._at = self.columns.index(self._id)
        self._quoted = (_quoted(table), _quoted(self._id))
        keys = [row for row in found if row[2]]
        if not (len(keys) == 1 and keys[0][0] == self._id and keys[0][1].upper() == "INTEGER"):
            self._check_ids()

    def max_id(self) -> int | None:
        """The highest id, ``None`` for an empty table."""
        table, column = self._quoted
        # Identifiers cannot be parameters; both are quoted and known to exist.
        statement = f"select max({column}) from {table}"  # noqa: S608
        ((highest,),) = self._database.rows(statement)
        return None if highest is None else self._whole(highest)

    def rows(self, after_id: int | None, limit: int) -> list[tuple[int, bytes]]:
        """The next rows in the order of their ids: the id, and the row as a line of JSON.

        A row is an object of its columns in the table's order, with binary values as
        ``{"base64": ...}``. Equal rows give equal bytes.
        """
        table, column = self._quoted
        behind = "" if after_id is None else f"where {column} > :after"
        statement = f"select * from {table} {behind} order by {column} limit :limit"  # noqa: S608
        found = self._database.rows(statement, {"after": after_id, "limit": limit})
        return [(self._whole(row[self._at]), _line(self.columns, row)) for row in found]

    def _check_ids(self) -> None:
        """Reading on from an id would leave rows out if two had it, or if it had no order."""
        table, column = self._quoted
        wrong = f"select 1 from {table} where typeof({column}) <> 'integer' limit 1"  # noqa: S608
        twice = f"select 1 from {table} group by {column} having count(*) > 1 limit 1"  # noqa: S608
        if list(self._database.rows(wrong)):
            raise SourceError(self._no_key("is not a whole number in every row"))
        if list(self._database.rows(twice)):
            raise SourceError(self._no_key("has the same value in two rows"))

    def _whole(self, value: object) -> int:
        if not isinstance(value, int):
            raise SourceError(self._no_key("is not a whole number in every row"))
        return value

    def _no_key(self, why: str) -> str:
        return f"column `{self._id}` {why} (setting `ledger_columns`, role `id`)"


class LedgerParser:
    """Rows as entries. ``columns`` is the column of each role."""

    session: SessionDraft | None = None

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = columns

    def record(self, value: Mapping[str, Any], ordinal: int) -> Parsed:
        """The entry of one row."""
        rest = {key: _shown(item) for key, item in value.items()}
        found = {role: self._take(rest, role) for role in self._columns}
        ts = parse_timestamp(found.get("time"))
        if ts is None and found.get("time") is not None:
            rest[self._columns["time"]] = found["time"]
        title = _line_of(found.get("title"))
        summary = render_input(found.get("summary"))
        fields = plain_fields(rest)
        if not summary.strip():
            summary = render_input({key: item for key, item in fields.items() if has_text(item)})
        if not summary.strip() and not title:
            return Parsed(skipped="no text")
        note = Note(
            "ledger",
            _line_of(found.get("id")) or str(ordinal),
            summary if summary.strip() else title or "",
            title=title,
            ts=ts,
            session_id=_line_of(found.get("session")),
            project=_line_of(found.get("project")),
            fields=fields,
        )
        return Parsed(notes=[note], ts=ts)

    def _take(self, rest: dict[str, Any], role: str) -> Any:
        name = _find(rest, self._columns[role])
        return None if name is None else rest.pop(name)

    def text(self, content: str) -> Parsed:  # noqa: ARG002
        """A table has no other text."""
        return Parsed(skipped="not a row")

    def labels(self) -> list[SessionDraft]:
        """Nothing: an entry tells about a session, but does not name it."""
        return []

    def state(self) -> dict[str, Any]:
        """Nothing is remembered between rows."""
        return {}


def _find(columns: Sequence[str] | Mapping[str, Any], wanted: str) -> str | None:
    """The column of a name, as SQLite finds it: whatever the case of ASCII letters."""
    if wanted in columns:
        return wanted
    return next((name for name in columns if name.lower() == wanted.lower()), None)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _line(columns: Sequence[str], row: Sequence[Any]) -> bytes:
    value = dict(zip(columns, map(_cell, row), strict=True))
    return compact(value).encode() + b"\n"


def _cell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json_value(value)


def _shown(value: Any) -> Any:
    """A cell as it can be read. Clients store text as binary too, and text that is not quite UTF-8;
    what is neither is shown as its size and hash."""
    if not isinstance(value, Mapping) or list(value) != [_BINARY]:
        return value
    try:
        raw = base64.b64decode(value[_BINARY])
    except (TypeError, ValueError):
        return value
    text = raw.decode("utf-8", "replace")
    if "\x00" not in text and text.count(REPLACEMENT) * 10 <= len(text):
        return text
    return f"[binary, {len(raw)} bytes, sha256 {hashlib.sha256(raw).hexdigest()[:12]}]"


def _line_of(value: object) -> str | None:
    """A short text of a cell; ``None`` for an empty one."""
    return render_input(value).strip() or None
