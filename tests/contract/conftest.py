"""Two stores for all cases: making a database costs more than reading a case into it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from psycopg import sql

from recall_sql.connection import connect
from recall_sql.embedded import EmbeddedServer
from tests.contract.cases import DOORS, Door
from tests.contract.script import Case
from tests.contract.store import Store
from tests.db.conftest import patience as patience
from tests.db.over_http import join, serve

Stores = tuple[Store, Store]


@pytest.fixture
def door(request: pytest.FixtureRequest) -> Door:
    """How rows get into the stores of a test: straight, unless it is asked for otherwise."""
    found: Door = getattr(request, "param", DOORS[0])
    return found


@pytest.fixture(scope="session")
def _stores_by_sql(server: EmbeddedServer, template: str) -> Iterator[Stores]:
    first, second = (Store(url) for url in _databases(server, template))
    yield first, second
    first.close()
    second.close()


@pytest.fixture(scope="session")
def _stores_over_http(server: EmbeddedServer, template: str) -> Iterator[Stores]:
    with ExitStack() as stack:
        made = []
        for url in _databases(server, template):
            store = Store(url, join(stack.enter_context(serve(url)), url))
            stack.callback(store.close)
            made.append(store)
        yield made[0], made[1]


def _databases(server: EmbeddedServer, template: str) -> list[str]:
    names = [f"contract_{uuid.uuid4().hex}" for _ in range(2)]
    postgres = server.url_for("postgres")
    with connect(postgres, application="tests", autocommit=True) as connection:
        for name in names:
            statement = "create database {} template {}"
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, (name, template))))
    return [server.url_for(name) for name in names]


@pytest.fixture
def stores(request: pytest.FixtureRequest, door: Door) -> Stores:
    """Two stores, both empty."""
    found: Stores = request.getfixturevalue(
        "_stores_over_http" if door == "http" else "_stores_by_sql"
    )
    for store in found:
        store.clear()
    return found


@pytest.fixture
def store(stores: Stores) -> Store:
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
