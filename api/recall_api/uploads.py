"""Refuses rows of hosts whose ids are not those of what they hold, before the database sees them.

Ids are hashes that everybody can compute. A host that could choose them could take the id that the
next message of another host will have, or give bytes of its own the name of somebody else's; the
database, which has no BLAKE2b, could not tell who is right.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import datetime
from hashlib import blake2b
from io import BytesIO
from typing import Any

import zstandard

from recall.keys import content_hash, message_id, stable_id

Row = dict[str, Any]

#: Spans of files have at most 256 KiB; what claims to be more is not decompressed.
_LONGEST_SPAN_BYTES = 2**20
_WIDEST_WINDOW_BYTES = 2**23


def refusal(path: str, host: str, media_types: list[str], body: bytes) -> str | None:
    """Why rows that a host sends to a path are refused; ``None`` where nothing is wrong."""
    check = _CHECKS.get(path)
    if check is None:
        return None
    if media_types != ["application/json"]:
        return "the rows have to be JSON"
    try:
        rows = json.loads(body.decode(), object_pairs_hook=_unambiguous)
        for row in rows if isinstance(rows, list) else [rows]:
            if not check(row, host):
                return "the id of a row is not that of its content"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, zstandard.ZstdError):
        return "a row is not what it has to be"
    return None


def _unambiguous(pairs: list[tuple[str, Any]]) -> Row:
    """Of two values of one name, the database could take the other one."""
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError
    return row


def _is_message(row: Row, _host: str) -> bool:
    key, ordinal, part = row["session_key"], row["ordinal"], row["part"]
    if type(key) is not str or type(ordinal) is not int or type(part) is not int:
        return False
    return row["id"] == message_id(key, ordinal, part) and _has_own_hash(row)


def _is_prompt(row: Row, host: str) -> bool:
    source, key, ts = row["source"], row["session_key"], row["ts"]
    session = None if key is None else _external_id(key, source, host)
    at = datetime.fromisoformat(ts).isoformat() if ts else None
    digest = content_hash(row["content"]).hex()
    return row["id"] == stable_id("prompt", source, host, at, session, digest) and _has_own_hash(
        row
    )


def _is_note(row: Row, host: str) -> bool:
    place = (row["shelf"], row["source"], host, row["path"], row["entry_key"])
    if not all(type(part) is str for part in place):
        return False
    digest = content_hash(row["content"]).hex()
    return row["id"] == stable_id("note", *place, digest) and _has_own_hash(row)


def _is_blob(row: Row, _host: str) -> bool:
    length, data = row["byte_length"], b64decode(row["data_base64"], validate=True)
    if type(length) is not int or not 0 < length <= _LONGEST_SPAN_BYTES:
        return False
    if row["codec"] == "zstd":
        reader = zstandard.ZstdDecompressor(max_window_size=_WIDEST_WINDOW_BYTES)
        data = reader.stream_reader(BytesIO(data)).read(length + 1)
    return len(data) == length and _hash(row["hash"]) == blake2b(data, digest_size=32).digest()


def _external_id(key: str, source: str, host: str) -> str:
    start = f"{source}:{host}:"
    if not key.startswith(start):
        raise ValueError
    return key[len(start) :]


def _has_own_hash(row: Row) -> bool:
    return type(row["id"]) is int and _hash(row["content_hash"]) == content_hash(row["content"])


def _hash(text: str) -> bytes:
    """A ``bytea`` as hosts write it."""
    if not text.startswith("\\x"):
        raise ValueError
    return bytes.fromhex(text[2:])


_CHECKS: Mapping[str, Callable[[Row, str], bool]] = {
    "incoming_message": _is_message,
    "incoming_taken_back": _is_message,
    "incoming_prompt": _is_prompt,
    "incoming_note": _is_note,
    "incoming_blob": _is_blob,
}
