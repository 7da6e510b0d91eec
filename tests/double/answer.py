"""What is sent back: media types, ranges and the canonical location of a read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from tests.double.filters import Window
from tests.double.refusal import Refusal

JSON = "application/json"
OBJECT = "application/vnd.pgrst.object+json"
STRIPPED = "application/vnd.pgrst.array+json;nulls=stripped"
CSV = "text/csv"
VARY = ("Vary", "Accept, Prefer, Range")
_ARRAYS = {"*/*", "application/*", JSON, "application/vnd.pgrst.array+json"}


@dataclass(frozen=True)
class Answer:
    """A status line, headers in their order, and a body."""

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    is_chunked: bool = False
    #: The connection ends after it, and no header says so.
    is_crash: bool = False


def media_type(accept: str | None) -> str:
    """The media type to answer with; the first one of ``Accept`` that there is."""
    wanted = [part.strip() for part in (accept or "*/*").split(",")]
    for part in wanted:
        name = part.partition(";")[0].strip()
        if part.replace(" ", "") == STRIPPED:
            return STRIPPED
        if name in _ARRAYS:
            return JSON
        if name in {OBJECT, CSV}:
            return name
    raise Refusal(406, "PGRST107", f"None of these media types are available: {', '.join(wanted)}")


def body_sql(media: str) -> str:
    """The body as SQL over the rows ``_postgrest_t`` and the statement ``pgrst_source``."""
    if media == CSV:
        return (
            "(select coalesce(string_agg(a.k, ','), '') from (select json_object_keys(r)::text as"
            " k from (select row_to_json(hh) as r from pgrst_source as hh limit 1) s) a)"
            " || E'\\n' || coalesce(string_agg("
            "substring(_postgrest_t::text, 2, length(_postgrest_t::text) - 2), E'\\n'), '')"
        )
    if media == OBJECT:
        return "coalesce((json_agg(_postgrest_t) -> 0)::text, 'null')"
    rows = "json_strip_nulls(row_to_json(_postgrest_t))" if media == STRIPPED else "_postgrest_t"
    return f"coalesce(json_agg({rows}), '[]')::text"


def content_type(media: str) -> tuple[str, str]:
    """The header for a media type."""
    return ("Content-Type", f"{media}; charset=utf-8")


def content_range(first: int, rows: int, total: int | None) -> tuple[str, str]:
    """The header that says which rows these are, and of how many."""
    is_empty = rows == 0 or total == 0
    shown = "*" if is_empty else f"{first}-{first + rows - 1}"
    return ("Content-Range", f"{shown}/{'*' if total is None else total}")


def check_single(media: str, rows: int) -> None:
    """Refuse what is no single object, where one was asked for."""
    if media == OBJECT and rows != 1:
        raise Refusal(
            406,
            "PGRST116",
            "Cannot coerce the result to a single JSON object",
            details=f"The result contains {rows} rows",
        )


def ranged(wanted: Window, rows: int, total: int | None, headers: Sequence[tuple[str, str]]) -> int:
    """The status of a read, or the refusal of one that begins behind the last row."""
    if total is None:
        return 200
    if wanted.offset > total:
        raise Refusal(
            416,
            "PGRST103",
            "Requested range not satisfiable",
            details=f"An offset of {wanted.offset} was requested, but there are only {total} rows.",
            headers=(content_range(wanted.offset, 0, total), *headers, VARY),
        )
    return 206 if rows < total else 200


def content_location(path: str, query: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The header that names what was read: parameters in order, values of one name together."""
    values: dict[str, list[str]] = {}
    for name, value in query:
        values.setdefault(quote(name, safe=""), []).append(quote(value, safe=""))
    told = "&".join(f"{name}={','.join(values[name])}" for name in sorted(values))
    return ("Content-Location", path + (f"?{told}" if told else ""))
