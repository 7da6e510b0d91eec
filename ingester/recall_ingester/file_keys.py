"""Under which name the store knows a file. It stands in indexes, where a long text has no room."""

from __future__ import annotations

import hashlib
from pathlib import Path

from recall.keys import path_key

#: With host, generation and place, more than this does not fit into a row of an index for certain.
_MOST_BYTES = 2_000
_MOST_NAME_BYTES = 300
#: Path and key of a note stand in one row of an index.
_NOTE_BYTES = 2_300


def file_key(path: Path) -> str:
    """The path as text, or its :func:`bounded` form."""
    return bounded(path_key(path))


def bounded(path: str) -> str:
    """A path that an index can hold: of one that is too long the beginning and the name of the
    file, and between them a hash of the whole instead of a folder."""
    raw = path.encode()
    if len(raw) <= _MOST_BYTES:
        return path
    digest = hashlib.sha256(raw).hexdigest()[:16]
    head, _, name = path.rpartition("/")
    name = _cut(name, _MOST_NAME_BYTES)
    head = _cut(head, _MOST_BYTES - len(name.encode()) - len(digest) - 3)
    return f"{head.rpartition('/')[0]}/~{digest}/{name}"


def note_place(path: str, key: str) -> tuple[str, str]:
    """Path and key of a note, so that one row of an index holds both. What is cut off a key is
    replaced by a hash of it."""
    path = bounded(path)
    most = max(_NOTE_BYTES - len(path.encode()), 0)
    if len(key.encode()) > most:
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        key = f"{_cut(key, most - 20)}~{digest}"
    return path, key


def _cut(text: str, most: int) -> str:
    return text.encode()[:most].decode(errors="ignore")
