"""What the exposed schemas hold, as it was when it was last loaded."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.double.database import Connection, Statement
from tests.double.refusal import Refusal

_RELATIONS = """
select json_build_object(
    'oid', c.oid::bigint, 'schema', n.nspname, 'name', c.relname, 'view', c.relkind in ('v', 'm'),
    'insertable', pg_relation_is_updatable(c.oid, true) & 8 = 8,
    'columns', (
        select coalesce(json_agg(json_build_array(
            a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
            case when a.attgenerated = '' then pg_get_expr(d.adbin, d.adrelid) end
        ) order by a.attnum), '[]')
        from pg_attribute a
        left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    ),
    'key', (
        select coalesce(json_agg(k.attnum order by k.place), '[]')
        from pg_constraint p, unnest(p.conkey) with ordinality k (attnum, place)
        where p.conrelid = c.oid and p.contype = 'p'
    ),
    'sources', (
        select coalesce(json_agg(json_build_array(
            m[1]::integer, m[2]::bigint, m[3]::integer
        )), '[]')
        from pg_rewrite r, regexp_matches(
            r.ev_action::text,
            ':resno (\\d+) :resname \\S+ :ressortgroupref \\d+ :resorigtbl (\\d+) '
            ':resorigcol (\\d+) :resjunk false', 'g'
        ) m
        where r.ev_class = c.oid and c.relkind in ('v', 'm') and m[2] <> '0'
    )
)::text
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f')
    and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
"""
_FUNCTIONS = """
select json_build_object(
    'schema', n.nspname, 'name', p.proname, 'volatility', p.provolatile, 'set', p.proretset,
    'void', p.prorettype = 'void'::regtype,
    'rows', t.typtype = 'c' or (
        t.typname = 'record' and coalesce(p.proargmodes && '{t,o,b}'::"char"[], false)
    ),
    'defaults', p.pronargdefaults,
    'arguments', (
        select coalesce(json_agg(json_build_array(
            coalesce(p.proargnames[a.place], ''), format_type(a.kind, null)
        ) order by a.place), '[]')
        from unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) with ordinality
            a (kind, place)
        where p.proargmodes is null or p.proargmodes[a.place] in ('i', 'b', 'v')
    )
)::text
from pg_proc p join pg_namespace n on n.oid = p.pronamespace join pg_type t on t.oid = p.prorettype
where p.prokind = 'f' and n.nspname = any ($1)
order by p.oid
"""
_ROLE_SETTINGS = """
select r.rolname, split_part(s.setting, '=', 1), substr(s.setting, strpos(s.setting, '=') + 1)
from pg_auth_members m join pg_roles r on r.oid = m.roleid
cross join unnest(r.rolconfig) s (setting)
join pg_settings k on k.name = lower(split_part(s.setting, '=', 1))
where m.member = current_user::regrole
    and (k.context = 'user' or has_parameter_privilege(k.name, 'set'))
"""


@dataclass(frozen=True)
class Column:
    """A column of a relation."""

    name: str
    kind: str
    default: str | None


@dataclass(frozen=True)
class Relation:
    """A table or view; the key of a view is that of the table behind it, if all of it shows."""

    schema: str
    name: str
    columns: Mapping[str, Column]
    key: tuple[str, ...]
    insertable: bool = True


@dataclass(frozen=True)
class Function:
    """A function; ``arguments`` are names and types, the last ``defaults`` of them optional."""

    schema: str
    name: str
    volatility: str
    returns_set: bool
    returns_rows: bool
    returns_void: bool
    arguments: tuple[tuple[str, str], ...]
    defaults: int

    def takes(self, given: Collection[str]) -> bool:
        """Whether arguments of these names make a call."""
        names = [name for name, _ in self.arguments]
        required = names[: len(names) - self.defaults]
        return set(required) <= set(given) <= set(names)

    @property
    def body_type(self) -> str | None:
        """The type of a sole unnamed argument, which the whole body is."""
        if len(self.arguments) == 1 and not self.arguments[0][0]:
            return self.arguments[0][1]
        return None

    def signature(self) -> str:
        """Name and arguments, as the hints of errors have them."""
        names = sorted(name for name, _ in self.arguments)
        return f"{self.schema}.{self.name}({', '.join(names)})"


@dataclass(frozen=True)
class SchemaCache:
    """Relations and functions by schema and name, and the settings of roles."""

    relations: Mapping[tuple[str, str], Relation] = field(default_factory=dict)
    functions: Mapping[tuple[str, str], tuple[Function, ...]] = field(default_factory=dict)
    role_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def relation(self, schema: str, name: str) -> Relation:
        """A relation, or the answer that there is none, with the nearest name as its hint."""
        found = self.relations.get((schema, name))
        if found is None:
            near = _nearest(name, [n for s, n in self.relations if s == schema])
            raise Refusal(
                404,
                "PGRST205",
                f"Could not find the table '{schema}.{name}' in the schema cache",
                hint=f"Perhaps you meant the table '{schema}.{near}'" if near else None,
            )
        return found

    def function(
        self, schema: str, name: str, given: Collection[str], *, is_body: bool
    ) -> Function:
        """The function that takes these arguments; ``is_body``: or the body as a whole."""
        candidates = self.functions.get((schema, name), ())
        found = [one for one in candidates if one.body_type is None and one.takes(given)]
        if not found and is_body:
            found = [one for one in candidates if one.body_type in {"json", "jsonb"}]
        if len(found) > 1:
            told = ", ".join(one.signature() for one in found)
            raise Refusal(
                300,
                "PGRST203",
                f"Could not choose the best candidate function between: {told}",
                hint="Try renaming the parameters or the function itself in the database so "
                "function overloading can be resolved",
            )
        if not found:
            raise self._no_function(schema, name, sorted(given), is_body=is_body)
        return found[0]

    def _no_function(self, schema: str, name: str, given: list[str], *, is_body: bool) -> Refusal:
        named = f"{schema}.{name}"
        parameters = f"parameter{'s' if len(given) > 1 else ''} {', '.join(given)}"
        body = " or with a single unnamed json/jsonb parameter" if is_body else ""
        candidates = self.functions.get((schema, name), ())
        hint = None
        if not candidates:
            near = _nearest(name, [n for s, n in self.functions if s == schema])
            hint = f"Perhaps you meant to call the function {schema}.{near}" if near else None
        elif given:
            near_call = candidates[0].signature()
            hint = f"Perhaps you meant to call the function {near_call}"
        searched = f"with {parameters}" if given else "without parameters"
        called = f"{named}({', '.join(given)})" if given else f"{named} without parameters"
        return Refusal(
            404,
            "PGRST202",
            f"Could not find the function {called} in the schema cache",
            details=f"Searched for the function {named} {searched}{body}, but no matches were "
            "found in the schema cache.",
            hint=hint,
        )


def load_schema(connection: Connection, schemas: tuple[str, ...]) -> SchemaCache:
    """What the exposed schemas hold now."""
    found = [json.loads(row[0] or b"") for row in connection.run(_RELATIONS)]
    by_oid = {one["oid"]: one for one in found}
    relations = {
        (one["schema"], one["name"]): _relation(one, by_oid)
        for one in found
        if one["schema"] in schemas
    }
    functions: dict[tuple[str, str], tuple[Function, ...]] = {}
    statement = Statement()
    statement.value("{" + ",".join(f'"{name}"' for name in schemas) + "}")
    for row in connection.run(_FUNCTIONS, statement):
        one = _function(json.loads(row[0] or b""))
        key = (one.schema, one.name)
        functions[key] = (*functions.get(key, ()), one)
    settings: dict[str, dict[str, str]] = {}
    for role, name, value in connection.run(_ROLE_SETTINGS):
        of_role = settings.setdefault((role or b"").decode(), {})
        of_role[(name or b"").decode()] = (value or b"").decode()
    return SchemaCache(relations, functions, settings)


def _relation(one: Mapping[str, Any], by_oid: Mapping[int, Any]) -> Relation:
    names = {number: name for number, name, _, _ in one["columns"]}
    columns = {name: Column(name, kind, default) for _, name, kind, default in one["columns"]}
    key = tuple(names[number] for number in _key(one, by_oid))
    return Relation(one["schema"], one["name"], columns, key, one["insertable"])


def _key(one: Mapping[str, Any], by_oid: Mapping[int, Any], depth: int = 0) -> list[int]:
    """The numbers of the columns that are the primary key, or show that of a table behind."""
    if not one["view"] or depth > 8:
        return list(one["key"])
    shown = {(table, column): number for number, table, column in one["sources"]}
    for table in dict.fromkeys(table for _, table, _ in one["sources"]):
        behind = by_oid.get(table)
        key = _key(behind, by_oid, depth + 1) if behind else []
        if key and all((table, column) in shown for column in key):
            return [shown[table, column] for column in key]
    return []


def _function(one: Mapping[str, Any]) -> Function:
    return Function(
        one["schema"],
        one["name"],
        one["volatility"],
        one["set"],
        one["rows"],
        one["void"],
        tuple((name, kind) for name, kind in one["arguments"]),
        one["defaults"],
    )


def _nearest(name: str, names: list[str]) -> str | None:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return near[0] if near else None
