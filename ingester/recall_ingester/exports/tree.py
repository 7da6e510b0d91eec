"""The order of messages that name their parents."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def depth_first(
    keys: Sequence[Key],
    parents: Mapping[Key, Key | None],
    listed: Mapping[Key, Sequence[Key]] | None = None,
) -> list[Key]:
    """Every key once: each root with all that follows from it, then what hangs on nothing known.

    ``listed`` gives the order of children where the format has it; children that are not listed
    follow in the order of ``keys``. A parent that is not among the keys, and a circle, are damage;
    their messages come last.
    """
    known = set(keys)
    children: dict[Key, list[Key]] = {}
    has_parent = set()
    for parent, named in (listed or {}).items():
        children[parent] = [key for key in dict.fromkeys(named) if key in known]
        has_parent.update(children[parent])
    for key in keys:
        parent_key = parents.get(key)
        if parent_key is not None and key not in has_parent:
            children.setdefault(parent_key, []).append(key)
    roots = [key for key in keys if parents.get(key) is None and key not in has_parent]
    orphans = [key for key in keys if (up := parents.get(key)) is not None and up not in known]
    seen: set[Key] = set()
    order: list[Key] = []
    for start in (*roots, *orphans, *keys):
        order.extend(_below(start, children, seen))
    return order


def _below(start: Key, children: Mapping[Key, Sequence[Key]], seen: set[Key]) -> Iterator[Key]:
    # A stack, not recursion: a long conversation is a chain of thousands.
    stack = [start]
    while stack:
        key = stack.pop()
        if key in seen:
            continue
        seen.add(key)
        yield key
        stack.extend(reversed(children.get(key, ())))


def path_to(leaf: Key, parents: Mapping[Key, Key | None]) -> set[Key]:
    """The leaf and everything above it; a circle ends where it closes."""
    path: set[Key] = set()
    key: Key | None = leaf
    while key is not None and key not in path:
        path.add(key)
        key = parents.get(key)
    return path
