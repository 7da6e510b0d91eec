"""Replay of a log of changes to one JSON document.

Each line is one change, and a path is a list of keys and indexes:

- ``{"kind": 0, "v": document}`` begins anew;
- ``{"kind": 1, "k": path, "v": value}`` sets a value, and deletes it without ``v``;
- ``{"kind": 2, "k": path, "v": [...], "i": n}`` cuts an array to ``n`` items if there is an ``i``,
  and then appends;
- ``{"kind": 3, "k": path}`` deletes.

The replay keeps what the changes took away, since the last state alone does not tell what was
removed from a conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from recall.jsontext import MalformedLine, loads
from recall_ingester.sources.base import BadSpan

Path = tuple[str | int, ...]

_BEGIN, _SET, _PUSH, _DELETE = 0, 1, 2, 3
_BLANK = b" \t\r\x00"
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Removed:
    """A value that a change took away or replaced, and where it stood.

    The path of a whole document is empty. For a cut array, ``value`` is the array as it was, with
    ``None`` for the items that stayed. ``trail`` holds what contained the value: the document
    first, then what stands at each key of the path but the last.
    """

    path: Path
    value: Any
    trail: tuple[Any, ...] = ()


@dataclass(slots=True)
class Replay:
    """The document after the last change that could be applied.

    ``begun`` is false if no line gave a whole document. ``bad`` holds the lines that could not be
    read or do not fit the document; after one, ``unread`` counts the changes that were left out
    because they build on a state that is not known. ``damaged`` says that bytes which are no text
    were replaced in a change that was applied.
    """

    state: Any = None
    begun: bool = False
    removed: list[Removed] = field(default_factory=list)
    bad: list[BadSpan] = field(default_factory=list)
    unread: int = 0
    damaged: bool = False


class _DoesNotFit(Exception):
    """A change names a place that the document does not have."""


def replay(data: bytes) -> Replay:
    """The document that a log describes.

    A last line without newline that cannot be read is still being written and is left out. Another
    line that cannot be read or applied ends the replay, until a line gives a whole document again.
    """
    result = Replay()
    lost = False
    for number, (offset, line, complete) in enumerate(_lines(data)):
        text = line.strip(_BLANK)
        if not text:
            continue
        try:
            entry, damaged = loads(text)
            if not lost or _begins(entry):
                _apply(result, entry)
                lost = False
                result.damaged |= damaged
                continue
            result.unread += 1
        except MalformedLine as error:
            if complete:
                result.bad.append(BadSpan(offset, line, number, error.reason))
                lost = True
        except _DoesNotFit as error:
            result.bad.append(BadSpan(offset, line, number, str(error)))
            lost = True
    return result


def _lines(data: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Each line without its newline, with its offset and whether it has one."""
    start = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0:
            yield start, data[start:], False
            return
        yield start, data[start:end], True
        start = end + 1


def _begins(entry: object) -> bool:
    return isinstance(entry, Mapping) and _kind(entry) == _BEGIN


def _kind(entry: Mapping[str, Any]) -> object:
    kind = entry.get("kind")
    return None if isinstance(kind, bool) else kind


def _apply(result: Replay, entry: object) -> None:
    if not isinstance(entry, Mapping):
        raise _DoesNotFit("not a change")
    kind = _kind(entry)
    if kind == _BEGIN:
        if result.begun:
            result.removed.append(Removed((), result.state))
        result.state, result.begun = entry.get("v"), True
        return
    if kind not in (_SET, _PUSH, _DELETE):
        raise _DoesNotFit("unknown kind of change")
    if not result.begun:
        raise _DoesNotFit("change before the first document")
    path = _path(entry.get("k"))
    if not path:
        if kind == _PUSH:
            raise _DoesNotFit("no place to append to")
        return  # the client ignores a change of the whole document in this form
    trail = _trail(result.state, path)
    parent = trail[-1]
    if kind == _PUSH:
        before = _push(parent, path[-1], entry)
    elif kind == _SET and "v" in entry:
        before = _set(parent, path[-1], entry["v"])
    else:
        before = _delete(parent, path[-1])
    if before is not _MISSING and before is not None:
        result.removed.append(Removed(path, before, trail))


def _path(keys: object) -> Path:
    if not isinstance(keys, list):
        raise _DoesNotFit("change without a path")
    if not all(isinstance(key, str | int) and not isinstance(key, bool) for key in keys):
        raise _DoesNotFit("path of unknown form")
    return tuple(keys)


def _trail(state: Any, path: Path) -> tuple[Any, ...]:
    trail = [state]
    for key in path[:-1]:
        trail.append(_get(trail[-1], key))
    if not isinstance(trail[-1], dict | list):
        raise _DoesNotFit("place that does not exist")
    return tuple(trail)


def _get(container: Any, key: str | int) -> Any:
    if isinstance(container, dict):
        return container.get(str(key), _MISSING)
    if isinstance(container, list) and isinstance(key, int) and 0 <= key < len(container):
        return container[key]
    return _MISSING


def _set(parent: Any, key: str | int, value: Any) -> Any:
    """Set a value; gives what stood there before."""
    before = _get(parent, key)
    if isinstance(parent, dict):
        parent[str(key)] = value
    elif before is not _MISSING:
        parent[key] = value
    elif key == len(parent):
        parent.append(value)
    else:
        raise _DoesNotFit("index behind the end of its array")
    return before


def _delete(parent: Any, key: str | int) -> Any:
    """Delete a value; gives what stood there before."""
    before = _get(parent, key)
    if isinstance(parent, dict):
        parent.pop(str(key), None)
    elif before is not _MISSING:
        parent[key] = None  # the client leaves a hole; the other items keep their places
    return before


def _push(parent: Any, key: str | int, entry: Mapping[str, Any]) -> Any:
    """Cut and extend an array; gives the items that were cut off, at their places."""
    items = _get(parent, key)
    if items is _MISSING or items is None:
        items = []
    values, keep = entry.get("v"), entry.get("i")
    if not isinstance(items, list) or not isinstance(values, list | None):
        raise _DoesNotFit("append to what is no array")
    if keep is None:
        keep = len(items)
    if not isinstance(keep, int) or isinstance(keep, bool) or not 0 <= keep <= len(items):
        raise _DoesNotFit("index behind the end of its array")
    cut = items[keep:]
    del items[keep:]
    items.extend(values or ())
    _set(parent, key, items)
    return [None] * keep + cut if cut else None
