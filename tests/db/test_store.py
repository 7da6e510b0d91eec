"""Which database a command gets, and who stops the embedded server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from recall.config import Settings
from recall.errors import SchemaError
from recall_sql.connection import connect
from recall_sql.embedded import EmbeddedServer
from recall_sql.migrate import current_version, latest_version
from recall_sql.store import open_store


@pytest.fixture
def own(home: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(home)
    yield server
    server.stop("immediate")


def test_server_runs_while_the_store_is_open(own: EmbeddedServer, home: Path) -> None:
    with open_store(Settings(home=home)) as url:
        assert own.is_running()
        with connect(url) as conn:
            assert current_version(conn) == latest_version()
    assert not own.is_running()


def test_schema_is_left_alone_on_request(own: EmbeddedServer, home: Path) -> None:
    with open_store(Settings(home=home), migrate=False) as url, connect(url) as conn:
        assert current_version(conn) == 0


def test_server_that_ran_before_stays_up(own: EmbeddedServer, home: Path) -> None:
    own.start()
    with open_store(Settings(home=home)):
        pass
    assert own.is_running()


@pytest.mark.parametrize("first_out", [0, 1])
def test_last_user_to_leave_stops_the_server(
    own: EmbeddedServer, home: Path, first_out: int
) -> None:
    users = [ExitStack(), ExitStack()]
    for user in users:
        user.enter_context(open_store(Settings(home=home)))
    users.pop(first_out).close()
    assert own.is_running()
    users.pop().close()
    assert not own.is_running()


def test_server_with_other_clients_stays_up_until_the_next_last_user(
    own: EmbeddedServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, open_store(Settings(home=home)) as url:
        patch.setattr("recall_sql.store._CLOSING_CHECKS", 2)
        patch.setattr("recall_sql.store._CLOSING_SECONDS", 0.1)
        client = connect(url)
    assert own.is_running()
    client.close()
    with open_store(Settings(home=home)):
        pass
    assert not own.is_running()


def test_server_of_a_killed_user_is_stopped_by_the_next_one(
    own: EmbeddedServer, home: Path
) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path;"
        "from recall.config import Settings; from recall_sql.store import open_store\n"
        "with open_store(Settings(home=Path(sys.argv[1]))): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(home)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert own.is_running()
    with open_store(Settings(home=home)):
        pass
    assert not own.is_running()


def test_error_inside_stops_the_server_too(own: EmbeddedServer, home: Path) -> None:
    with pytest.raises(KeyError), open_store(Settings(home=home)):
        raise KeyError
    assert not own.is_running()


def test_refused_schema_stops_the_server_too(own: EmbeddedServer, home: Path) -> None:
    with open_store(Settings(home=home)) as url, connect(url) as conn:
        conn.execute("insert into recall.schema_version values (9999, 'later', 'x')")
    with pytest.raises(SchemaError, match="newer Recall"), open_store(Settings(home=home)):
        pytest.fail("the store opened")
    assert not own.is_running()


def test_database_url_is_used_and_migrated_and_starts_nothing(
    empty_database: str, home: Path
) -> None:
    with open_store(Settings(home=home, database_url=empty_database)) as url:
        assert url == empty_database
        with connect(url) as conn:
            assert current_version(conn) == latest_version()
    assert list(home.iterdir()) == []
