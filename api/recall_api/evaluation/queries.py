"""Labelled queries: one JSON object a line, checked as a whole before anything runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from recall.errors import SourceError, UsageError
from recall_api.evaluation.scores import ANSWERS
from recall_api.models import SearchParams

Split = Literal["tune", "report"]

#: Queries of this class have no answer; to find nothing is right.
NONE_CLASS = "none-of-these"
_FIELDS = frozenset({"id", "class", "query", "filters", "relevant", "split"})
_NEEDED = ("id", "class", "query", "relevant")
_SPLITS = get_args(Split)
_GRADES = (1, 2, 3)
#: Parameters of a search that are no filters.
_NOT_FILTERS = frozenset({"q", "mode", "limit", "cursor", "strict", "min_similarity"})
_KEY = re.compile(r"(?P<session>[^:#]+:.+)#(?P<ordinal>\d+)(?:\.(?P<part>\d+))?")


@dataclass(frozen=True, slots=True)
class Query:
    """What a person would type, and what would answer it.

    ``relevant`` maps message keys to grades: 3 answers the question, 2 helps, 1 is about it.
    """

    id: str
    kind: str
    text: str
    filters: Mapping[str, Any]
    relevant: Mapping[str, int]
    split: Split | None

    @property
    def is_answerable(self) -> bool:
        """Whether there is anything to find."""
        return bool(self.relevant)

    def sessions(self) -> set[str]:
        """The sessions of its relevant messages, as ``<source>:<external id>``."""
        return {key.rpartition("#")[0] for key in self.relevant}


class _Wrong(Exception):
    """What is wrong with a line."""


def message_key(session_key: str, ordinal: int, part: int | None) -> str:
    """``<source>:<external id>#<ordinal>.<part>``: the same message on every machine.

    Without ``part`` it names the record as a whole, and any part of it answers.
    """
    source, _, rest = session_key.partition(":")
    external_id = rest.partition(":")[2]
    place = f"{ordinal}" if part is None else f"{ordinal}.{part}"
    return f"{source}:{external_id}#{place}"


def read_queries(path: Path) -> list[Query]:
    """The queries of a file. Raises :class:`UsageError` that names the first line in error."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise SourceError(f"`{path}` cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"`{path}` is not UTF-8") from None
    queries = list(_checked(path, text))
    if not queries:
        raise UsageError(f"`{path}` has no queries")
    return queries


def _checked(path: Path, text: str) -> Iterator[Query]:
    lines_of: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            query = parse_query(line)
            if query.id in lines_of:
                raise _Wrong(f"the id `{query.id}` is that of line {lines_of[query.id]}")
        except _Wrong as error:
            raise UsageError(f"`{path}` line {number}: {error}") from None
        lines_of[query.id] = number
        yield query


def parse_query(line: str) -> Query:
    """One query; what is wrong with it is told without the line's place."""
    try:
        value = json.loads(line, object_pairs_hook=_without_repeats)
    except ValueError as error:
        raise _Wrong(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _Wrong("not a JSON object")
    if unknown := sorted(value.keys() - _FIELDS):
        raise _Wrong(f"unknown field `{unknown[0]}`")
    if missing := [name for name in _NEEDED if name not in value]:
        raise _Wrong(f"`{missing[0]}` is missing")
    kind = _text(value, "class")
    relevant = _relevant(value["relevant"])
    if relevant and kind == NONE_CLASS:
        raise _Wrong(f"a query of the class `{NONE_CLASS}` has no relevant messages")
    if not relevant and kind != NONE_CLASS:
        raise _Wrong(f"`relevant` is empty; only the class `{NONE_CLASS}` has no answer")
    if relevant and max(relevant.values()) < ANSWERS:
        raise _Wrong(f"no relevant message has the grade {ANSWERS} or more, so none is an answer")
    text = _text(value, "query")
    return Query(
        _text(value, "id"), kind, text, _filters(value, text), relevant, _split(value.get("split"))
    )


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name, item in pairs:
        if name in value:
            raise _Wrong(f"`{name}` is given twice")
        value[name] = item
    return value


def _text(value: Mapping[str, Any], name: str) -> str:
    text = value[name]
    if not isinstance(text, str) or not text.strip():
        raise _Wrong(f"`{name}` has to be a text that is not empty")
    return text


def _split(value: object) -> Split | None:
    if value is not None and value not in _SPLITS:
        raise _Wrong(f"`split` has to be one of {', '.join(_SPLITS)}")
    return cast(Split | None, value)


def _relevant(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise _Wrong("`relevant` has to be an object of message keys and grades")
    for key, grade in value.items():
        if not _KEY.fullmatch(key):
            raise _Wrong(
                f"`{key}` is not a message key; it looks like"
                " `claude-code:<session id>#<ordinal>.<part>`"
            )
        if type(grade) is not int or grade not in _GRADES:
            raise _Wrong(f"the grade of `{key}` has to be 1, 2 or 3")
    return value


def _filters(value: Mapping[str, Any], text: str) -> dict[str, Any]:
    filters = value.get("filters", {})
    if not isinstance(filters, dict):
        raise _Wrong("`filters` has to be an object")
    possible = SearchParams.model_fields.keys() - _NOT_FILTERS
    if unknown := sorted(filters.keys() - possible):
        raise _Wrong(f"no such filter: `{unknown[0]}`; there are {', '.join(sorted(possible))}")
    try:
        SearchParams.read({"q": text, **filters})
    except UsageError as error:
        raise _Wrong(error.message) from None
    return filters
