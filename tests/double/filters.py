"""Conditions, selections and orders of a query string as SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.double.database import Statement, literal, quoted
from tests.double.refusal import Refusal

_OPERATORS = {
    "eq": "=", "neq": "<>", "gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "like": "like",
    "ilike": "ilike", "match": "~", "imatch": "~*", "cs": "@>", "cd": "<@", "ov": "&&",
    "isdistinct": "is distinct from",
}  # fmt: skip
_ALL = (*_OPERATORS, "in", "is")
_IS = {"null": "null", "true": "true", "false": "false", "unknown": "unknown"}
_RESERVED = {"select", "order", "limit", "offset", "columns", "on_conflict", "or", "and"}
_AGGREGATE = re.compile(r"^(?:.*\.)?(?:count|sum|avg|min|max)\(\)")
_CAST = re.compile(r"^[A-Za-z_][\w \[\]]*$")


@dataclass(frozen=True)
class Window:
    """Which rows of all that were found are wanted."""

    offset: int = 0
    limit: int | None = None

    def sql(self) -> str:
        """The end of a select."""
        limit = f" limit {self.limit}" if self.limit is not None else ""
        return limit + (f" offset {self.offset}" if self.offset else "")

    def at_most(self, rows: int | None) -> Window:
        """The same, with no more rows than the server gives."""
        if rows is None:
            return self
        return Window(self.offset, rows if self.limit is None else min(rows, self.limit))


def is_condition(name: str, value: str) -> bool:
    """Whether a parameter is a condition and not an argument of a function."""
    if name in {"or", "and", "not.or", "not.and"}:
        return True
    word = value.removeprefix("not.").partition(".")[0]
    return word in _ALL


def where(query: Sequence[tuple[str, str]], source: str, statement: Statement) -> str:
    """The where clause for the conditions in a query; ``source`` is what columns are taken from."""
    parts = []
    for name, value in query:
        if name in {"or", "and", "not.or", "not.and"}:
            parts.append(_tree(name, value, source, statement))
        elif name not in _RESERVED:
            parts.append(_condition(name, value, source, statement))
    return f" where {' and '.join(parts)}" if parts else ""


def selection(text: str | None, source: str) -> str:
    """The list of a select."""
    if not text:
        return f"{source}.*"
    return ", ".join(_selected(part, source) for part in _split(text))


def selected_columns(text: str | None) -> list[str] | None:
    """The columns that a selection reads; None for all."""
    names = []
    for part in _split(text or "*"):
        name = re.split(r"::|->", _without_alias(part)[1])[0]
        if name == "*":
            return None
        names.append(name)
    return list(dict.fromkeys(names))


def ordering(text: str | None, source: str) -> str:
    """The order clause."""
    if not text:
        return ""
    parts = []
    for part in _split(text):
        column, *words = part.split(".")
        written = _column(column, source)
        for word in words:
            known = {"asc": " asc", "desc": " desc", "nullsfirst": " nulls first",
                     "nullslast": " nulls last"}.get(word)  # fmt: skip
            if known is None:
                raise _unparsed("order", text, 1, f'unexpected "{word[:1]}"')
            written += known
        parts.append(written)
    return f" order by {', '.join(parts)}"


def window(query: Sequence[tuple[str, str]], header: str | None) -> Window:
    """The rows that the query asks for, or else the ``Range`` header."""
    given = {name: value for name, value in query if name in {"limit", "offset"}}
    if given:
        limit = _whole(given.get("limit"))
        if limit is not None and limit < 0:
            raise _bad_range("Limit should be greater than or equal to zero.")
        return Window(max(0, _whole(given.get("offset")) or 0), limit)
    found = re.fullmatch(r"(\d+)-(\d*)", header or "")
    if not found:
        return Window()
    first, last = int(found[1]), int(found[2]) if found[2] else None
    if last is None:
        return Window(first)
    if last < first:
        raise _bad_range(
            "The lower boundary must be lower than or equal to the upper boundary in the Range "
            "header."
        )
    return Window(first, last - first + 1)


def _selected(part: str, source: str) -> str:
    alias, rest = _without_alias(part)
    if _AGGREGATE.match(rest):
        raise Refusal(400, "PGRST123", "Use of aggregate functions is not allowed")
    if "(" in rest:
        raise Refusal(400, "PGRST200", "Could not find a relationship in the schema cache")
    expression, _, cast = rest.partition("::")
    if expression == "*":
        return f"{source}.*"
    written = _column(expression, source)
    if cast:
        if not _CAST.match(cast):
            raise _unparsed("select parameter", part, 1, 'unexpected ":"')
        written = f"cast({written} as {cast})"
    name = alias or re.split(r"->>?", expression)[-1]
    return f"{written} as {quoted(name)}"


def _without_alias(part: str) -> tuple[str | None, str]:
    found = re.fullmatch(r"([^:()]+):([^:].*)", part)
    return (found[1], found[2]) if found else (None, part)


def _column(text: str, source: str) -> str:
    name, *path = re.split(r"(->>?)", text)
    column = f"{source}.{quoted(name)}"
    if not path:
        return column
    column = f"to_jsonb({column})"
    for arrow, key in zip(path[::2], path[1::2], strict=True):
        column += f"{arrow}{key if re.fullmatch(r'-?[0-9]+', key) else literal(key)}"
    return f"({column})"


def _condition(name: str, text: str, source: str, statement: Statement) -> str:
    negated = text.startswith("not.")
    operator, _, value = text[4 * negated :].partition(".")
    if operator not in _ALL or "." not in text[4 * negated :]:
        raise _no_operator(text)
    column = _column(name, source)
    if operator == "is":
        if value.lower() not in _IS:
            raise _unparsed("filter", text, 4, f'unexpected "{value[:1]}"')
        written = f"{column} is {_IS[value.lower()]}"
    elif operator == "in":
        written = f"{column} = any ({statement.value(_array(value))})"
    else:
        if operator in {"like", "ilike"}:
            value = value.replace("*", "%")
        written = f"{column} {_OPERATORS[operator]} {statement.value(value)}"
    return f"not ({written})" if negated else written


def _tree(name: str, text: str, source: str, statement: Statement) -> str:
    if not (text.startswith("(") and text.endswith(")")):
        raise _unparsed("logic tree", text, 1, f'unexpected "{text[:1]}"')
    parts = []
    for part in _split(text[1:-1]):
        inner = re.match(r"((?:not\.)?(?:or|and))(\(.*\))$", part)
        if inner:
            parts.append(_tree(inner[1], inner[2], source, statement))
        else:
            column, _, condition = part.partition(".")
            parts.append(_condition(column, condition, source, statement))
    between = f" {name.removeprefix('not.')} "
    joined = f"({between.join(parts)})"
    return f"not {joined}" if name.startswith("not.") else joined


def _array(text: str) -> str:
    """The list behind ``in`` as an array constant."""
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    elements = []
    for element in _split(inner):
        if len(element) > 1 and element.startswith('"') and element.endswith('"'):
            element = re.sub(r"\\(.)", r"\1", element[1:-1])
        escaped = element.replace("\\", "\\\\").replace('"', '\\"')
        elements.append(f'"{escaped}"')
    return "{" + ",".join(elements) + "}"


def _split(text: str) -> list[str]:
    """The parts between commas that stand neither in parentheses nor in quotes."""
    parts = [""]
    for character, is_plain in _characters(text):
        if character == "," and is_plain:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part]


def _characters(text: str) -> Iterator[tuple[str, bool]]:
    depth = 0
    is_quoted = is_escaped = False
    for character in text:
        yield character, depth == 0 and not is_quoted
        if is_escaped:
            is_escaped = False
        elif character == "\\":
            is_escaped = True
        elif character == '"':
            is_quoted = not is_quoted
        elif not is_quoted:
            depth += (character == "(") - (character == ")")


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None


def _bad_range(details: str) -> Refusal:
    return Refusal(416, "PGRST103", "Requested range not satisfiable", details=details)


def _no_operator(text: str) -> Refusal:
    read = max((len(name) for name in _ALL if text.startswith(name)), default=0)
    unexpected = f'unexpected "{text[read]}"' if text[read:] else "unexpected end of input"
    expecting = "operator (eq, gt, ...)" if read else '"not" or operator (eq, gt, ...)'
    return _unparsed("filter", text, read + 1, f"{unexpected} expecting {expecting}")


def _unparsed(what: str, text: str, column: int, details: str) -> Refusal:
    message = f'"failed to parse {what} ({text})" (line 1, column {column})'
    return Refusal(400, "PGRST100", message, details=details)
