"""Two stores for all cases: making a database costs more than reading a case into it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg import sql

from recall_sql.connection import connect
from recall_sql.embedded import EmbeddedServer
from tests.contract.script import Case
from tests.contract.store import Store


@pytest.fixture(scope="session")
def _stores(server: EmbeddedServer, template: str) -> Iterator[tuple[Store, Store]]:
    names = [f"contract_{uuid.uuid4().hex}" for _ in range(2)]
    postgres = server.url_for("postgres")
    with connect(postgres, application="tests", autocommit=True) as connection:
        for name in names:
            statement = "create database {} template {}"
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, (name, template))))
    first, second = (Store(server.url_for(name)) for name in names)
    yield first, second
    first.close()
    second.close()


@pytest.fixture
def stores(_stores: tuple[Store, Store]) -> tuple[Store, Store]:
    """Two stores, both empty."""
    for store in _stores:
        store.clear()
    return _stores


@pytest.fixture
def store(stores: tuple[Store, Store]) -> Store:
    """An empty store."""
    return stores[0]


@pytest.fixture
def folder_of(tmp_path: Path) -> Callable[[Case], Path]:
    """Makes the empty folder of a case's client."""

    def make(case: Case) -> Path:
        path = tmp_path / case.folder
        path.mkdir()
        return path

    return make
