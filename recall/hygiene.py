"""Text that PostgreSQL and JSON accept, and what was changed to get it."""

from __future__ import annotations

import re
from typing import Any

REPLACEMENT = "\ufffd"
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> tuple[str, bool]:
    """The text without NUL and lone surrogates, and whether anything was replaced.

    PostgreSQL rejects U+0000 in ``text``, and UTF-8 cannot carry a lone surrogate; clients write
    both when they cut strings by UTF-16 unit. Surrogate halves that belong together are joined.
    """
    damaged = False
    if "\x00" in text:
        text = text.replace("\x00", REPLACEMENT)
        damaged = True
    if not text.isascii() and _SURROGATE.search(text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        damaged = True
    return text, damaged


def clean_json(value: Any) -> Any:
    """A JSON value whose texts are all clean, keys included, so that ``jsonb`` accepts it."""
    if isinstance(value, str):
        return clean(value)[0]
    if isinstance(value, dict):
        return {clean_json(key): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]
    return value
