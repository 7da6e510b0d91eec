"""The readable strings of JSON whose shape is only partly known."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from recall_ingester.sources.toolinput import image_stub, render_input, stub_images

_TITLE_CHARS = 120
#: A string of this many characters without a space is encoded bytes, not text.
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{1024,}={0,2}")
#: Characters that looking for repeated strings may cost for one message.
_SEARCH_BUDGET = 50_000_000


def mapping(value: object) -> Mapping[str, Any]:
    """A mapping, empty for anything else."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: object) -> list[Any]:
    """A list as it is, null as none, and anything else as a list of one."""
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def items(value: object) -> list[Any]:
    """As :func:`as_list`, with the values of a mapping that stands in place of the list."""
    return list(value.values()) if isinstance(value, Mapping) else as_list(value)


def identifier(value: object) -> str | None:
    """An id as text; clients of other people write numbers too."""
    if isinstance(value, str):
        return value.strip() or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def readable(value: object) -> str:
    """The text of a field that should be a string, with nothing lost if it is something else."""
    if isinstance(value, str):
        return _encoded_stub(value) or stub_images(value)
    return "" if value is None else render_input(value)


def one_line(text: str) -> str:
    """A text as a title."""
    line = " ".join(text[: 4 * _TITLE_CHARS].split())
    return line if len(line) <= _TITLE_CHARS else line[: _TITLE_CHARS - 1] + "…"


class Shown:
    """What a message already shows, to leave out what the client writes a second time."""

    def __init__(self, texts: Collection[str] = ()) -> None:
        self._texts: list[str] = list(texts)
        self._whole = set(self._texts)
        self._budget = _SEARCH_BUDGET

    def add(self, text: str) -> None:
        """From now on the text is shown."""
        self._texts.append(text)
        self._whole.add(text)

    def has(self, text: str) -> bool:
        """Whether the text stands in one of those shown. Too much to look through counts as no."""
        if text in self._whole:
            return True
        for shown in self._texts:
            if self._budget <= 0:
                return False
            self._budget -= len(shown) + 50
            if text in shown:
                return True
        return False


def remainder(value: object, silent: Collection[str], shown: Shown) -> str:
    """The strings of a value that are not shown yet, one ``key: text`` each, in their order.

    Keys in ``silent`` hold nothing to read, at any depth.
    """
    lines = []
    for key, text in _strings(value, silent):
        if text.strip() and not shown.has(text.strip()):
            shown.add(text.strip())
            lines.append(f"{key}: {text}" if key else text)
    return "\n".join(lines)


def _strings(value: object, silent: Collection[str]) -> Iterator[tuple[str, str]]:
    # A stack, not recursion: a value may nest deeper than Python's call stack allows.
    stack: list[tuple[str, object]] = [("", value)]
    while stack:
        key, current = stack.pop()
        if isinstance(current, str):
            yield key, readable(current)
        elif isinstance(current, Mapping):
            pairs = [(name, item) for name, item in current.items() if name not in silent]
            stack.extend(reversed(pairs))
        elif isinstance(current, list):
            stack.extend((key, item) for item in reversed(current))


def _encoded_stub(text: str) -> str | None:
    if len(text) < 1024 or not _ENCODED.fullmatch(text):
        return None
    return image_stub(None, text).replace("[image of unknown type", "[encoded bytes", 1)
