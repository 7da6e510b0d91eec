"""JSON as session logs contain it: mostly clean, sometimes only nearly."""

from __future__ import annotations

import json
from typing import Any

import orjson


class MalformedLine(Exception):
    """A line that is not a JSON document; ``reason`` is a short, stable word for it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def loads(line: bytes) -> tuple[Any, bool]:
    """The value of one line, and whether its bytes were not valid UTF-8.

    orjson reads nearly every line. What it refuses although JavaScript accepts it (lone surrogate
    escapes, NaN) goes to the standard library; bytes that are not UTF-8 are replaced. Duplicate
    keys: the last one wins, as in ``JSON.parse``.
    """
    try:
        return orjson.loads(line), False
    except orjson.JSONDecodeError:
        pass
    try:
        text, damaged = line.decode(), False
    except UnicodeDecodeError:
        text, damaged = line.decode("utf-8", "replace"), True
    try:
        return json.loads(text), damaged
    except RecursionError as error:
        raise MalformedLine("nested too deeply") from error
    except ValueError as error:
        reason = "not JSON" if isinstance(error, json.JSONDecodeError) else "number out of range"
        raise MalformedLine(reason) from error


def compact(value: Any) -> str:
    """Short JSON text of a value, as it is shown and searched."""
    try:
        return orjson.dumps(value).decode()
    except (TypeError, ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
