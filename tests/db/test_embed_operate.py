"""The embedder as its operator sees it: commands, status, health, metrics, purge."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner, Result

from recall.cli import app
from recall.cli import embedder as embedder_command
from recall.cli import reembed as reembed_command
from recall.cli.embedding_watch import EmbeddingWatch, forget_embedders
from recall.cli.output import notes
from recall.config import Settings
from recall.errors import ModelError
from recall_api import answers_status
from recall_embedder.run import Embedder
from recall_sql.connection import connect
from tests.db.embedding import Bench, HashModel, add_note, check_store, fetch, passages, say
from tests.db.serving import serving

KEY = "claude-code:laptop:one"
OTHER = "codex:laptop:two"
LATER = timedelta(minutes=1)


@pytest.fixture
def bench(database: str) -> Iterator[Bench]:
    bench = Bench(database)
    bench.begin()
    yield bench
    bench.close()


@pytest.fixture
def api(database: str) -> Iterator[httpx.Client]:
    with serving(database) as client:
        yield client


def beat(url: str, instance: str = "one", *, seconds_ago: int = 0, **detail: Any) -> None:
    with connect(url, application="tests") as connection:
        connection.execute(
            "insert into recall.worker_heartbeat (component, instance, host, pid, beat_at, detail)"
            " values ('embedder', %s, 'laptop', 7, now() - make_interval(secs => %s), %s)"
            " on conflict (component, instance) do update"
            " set beat_at = excluded.beat_at, detail = excluded.detail",
            (instance, seconds_ago, json.dumps({"ok": True, "interval_seconds": 15, **detail})),
        )


# What the API says


def test_status_tells_the_share_the_rate_and_the_time_left(
    database: str, bench: Bench, api: httpx.Client
) -> None:
    say(database, KEY, [f"text {number}" for number in range(8)])
    answer = api.get("/status").json()["embedding"][0]
    assert (answer["embedded"], answer["uncut_entries"], answer["share"]) == (0, 8, 0.0)
    assert answer["eta_seconds"] is None
    while bench.cutter.cut_next():
        pass
    bench.worker.embed_next()
    beat(database, passages_per_minute=60.0)
    beat(database, "two", passages_per_minute=60.0)
    beat(database, "dead", passages_per_minute=60.0, seconds_ago=300)
    whole = api.get("/status").json()
    assert answers_status.StatusAnswer(**whole).model_dump() == whole
    answer = whole["embedding"][0]
    assert (answer["model"], answer["state"]) == ("hash-model", "active")
    numbers = ("embedded", "waiting", "remaining", "failed", "share", "passages_per_minute")
    assert [answer[name] for name in numbers] == [4, 4, 4, 0, 0.5, 120.0]
    assert answer["eta_seconds"] == 2
    bench.drain()
    answer = api.get("/status").json()["embedding"][0]
    assert (answer["share"], answer["remaining"], answer["eta_seconds"]) == (1.0, 0, 0)


def test_status_without_any_generation_is_empty(api: httpx.Client) -> None:
    assert api.get("/status").json()["embedding"] == []


@pytest.mark.parametrize(
    ("beats", "healthy"),
    [
        ([], None),
        ([{"seconds_ago": 100}], True),
        ([{"seconds_ago": 181}], False),
        ([{"ok": False, "reasons": ["the model is gone"]}], False),
        # One that was killed and replaced.
        ([{"instance": "old", "seconds_ago": 999}, {"instance": "new"}], True),
        ([{"instance": "well"}, {"instance": "ill", "ok": False}], False),
    ],
)
def test_health_of_the_api_reports_the_embedders(
    database: str, api: httpx.Client, beats: list[dict[str, Any]], healthy: bool | None
) -> None:
    for one in beats:
        beat(database, **one)
    answer = api.get("/health")
    components = answer.json()["components"]
    if healthy is None:
        assert "embedder" not in components
    else:
        assert components["embedder"]["ok"] is healthy
        assert answer.json()["ok"] is healthy
    if beats and "reasons" in beats[0]:
        assert components["embedder"]["reasons"] == ["the model is gone"]


def test_metrics_of_the_api_have_each_sample_once(
    database: str, bench: Bench, api: httpx.Client
) -> None:
    say(database, KEY, ["one", "two"])
    bench.drain()
    beat(database, seconds_ago=100)
    beat(database, "two", seconds_ago=20)
    samples: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(api.get("/metrics").text):
        for sample in family.samples:
            key = (sample.name, *sample.labels.values())
            assert key not in samples
            samples[key] = sample.value
    assert samples["recall_passages", "1", "hash-model", "embedded"] == 2
    assert samples["recall_passages_embedded_share", "1", "hash-model"] == 1
    assert samples["recall_component_processes", "embedder"] == 2
    assert 20 <= samples["recall_component_heartbeat_age_seconds", "embedder"] < 100


# Commands


@pytest.fixture
def models(home: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, HashModel]:
    """The models that the commands can load, in place of real ones."""
    known = {"old": HashModel("old"), "new": HashModel("new", dimension=16)}

    def loader(_settings: Settings) -> Callable[[str], HashModel]:
        def load(name: str) -> HashModel:
            if name not in known:
                raise ModelError(f"no model `{name}`", hint="name another one")
            return known[name]

        return load

    monkeypatch.setattr(embedder_command, "loader", loader)
    monkeypatch.setattr(reembed_command, "loader", loader)
    monkeypatch.setattr(embedder_command, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(reembed_command, "_LOOK_SECONDS", 0.02)
    monkeypatch.setenv("RECALL_DATABASE_URL", database)
    monkeypatch.setenv("RECALL_HOST", "laptop")
    monkeypatch.setenv("RECALL_EMBED_MODEL", "old")
    monkeypatch.setenv("RECALL_EMBED_TOKENS", "32")
    monkeypatch.setenv("RECALL_EMBED_LISTEN", "")
    return known


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def active(url: str) -> list[tuple[Any, ...]]:
    return fetch(
        url, "select number, model from recall.embedding_generation where state = 'active'"
    )


def test_embedder_once_ends_when_everything_has_its_vector(
    database: str, models: dict[str, HashModel]
) -> None:
    say(database, KEY, ["one", "two"])
    add_note(database, 5, "a memory")
    result = run("embedder", "--once")
    assert result.exit_code == 0, result.output
    assert len(passages(database)) == 3
    assert run("embedder", "--once").exit_code == 0
    assert sorted(models["old"].given) == ["a memory", "one", "two"]


def test_embedder_without_its_model_says_so(
    database: str, models: dict[str, HashModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALL_EMBED_MODEL", "gone")
    result = run("embedder", "--once")
    assert isinstance(result.exception, ModelError)
    assert result.exception.message == "no model `gone`"
    assert result.exception.hint == "name another one"
    assert fetch(database, "select * from recall.worker_heartbeat") == []


def test_reembed_fills_beside_and_swaps(database: str, models: dict[str, HashModel]) -> None:
    say(database, KEY, ["one", "two"])
    run("embedder", "--once")
    assert active(database) == [(1, "old")]
    result = run("reembed", "--model", "new")
    assert result.exit_code == 0, result.output
    assert active(database) == [(2, "new")]
    assert 'embed_model = "new"' in result.stderr
    assert len(passages(database, 2)) == len(passages(database, 1)) == 2
    again = run("reembed", "--model", "new", "--drop-old")
    assert "already" in again.stdout
    assert passages(database, 1) == []
    assert fetch(database, "select number from recall.embedding_generation") == [(2,)]
    check_store(database)


def test_reembed_goes_on_where_it_was_interrupted(
    database: str, models: dict[str, HashModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(database, KEY, [f"text {number}" for number in range(6)])
    run("embedder", "--once")
    with monkeypatch.context() as patched:
        patched.setattr(Embedder, "run", lambda self, until=None: self._store.close())
        assert run("reembed", "--model", "new").exit_code == 130
    assert active(database) == [(1, "old")]
    bench = Bench(database, models=models, claim_rows=3)
    bench.cutter.cut_next()
    bench.worker.embed_next()
    bench.close()
    assert len(passages(database, 2)) == 3
    result = run("reembed", "--model", "new")
    assert "going on" in result.stderr
    assert active(database) == [(2, "new")]
    assert sorted(models["new"].given) == [f"text {number}" for number in range(6)]


def test_reembed_drops_what_was_begun_with_another_model(
    database: str, models: dict[str, HashModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    models["third"] = HashModel("third")
    say(database, KEY, ["one"])
    run("embedder", "--once")
    with monkeypatch.context() as patched:
        patched.setattr(Embedder, "run", lambda self, until=None: self._store.close())
        run("reembed", "--model", "third")
    result = run("reembed", "--model", "new")
    assert "dropping the unfinished vectors of `third`" in result.stderr
    assert fetch(database, "select model, state from recall.embedding_generation order by 1") == [
        ("new", "active"),
        ("old", "retired"),
    ]


def test_reembed_replaces_vectors_of_a_model_that_is_gone(
    database: str, models: dict[str, HashModel]
) -> None:
    say(database, KEY, ["one"])
    run("embedder", "--once")
    del models["old"]
    result = run("reembed", "--model", "new")
    assert result.exit_code == 0, result.output
    assert active(database) == [(2, "new")]


def test_reembed_leaves_the_work_to_a_running_embedder(
    database: str, models: dict[str, HashModel]
) -> None:
    say(database, KEY, ["one"])
    run("embedder", "--once")
    settings = Settings(embed_model="old", embed_threads=1)
    running = Embedder(settings, database, "laptop", lambda name: models[name], beat_seconds=0.05)
    beats = threading.Event()

    def has_beaten() -> bool:
        beats.set()
        return False

    thread = threading.Thread(target=running.run, kwargs={"until": has_beaten})
    thread.start()
    try:
        assert beats.wait(60)
        result = run("reembed", "--model", "new")
    finally:
        running.request_stop()
        thread.join(60)
    assert result.exit_code == 0, result.output
    assert active(database) == [(2, "new")]
    assert running.health.embedded_total == 1


def test_reembed_does_the_work_that_a_running_embedder_cannot_do(
    database: str, models: dict[str, HashModel]
) -> None:
    say(database, KEY, ["one"])
    run("embedder", "--once")
    beat(database, ok=False, unfilled=[2], reasons=["no vectors of `new`"])
    result = run("reembed", "--model", "new")
    assert result.exit_code == 0, result.output
    assert active(database) == [(2, "new")]


def test_status_command_shows_vectors(database: str, models: dict[str, HashModel]) -> None:
    say(database, KEY, ["one", "two"])
    run("embedder", "--once")
    shown = run("status").stdout
    assert "vectors   old: 2 passages, 100%" in shown
    say(database, KEY, [f"text {number}" for number in range(4)])
    assert "about 2 to come; no embedder is at work" in run("status").stdout
    beat(database, passages_per_minute=0.0, ok=True)
    assert "about 2 to come; the speed is not known yet" in run("status").stdout
    beat(database, passages_per_minute=1.0, ok=False, reasons=["the model is gone"])
    shown = run("status").stdout
    assert "about 2 to come, 1 a minute, ready in 2m" in shown
    assert "the model is gone" in shown


def test_up_tells_once_that_search_by_meaning_is_off(
    database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(database, ok=False, problem="the file is gone", hint="bring it back")
    said: list[str] = []
    monkeypatch.setattr(notes, "print", lambda text, **_options: said.append(str(text)))
    with EmbeddingWatch(database) as watch:
        for _ in range(2):
            watch._next_look = 0.0
            watch.tick()
    assert said == ["search by meaning is off: the file is gone", "hint: bring it back"]


def test_embedder_that_was_killed_is_not_missed_where_none_is_to_run(
    home: Path, database: str
) -> None:
    beat(database, seconds_ago=9_999)
    forget_embedders(Settings(home=home, host="laptop"), database)
    assert fetch(database, "select * from recall.worker_heartbeat") == []


# Purge


@pytest.fixture
def filled(database: str, models: dict[str, HashModel]) -> str:
    """Two sources that share texts, a memory; some embedded, some waiting, some not cut."""
    bench = Bench(database)
    bench.begin()
    for key in (KEY, OTHER):
        say(database, key, ["go on", "shared by both", f"only of {key}"])
    add_note(database, 5, "a memory")
    bench.drain()
    for key in (KEY, OTHER):
        say(database, key, [f"waits in {key}"], first=3)
    while bench.cutter.cut_next():
        pass
    for key in (KEY, OTHER):
        say(database, key, [f"not cut in {key}"], first=4)
    bench.close()
    return database


@pytest.mark.parametrize("batch", [1, 5_000])
def test_purge_takes_passages_with_it_and_leaves_those_of_others_findable(
    filled: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recall.cli.purge._BATCH_ROWS", batch)
    result = run("purge", "--source", "claude-code", "--yes", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["deleted"]["passages"] == 4
    for table in ("passage", "embed_queue"):
        rows = fetch(filled, f"select distinct source from recall.{table} order by 1")
        assert ("claude-code",) not in rows
    assert fetch(filled, "select key from recall.embed_dirty") == [(OTHER,)]
    check_store(filled)
    assert len(passages(filled)) == 4
    bench = Bench(filled)
    bench.drain()
    bench.close()
    assert len([row for row in passages(filled) if row[2] == OTHER]) == 5
    assert run("purge", "--source", "memory", "--yes").exit_code == 0
    assert run("purge", "--source", "codex", "--yes").exit_code == 0
    for table in ("passage", "embed_queue", "embed_dirty"):
        assert fetch(filled, f"select * from recall.{table}") == []


def test_purge_of_a_source_that_is_not_cut_yet_leaves_no_dirty_key(filled: str) -> None:
    add_note(filled, 6, "another memory")
    assert run("purge", "--source", "memory", "--yes").exit_code == 0
    keys = fetch(filled, "select key from recall.embed_dirty order by 1")
    assert keys == [(KEY,), (OTHER,)]
