"""What there is to read: the files of every source beside what is known of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from recall.keys import path_key, session_key
from recall_ingester.checkpoint import Checkpoint, Stat, is_unchanged
from recall_ingester.faults import unreadable_reason
from recall_ingester.file_keys import bounded, file_key
from recall_ingester.sources.base import Source, SourceFile


@dataclass(frozen=True, slots=True)
class Work:
    """One file that may hold something new. ``known`` is ``None`` for a file never read before.

    ``companions`` says how the files beside it were when the plan was made: size and time of each,
    ``None`` for one that is not there.
    """

    source: Source
    file: SourceFile
    key: str
    known: Checkpoint | None
    size: int
    companions: list[list[int] | None] = field(default_factory=list)


@dataclass(slots=True)
class Plan:
    """The result of one look at all roots."""

    work: list[Work] = field(default_factory=list)
    files_seen: int = 0
    present: set[str] = field(default_factory=set)
    back: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    #: Path -> (source, reason) of files and folders that could not be looked at.
    unreadable: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: Folders and files that had been unreadable and are not any more.
    readable: list[str] = field(default_factory=list)
    found: dict[str, int] = field(default_factory=dict)


def make_plan(
    sources: Sequence[tuple[Source, Sequence[Path]]],
    known: Mapping[str, Checkpoint],
    *,
    keep_raw: bool = True,
) -> Plan:
    """Look at every root. A root that does not exist holds nothing; one that cannot be listed, and
    everything below it, stays as it was: unreadable is not empty."""
    plan = Plan()
    looked: list[tuple[str, str]] = []
    for source, roots in sources:
        for root in roots:
            if not root.exists():
                if root.parent.exists() and file_key(root) in known:  # a source that is one file
                    looked.append((source.name, file_key(root)))
                continue
            try:
                files = list(source.discover(root))
            except MemoryError:
                raise
            except Exception as error:
                plan.unreadable[file_key(root)] = (source.name, unreadable_reason(error))
                continue
            looked.append((source.name, file_key(root)))
            for path, reason in source.unreadable.items():
                plan.unreadable[file_key(path)] = (source.name, reason)
            for file in files:
                _consider(plan, source, file, known, keep_raw=keep_raw)
    _find_missing(plan, looked, known)
    plan.work.sort(key=lambda item: item.key)
    return plan


def _consider(
    plan: Plan,
    source: Source,
    file: SourceFile,
    known: Mapping[str, Checkpoint],
    *,
    keep_raw: bool,
) -> None:
    key = path_key(file.path)
    if key not in known:
        key = bounded(key)
    if key in plan.present:
        return
    plan.present.add(key)
    plan.files_seen += 1
    plan.found[source.name] = plan.found.get(source.name, 0) + 1
    before = known.get(key)
    try:
        now = Stat.of(file.path.stat())
    except OSError as error:
        plan.unreadable[key] = (source.name, unreadable_reason(error))
        return
    if before is not None and before.missing:
        plan.back.append(key)
    beside = [_size_and_time(path) for path in file.companions]
    unchanged = (
        before is not None
        and not file.always
        and is_unchanged(before, now, keep_raw=keep_raw)
        and beside == (before.parser_state or {}).get("companions", [])
        and not (before.missing and file.shape == "container")
    )
    if not unchanged:
        plan.work.append(Work(source, file, key, before, now.size, beside))


def _size_and_time(path: Path) -> list[int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _find_missing(
    plan: Plan, looked: Iterable[tuple[str, str]], known: Mapping[str, Checkpoint]
) -> None:
    for member, checkpoint in known.items():
        # A session of a container is gone with its container; else its reader tells.
        key = checkpoint.container or member
        if key in plan.present or key in plan.unreadable or member in plan.unreadable:
            continue
        below = any(source == checkpoint.source and _is_below(key, root) for source, root in looked)
        hidden = any(_is_below(key, folder) for folder in plan.unreadable)
        if not below or hidden:
            continue
        if checkpoint.unreadable is not None and checkpoint.lines == 0:
            plan.readable.append(member)
        elif not os.path.lexists(checkpoint.file):
            if not checkpoint.missing:
                plan.missing.append(member)
        elif checkpoint.container is None and not Path(checkpoint.file).is_file():
            plan.unreadable[key] = (checkpoint.source, "not a regular file")


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


class Claims:
    """Which file owns which session id, so that two files never write the same rows.

    The first file to claim an id keeps it. A second one is a copy of its own and gets an id with a
    suffix made from where it lies. Only if the owner is gone and the new file begins with the same
    bytes was the file moved, archived or compressed; then the session goes on under its old key.
    """

    def __init__(self, host: str, known: Mapping[str, Checkpoint]) -> None:
        self._host = host
        self._lock = Lock()
        self._owners: dict[str, Checkpoint | None] = {}
        for path, checkpoint in known.items():
            if checkpoint.session_key:
                current = self._owners.get(checkpoint.session_key)
                if current is None or self.is_gone(current):
                    self._owners[checkpoint.session_key] = known[path]

    @staticmethod
    def is_gone(owner: Checkpoint) -> bool:
        """Whether the file of a checkpoint, or the container of its session, is not there."""
        return not os.path.lexists(owner.file)

    def claim(
        self, external_id: str, file: SourceFile, takes_over: Callable[[Checkpoint], bool]
    ) -> tuple[str, bool]:
        """The session id for a file never read before, and whether it takes over stored rows.

        ``takes_over`` says whether the file goes on with the session of another checkpoint.
        """
        with self._lock:
            for candidate in (external_id, f"{external_id}@{_place(file)}"):
                key = session_key(file.source, self._host, candidate)
                if key not in self._owners:
                    self._owners[key] = None
                    return candidate, False
                owner = self._owners[key]
                if owner is not None and owner.path in _keys(file.path):
                    return candidate, False
                if owner is not None and takes_over(owner):
                    self._owners[key] = None
                    return candidate, True
            # The copy beside the original was replaced by yet another one.
            digest = hashlib.sha256(path_key(file.path).encode()).hexdigest()[:16]
            return f"{external_id}@{digest}", True


def is_superseded(owner: Checkpoint, file: SourceFile) -> bool:
    """Whether a file takes over the session of another one that may still be there."""
    if file.supersedes is None:
        return False
    return not _keys(file.supersedes).isdisjoint((owner.path, owner.container))


def _keys(path: Path) -> set[str]:
    """The names under which the store may know a file."""
    return {path_key(path), file_key(path)}


def _place(file: SourceFile) -> str:
    return hashlib.sha256(file.relative.encode("utf-8", "surrogatepass")).hexdigest()[:8]
