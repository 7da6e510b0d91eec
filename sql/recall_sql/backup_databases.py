"""The databases of a server: scratch ones that a restore fills, and one that takes another's place.

A restore fills a database that nobody else knows. Whether it comes to prove a backup or to be used,
nothing that is in use changes before it is complete, and what a killed restore left is known by its
mark.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from recall.errors import BusyError, StoreError, StoreUnavailableError
from recall_sql.connection import connect, translate_errors
from recall_sql.loader import load

Connection = psycopg.Connection[tuple[Any, ...]]

_APPLICATION = "recall restore"
_MARK = "scratch of recall restore-backup"
#: Databases that a server has from the start. None of them can be the one that is restored.
_MAINTENANCE = ("postgres", "template1")
#: Rows of these make a database one that is in use; what an empty server writes by itself does not.
_CONTENT = (
    "session",
    "message",
    "message_retracted",
    "prompt",
    "note",
    "raw_segment",
    "raw_blob",
    "ingest_state",
)
_PROVIDERS = {"b": "builtin", "c": "libc", "i": "icu"}


@dataclass(frozen=True, slots=True)
class Target:
    """The database that the settings name; it may not be there yet."""

    url: str
    name: str
    exists: bool


def url_for(url: str, database: str) -> str:
    """The same server and user, another database."""
    return make_conninfo(url, dbname=database)


def find_target(url: str) -> Target:
    """Which database a URL names. Raises :class:`StoreUnavailableError` without a server."""
    try:
        with connect(url, application=_APPLICATION) as connection:
            return Target(url, connection.info.dbname, exists=True)
    except StoreUnavailableError:
        given = conninfo_to_dict(url)
        name = str(given.get("dbname") or os.environ.get("PGDATABASE") or _user(url))
        with administration(url) as admin:
            form = admin.execute(load("backup")["database_form"], {"name": name}).fetchone()
        if form is not None:
            raise
        return Target(url, name, exists=False)


def _user(url: str) -> str:
    given = {item.keyword: item.val for item in Conninfo.parse(url.encode()) if item.val}
    usual = {item.keyword: item.val for item in Conninfo.get_defaults() if item.val}
    return (given.get(b"user") or usual.get(b"user") or b"postgres").decode()


@contextmanager
def administration(url: str) -> Iterator[Connection]:
    """A connection to the server that stands in no database of ours."""
    for name in _MAINTENANCE:
        try:
            connection = connect(url_for(url, name), application=_APPLICATION, autocommit=True)
        except StoreUnavailableError:
            if name == _MAINTENANCE[-1]:
                raise
            continue
        with connection, translate_errors():
            yield connection
        return


def why_in_use(url: str) -> str | None:
    """What a database holds that a restore must not lose; ``None`` for an empty one."""
    with connect(url, application=_APPLICATION, autocommit=True) as connection, translate_errors():
        for name in _CONTENT:
            there = connection.execute(
                "select to_regclass(%s) is not null", (f"recall.{name}",)
            ).fetchone()
            if not (there and there[0]):
                continue
            table = sql.Identifier("recall", name)
            query = sql.SQL("select exists (select from {})").format(table)
            row = connection.execute(query).fetchone()
            if row and row[0]:
                return f"it has rows in `recall.{name}`"
        row = connection.execute(load("backup")["foreign_tables"]).fetchone()
    return f"it has {row[0]:,} tables that are not of Recall" if row and row[0] else None


def require_unused(target: Target) -> None:
    """Raise :class:`BusyError` while somebody else is connected to the database."""
    values = {"name": target.name, "own": _APPLICATION}
    with administration(target.url) as admin:
        rows = admin.execute(load("backup")["database_clients"], values).fetchall()
    if rows:
        listed = ", ".join(f"`{name}` ({count})" for name, count in rows[:5])
        raise BusyError(
            f"the database `{target.name}` is in use: {listed}",
            hint="stop what uses it (`recall down`; with compose, all services but `db`)",
        )


@dataclass(frozen=True, slots=True)
class Scratch:
    """A database that nobody else knows. ``held`` is the connection that keeps it from being taken
    for one that a killed restore left."""

    name: str
    url: str
    held: Connection


@contextmanager
def scratch_database(url: str, kind: Literal["verify", "restore"]) -> Iterator[Scratch]:
    """A new empty database of the same form; dropped at the end if it still has its name.

    What killed calls left, known by its mark and by having no connection, is dropped first.
    """
    target = find_target(url)
    name = f"recall_{kind}_{secrets.token_hex(6)}"
    with administration(url) as admin:
        _drop_leftovers(admin)
        _create(admin, name, like=target.name)
        try:
            scratch_url = url_for(url, name)
            with connect(scratch_url, application=_APPLICATION, autocommit=True) as held:
                mark = sql.SQL("comment on database {} is {}")
                admin.execute(mark.format(sql.Identifier(name), sql.Literal(_MARK)))
                yield Scratch(name, scratch_url, held)
        finally:
            drop = sql.SQL("drop database if exists {} with (force)")
            admin.execute(drop.format(sql.Identifier(name)))


def _drop_leftovers(admin: Connection) -> None:
    rows = admin.execute(load("backup")["scratch_databases"], {"mark": _MARK}).fetchall()
    for (name,) in rows:
        with suppress(psycopg.errors.ObjectInUse, psycopg.errors.InsufficientPrivilege):
            admin.execute(sql.SQL("drop database if exists {}").format(sql.Identifier(name)))


def _create(admin: Connection, name: str, *, like: str) -> None:
    start = sql.SQL("create database {} template template0 encoding 'UTF8'")
    parts: list[sql.Composable] = [start.format(sql.Identifier(name))]
    form = admin.execute(load("backup")["database_form"], {"name": like}).fetchone()
    if form is not None:
        collate, ctype, provider, locale = form
        parts.append(
            sql.SQL("lc_collate {} lc_ctype {} locale_provider {}").format(
                sql.Literal(collate), sql.Literal(ctype), sql.SQL(_PROVIDERS[provider])
            )
        )
        if provider in "bi":
            kind = sql.SQL("builtin_locale {}" if provider == "b" else "icu_locale {}")
            parts.append(kind.format(sql.Literal(locale)))
    try:
        admin.execute(sql.SQL(" ").join(parts))
    except psycopg.errors.InsufficientPrivilege:
        raise StoreError(
            "the database role may not make databases, and a restore fills a new one",
            hint="let an administrator run: alter role ... createdb",
        ) from None


def take_place(target: Target, scratch: Scratch, *, keep_as: str | None) -> None:
    """Let a scratch database have the name of the target, in one transaction.

    What had the name is kept under another one, or dropped where that is ``None``. Nobody may be
    connected to either.
    """
    require_unused(target)
    scratch.held.close()
    old = keep_as or f"{scratch.name}_old"
    rename = sql.SQL("alter database {} rename to {}")
    scratch_name, target_name = sql.Identifier(scratch.name), sql.Identifier(target.name)
    with administration(target.url) as admin:
        try:
            with admin.transaction():
                if target.exists:
                    for statement in _rights(admin, target.name, scratch.name):
                        admin.execute(statement.encode())
                    admin.execute(rename.format(target_name, sql.Identifier(old)))
                admin.execute(sql.SQL("comment on database {} is null").format(scratch_name))
                admin.execute(rename.format(scratch_name, target_name))
        except psycopg.errors.ObjectInUse:
            raise BusyError(
                f"the database `{target.name}` came into use meanwhile; it is as it was",
                hint="stop what uses it, and restore again",
            ) from None
        if target.exists and keep_as is None:
            drop = sql.SQL("drop database {} with (force)")
            admin.execute(drop.format(sql.Identifier(old)))


def _rights(admin: Connection, old: str, new: str) -> list[str]:
    rows = admin.execute(load("backup")["database_rights"], {"old": old, "new": new}).fetchall()
    return [str(row[0]) for row in rows]
