"""Whatever cuts a reading short, the next one completes it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from recall.errors import SourceError
from recall_ingester.sinks import Batch, Written
from recall_ingester.sinks.postgres import PostgresSink
from tests.contract.cases import CASES, IN_DATABASES, IN_FILES, THROUGH_DOORS
from tests.contract.script import Case, run_sql
from tests.contract.store import Store
from tests.db.ingesting import IDENTITY

pytestmark = pytest.mark.timeout(600)

#: How many places a long file is cut at.
_CUTS = 60


def check_same(store: Store, wanted: dict[str, Any], when: str) -> None:
    """All live rows are those wanted; bytes of other files may be kept besides."""
    found = store.live()
    for name in wanted.keys() - {"bytes"}:
        assert found[name] == wanted[name], f"{name}, {when}"
    for path, data in wanted["bytes"].items():
        assert found["bytes"].get(path) == data, f"bytes of {path}, {when}"


class Killed(BaseException):
    """The process ends here."""


class Fate:
    """At which write the process dies, counted over all of its sinks."""

    def __init__(self, dies_at: int, *, after_commit: bool) -> None:
        self._left = dies_at
        self._lock = Lock()
        self.after_commit = after_commit
        self.is_dead = False

    def comes(self) -> bool:
        """Whether this write is the last one, or comes after it."""
        with self._lock:
            self._left -= 1
            self.is_dead = self.is_dead or self._left == 0
            return self.is_dead


class Doomed(PostgresSink):
    """A sink that dies with its process: nothing of it is stored, or all, and nobody learns it."""

    def __init__(self, url: str, fate: Fate) -> None:
        super().__init__(url, IDENTITY)
        self._fate = fate
        self._is_last = False

    def write(self, batch: Batch) -> Written:
        if self._fate.is_dead:
            raise Killed
        self._is_last = self._fate.comes()
        written = super().write(batch)
        if self._is_last:
            raise Killed
        return written

    def _write(self, connection: Any, batch: Batch) -> Written:
        if self._is_last and not self._fate.after_commit:
            with connection.transaction():
                super()._write(connection, batch)
                raise Killed
        return super()._write(connection, batch)


@pytest.mark.parametrize("case", IN_FILES, ids=lambda case: case.name)
def test_file_that_was_read_half_written_is_completed(
    case: Case, folder_of: Callable[[Case], Path], stores: tuple[Store, Store]
) -> None:
    folder, (store, fresh) = folder_of(case), stores
    for state in case.states:
        state(folder)
    fresh.read(case, folder)
    wanted = fresh.live()
    path = folder / case.main
    whole = path.read_bytes()
    for cut in _cuts(whole):
        store.clear()
        path.write_bytes(whole[:cut])
        # An export is refused as a whole.
        with suppress(*(() if case.way == "pass" else (SourceError,))):
            store.read(case, folder)
        path.write_bytes(whole)
        store.read(case, folder)
        check_same(store, wanted, f"cut at {cut} of {len(whole)}")


@pytest.mark.parametrize("case", IN_DATABASES, ids=lambda case: case.name)
def test_database_that_was_read_between_two_commits_is_completed(
    case: Case, folder_of: Callable[[Case], Path], stores: tuple[Store, Store]
) -> None:
    folder, (store, fresh) = folder_of(case), stores
    path = folder / case.main
    run_sql(path, *case.statements)
    fresh.read(case, folder)
    wanted = fresh.live()
    for committed in range(1, len(case.statements)):
        store.clear()
        path.unlink()
        run_sql(path, *case.statements[:committed])
        store.read(case, folder)
        run_sql(path, *case.statements[committed:])
        store.read(case, folder)
        check_same(store, wanted, f"after {committed} of {len(case.statements)} commits")


@pytest.mark.parametrize(("case", "door"), THROUGH_DOORS, indirect=["door"])
def test_smallest_batches_leave_what_one_batch_leaves(
    case: Case,
    folder_of: Callable[[Case], Path],
    stores: tuple[Store, Store],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, (store, fresh) = folder_of(case), stores
    for state in case.states:
        state(folder)
    fresh.read(case, folder)
    wanted = fresh.live()
    monkeypatch.setattr("recall_ingester.pieces._BATCH_MESSAGES", 1)
    shutil.rmtree(folder)
    folder.mkdir()
    for state in case.states:
        state(folder)
        store.read(case, folder)
    check_same(store, wanted, "in small batches")


@pytest.mark.parametrize("after_commit", [False, True], ids=["before-commit", "after-commit"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reading_that_dies_at_any_write_is_completed(
    case: Case,
    folder_of: Callable[[Case], Path],
    stores: tuple[Store, Store],
    after_commit: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("recall_ingester.pieces._BATCH_MESSAGES", 4)
    folder, (store, fresh) = folder_of(case), stores
    for state in case.states:
        state(folder)
        fresh.read(case, folder)
    wanted = fresh.live()
    dies_at, died = 0, True
    while died:
        dies_at += 1
        store.clear()
        died = _live_through(case, folder, store, Fate(dies_at, after_commit=after_commit))
        check_same(store, wanted, f"died at write {dies_at}")
    assert dies_at > len(case.states)


def _live_through(case: Case, folder: Path, store: Store, fate: Fate) -> bool:
    """Read each state of a case by a process that dies, and by one that does not as soon as the
    first one is dead; whether it died."""
    shutil.rmtree(folder)
    folder.mkdir()
    for state in case.states:
        state(folder)
        if fate.is_dead:
            store.read(case, folder)
            continue
        try:
            store.read(case, folder, lambda: Doomed(store.url, fate))
        except Killed:
            store.read(case, folder)
    return fate.is_dead


def _cuts(whole: bytes) -> Iterator[int]:
    """Places to cut at: all of a short file, else those around the ends of lines, and others."""
    length = len(whole)
    if length <= _CUTS:
        yield from range(length)
        return
    ends = [at + 1 for at in range(length) if whole[at : at + 1] == b"\n"]
    chosen = {0, 1, length // 2, length - 2, length - 1}
    for end in ends[:: max(1, len(ends) // 8)]:
        chosen |= {end - 1, end, min(end + 1, length - 1)}
    others = random.Random(length).sample(range(length), _CUTS)
    for at in others:
        if len(chosen) >= _CUTS:
            break
        chosen.add(at)
    yield from sorted(at for at in chosen if at < length)
