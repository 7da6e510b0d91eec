"""A bench for writing over HTTP: two databases and a server for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recall_sql.embedded import EmbeddedServer
from tests.db.conftest import patience as patience
from tests.db.over_http import copy_of, empty, join, serve
from tests.double.fixtures import Served
from tests.faults.sink_bench import Bench, line, log


@pytest.fixture(scope="module")
def _databases(server: EmbeddedServer, template: str) -> Iterator[tuple[str, str, Served]]:
    with (
        copy_of(server, template) as database,
        copy_of(server, template) as other,
        serve(database) as served,
    ):
        yield database, other, served


@pytest.fixture
def bench(_databases: tuple[str, str, Served], tmp_path: Path) -> Iterator[Bench]:
    database, other, served = _databases
    empty(database)
    empty(other)
    served.switches.exchanges.clear()
    for number in range(3):
        path = log(tmp_path, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(line(f"{number} says {n}", n) for n in range(8)))
    yield Bench(tmp_path, database, other, join(served, database), served)
    served.switches.clear()
