"""Killed at any point, and however many work at once: no passage is lost and none is doubled."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from recall_embedder.store import EmbedStore
from recall_sql.connection import connect
from tests.db.embedding import (
    Bench,
    HashModel,
    add_note,
    check_store,
    expected,
    fetch,
    passages,
    say,
)

pytestmark = pytest.mark.timeout(900)

TABLES = "recall.message, recall.session, recall.note, recall.passage, recall.embed_queue, "


class Killed(BaseException):
    """The process is gone: nothing that it would still do happens."""


class Mortal(EmbedStore):
    """A store that dies before or after one of its statements, and then answers nothing."""

    def __init__(self, url: str, *, application: str = "tests") -> None:
        super().__init__(url, application=application)
        self.statements = 0
        self.dies_at: int | None = None
        self.between: Callable[[], None] = lambda: None

    def _point(self) -> None:
        self.statements += 1
        if self.dies_at is not None and self.statements >= self.dies_at:
            raise Killed
        self.between()

    def _rows(self, name: str, values: Any) -> list[tuple[Any, ...]]:
        self._point()
        rows = super()._rows(name, values)
        self._point()
        return rows

    def _do(self, name: str, values: Any) -> None:
        self._point()
        super()._do(name, values)
        self._point()


def clear(url: str) -> None:
    with connect(url, application="tests") as connection:
        connection.execute(f"truncate {TABLES} recall.embed_dirty".encode())


def expire_leases(url: str) -> None:
    with connect(url, application="tests") as connection:
        for table in ("embed_queue", "embed_dirty"):
            connection.execute(
                f"update recall.{table} set leased_until = now() - interval '1 s'"
                " where lease is not null".encode()
            )


def fill(url: str) -> None:
    say(url, "claude-code:laptop:one", ["go on", ("assistant", "word " * 70), "go on", "bye"])
    say(url, "codex:laptop:two", ["go on", "another"])
    add_note(url, 7, "a memory")


def change(url: str) -> None:
    say(url, "claude-code:laptop:one", ["go on", ("assistant", "word " * 65), None, "goodbye"])
    say(url, "codex:laptop:two", ["another"], first=0)


@contextmanager
def mortal(url: str) -> Iterator[tuple[Bench, Mortal]]:
    bench = Bench(url, store_class=Mortal)
    store = bench.store
    assert isinstance(store, Mortal)
    try:
        yield bench, store
    finally:
        bench.close()


def work_until_killed(url: str, dies_at: int | None) -> int:
    """Work as one process; how many points it passed."""
    with mortal(url) as (bench, store):
        store.dies_at = dies_at
        try:
            bench.drain()
        except Killed:
            assert dies_at is not None
        return store.statements


def check_all(url: str) -> None:
    messages = [row for row in passages(url) if row[2] is not None]
    assert messages == expected(url, HashModel())
    assert [row[1] for row in passages(url) if row[2] is None] == [7]
    assert fetch(url, "select * from recall.embed_queue") == []
    assert fetch(url, "select * from recall.embed_dirty") == []
    check_store(url)


@pytest.mark.slow
def test_killed_before_or_after_any_statement(database: str) -> None:
    first = Bench(database)
    first.begin()
    first.close()
    fill(database)
    points = work_until_killed(database, None)
    check_all(database)
    change(database)
    more = work_until_killed(database, None)
    check_all(database)
    assert points > 40
    for dies_at in range(1, max(points, more) + 1):
        clear(database)
        for happens in (fill, change):
            happens(database)
            work_until_killed(database, dies_at)
            expire_leases(database)
            work_until_killed(database, None)
            check_all(database)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_processes_that_get_in_each_others_way_and_die(database: str, seed: int) -> None:
    """Between any two statements of one process another one may work, or the ingester writes."""
    chance = random.Random(seed)
    first = Bench(database)
    first.begin()
    first.close()
    keys = [f"claude-code:laptop:{number}" for number in range(3)]
    words = ["go on", "yes", "no", "why " * 40, "because " * 50]
    add_note(database, 7, "a memory")

    def write() -> None:
        lines = [
            chance.choice([None, word, ("assistant", word)])
            for word in chance.choices(words, k=chance.randrange(1, 5))
        ]
        say(database, chance.choice(keys), lines, first=chance.randrange(6))

    def work(depth: int, *, may_die: bool) -> None:
        with mortal(database) as (bench, store):

            def between() -> None:
                dice = chance.random()
                if depth < 2 and dice < 0.04:
                    work(depth + 1, may_die=False)
                elif dice < 0.10:
                    write()
                elif dice < 0.14:
                    expire_leases(database)

            store.between = between
            if may_die:
                store.dies_at = chance.randrange(1, 60)
            try:
                for _ in range(chance.randrange(1, 12)):
                    chance.choice([bench.cutter.cut_next, bench.worker.embed_next])()
            except Killed:
                expire_leases(database)

    for turn in range(8):
        write()
        work(0, may_die=turn in (2, 5))
        check_store(database)
    expire_leases(database)
    # Whoever only had bad luck is not to blame: the tries of this test are not counted.
    with connect(database, application="tests") as connection:
        connection.execute("update recall.embed_queue set attempts = 0, failed_at = null")
        connection.execute("update recall.embed_dirty set attempts = 0")
    work_until_killed(database, None)
    check_all(database)


@pytest.mark.slow
def test_many_threads_and_an_ingester_that_writes_beside_them(database: str) -> None:
    first = Bench(database)
    first.begin()
    first.close()
    add_note(database, 7, "a memory")
    chance = random.Random(5)
    done = threading.Event()
    errors: list[BaseException] = []

    def guarded(work: Callable[[Bench], None]) -> None:
        bench = Bench(database, claim_rows=5)
        try:
            work(bench)
        except BaseException as error:
            errors.append(error)
        finally:
            bench.close()

    def run(bench: Bench) -> None:
        while not done.is_set():
            bench.cutter.cut_next()
            bench.worker.embed_next()
        bench.drain()

    def write(_bench: Bench) -> None:
        try:
            for _ in range(60):
                lines = [f"line {chance.randrange(20)}" for _ in range(chance.randrange(1, 8))]
                say(database, f"codex:laptop:{chance.randrange(5)}", lines, first=0)
        finally:
            done.set()

    threads = [threading.Thread(target=guarded, args=(run,)) for _ in range(4)]
    threads.append(threading.Thread(target=guarded, args=(write,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    work_until_killed(database, None)
    check_all(database)
