"""A whole embedder on a real database: it wakes, sleeps without a trace, swaps models and stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from recall.config import Settings
from recall.errors import ModelError
from recall_embedder import index_keeper
from recall_embedder import run as run_module
from recall_embedder import waker as waker_module
from recall_embedder.generations import shape_of
from recall_embedder.run import Embedder
from recall_embedder.store import EmbedStore
from recall_embedder.waker import Waker
from recall_sql.connection import connect
from tests.db.embedding import (
    SETTINGS,
    Bench,
    HashModel,
    check_store,
    expected,
    fetch,
    passages,
    say,
)

KEY = "claude-code:laptop:one"
WORKER = "tests of the embedder"
SECONDS = 60


@dataclass
class Watched(Waker):
    """Tells when every thread of an embedder waits."""

    threads: int

    def __post_init__(self) -> None:
        Waker.__init__(self)
        self.waiting: set[str] = set()
        self.idle = threading.Condition()

    def wait(self, seen: int, seconds: float) -> bool:
        name = threading.current_thread().name
        with self.idle:
            self.waiting.add(name)
            self.idle.notify_all()
        try:
            return super().wait(seen, seconds)
        finally:
            with self.idle:
                self.waiting.discard(name)

    def wait_until_idle(self, condition: Callable[[], bool] = lambda: True) -> None:
        with self.idle:
            assert self.idle.wait_for(
                lambda: len(self.waiting) == self.threads and condition(), SECONDS
            )


@contextmanager
def embedding(
    url: str, model: HashModel, settings: Settings = SETTINGS, **models: HashModel
) -> Iterator[tuple[Embedder, Watched]]:
    """An embedder that runs for the length of the block."""

    def load(name: str) -> HashModel:
        for one in (model, *models.values()):
            if one.name == name:
                return one
        raise ModelError(f"no model `{name}`")

    waker = Watched(threads=3)
    embedder = Embedder(replace(settings, embed_threads=2), url, "laptop", load, waker=waker)
    embedder.beat_seconds = 0.05
    errors: list[BaseException] = []

    def run() -> None:
        try:
            embedder.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield embedder, waker
    finally:
        embedder.request_stop()
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert errors == []


def transactions(url: str, application: str = "recall embedder%") -> list[tuple[object, ...]]:
    return fetch(
        url,
        "select application_name, state from pg_stat_activity"
        " where application_name like %s and datname = current_database()"
        " and (state like 'idle in transaction%%' or backend_xid is not null"
        " or state = 'idle' and xact_start is not null)",
        application,
    )


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a notification wakes."""
    monkeypatch.setattr(run_module, "FIRST_POLL_SECONDS", 1_000.0)


def all_embedded(url: str, model: HashModel, number: int = 1) -> Callable[[], bool]:
    return lambda: passages(url, number) == expected(url, model, number) != []


def test_idle_embedder_holds_no_transaction_and_stands_in_nobodys_way(
    database: str, no_polls: None
) -> None:
    model = HashModel()
    say(database, KEY, ["one", "two"])
    with embedding(database, model) as (_, waker):
        waker.wait_until_idle(all_embedded(database, model))
        # a heartbeat, or the first look at the indexes, may be under way just now
        wait_until(lambda: transactions(database) == [])
        with connect(database, lock_timeout_seconds=30, autocommit=True) as connection:
            for table in ("message", "passage", "embed_queue", "embed_dirty", "session"):
                connection.execute(f"alter table recall.{table} add column beside text".encode())
                connection.execute(f"alter table recall.{table} drop column beside".encode())


def test_notification_wakes_idle_threads(database: str, no_polls: None) -> None:
    model = HashModel()
    say(database, KEY, ["one"])
    with embedding(database, model) as (_, waker):
        waker.wait_until_idle(all_embedded(database, model))
        say(database, KEY, ["two"], first=1)
        waker.wait_until_idle(all_embedded(database, model))
    assert sorted(model.given) == ["one", "two"]


def test_polling_finds_what_no_notification_told(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "FIRST_POLL_SECONDS", 0.01)
    monkeypatch.setattr(run_module, "LONGEST_POLL_SECONDS", 0.02)
    monkeypatch.setattr(run_module, "listen", lambda *_args: None)
    model = HashModel()
    say(database, KEY, ["one"])
    with embedding(database, model) as (_, waker):
        waker.wait_until_idle(all_embedded(database, model))
        say(database, KEY, ["two"], first=1)
        waker.wait_until_idle(all_embedded(database, model))


def test_no_transaction_is_open_while_the_model_runs(database: str) -> None:
    @dataclass
    class Looking(HashModel):
        found: list[tuple[object, ...]] = field(default_factory=list)
        url: str = ""

        def spans(self, text: str) -> list[tuple[int, int]]:
            self.look()
            return HashModel.spans(self, text)

        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            self.look()
            return HashModel.embed(self, texts)

        def look(self) -> None:
            self.found += [("looked",), *transactions(self.url, WORKER)]

    model = Looking(url=database)
    bench = Bench(database, model, application=WORKER)
    bench.begin()
    say(database, KEY, ["one", "two"])
    bench.drain()
    bench.close()
    assert set(model.found) == {("looked",)}


def test_it_beats_and_ends_without_being_missed(database: str) -> None:
    model = HashModel()
    with embedding(database, model) as (embedder, waker):
        waker.wait_until_idle()
        rows = fetch(
            database,
            "select host, detail from recall.worker_heartbeat where component = 'embedder'",
        )
        ((host, detail),) = rows
        assert (host, detail["ok"], detail["interval_seconds"]) == ("laptop", True, 0.05)
        with embedding(database, model) as (_, other):
            other.wait_until_idle()
            assert len(fetch(database, "select from recall.worker_heartbeat")) == 2
        assert embedder.health.report()["ok"]
    assert fetch(database, "select from recall.worker_heartbeat") == []


def test_killed_embedder_is_forgotten_by_the_next_on_its_machine(database: str) -> None:
    with connect(database) as connection:
        for host, minutes in (("laptop", 4), ("server", 4), ("gone", 70)):
            connection.execute(
                "insert into recall.worker_heartbeat (component, instance, host, pid, beat_at)"
                " values ('embedder', %s, %s, 7, now() - make_interval(mins => %s))",
                (host, host, minutes),
            )
    with embedding(database, HashModel()) as (_, waker):
        waker.wait_until_idle()
        left = fetch(database, "select instance from recall.worker_heartbeat where pid = 7")
        assert left == [("server",)]


def test_missing_model_turns_it_red_and_breaks_nothing(database: str) -> None:
    def load(_name: str) -> HashModel:
        raise ModelError("the file is gone", hint="bring it back")

    embedder = Embedder(SETTINGS, database, "laptop", load)
    say(database, KEY, ["one"])
    looks: list[dict[str, object]] = []

    def until() -> bool:
        looks.append(embedder.health.report())
        return True

    embedder.run(until=until)
    assert looks[0]["reasons"] == ["the file is gone"]
    assert looks[0]["hint"] == "bring it back"
    assert fetch(database, "select * from recall.embedding_generation") == []


def test_model_of_the_settings_is_not_mixed_into_vectors_of_another(database: str) -> None:
    old, new = HashModel("old"), HashModel("new")
    bench = Bench(database, old)
    bench.begin()
    bench.close()
    say(database, KEY, ["one"])
    settings = replace(SETTINGS, embed_model="new")
    with embedding(database, new, settings, old=old) as (embedder, waker):
        waker.wait_until_idle(all_embedded(database, old))
        assert embedder.health.report()["ok"]
    assert (old.given, new.given) == (["one"], [])


def test_new_generation_is_filled_beside_the_old_one_and_swapped(database: str) -> None:
    """Searches by the active generation find everything at any time, and one model only."""
    old, new = HashModel("old"), HashModel("new", dimension=16)
    bench = Bench(database, models={"old": old, "new": new})
    bench.store.create_generation(shape_of(SETTINGS, old), only_first=True)
    lines = [f"line {number}" for number in range(12)]
    say(database, KEY, lines)
    bench.drain()

    def search() -> tuple[list[object], set[int]]:
        rows = fetch(
            database,
            "select p.generation, m.content, recall.vector_dims(p.v) from recall.passage p"
            " join recall.embedding_generation g on g.number = p.generation and g.state = 'active'"
            " join recall.message m on m.id = p.entry_id order by m.ordinal",
        )
        return [row[1] for row in rows], {int(row[2]) for row in rows}

    assert search() == (lines, {8})
    bench.store.create_generation(shape_of(SETTINGS, new), only_first=False)
    while not bench.store.is_filled(2):
        assert bench.cutter.cut_next() or bench.worker.embed_next()
        assert search() == (lines, {8})
    say(database, KEY, ["later"], first=12)  # both get what comes meanwhile
    bench.drain()
    assert search() == ([*lines, "later"], {8})
    bench.store.activate(2)
    assert search() == ([*lines, "later"], {16})
    bench.store.drop(1)
    say(database, KEY, ["latest"], first=13)
    bench.drain()
    assert search() == ([*lines, "later", "latest"], {16})
    assert passages(database, 1) == []
    assert old.given.count("latest") == 0
    check_store(database)
    bench.close()


def test_generation_that_cannot_be_filled_here_is_told_and_stops_nothing(database: str) -> None:
    old = HashModel("old")
    bench = Bench(database, old)
    bench.begin()
    bench.store.create_generation(shape_of(SETTINGS, HashModel("new")), only_first=False)
    bench.close()
    say(database, KEY, ["one"])
    settings = replace(SETTINGS, embed_model="old")
    with embedding(database, old, settings) as (embedder, waker):
        waker.wait_until_idle(all_embedded(database, old))
        assert embedder.health.reasons() == ["no vectors of `new`: no model `new`"]
        assert embedder.health.problem is None


def test_first_generation_is_made_once_by_two_embedders(database: str) -> None:
    stores = [EmbedStore(database) for _ in range(2)]
    shape = shape_of(SETTINGS, HashModel())
    made: list[int | None] = []
    threads = [
        threading.Thread(
            target=lambda store=store: made.append(store.create_generation(shape, only_first=True))
        )
        for store in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert sorted(made, key=str) == [1, None]
    for store in stores:
        store.close()


def test_generation_that_is_made_while_messages_are_stored_misses_none(database: str) -> None:
    """Neither had the writer seen the generation, nor had whoever makes it seen the messages."""
    say(database, KEY, [], mark=False)
    store = EmbedStore(database, application="tests maker")
    shape = shape_of(SETTINGS, HashModel())
    thread = threading.Thread(
        target=store.create_generation, args=(shape,), kwargs={"only_first": True}
    )
    with connect(database) as writer:
        writer.execute(
            "insert into recall.message (session_key, ordinal, part, id, role, kind, content,"
            " content_hash) values (%s, 0, 0, 1, 'user', 'text', 'one', '')",
            (KEY,),
        )
        writer.execute(
            "insert into recall.session (session_key, source, host, external_id)"
            " values ('codex:laptop:two', 'codex', 'laptop', 'two')"
        )
        writer.execute(
            "select recall.mark_dirty(array['codex:laptop:two'], array[0::bigint],"
            " array[1::bigint], array[null::timestamptz])"
        )
        thread.start()
        wait_until(
            lambda: (
                fetch(
                    database,
                    "select from pg_stat_activity where application_name = 'tests maker'"
                    " and wait_event_type = 'Lock' and datname = current_database()",
                )
                != []
            )
        )
    thread.join(SECONDS)
    store.close()
    keys = fetch(database, "select key from recall.embed_dirty order by key")
    assert keys == [(KEY,), ("codex:laptop:two",)]


def test_index_of_signs_is_made_beside_the_work(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_keeper, "LOOK_SECONDS", 0.05)
    say(database, KEY, ["one text", "and another one"])
    with connect(database, application="tests", autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'alter database "{name}" set recall.signs_rows = 0'.encode())
    made = "select to_regclass('recall.passage_1_signs') is not null"
    with embedding(database, HashModel()):
        wait_until(lambda: fetch(database, made) == [(True,)])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline


def test_listener_comes_back_after_its_connection_was_cut(
    database: str, no_polls: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waker_module, "_RECONNECT_SECONDS", 0.0)
    cut = (
        "select pg_terminate_backend(pid, 60000) from pg_stat_activity"
        " where application_name = 'recall embedder listener' and datname = current_database()"
    )
    model = HashModel()
    say(database, KEY, ["one"])
    with embedding(database, model) as (_, waker):
        waker.wait_until_idle(all_embedded(database, model))
        wait_until(lambda: fetch(database, cut) == [(True,)])  # nothing was to be told until then
        say(database, KEY, ["two"], first=1)
        waker.wait_until_idle(all_embedded(database, model))
