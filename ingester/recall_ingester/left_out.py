"""Which line of a source's ``leaves_out`` covers a file, or a string inside a record.

The syntax is that of :class:`recall_ingester.sources.base.LeavesOut`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from recall_ingester.sources.base import LeavesOut

#: A pattern without a slash that ends in one of these names files; any other is a path of keys.
FILE_SUFFIXES = frozenset(
    {
        "backup", "db", "html", "index", "json", "jsonl", "log", "md", "sqlite", "tmp", "toml",
        "txt", "vscdb", "yaml", "zip", "zst",
    }
)  # fmt: skip

_ANY = "**"


@dataclass(frozen=True, slots=True)
class _Step:
    """One part of a path: any number of keys (``pattern`` is ``None``), one key, or, with a
    ``condition``, no key at all but the value that this key must have."""

    pattern: re.Pattern[str] | None
    condition: str | None = None


class LeftOut:
    """All lines of one source."""

    def __init__(self, lines: Iterable[LeavesOut]) -> None:
        self._files: list[tuple[re.Pattern[str], str]] = []
        self._paths: list[tuple[tuple[_Step, ...], str]] = []
        for line in lines:
            for where in line.where.split(", "):
                if _names_files(where):
                    self._files.append((_file_pattern(where), line.why))
                else:
                    self._paths.append((tuple(map(_step, where.split("."))), line.why))

    def file(self, relative: str) -> str | None:
        """Why a file is left out; ``relative`` is its path below the root, or its name in a zip."""
        return next((why for found, why in self._files if found.fullmatch(relative)), None)

    def value(self, path: Sequence[str], holders: Sequence[object]) -> str | None:
        """Why the value at a path of a record is left out.

        ``holders`` are the mappings and lists that the path goes through, beginning with the
        record: ``path[n]`` is a key or an index of ``holders[n]``.
        """
        for steps, why in self._paths:
            if _covers(steps, path, holders):
                return why
        return None


def _names_files(where: str) -> bool:
    if "=" in where:
        return False
    return "/" in where or where.rpartition(".")[2] in FILE_SUFFIXES


def _file_pattern(where: str) -> re.Pattern[str]:
    # What stands below a folder that a pattern names is covered too.
    parts = where.removeprefix("**/").rstrip("/").split("/")
    written = "/".join(".*" if part == _ANY else _glob(part, "[^/]*") for part in parts)
    below = "/.*" if where.endswith("/") else "(?:/.*)?"
    return re.compile(f"(?:.*/)?{written.replace('/.*/', '/(?:.*/)?')}{below}", re.DOTALL)


def _step(part: str) -> _Step:
    key, is_condition, value = part.partition("=")
    if is_condition:
        return _Step(re.compile(_glob(value, ".*"), re.DOTALL), key)
    return _Step(None if part == _ANY else re.compile(_glob(part, ".*"), re.DOTALL))


def _glob(text: str, star: str) -> str:
    return star.join(re.escape(piece) for piece in text.split("*"))


def _covers(steps: Sequence[_Step], path: Sequence[str], holders: Sequence[object]) -> bool:
    """Whether the steps lead to the value or to something that it stands in."""
    reached = {0}
    for step in steps:
        if step.condition is not None:
            reached = {at for at in reached if _fulfils(step, holders, at)}
        elif step.pattern is None:
            reached = set(range(min(reached), len(path) + 1))
        else:
            reached = {
                at + 1 for at in reached if at < len(path) and step.pattern.fullmatch(path[at])
            }
        if not reached:
            return False
    return True


def _fulfils(step: _Step, holders: Sequence[object], at: int) -> bool:
    holder = holders[at] if at < len(holders) else None
    if not isinstance(holder, Mapping) or step.condition not in holder:
        return False
    value = holder[step.condition]
    return (
        isinstance(value, str) and step.pattern is not None and bool(step.pattern.fullmatch(value))
    )
