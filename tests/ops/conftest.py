"""What tests of the files for Prometheus and Grafana share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ops.exposition import Exposition, expose_embedder, exposing, fill


@pytest.fixture(scope="module")
def exposition(
    module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Exposition]:
    """What a scrape of a running installation shows."""
    fill(module_database)
    with exposing(module_database, tmp_path_factory.mktemp("home")) as api:
        yield Exposition(api.get("/metrics").raise_for_status().text, expose_embedder())


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the project."""
    return Path(__file__).resolve().parents[2]
