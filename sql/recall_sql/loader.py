"""Named SQL blocks from ``recall_sql/queries``.

A file holds blocks; a block starts with ``-- name: block_name`` and one comment line that says what
it is for. The statements are part of the distribution, which is what makes them literals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import LiteralString

_NAME = re.compile(r"-- name: ([a-z][a-z0-9_]*)")
_FILE = re.compile(r"[a-z][a-z0-9_]*")


@cache
def load(name: str) -> Mapping[str, LiteralString]:
    """The blocks of ``queries/<name>.sql``.

    An unknown block is a ``KeyError``, an unknown file a ``FileNotFoundError``, and a file that
    breaks the format (a block twice, a block without purpose or statement) a ``ValueError``.
    """
    if not _FILE.fullmatch(name):
        raise FileNotFoundError(name)
    text = (resources.files("recall_sql") / "queries" / f"{name}.sql").read_text("utf-8")
    return MappingProxyType(parse_blocks(text, name))


def parse_blocks(text: str, where: str) -> dict[str, LiteralString]:
    """Split the text of a query file into its blocks."""
    blocks: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.split("\n"):
        if line.startswith("-- name:"):
            current = blocks.setdefault(_block_name(line, where), [])
            if current:
                raise ValueError(f"{where}: a block stands twice: `{line}`")
            current.append(line)
        elif current is not None:
            current.append(line)
        elif line.strip() and not line.startswith("--"):
            raise ValueError(f"{where}: a statement stands before the first block: `{line}`")
    return {name: _statement(name, lines, where) for name, lines in blocks.items()}


def _block_name(line: str, where: str) -> str:
    match = _NAME.fullmatch(line.rstrip())
    if match is None:
        raise ValueError(f"{where}: not a block name: `{line}`")
    return match[1]


def _statement(name: str, lines: list[str], where: str) -> str:
    if len(lines) < 2 or not lines[1].startswith("-- "):
        raise ValueError(f"{where}: block `{name}` does not say what it is for")
    statement = "\n".join(lines[2:]).strip()
    if not statement:
        raise ValueError(f"{where}: block `{name}` is empty")
    return statement
