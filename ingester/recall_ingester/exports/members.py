"""Which members of an export hold what, by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: ``conversations.json``, its shards (``conversations-000.json``), or one conversation a file.
_CONVERSATIONS = re.compile(
    r"(?:.*/)?conversations(?:[-_.]\w+)*\.jsonl?|(?:.*/)?conversations/[^/.][^/]*\.json"
)
_MANIFEST = re.compile(r"(?:export[-_])?manifest(?:[-_]\w+)*\.json")
_DIGITS = re.compile(r"(\d+)")


def base_name(name: str) -> str:
    """The last part of a member's name."""
    return name.rpartition("/")[2]


def conversation_names(names: Sequence[str]) -> list[str]:
    """The members that hold conversations, shards by their number."""
    return sorted((name for name in names if _CONVERSATIONS.fullmatch(name)), key=_by_number)


def note_names(names: Sequence[str], pattern: re.Pattern[str]) -> list[str]:
    """The members that hold notes, by their number."""
    return sorted((name for name in names if pattern.fullmatch(name)), key=_by_number)


def _by_number(name: str) -> list[tuple[int, str]]:
    parts = _DIGITS.split(name)
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in parts]


def is_manifest(name: str) -> bool:
    """Whether a member or file lists the files of its export."""
    return _MANIFEST.fullmatch(base_name(name)) is not None
