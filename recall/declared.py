"""Sources that a person declares: the ``[[source]]`` tables of ``config.toml``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from recall.errors import ConfigError
from recall.records import Kind, Role

#: What a field of a record can be compared with.
Scalar = str | int | float | bool

_NAME = re.compile(r"[a-z0-9-]+")
_STEP = r"[^.\[\]]+(?:\[(?:\d{1,9}|\*)\])*"
_FIELD = re.compile(rf"{_STEP}(?:\.{_STEP})*")
_HINT = "see docs/sources.md for what a `[[source]]` table can hold"


@dataclass(frozen=True, slots=True)
class DeclaredSource:
    """One ``[[source]]`` table: append-only JSON Lines of a client of your own.

    Every field is a tuple of paths into a record (``message.parts[*].text``); the first one that
    gives something counts. ``roles`` and ``kinds`` translate the client's words. A record is read
    if it has one of the values of every field in ``only`` and none of a field in ``skip``.
    """

    name: str
    paths: tuple[str, ...]
    text: tuple[str, ...]
    session: tuple[str, ...] = ()
    role: tuple[str, ...] = ()
    time: tuple[str, ...] = ()
    project: tuple[str, ...] = ()
    branch: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    tool: tuple[str, ...] = ()
    title: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    roles: Mapping[str, Role] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    default_role: Role = "system"
    skip: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    only: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)


def read_declared(tables: object, file: Path) -> tuple[DeclaredSource, ...]:
    """The ``[[source]]`` tables of a file, or :class:`ConfigError` for the first mistake in one."""
    if not isinstance(tables, list) or not all(isinstance(item, dict) for item in tables):
        raise ConfigError(f"`source` in `{file}` is not a list of tables", hint="use `[[source]]`")
    found: dict[str, DeclaredSource] = {}
    for number, table in enumerate(tables, 1):
        try:
            source = _read(table)
            if source.name in found:
                raise ValueError(f"has the name `{source.name}` of another one")
        except ValueError as error:
            raise ConfigError(f"source {number} in `{file}` {error}", hint=_HINT) from error
        found[source.name] = source
    return tuple(found.values())


def _read(table: Mapping[str, Any]) -> DeclaredSource:
    for key in table:
        if key not in _KEYS:
            raise ValueError(f"has the unknown key `{key}`")
    for key in ("name", "paths", "text"):
        if table.get(key) in (None, "", []):
            raise ValueError(f"has no `{key}`")
    given: dict[str, Any] = {}
    for key, value in table.items():
        try:
            given[key] = _KEYS[key](value)
        except ValueError as error:
            raise ValueError(f"has a `{key}` that {error}") from error
    return DeclaredSource(**given)


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("is not made of a-z, 0-9 and -")
    return value


def _texts(value: object) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise ValueError("is neither a text nor a list of texts")
    return tuple(items)


def _patterns(value: object) -> tuple[str, ...]:
    patterns = _texts(value)
    for pattern in patterns:
        if not pattern.startswith(("/", "~/")) or ".." in pattern.split("/"):
            raise ValueError(f"holds `{pattern}`; give it from `/` or `~/` on, without `..`")
    return patterns


def _field_path(value: str) -> str:
    if not _FIELD.fullmatch(value):
        raise ValueError(f"holds `{value}`, which is not of the form `a.b[0].c[*]`")
    return value


def _field_paths(value: object) -> tuple[str, ...]:
    return tuple(_field_path(item) for item in _texts(value))


def _one_of(allowed: tuple[str, ...]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"is not one of {', '.join(allowed)}")
        return value

    return read


def _table(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError('is not a table, such as `{ a = "b" }`')
    return value


def _words(allowed: tuple[str, ...]) -> Callable[[object], dict[str, str]]:
    def read(value: object) -> dict[str, str]:
        table = _table(value)
        for word, ours in table.items():
            if ours not in allowed:
                raise ValueError(f"has for `{word}` none of {', '.join(allowed)}")
        return {word: str(ours) for word, ours in table.items()}

    return read


def _matches(value: object) -> dict[str, tuple[Scalar, ...]]:
    found: dict[str, tuple[Scalar, ...]] = {}
    for path, wanted in _flat("", _table(value)):
        items = wanted if isinstance(wanted, list) else [wanted]
        values = tuple(item for item in items if isinstance(item, str | int | float | bool))
        if not items or len(values) < len(items):
            raise ValueError(f"has for `{path}` no text, number or truth value")
        found[_field_path(path)] = values
    return found


def _flat(prefix: str, table: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """The items of a table; TOML reads ``{ a.b = 1 }`` as a table in a table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield prefix + key, value


_FIELDS = (
    "text", "session", "role", "time", "project", "branch", "model", "tool", "title", "kind",
)  # fmt: skip
#: What a ``[[source]]`` table can hold, and how it is read.
_KEYS: dict[str, Callable[[object], Any]] = {
    "name": _name,
    "paths": _patterns,
    **dict.fromkeys(_FIELDS, _field_paths),
    "roles": _words(get_args(Role)),
    "kinds": _words(get_args(Kind)),
    "default_role": _one_of(get_args(Role)),
    "skip": _matches,
    "only": _matches,
}
