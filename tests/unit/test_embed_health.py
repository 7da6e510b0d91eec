"""An embedder that does not work says so: each way in which it can fail turns it red."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from recall.config import Settings
from recall.errors import ModelError
from recall_embedder.generations import Shelf
from recall_embedder.health import Health
from recall_embedder.health_server import serve_health
from recall_embedder.run import Embedder
from recall_embedder.store import Generation
from tests.db.embedding import HashModel


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    health = Health(clock)
    health.expect(["cutter", "worker 1"])
    return health


def test_part_that_never_starts_turns_it_red(clock: Clock, health: Health) -> None:
    health.beat("cutter")
    clock.now += 179
    health.beat("cutter")
    assert health.report()["ok"]
    clock.now += 2
    assert health.reasons() == ["worker 1 never started for 181 s"]
    health.beat("worker 1")
    assert health.report()["ok"]


def test_part_that_is_not_heard_of_turns_it_red(clock: Clock, health: Health) -> None:
    health.beat("cutter")
    health.beat("worker 1")
    clock.now += 180
    health.beat("cutter")
    assert health.report()["ok"]
    clock.now += 1
    assert health.reasons() == ["worker 1 was not heard of for 181 s"]
    assert health.beat_age() == 181


def test_part_that_ended_turns_it_red_at_once_and_for_good(health: Health) -> None:
    health.died("cutter", "its thread is gone")
    health.beat("cutter")
    assert health.reasons() == ["cutter ended: its thread is gone"]


def test_errors_turn_it_red_when_they_last(clock: Clock, health: Health) -> None:
    for seconds in (0, 30, 29):
        clock.now += seconds
        health.failing("cutter", "the database was lost")
        assert health.report()["ok"]
    clock.now += 1
    health.failing("cutter", "the database was lost")
    assert health.reasons() == ["cutter fails for 60 s: the database was lost"]
    health.beat("cutter")
    assert health.report()["ok"]


def test_it_is_red_while_every_batch_fails(clock: Clock, health: Health) -> None:
    health.batch(failed=True)
    assert health.reasons() == ["every batch of the last 5 minutes failed"]
    health.batch(failed=False)
    assert health.reasons() == []
    clock.now += 100
    health.beat("cutter")
    health.beat("worker 1")
    health.batch(failed=True)
    assert health.reasons() == []
    clock.now += 201  # the good one is out of sight now
    health.beat("cutter")
    health.beat("worker 1")
    health.batch(failed=True)
    assert health.reasons() == ["every batch of the last 5 minutes failed"]


def test_missing_model_is_told_with_what_to_do(health: Health) -> None:
    health.problem, health.hint = "the model is gone", "bring it back"
    report = health.report()
    assert (report["ok"], report["reasons"]) == (False, ["the model is gone"])
    assert report["hint"] == "bring it back"


def test_rate_is_that_of_the_last_minute(clock: Clock, health: Health) -> None:
    health.embedded(100)
    clock.now += 30
    health.embedded(50)
    assert health.rate_per_minute() == 300
    clock.now += 31
    assert health.rate_per_minute() == pytest.approx(50 * 60 / 31)
    clock.now += 60
    assert health.rate_per_minute() == 0


@pytest.fixture
def address(health: Health) -> Iterator[str]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        serve_health(health, listener),
    ):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def ask(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_health_over_http_is_200_or_503(address: str, health: Health, clock: Clock) -> None:
    status, body = ask(f"{address}/health")
    assert (status, json.loads(body)["ok"]) == (200, True)
    clock.now += 181
    status, body = ask(f"{address}/health")
    assert status == 503
    assert len(json.loads(body)["reasons"]) == 2
    assert ask(f"{address}/other")[0] == 404


def test_metrics_tell_what_was_done(address: str, health: Health, clock: Clock) -> None:
    health.embedded(7)
    health.failed(2)
    health.batch(failed=False)
    health.batch(failed=True)
    health.stage("model", 1.5)
    health.queue = {"1": 12}
    health.model = "hash-model"
    clock.now += 5
    status, body = ask(f"{address}/metrics")
    assert status == 200
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    prefix = "recall_embedder"
    assert samples[f"{prefix}_passages_embedded_total",] == 7
    assert samples[f"{prefix}_passages_failed_total",] == 2
    assert samples[f"{prefix}_batches_total", "done"] == 1
    assert samples[f"{prefix}_batches_total", "failed"] == 1
    assert samples[f"{prefix}_stage_seconds_total", "model"] == 1.5
    assert samples[f"{prefix}_queue_passages", "1"] == 12
    assert samples[f"{prefix}_beat_age_seconds",] == 5
    assert samples[f"{prefix}_up",] == 1
    assert samples[f"{prefix}_model", "hash-model"] == 1


def make_embedder() -> Embedder:
    return Embedder(
        Settings(embed_threads=2), "postgresql://nowhere", "laptop", lambda _name: HashModel()
    )


def test_thread_that_dies_is_noticed() -> None:
    embedder = make_embedder()
    embedder.health.expect(embedder.parts)
    gone = threading.Thread(target=lambda: None, name="worker 2")
    gone.start()
    gone.join()
    embedder._threads.append(gone)
    assert embedder.check_threads() == "worker 2 ended"
    assert embedder.health.reasons() == ["worker 2 ended: its thread is gone"]


def test_thread_that_cannot_be_started_is_noticed() -> None:
    embedder = make_embedder()
    embedder.health.expect(embedder.parts)
    embedder._threads.append(threading.Thread(target=lambda: None, name="cutter"))
    assert embedder.check_threads() == "cutter ended"


def test_part_outlives_an_error_that_nobody_thought_of() -> None:
    embedder = make_embedder()
    embedder.health.expect(["cutter"])
    looks: list[int] = []

    def look() -> bool:
        looks.append(1)
        if len(looks) == 1:
            raise ZeroDivisionError("with content")
        embedder.stop.set()
        return False

    embedder.stop.wait = lambda _seconds=None: True  # type: ignore[assignment]
    embedder.loop("cutter", lambda _store: look)
    assert len(looks) == 2
    assert embedder.health.reasons() == []


def test_workers_share_a_model_that_allows_it_and_only_then() -> None:
    for is_safe, loads in ((True, 1), (False, 3)):
        loaded: list[str] = []

        def load(name: str, is_safe: bool = is_safe, loaded: list[str] = loaded) -> HashModel:
            loaded.append(name)
            return HashModel(threads_safe=is_safe)

        settings = Settings(embed_model="hash-model")
        embedder = Embedder(settings, "postgresql://nowhere", "laptop", load)
        generation = Generation(1, "hash-model", 8, "mean", 32, 4, ("text",), "active")
        for model_of in (embedder._models_of_thread(), embedder._models_of_thread()):
            assert model_of(generation) is model_of(generation)
        assert len(loaded) == loads


def test_model_that_cannot_be_loaded_is_tried_again_after_a_minute() -> None:
    clock = Clock()
    tries: list[str] = []

    def load(name: str) -> HashModel:
        tries.append(name)
        if len(tries) < 2:
            raise ModelError("the file is gone", hint="bring it back")
        return HashModel()

    shelf = Shelf(load, "hash-model", clock)
    generation = Generation(1, "hash-model", 8, "mean", 32, 4, ("text",), "active")
    for _ in range(3):
        assert shelf.get(generation) is None
    assert len(tries) == 1
    assert shelf.problems[1].hint == "bring it back"
    clock.now += 61
    assert shelf.get(generation) is not None
    assert shelf.problems == {}


@pytest.mark.parametrize(
    "model",
    [HashModel(dimension=16), HashModel(pooling="cls")],
    ids=["dimension", "pooling"],
)
def test_model_that_is_another_one_under_the_same_name_is_refused(model: HashModel) -> None:
    shelf = Shelf(lambda _name: model, "hash-model")
    generation = Generation(1, "hash-model", 8, "mean", 32, 4, ("text",), "active")
    assert shelf.get(generation) is None
    assert "is not what it was" in shelf.problems[1].message
