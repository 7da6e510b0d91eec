"""A whole record inside a damaged line.

The two ways in which clients damage a line are a record that was cut off and the next one written
straight behind it, and two records without the newline between them. In both the last record of the
line is whole.
"""

from __future__ import annotations

from typing import Any

from recall.jsontext import MalformedLine, loads

_OPENINGS = (b'{"parentUuid":', b'{"type":', b'{"timestamp":', b'{"uuid":', b'{"id":')
#: How many places are tried from the end of the line; a damaged line holds two or three records.
_TRIES = 64


def salvage(line: bytes) -> dict[str, Any] | None:
    """The last whole record of a line that is not JSON, or ``None``.

    Only a record that ends with the line counts, and it must not start the line: a nested object
    that happens to parse has no record type and is not taken.
    """
    end = len(line)
    for _ in range(_TRIES):
        start = max(line.rfind(opening, 1, end) for opening in _OPENINGS)
        if start < 0:
            return None
        try:
            value, _damaged = loads(line[start:])
        except MalformedLine:
            value = None
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            return value
        end = start + 1
    return None
