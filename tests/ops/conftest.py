"""What tests of the files for Prometheus and Grafana share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.db.conftest import patience as patience
from tests.ops.exposition import Exposition, expose_embedder, exposing, fill


@pytest.fixture(scope="module")
def exposition(
    module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Exposition]:
    """What a scrape of a running installation shows, however long it takes."""
    fill(module_database)
    with (
        pytest.MonkeyPatch.context() as patch,
        exposing(module_database, tmp_path_factory.mktemp("home")) as api,
    ):
        for limit in ("_CONNECT_SECONDS", "_STATEMENT_SECONDS", "_MOST_SECONDS"):
            patch.setattr(f"recall_api.metrics_store.{limit}", 60)
        yield Exposition(api.get("/metrics").raise_for_status().text, expose_embedder())


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the project."""
    return Path(__file__).resolve().parents[2]
