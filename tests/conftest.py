"""What every test can use: a clean environment, the sample logs, and real databases.

Database tests run against the PostgreSQL of the wheel. Each process of the test run has one server,
and each test that asks for ``database`` its own copy of a migrated template.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.double.fixtures import postgrest as postgrest

if TYPE_CHECKING:
    from recall_sql.embedded import EmbeddedServer

#: What a machine may have set for its own use: settings of Recall and of libpq, where clients keep
#: their logs, and how wide and colourful a terminal is.
_FOREIGN = (
    "RECALL_", "PG", "CLAUDE_", "CODEX_", "GEMINI_", "OPENCODE_", "XDG_", "HF_", "FASTEMBED_",
    "COLUMNS", "LINES", "TERMINAL_WIDTH", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "CLICOLOR",
    "TTY_", "GITHUB_ACTIONS",
)  # fmt: skip
for _name in list(os.environ):
    if _name.startswith(_FOREIGN):
        del os.environ[_name]
# Packages may have to come through a proxy; what listens on this machine is not behind it.
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = f"{os.environ.get(_name, '')},localhost,127.0.0.1,::1".removeprefix(",")

# How fast a machine is decides nothing, and neither does chance: no deadline, and no check for
# input that was slow to make, or too large or unfit too often in a row.
settings.register_profile(
    "recall",
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ],
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("recall")


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of sample logs of all clients; tests that need it skip where it is absent."""
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "corpus"
    folder = Path(os.environ.get("CORPUS_DIR", beside))
    if not folder.is_dir():
        pytest.skip("the sample logs are not here; CORPUS_DIR can name their folder")
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home that ``RECALL_HOME`` names."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("RECALL_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A running server, fast because it would not survive a power failure."""
    from recall_sql.embedded import EmbeddedServer

    running = EmbeddedServer(
        tmp_path_factory.mktemp("server"),
        extra_settings={
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "shared_buffers": "64MB",
        },
    )
    running.start()
    yield running
    running.stop("immediate")


@pytest.fixture(scope="session")
def template(server: EmbeddedServer) -> str:
    """The name of a migrated database that nobody is connected to."""
    from recall_sql.migrate import migrate

    name = "template_recall"
    _execute(server, "create database {}", name)
    migrate(server.url_for(name))
    return name


@pytest.fixture
def new_database(server: EmbeddedServer) -> Iterator[Callable[..., str]]:
    """Makes databases, empty or copied from a template, and drops them after the test."""
    made: list[str] = []

    def make(template: str = "template0") -> str:
        name = f"test_{uuid.uuid4().hex}"
        _execute(server, "create database {} template {}", name, template)
        made.append(name)
        return server.url_for(name)

    yield make
    for name in made:
        _execute(server, "drop database {} with (force)", name)


@pytest.fixture
def database(new_database: Callable[..., str], template: str) -> str:
    """The URL of a migrated database that belongs to this test."""
    return new_database(template)


@pytest.fixture(scope="module")
def module_database(server: EmbeddedServer, template: str) -> Iterator[str]:
    """The URL of a migrated database that the tests of a module share and leave as it is."""
    name = f"test_{uuid.uuid4().hex}"
    _execute(server, "create database {} template {}", name, template)
    yield server.url_for(name)
    _execute(server, "drop database {} with (force)", name)


@pytest.fixture
def empty_database(new_database: Callable[..., str]) -> str:
    """The URL of a database without any schema that belongs to this test."""
    return new_database()


def _execute(server: EmbeddedServer, statement: str, *names: str) -> None:
    """Run a statement about a database. The server waits 5 s for whoever is leaving that database;
    a machine that stands still may take longer."""
    from psycopg import errors, sql

    from recall_sql.connection import connect

    until = time.monotonic() + 60
    with connect(server.url_for("postgres"), application="tests", autocommit=True) as conn:
        while True:
            try:
                conn.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
                return
            except errors.ObjectInUse:
                if time.monotonic() > until:
                    raise
