"""One view of the store: what stands in it, as it is dumped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from recall_sql.backup_manifest import Extension, Role, TableDigest
from recall_sql.connection import connect, translate_errors
from recall_sql.loader import load
from recall_sql.migrate import current_version


@dataclass(frozen=True, slots=True)
class Table:
    """A table that belongs into a dump. Vectors can be made again from the texts."""

    schema: str
    name: str
    size: int
    holds_vectors: bool

    @property
    def full_name(self) -> str:
        """With its schema."""
        return f"{self.schema}.{self.name}"


class Snapshot:
    """A transaction that sees one moment, and lets others see the same."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._sql = load("backup")
        row = connection.execute(self._sql["dump_facts"]).fetchone()
        assert row
        self.postgresql, self.postgresql_major, self.database_bytes = row
        self.schema_version = current_version(connection)
        self.tables = [Table(*row) for row in connection.execute(self._sql["dump_tables"])]

    def export(self) -> str:
        """The name of this view for `pg_dump --snapshot`, valid until the block ends.

        The tables are held from here on: else a migration that waits for `pg_dump` would come
        between it and the digests.
        """
        names = [sql.Identifier(table.schema, table.name) for table in self.tables]
        if names:
            lock = sql.SQL("lock table {} in access share mode")
            self._connection.execute(lock.format(sql.SQL(", ").join(names)))
        row = self._connection.execute(self._sql["export_snapshot"]).fetchone()
        assert row
        return str(row[0])

    def extensions(self) -> tuple[Extension, ...]:
        """The extensions that the database uses."""
        rows = self._connection.execute(self._sql["dump_extensions"])
        return tuple(Extension(*row) for row in rows)

    def roles(self) -> tuple[Role, ...]:
        """The roles that its rights name."""
        rows = self._connection.execute(self._sql["dump_roles"])
        return tuple(
            Role(name, can_login, inherits, tuple(settings), tuple(member_of))
            for name, can_login, inherits, settings, member_of in rows
        )

    def digests(self, tables: Iterable[Table]) -> dict[str, TableDigest]:
        """Counts and digests of tables, each read once from beginning to end."""
        statement = sql.SQL(self._sql["digest_table"])
        found = {}
        for table in tables:
            named = statement.format(table=sql.Identifier(table.schema, table.name))
            row = self._connection.execute(named).fetchone()
            assert row
            found[table.full_name] = TableDigest(int(row[0]), str(row[1]))
        return found

    def cancel(self) -> None:
        """Stop what another thread runs here."""
        self._connection.cancel_safe()


@contextmanager
def open_snapshot(database_url: str) -> Iterator[Snapshot]:
    """See the store as it is now, for as long as the block takes."""
    with (
        translate_errors(),
        connect(database_url, application="recall backup", autocommit=True) as connection,
        connection.transaction(),
    ):
        connection.execute(load("backup")["hold_snapshot"])
        yield Snapshot(connection)
