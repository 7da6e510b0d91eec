"""The same text under several record types, matched one to one.

A rollout tells most things twice or more: as an item of the model's context, as an event for the
screen, and in paginated mode as a completed item. Which of them a file has, and in which order,
depends on the version. The first one seen is kept; a later one of *another* family is its twin. The
same text twice in one family was said twice.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

from recall.records import Message
from recall_ingester.sources.codex_records import body_start

#: How many texts of one turn are remembered, how often each, and how many of the whole file.
TURN_LIMIT = 256
TIMES_LIMIT = 16
FILE_LIMIT = 512

_SEPARATORS = re.compile(r"[\W_]+")
_CLASSES = {"text": "said", "meta": "said", "thinking": "thinking"}


def digest(*parts: str) -> str:
    """Eight bytes of BLAKE2b over the parts, as hex."""
    raw = "\x1f".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(raw, digest_size=8).hexdigest()


class TurnMemory:
    """What one turn has said so far: a digest per text, and the families that have told it."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._told: dict[str, list[str]] = {}
        for entry in entries:
            name, *families = entry.split(":")
            self._told[name] = families

    def entries(self) -> list[str]:
        """The memory as a list, oldest first (the order of JSON objects does not survive jsonb)."""
        return [":".join((name, *families)) for name, families in self._told.items()]

    def clear(self) -> None:
        """Forget the turn."""
        self._told.clear()

    def is_twin(self, family: str, name: str) -> bool:
        """Whether another family told this before; if not, remember that this one did."""
        told = self._told.setdefault(name, [])
        for place, families in enumerate(told):
            if family not in families:
                told[place] = families + family
                return True
        told.append(family)
        del told[:-TIMES_LIMIT]
        while len(self._told) > TURN_LIMIT:
            del self._told[next(iter(self._told))]
        return False

    def times(self, name: str) -> int:
        """How often this was told by one family."""
        return len(self._told.get(name, ()))


def name_of(message: Message) -> str | None:
    """The digest by which a message is matched; ``None`` for kinds that have no twin."""
    if message.kind not in (*_CLASSES, "tool_call", "tool_result"):
        return None
    if message.kind == "tool_call":
        # One tool is `mcp__a__b` in one family and `mcp__a.b` in another.
        tool = _SEPARATORS.sub("", message.tool or "").lower()
        return digest("tool_call", tool, message.text.strip())
    kind = _CLASSES.get(message.kind, message.kind)
    return digest(kind, message.role, message.text.strip())


def joined_name(messages: Sequence[Message]) -> str | None:
    """The digest of texts that another family tells as one; ``None`` for fewer than two."""
    if len(messages) < 2:
        return None
    return digest("said", messages[0].role, "".join(item.text for item in messages).strip())


def call_name(message: Message) -> str | None:
    """The digest of the call that a tool call message stands for, by its id."""
    if message.kind != "tool_call" or message.call_id is None:
        return None
    return digest("call", message.call_id)


def body_name(message: Message) -> str | None:
    """The digest of a command's own output without the lines that Codex put before it."""
    if message.kind != "tool_result" or (at := body_start(message.text)) is None:
        return None
    body = message.text[at:].strip()
    return digest("tool_result", "tool", body) if body else None


class FileMemory:
    """What was said anywhere in the file, so that a compaction does not store it again."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = dict.fromkeys(names)

    def entries(self) -> list[str]:
        """The memory as a list, oldest first."""
        return list(self._names)

    def add(self, text: str) -> bool:
        """Remember a text; whether it was new."""
        name = digest(text.strip())
        if name in self._names:
            return False
        self._names[name] = None
        while len(self._names) > FILE_LIMIT:
            del self._names[next(iter(self._names))]
        return True
