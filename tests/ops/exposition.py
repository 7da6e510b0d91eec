"""Everything that a scrape can show: an API and an embedder on a store in which each metric says
something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from recall.config import Settings
from recall_embedder.health import Health
from recall_embedder.health_server import HealthCollector
from tests.db.embedding import Bench, say
from tests.db.serving import Store, serving


@dataclass(frozen=True)
class Shown:
    """One metric as it was scraped."""

    kind: str
    about: str
    labels: frozenset[str]


@dataclass(frozen=True)
class Exposition:
    """The text of both processes."""

    api: str
    embedder: str

    def metrics(self, text: str) -> dict[str, Shown]:
        """By the name that is documented: that of a counter ends with ``_total``."""
        found = {}
        for family in text_string_to_metric_families(text):
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            name = f"{family.name}_total" if family.type == "counter" else family.name
            assert family.samples, name
            found[name] = Shown(family.type, family.documentation, frozenset(labels))
        return found

    def series(self) -> set[str]:
        """Every name that a query can use."""
        return {
            sample.name
            for text in (self.api, self.embedder)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def fill(url: str) -> None:
    """A store of which every metric of the API has something to tell."""
    store = Store(url)
    store.add_session("0b7f2c9e", ["a needle", "another"])
    store.add_file("/logs/a", lines=(4, 1, 1, 1, 1))
    store.add_quarantine("/logs/a", 10)
    beat = {
        "state": "waiting",
        "version": "0.1.0",
        "sources": {"claude-code": 1},
        "sink_errors": {"PGRST003": 2},
    }
    store.beat(detail=json.dumps(beat))
    bench = Bench(url)
    bench.begin()
    say(url, "claude-code:laptop:one", ["something to embed"])
    bench.drain()
    bench.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "insert into recall.backup (started_at, bytes, file, schema_version)"
            " values (now(), 1, 'a', 16)"
        )
        connection.execute("create table recall.made as select n from generate_series(1, 500000) n")
        connection.execute("create index made_n on recall.made (n)")  # over 10 MiB
        connection.execute("vacuum analyze recall.made")


@contextmanager
def exposing(url: str, folder: Path) -> Iterator[httpx.Client]:
    """An API on the filled store that has answered, refused and degraded something."""
    settings = Settings(
        home=folder, database_url=url, database_volume=folder, backup_dir=folder, embed_model="none"
    )
    with serving(url, settings) as api:
        api.get("/search", params={"q": "needle", "mode": "text"})
        api.get("/search", params={"q": "needle", "mode": "semantic"}).raise_for_status()
        api.get("/nothing")
        yield api


def expose_embedder() -> str:
    """What an embedder shows that has done something."""
    health = Health(model="hash-model", queue={"1": 3})
    health.expect(["cutter"])
    health.embedded(4)
    health.failed(1)
    health.batch(failed=False)
    health.batch(failed=True)
    registry = CollectorRegistry()
    registry.register(HealthCollector(health))
    return generate_latest(registry).decode()
