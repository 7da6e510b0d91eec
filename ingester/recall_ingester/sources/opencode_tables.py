"""The sessions of an opencode database."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from recall.errors import SourceError
from recall.jsontext import compact
from recall_ingester.sources.base import Member
from recall_ingester.sqlite_reader import LiveDatabase, json_value, open_live

#: Tables (by how their names start) that hold keys and tokens.
SECRET_TABLES = ("account", "control_account", "credential")
#: Bytes of one session's lines that are held in memory; more go to a temporary file.
_SPOOL_BYTES = 16 * 1024 * 1024

_Row = dict[str, Any]
#: Creation time and row ids of one line: a message with its parts, or one of the second generation.
_Place = tuple[float, int | None, list[int], int | None]


class Tables:
    """The sessions of an open database of the schema with ``session``, ``message`` and ``part``."""

    def __init__(self, database: LiveDatabase) -> None:
        self._database = database
        self._columns = {
            table: database.columns(table)
            for table in ("session", "project", "message", "part", "session_message")
        }
        if not self._columns["session"]:
            if {"sessions", "messages"} <= database.tables():
                raise SourceError(
                    f"`{database.path}` has the schema of the older opencode, "
                    "not read by this version"
                )
            raise SourceError(f"`{database.path}` has no table `session`")

    def members(self) -> Iterator[Member]:
        """One for each session. No column that holds text is read."""
        newest: dict[str, float] = {}
        counts: dict[str, list[int]] = {}
        for number, table in enumerate(("message", "part", "session_message")):
            if "session_id" not in self._columns[table]:
                continue
            sql = (
                f"select session_id, {self._time(table, 'max')}, count(*)"  # noqa: S608
                f" from {table} group by session_id"
            )
            for session, time, count in self._database.rows(sql):
                newest[session] = max(newest.get(session, 0), _number(time))
                counts.setdefault(session, [0, 0, 0])[number] = count
        for session, time in self._database.rows(self._session_times()):
            if isinstance(session, str) and session:
                last = max(_number(time), newest.get(session, 0))
                count = ".".join(map(str, counts.get(session, [0, 0, 0])))
                yield Member(session, f"{last:.0f}:{count}")

    def slots(self, external_id: str) -> Iterator[bytes]:
        """The session's lines, read in one transaction that is over before the first is given."""
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as spool:
            with self._database.snapshot():
                self._write(external_id, spool)
            spool.seek(0)
            yield from spool

    def ids(self) -> frozenset[str]:
        """The ids of all sessions."""
        rows = self._database.rows("select id from session")
        return frozenset(id for (id,) in rows if isinstance(id, str))

    def _write(self, session: str, spool: IO[bytes]) -> None:
        found = list(self._rows("session", "id = ?", session))
        if not found:
            raise SourceError(f"`{self._database.path}` no longer holds session `{session}`")
        project = None
        if self._columns["project"] and "project_id" in self._columns["session"]:
            key = "id = (select project_id from session where id = ?)"
            project = next(iter(list(self._rows("project", key, session))), None)
        _line(spool, {"session": found[0], "project": project})
        for _, message, parts, second in self._places(session):
            if second is not None:
                _line(spool, {"session_message": self._row("session_message", second)})
                continue
            rows = [self._row("part", part) for part in parts]
            row = None if message is None else self._row("message", message)
            _line(spool, {"message": row, "parts": rows})

    def _places(self, session: str) -> Iterator[_Place]:
        """The lines of a session in order. Where both generations are, they are merged by time,
        each in its own order, so that what is new comes last."""
        first = self._first(session)
        second: list[_Place] = []
        if "session_id" in self._columns["session_message"]:
            order = "seq" if "seq" in self._columns["session_message"] else "time_created, id"
            listed = self._database.rows(
                "select rowid, time_created from session_message"  # noqa: S608
                f" where session_id = ? order by {order}",
                (session,),
            )
            second = [(_number(time), None, [], row) for row, time in listed]
        at = 0
        for place in first:
            while at < len(second) and second[at][0] < place[0]:
                yield second[at]
                at += 1
            yield place
        yield from second[at:]

    def _first(self, session: str) -> list[_Place]:
        """Messages with their parts; parts without their message stand where they were made."""
        if "session_id" not in self._columns["message"]:
            return []
        places: dict[Any, _Place] = {}
        order = "where session_id = ? order by time_created, id"
        listed = self._database.rows(
            f"select rowid, id, time_created from message {order}",  # noqa: S608
            (session,),
        )
        for row, message, time in listed:
            places[message] = (_number(time), row, [], None)
        orphans: dict[Any, _Place] = {}
        if "session_id" in self._columns["part"]:
            listed = self._database.rows(
                f"select rowid, message_id, time_created from part {order}",  # noqa: S608
                (session,),
            )
            for row, message, time in listed:
                place = places.get(message)
                if place is None:
                    place = orphans.setdefault(message, (_number(time), None, [], None))
                place[2].append(row)
        if not orphans:
            return list(places.values())
        return sorted([*places.values(), *orphans.values()], key=lambda place: place[0])

    def _row(self, table: str, rowid: int) -> _Row:
        return next(iter(list(self._rows(table, "rowid = ?", rowid))))

    def _rows(self, table: str, condition: str, value: object) -> Iterator[_Row]:
        columns = self._columns[table]
        listed = ", ".join('"' + column.replace('"', '""') + '"' for column in columns)
        sql = f"select {listed} from {table} where {condition}"  # noqa: S608
        for row in self._database.rows(sql, (value,)):
            yield dict(zip(columns, map(json_value, row), strict=True))

    def _session_times(self) -> str:
        time = f"s.{self._time('session')}" if self._time("session") != "0" else "0"
        if "time_updated" not in self._columns["project"]:
            return f"select s.id, {time} from session s order by s.id"  # noqa: S608
        return (
            f"select s.id, max(ifnull({time}, 0), ifnull(p.time_updated, 0))"  # noqa: S608
            " from session s left join project p on p.id = s.project_id order by s.id"
        )

    def _time(self, table: str, function: str = "") -> str:
        if "time_updated" not in self._columns[table]:
            return "0"
        return f"{function}(time_updated)" if function else "time_updated"


@contextmanager
def open_tables(path: Path) -> Iterator[Tables]:
    """Open a database. Raises :class:`SourceError` if it is none, or not of this schema."""
    with open_live(path, never_read=SECRET_TABLES) as database:
        yield Tables(database)


def _line(spool: IO[bytes], value: dict[str, Any]) -> None:
    spool.write(compact(value).encode() + b"\n")


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0
