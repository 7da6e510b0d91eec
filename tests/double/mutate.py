"""Writes: rows from a JSON body into a table or a view."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from tests.double.answer import body_sql
from tests.double.database import Statement, listed, literal, quoted
from tests.double.filters import selected_columns, selection, where
from tests.double.refusal import Refusal
from tests.double.request import Payload, Preferences, Request
from tests.double.schema import Relation

_COUNTER = "coalesce(nullif(current_setting('pgrst.inserted', true), ''), '0')::int"
_INSERTED = f"set_config('pgrst.inserted', ({_COUNTER} + 1)::text, true) <> '0'"
_UPDATED = f"set_config('pgrst.inserted', ({_COUNTER} - 1)::text, true) <> '-1'"


@dataclass(frozen=True)
class Written:
    """A statement ready to run, which gives one row; ``plan`` estimates how many rows there are."""

    sql: str
    statement: Statement
    plan: str | None = None


def columns_of(body: Payload, relation: Relation) -> list[str]:
    """The columns to write, all of which there must be."""
    for name in body.keys:
        if name not in relation.columns:
            raise Refusal(
                400,
                "PGRST204",
                f"Could not find the '{name}' column of '{relation.name}' in the schema cache",
            )
    return list(body.keys)


def insert(
    request: Request, prefer: Preferences, body: Payload, relation: Relation, media: str
) -> Written:
    """``POST``: insert, with the conflicts resolved as preferred."""
    statement = Statement()
    names = columns_of(body, relation)
    sql = (
        f"insert into {_target(relation)}{_column_list(names)} "
        f"select {_prefixed(names)} {_rows(statement, body, names, relation, prefer)}"
        f" where {_INSERTED}"
        f"{_conflict(request, prefer, names, relation)}"
    )
    return _wrapped(sql, statement, request, prefer, relation, media)


def put(
    request: Request, prefer: Preferences, body: Payload, relation: Relation, media: str
) -> Written:
    """``PUT``: insert or replace the one row that the URL names."""
    given = [(name, value) for name, value in request.query if not _is_reserved(name)]
    if {name for name, _ in given} != set(relation.key) or not all(
        value.startswith("eq.") for _, value in given
    ):
        raise Refusal(
            405,
            "PGRST105",
            "Filters must include all and only primary key columns with 'eq' operators",
        )
    statement = Statement()
    names = columns_of(body, relation)
    rows = _rows(statement, body, names, relation, prefer)
    same = " and ".join(
        f"pgrst_body.{quoted(name)} = {statement.value(value.removeprefix('eq.'))}"
        for name, value in given
    )
    sql = (
        f"insert into {_target(relation)}{_column_list(names)} "
        f"select {_prefixed(names)} {rows} where {_INSERTED} and {same}"
        f" on conflict ({listed([quoted(name) for name in relation.key])})"
        f" do update set {_excluded(names)} where {_UPDATED}"
    )
    return _wrapped(sql, statement, request, prefer, relation, media)


def update(
    request: Request, prefer: Preferences, body: Payload, relation: Relation, media: str
) -> Written:
    """``PATCH``: set columns of the rows that the query names."""
    statement = Statement()
    names = columns_of(body, relation)
    target = _target(relation)
    if not names:
        sql = f"select * from {target} where false"
        return _wrapped(sql, statement, request, prefer, relation, media, returns=False)
    settings = listed([f"{quoted(name)} = pgrst_body.{quoted(name)}" for name in names])
    rows = _rows(statement, body, names, relation, prefer)
    sql = f"update {target} set {settings} {rows}{where(request.query, target, statement)}"
    return _wrapped(sql, statement, request, prefer, relation, media)


def delete(request: Request, prefer: Preferences, relation: Relation, media: str) -> Written:
    """``DELETE``: remove the rows that the query names."""
    statement = Statement()
    target = _target(relation)
    sql = f"delete from {target}{where(request.query, target, statement)}"
    return _wrapped(sql, statement, request, prefer, relation, media)


def location(relation: Relation, row: bytes | None) -> list[tuple[str, str]]:
    """The header that names an inserted row by its key."""
    if row is None or not relation.key:
        return []
    values = json.loads(row)
    told = "&".join(
        f"{name}=eq.{quote(str(values[name]), safe='')}" for name in relation.key if name in values
    )
    return [("Location", f"/{relation.name}?{told}")]


def _wrapped(
    sql: str,
    statement: Statement,
    request: Request,
    prefer: Preferences,
    relation: Relation,
    media: str,
    *,
    returns: bool = True,
) -> Written:
    """The statement, and one row over it: how many rows, the body, the first key, the counter."""
    wanted = prefer.get("return")
    shown = request.parameter("select")
    body, first, source = "''", "null", "select * from pgrst_source"
    returning = "1"
    if wanted == "representation":
        columns = selected_columns(shown)
        returning = _target(relation) + ".*"
        if columns is not None:
            returning = listed([f"{_target(relation)}.{quoted(name)}" for name in columns])
        source = f"select {selection(shown, 'pgrst_source')} from pgrst_source"
        body = body_sql(media)
    elif wanted == "headers-only" and relation.key:
        returning = listed([quoted(name) for name in relation.key])
        first = "(select row_to_json(_) from pgrst_source as _ limit 1)::text"
    end = f" returning {returning}" if returns else ""
    return Written(
        f"with pgrst_source as ({sql}{end}) "
        f"select count(_postgrest_t), {body}, {first},"
        " nullif(current_setting('pgrst.inserted', true), '')"
        f" from ({source}) _postgrest_t",
        statement,
    )


def _conflict(
    request: Request, prefer: Preferences, names: Sequence[str], relation: Relation
) -> str:
    resolution = prefer.get("resolution")
    named = request.parameter("on_conflict")
    keys = [part.strip() for part in named.split(",")] if named else list(relation.key)
    if resolution is None or not keys:
        return ""
    target = f" on conflict ({listed([quoted(key) for key in keys])})"
    if resolution == "ignore-duplicates" or not names:
        return f"{target} do nothing"
    return f"{target} do update set {_excluded(names)} where {_UPDATED}"


def _rows(
    statement: Statement,
    body: Payload,
    names: Sequence[str],
    relation: Relation,
    prefer: Preferences,
) -> str:
    """From where the values come; ``pgrst_body`` has one row an object."""
    # the columns of the defaults are merged in before the body is taken apart
    has_defaults = prefer.get("missing") == "default" and bool(names)
    kind = "jsonb" if has_defaults else "json"
    payload = f"from (select {statement.json(body.json)}::{kind} as json_data) pgrst_payload, "
    data = "pgrst_payload.json_data"
    if has_defaults:
        defaults = _defaults(names, relation)
        merged = f"{defaults} || {data} as val"
        if not body.is_object:
            merged = f"jsonb_agg({defaults} || elem) as val from jsonb_array_elements({data}) elem"
        payload += f"lateral (select {merged}) pgrst_json_defs, "
        data = "pgrst_json_defs.val"
    if not names:
        rows = "(values (1)) _" if body.is_object else f"{kind}_array_elements({data}) _"
        return f"{payload}lateral (select from {rows}) pgrst_body"
    function = f"{kind}_to_record" if body.is_object else f"{kind}_to_recordset"
    typed = listed([f"{quoted(name)} {relation.columns[name].kind}" for name in names])
    columns = listed([quoted(name) for name in names])
    return f"{payload}lateral (select {columns} from {function}({data}) as _({typed})) pgrst_body"


def _defaults(names: Sequence[str], relation: Relation) -> str:
    pairs = [
        f"{literal(name)}, {default}"
        for name in names
        if (default := relation.columns[name].default) is not None
    ]
    return f"jsonb_build_object({listed(pairs)})"


def _target(relation: Relation) -> str:
    return quoted(relation.schema, relation.name)


def _column_list(names: Sequence[str]) -> str:
    return f" ({listed([quoted(name) for name in names])})" if names else ""


def _prefixed(names: Sequence[str]) -> str:
    return listed([f"pgrst_body.{quoted(name)}" for name in names])


def _excluded(names: Sequence[str]) -> str:
    return listed([f"{quoted(name)} = excluded.{quoted(name)}" for name in names])


def _is_reserved(name: str) -> bool:
    return name in {"columns", "select", "on_conflict"}
