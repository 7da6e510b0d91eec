"""Keys and ids. They come from what a record is, never from when it was read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_ID_MASK = (1 << 63) - 1


def session_key(source: str, host: str, external_id: str) -> str:
    """``<source>:<host>:<external_id>``; only the external id may contain a colon."""
    return f"{source}:{host}:{external_id}"


def content_hash(content: str) -> bytes:
    """16 bytes of BLAKE2b over the UTF-8 form."""
    return hashlib.blake2b(content.encode(), digest_size=16).digest()


def stable_id(*parts: object) -> int:
    """A positive 63-bit id from the parts; the same parts give the same id on every machine.

    With ten million ids the chance that any two collide is about 5 in a million; the store refuses
    the second row (unique index) instead of mixing them up.
    """
    raw = "\x1f".join(str(part) for part in parts)
    digest = hashlib.blake2b(raw.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") & _ID_MASK


def message_id(key: str, ordinal: int, part: int) -> int:
    """The id of ``(session_key, ordinal, part)``."""
    return stable_id("message", key, ordinal, part)


def copy_key(source: str, scope: str | None, digest: bytes) -> int | None:
    """Equal for messages of one client with equal scope and text; ``None`` without a scope."""
    if scope is None:
        return None
    return stable_id("copy", source, scope, digest.hex())


def path_key(path: Path) -> str:
    """A file's path as text that any database accepts; bytes that are not UTF-8 become ``%XX``."""
    raw = os.fsencode(path)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        decoded = raw.decode("utf-8", "surrogateescape")
        return "".join(
            f"%{ord(char) - 0xDC00:02X}" if "\udc80" <= char <= "\udcff" else char
            for char in decoded
        )
