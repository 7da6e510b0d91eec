"""Tool arguments and inline images as text that a person can read and a search can find."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from recall.jsontext import compact

#: Base64 shorter than this stays in the text: it may be an example that somebody wrote down.
_INLINE_IMAGE_CHARS = 256
_DATA_URI = re.compile(
    r"data:(?P<media>[\w.+-]+/[\w.+-]+)?[^,\s\"']{0,100};base64,(?P<data>[A-Za-z0-9+/=_-]+)"
)


def image_stub(media_type: str | None, data: str) -> str:
    """What stands in the text for an image: its type, decoded size, and the start of its hash."""
    _, marker, rest = data.partition(";base64,")
    encoded = rest if marker else data
    try:
        raw = base64.b64decode(encoded)
    except (binascii.Error, ValueError):
        raw = encoded.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(raw).hexdigest()[:12]
    return f"[image {media_type or 'of unknown type'}, {len(raw)} bytes, sha256 {digest}]"


def stub_images(text: str) -> str:
    """The text with each long ``data:`` URI replaced by its stub."""
    if ";base64," not in text:
        return text
    return _DATA_URI.sub(_stub_match, text)


def _stub_match(match: re.Match[str]) -> str:
    if len(match["data"]) < _INLINE_IMAGE_CHARS:
        return match[0]
    return image_stub(match["media"], match["data"])


def render_input(value: object) -> str:
    """The arguments of a tool as text, without losing any of their strings.

    A string stays as it is. A mapping gives one ``key: value`` line per item, with strings raw, so
    that a search for several words or lines of an argument finds it although the log has it
    JSON-escaped. A list of plain values is one line (a command), unless one of them has several
    lines. Nested mappings follow their ``key:`` line. Null values are left out.
    """
    if isinstance(value, str):
        return stub_images(value)
    return "\n".join(_lines(value))


def _lines(value: object) -> Iterator[str]:
    # A stack, not recursion: a log line may nest deeper than Python's call stack allows.
    stack: list[tuple[str, object]] = [("", value)]
    while stack:
        prefix, current = stack.pop()
        if (plain := _plain(current)) is not None:
            yield f"{prefix} {plain}" if prefix else plain
            continue
        if prefix and current is not None:
            yield prefix
        if isinstance(current, Mapping):
            items = [(f"{key}:", item) for key, item in current.items() if item is not None]
            stack.extend(reversed(items))
        elif isinstance(current, list):
            stack.extend(("", item) for item in reversed(current) if item is not None)


def _plain(value: object) -> str | None:
    """The text of a scalar or of a list of scalars; ``None`` for what needs lines of its own."""
    if isinstance(value, str):
        return stub_images(value)
    if isinstance(value, bool | int | float):
        return compact(value)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        texts = [stub_images(item) for item in value]
        return ("\n" if any("\n" in text for text in texts) else " ").join(texts)
    return None


def leaves(value: object) -> Iterator[str]:
    """Every string inside a value, in no particular order."""
    stack = [value]
    while stack:
        current = stack.pop()
        if isinstance(current, str):
            yield current
        elif isinstance(current, Mapping):
            stack.extend(current.values())
        elif isinstance(current, list):
            stack.extend(current)


def json_text(value: Any) -> str:
    """Compact JSON with images as stubs; for a value nested too deeply for JSON, its lines."""
    try:
        return stub_images(compact(value))
    except RecursionError:
        return render_input(value)
