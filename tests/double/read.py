"""Reads of relations, and calls of functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.double.answer import body_sql
from tests.double.database import Statement, listed, quoted
from tests.double.filters import Window, is_condition, ordering, selection, where
from tests.double.mutate import Written
from tests.double.request import Payload, Request
from tests.double.schema import Function, Relation

_RESERVED = {"select", "order", "limit", "offset", "columns", "on_conflict"}


def read(
    request: Request, relation: Relation, media: str, wanted: Window, count: str | None
) -> Written:
    """``GET`` of a relation: how many of all rows, how many of these, and the body."""
    statement = Statement()
    source = quoted(relation.schema, relation.name)
    conditions = where(request.query, source, statement)
    rows = (
        f"select {selection(request.parameter('select'), source)} from {source}{conditions}"
        f"{ordering(request.parameter('order'), source)}{wanted.sql()}"
    )
    return _wrapped(rows, f"select 1 from {source}{conditions}", statement, body_sql(media), count)


def arguments(request: Request, body: Payload | None) -> dict[str, str | None]:
    """Names of the arguments of a call; values only where they stand in the query."""
    if body is not None:
        return dict.fromkeys(body.keys)
    return {
        name: value
        for name, value in request.query
        if name not in _RESERVED and not is_condition(name, value)
    }


def call(
    request: Request,
    function: Function,
    body: Payload | None,
    media: str,
    wanted: Window,
    count: str | None,
) -> Written:
    """A call of a function, whose rows can be filtered like those of a relation."""
    statement = Statement()
    before, given = _given(request, function, body, statement)
    named = f"{quoted(function.schema, function.name)}({given})"
    source = "pgrst_call"
    if function.returns_rows:
        called = f"from {before}lateral {named} {source}"
        shown = selection(request.parameter("select"), source)
    else:
        called = f"from {before}lateral (select {named} as pgrst_scalar) {source}"
        shown = "pgrst_call.pgrst_scalar"
    filters = [one for one in request.query if is_condition(*one)]
    conditions = where(filters, source, statement)
    all_rows = f"{called}{conditions}"
    rows = f"select {shown} {all_rows}{ordering(request.parameter('order'), source)}{wanted.sql()}"
    return _wrapped(rows, f"select 1 {all_rows}", statement, _call_body(function, media), count)


def planned_rows(plan: bytes | None) -> int:
    """How many rows the planner expects."""
    found: list[dict[str, Any]] = json.loads(plan or b"")
    return int(found[0]["Plan"]["Plan Rows"])


def _given(
    request: Request, function: Function, body: Payload | None, statement: Statement
) -> tuple[str, str]:
    """Where the arguments come from, and the list of them."""
    if body is not None and function.body_type is not None:
        return "", f"{statement.json(body.json)}::{function.body_type}"
    if body is None:
        values = arguments(request, None)
        taken = [(name, kind) for name, kind in function.arguments if name in values]
        return "", listed(
            [f"{quoted(name)} := {statement.value(values[name])}::{kind}" for name, kind in taken]
        )
    taken = [(name, kind) for name, kind in function.arguments if name in body.keys]
    if not taken:
        return "", ""
    typed = listed([f"{quoted(name)} {kind}" for name, kind in taken])
    record = "json_to_record" if body.is_object else "json_to_recordset"
    before = (
        f"(select {statement.json(body.json)}::json as json_data) pgrst_payload, lateral (select *"
        f" from {record}(pgrst_payload.json_data) as _({typed}) limit 1) pgrst_body, "
    )
    passed: Sequence[str] = [f"{quoted(name)} := pgrst_body.{quoted(name)}" for name, _ in taken]
    return before, listed(passed)


def _call_body(function: Function, media: str) -> str:
    if function.returns_rows:
        if function.returns_set:
            return body_sql(media)
        return "coalesce((json_agg(_postgrest_t) -> 0)::text, 'null')"
    if function.returns_set:
        return "coalesce(json_agg(_postgrest_t.pgrst_scalar), '[]')::text"
    return "coalesce((json_agg(_postgrest_t.pgrst_scalar) -> 0)::text, 'null')"


def _wrapped(
    rows: str, all_rows: str, statement: Statement, body: str, count: str | None
) -> Written:
    counted = ", pgrst_source_count as (" + all_rows + ")" if count == "exact" else ""
    total = "(select count(*) from pgrst_source_count)" if counted else "null"
    return Written(
        f"with pgrst_source as ({rows}){counted} "
        f"select count(_postgrest_t), {body}, {total}"
        " from (select * from pgrst_source) _postgrest_t",
        statement,
        f"explain (format json) {all_rows}" if count in {"planned", "estimated"} else None,
    )
