"""Paths into JSON values: keys with dots between, each with ``[0]`` or ``[*]`` behind it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_STEP = re.compile(r"\[(\d+|\*)\]|([^.\[\]]+)")


@dataclass(frozen=True, slots=True)
class JsonPath:
    """One path. A step is a key, an index, or ``None`` for every item of a list."""

    steps: tuple[str | int | None, ...]

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """The path of a text whose form was checked where it was declared."""
        return cls(tuple(_step(*match.groups()) for match in _STEP.finditer(text)))

    def find(self, value: object) -> list[Any]:
        """Every value at the path, in order; nulls and what is not there are left out."""
        found = [value]
        for step in self.steps:
            found = [item for holder in found for item in _below(holder, step)]
        return [item for item in found if item is not None]


def first_found(paths: Sequence[JsonPath], value: object) -> list[Any]:
    """What the first path gives that gives anything."""
    return next(filter(None, (path.find(value) for path in paths)), [])


def _step(index: str | None, key: str | None) -> str | int | None:
    if index is None:
        return key
    return None if index == "*" else int(index)


def _below(holder: object, step: str | int | None) -> list[Any]:
    if isinstance(step, str):
        return [holder[step]] if isinstance(holder, Mapping) and step in holder else []
    if not isinstance(holder, list):
        return []
    if step is None:
        return holder
    return holder[step : step + 1]
