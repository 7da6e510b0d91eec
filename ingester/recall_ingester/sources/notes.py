"""What a client keeps about an entry of a ledger or memory, as JSON that the store accepts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from recall_ingester.sources.toolinput import json_text, leaves, stub_images

#: Deeper values become their JSON text: what cleans and stores fields walks them by recursion.
_MAX_DEPTH = 20


def plain_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without nulls, with images as stubs and numbers that JSON cannot write as text."""
    return {key: _plain(item, 1) for key, item in value.items() if item is not None}


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return stub_images(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping | list) and depth >= _MAX_DEPTH:
        return json_text(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    return value


def has_text(value: object) -> bool:
    """Whether there is anything to read in a value."""
    return any(leaf.strip() for leaf in leaves(value))
