"""A request as PostgREST understands it: where it goes, what it prefers, and what it brings."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import unquote_to_bytes

from tests.double.refusal import Refusal

_KNOWN = {
    "resolution": ("merge-duplicates", "ignore-duplicates"),
    "missing": ("default", "null"),
    "return": ("representation", "headers-only", "minimal"),
    "count": ("exact", "planned", "estimated"),
    "tx": ("commit", "rollback"),
    "handling": ("strict", "lenient"),
}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class UndecodableQueryError(Exception):
    """The query is not UTF-8; the real server breaks at it."""


@dataclass(frozen=True)
class Preferences:
    """The known preferences, and the others as they were written."""

    values: dict[str, str]
    others: tuple[str, ...]

    def get(self, name: str) -> str | None:
        """The value of a preference."""
        return self.values.get(name)

    def applied(self, *names: str) -> list[tuple[str, str]]:
        """The header that says which of these were applied."""
        told = [f"{name}={self.values[name]}" for name in names if name in self.values]
        return [("Preference-Applied", ", ".join(told))] if told else []

    def check(self) -> None:
        """Refuse unknown preferences where the client is strict about them."""
        if self.get("handling") == "strict" and self.others:
            raise Refusal(
                400,
                "PGRST122",
                "Invalid preferences given with handling=strict",
                details=f"Invalid preferences: {', '.join(self.others)}",
            )

    def max_affected(self) -> int | None:
        """How many rows may change, where the client is strict about it."""
        value = self.get("max-affected") if self.get("handling") == "strict" else None
        return int(value) if value is not None else None


@dataclass(frozen=True)
class Request:
    """One request; ``headers`` have lower-case names."""

    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    body: bytes = b""
    query: list[tuple[str, str]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """The first header of a name."""
        return next((value for key, value in self.headers if key == name), None)

    def parameter(self, name: str) -> str | None:
        """The last value of a parameter of the query."""
        return next((value for key, value in reversed(self.query) if key == name), None)


@dataclass(frozen=True)
class Payload:
    """A body of JSON, and the keys to take from its objects: of ``columns=`` or of the first."""

    json: bytes
    keys: tuple[str, ...] = ()
    is_object: bool = False


def parse_query(target: str) -> list[tuple[str, str]]:
    """The parameters of a target in their order."""
    text = target.partition("?")[2]
    try:
        return [
            (_unescaped(name), _unescaped(value))
            for name, _, value in (part.partition("=") for part in text.split("&") if part)
        ]
    except UnicodeDecodeError:
        raise UndecodableQueryError from None


def preferences(request: Request) -> Preferences:
    """What all ``Prefer`` headers of a request say; the first of each name counts."""
    values: dict[str, str] = {}
    others: list[str] = []
    written = [value for name, value in request.headers if name == "prefer"]
    for text in [part.strip() for value in written for part in value.split(",")]:
        name, _, value = text.partition("=")
        is_number = name == "max-affected" and value.isdigit()
        if value in _KNOWN.get(name, ()) or is_number or name == "timezone":
            values.setdefault(name, value)
        elif text:
            others.append(text)
    return Preferences(values, tuple(others))


def payload(request: Request, *, is_call: bool) -> Payload:
    """The body, which is parsed unless ``columns=`` says what is in it."""
    media = (request.header("content-type") or "application/json").partition(";")[0].strip()
    if media == "text/csv" and not is_call:
        return _from_csv(request.body)
    if media == "application/json":
        named = request.parameter("columns")
        if named is not None:
            keys = tuple(sorted({part.strip() for part in named.split(",")}))
            return Payload(request.body, keys, request.body.lstrip().startswith(b"{"))
        if is_call and not request.body:
            return Payload(b"{}", is_object=True)
        return _from_json(request.body)
    raise Refusal(400, "PGRST102", f"Content-Type not acceptable: {media}")


def _from_json(body: bytes) -> Payload:
    value = _parsed(body)
    if isinstance(value, dict):
        return Payload(body, tuple(sorted(value)), is_object=True)
    if not isinstance(value, list) or not value:
        # whatever else there is counts as no rows at all
        return Payload(b"[]")
    first = value[0]
    if not isinstance(first, dict) or any(
        not isinstance(one, dict) or one.keys() != first.keys() for one in value
    ):
        raise Refusal(400, "PGRST102", "All object keys must match")
    return Payload(body, tuple(sorted(first)))


def _from_csv(body: bytes) -> Payload:
    try:
        lines = list(csv.reader(io.StringIO(body.decode(), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error):
        raise Refusal(400, "PGRST102", "All lines must have same number of fields") from None
    if not lines or any(len(line) != len(lines[0]) for line in lines):
        raise Refusal(400, "PGRST102", "All lines must have same number of fields")
    names = lines[0]
    rows = [
        {name: None if text == "NULL" else text for name, text in zip(names, line, strict=True)}
        for line in lines[1:]
    ]
    return Payload(json.dumps(rows).encode(), tuple(sorted(names)))


def _parsed(body: bytes) -> Any:
    try:
        value = json.loads(body.decode(), parse_constant=_not_json, parse_int=str, parse_float=str)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Refusal(400, "PGRST102", "Empty or invalid json") from None
    return value


def _not_json(constant: str) -> NoReturn:
    raise ValueError(constant)


def _unescaped(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ")).decode()
