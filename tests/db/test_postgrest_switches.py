"""What the double of PostgREST does on request, and how it is started in place of the real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
import pytest

from tests.double.config import Config, read_config
from tests.double.fixtures import SECRET, Served, real_server, start, with_user
from tests.double.rules import BATCH, database_for_rules, serve_rules
from tests.double.stage import Background, until
from tests.double.switches import Switches
from tests.double.tokens import sign

if TYPE_CHECKING:
    from recall_sql.embedded import EmbeddedServer

pytestmark = pytest.mark.skipif(real_server() is not None, reason="only the double has switches")


#: How the end of a connection looks: closed, or reset where the other side left something unread.
CUT_OFF = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


@pytest.fixture(scope="module")
def rules_database(server: EmbeddedServer) -> Iterator[str]:
    with database_for_rules(server) as url:
        yield url


@pytest.fixture
def served(rules_database: str) -> Iterator[Served]:
    with psycopg.connect(rules_database, autocommit=True) as connection:
        connection.execute("delete from store.incoming where content <> 'before'")
    served = serve_rules(rules_database)
    yield served
    served.stop()


@pytest.fixture
def client(served: Served) -> Iterator[httpx.Client]:
    token = served.token("double_writer", host="laptop")
    with httpx.Client(
        base_url=served.url,
        headers={"Authorization": f"Bearer {token}", "Prefer": "resolution=merge-duplicates"},
        trust_env=False,
        timeout=60,
    ) as client:
        yield client


def _write(client: httpx.Client, n: int = 1) -> httpx.Response:
    rows = [{"batch": BATCH, "n": n, "content": "x"}]
    return client.post("/incoming?columns=batch,n,content", json=rows)


def _get(url: str) -> httpx.Response:
    return httpx.get(url, trust_env=False, timeout=60)


def _count(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("select count(*) from store.incoming where n > 0").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize(
    ("moment", "written"), [("before body", 0), ("before commit", 0), ("after commit", 1)]
)
def test_a_dropped_connection_leaves_what_was_committed(
    served: Served, client: httpx.Client, rules_database: str, moment: Any, written: int
) -> None:
    served.switches.drop(moment, method="POST")

    with pytest.raises(CUT_OFF):
        _write(client)

    assert _count(rules_database) == written
    assert served.switches.exchanges[-1].status is None
    assert served.switches.pending() == 0
    assert _write(client).status_code == 201 - written


def test_errors_come_as_often_as_asked_for_and_for_the_path_asked_for(
    served: Served, client: httpx.Client, rules_database: str
) -> None:
    served.switches.answer(503, times=2, skip=1, path="/incoming")
    served.switches.answer(504, moment="after commit", method="POST", path="/rpc/store_batch")

    assert client.get("/rpc/names", params={"wanted": "{a}"}).json() == ["a"]
    assert [_write(client, n).status_code for n in (1, 2, 3, 4)] == [201, 503, 503, 201]
    body = {"batch": BATCH.replace("8", "9"), "body": {"content": "c"}}
    assert client.post("/rpc/store_batch", json=body).status_code == 504
    assert _count(rules_database) == 2
    assert client.post("/rpc/store_batch", json=body).status_code == 200
    assert served.switches.paths(method="GET") == ["/rpc/names"]


def test_a_held_request_is_written_and_not_answered(
    served: Served, client: httpx.Client, rules_database: str
) -> None:
    answers: list[int] = []
    with served.switches.hold("after commit") as held:
        writing = Background(lambda: answers.append(_write(client).status_code))
        held.wait()
        assert (_count(rules_database), answers) == (1, [])
    writing.join()
    assert answers == [201]


def test_the_database_is_away(served: Served, client: httpx.Client) -> None:
    ready = f"{served.admin_url}/ready"
    with served.switches.database_down():
        refused = _write(client)
        assert _get(ready).status_code == 503
    assert (refused.status_code, refused.json()["code"]) == (503, "PGRST000")
    assert refused.headers["retry-after"] == "0"
    with served.switches.pool_exhausted():
        refused = _write(client)
        assert _get(ready).status_code == 200
    assert (refused.status_code, refused.json()["code"]) == (504, "PGRST003")
    assert "retry-after" not in refused.headers
    assert _write(client).status_code == 201


def test_nobody_listens_for_a_while(served: Served, client: httpx.Client) -> None:
    assert _write(client, 1).status_code == 201
    with served.need_double().refusing_connections(), pytest.raises(httpx.NetworkError):
        _write(client, 2)
    assert _write(client, 2).status_code == 201


def test_a_role_has_a_time_limit(served: Served, client: httpx.Client) -> None:
    served.switches.role_setting("double_writer", "statement_timeout", "50ms")
    refused = client.post("/rpc/wait", json={"seconds": 20})
    assert (refused.status_code, refused.json()["code"]) == (500, "57014")
    served.switches.clear()
    assert client.post("/rpc/wait", json={"seconds": 0}).json() == "done"


def test_a_server_that_began_without_a_database_has_no_schema(rules_database: str) -> None:
    away = rules_database.replace("port=5432", "port=1")
    served = start(Config(away, anon_role="double_anon"), wait=False)
    try:
        refused = _get(f"{served.url}/incoming")
        live = _get(f"{served.admin_url}/live")
    finally:
        served.stop()
    assert (refused.status_code, refused.json()["code"]) == (503, "PGRST002")
    assert live.status_code == 200


def test_a_silent_connection_is_closed(rules_database: str) -> None:
    # long enough to send a request in
    served = serve_rules(rules_database, keep_alive_seconds=2)
    try:
        with httpx.Client(base_url=served.url, trust_env=False, timeout=60) as client:
            first = client.get("/")
            stream = first.extensions["network_stream"]
            # returns when the other side has closed, and not before
            assert stream.get_extra_info("socket").recv(1) == b""
            assert client.get("/").status_code == 200
    finally:
        served.stop()


def test_an_early_answer_ends_the_connection(served: Served) -> None:
    expired = sign(SECRET, {"role": "double_writer", "exp": 1})
    with httpx.Client(
        base_url=served.url,
        headers={"Authorization": f"Bearer {expired}"},
        trust_env=False,
        timeout=60,
    ) as client:
        small = client.post("/incoming", content=b"x" * 8000)
        assert small.json()["code"] == "PGRST303"
        used = small.extensions["network_stream"]
        again = client.get("/incoming")
        assert again.extensions["network_stream"] is used
        # whether the answer still arrives is up to the buffers between both
        with suppress(*CUT_OFF):
            assert client.post("/incoming", content=b"x" * (8 << 20)).status_code == 401
        assert served.switches.exchanges[-1].body == b""
        after = client.get("/incoming")
        assert after.extensions["network_stream"] is not used


def test_changes_are_seen_after_a_reload(
    served: Served, client: httpx.Client, rules_database: str
) -> None:
    with psycopg.connect(rules_database, autocommit=True) as connection:
        connection.execute("create view api.later as select 1 as a")
        connection.execute("grant select on api.later to double_writer")
        assert client.get("/later").json()["code"] == "PGRST205"
        connection.execute("notify pgrst, 'reload schema'")
        until(lambda: client.get("/later").status_code == 200)
        connection.execute("drop view api.later")
    served.reload()
    assert client.get("/later").json()["code"] == "PGRST205"


def test_the_settings_survive_being_written_down(tmp_path: Path) -> None:
    config = Config(
        'postgresql:///x?host="a\\b"',
        schemas=("api", "other"),
        jwt_secret=SECRET,
        max_rows=1000,
        aggregates_enabled=True,
        port=1,
    )
    file = tmp_path / "postgrest.conf"
    file.write_text(f"# made by a test\n{config.text()}unknown-setting = 7 # passed over\n")
    assert read_config(file, {}) == config


def test_settings_of_the_environment_come_first(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from a file\n")
    file = tmp_path / "postgrest.conf"
    file.write_text(f'jwt-secret = "@{secret}"\nserver-host = "!4"\ndb-max-rows = 5\n')
    config = read_config(file, {"PGRST_DB_MAX_ROWS": "6", "PGRST_DB_URI": "postgresql://db/x"})
    assert (config.jwt_secret, config.max_rows) == ("from a file", 6)
    assert (config.db_uri, config.host, config.port) == ("postgresql://db/x", "0.0.0.0", 3000)


def test_it_runs_as_a_process(rules_database: str, tmp_path: Path) -> None:
    config = Config(
        with_user(rules_database, "double_login"), anon_role="double_writer", jwt_secret=SECRET
    )
    file = tmp_path / "postgrest.conf"
    file.write_text(config.text())
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.double", str(file)],
        cwd=Path(__file__).resolve().parents[2],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url, admin_url = (word.rstrip(",") for word in line.split() if "http" in word)
        until(lambda: _get(f"{admin_url}/ready").status_code == 200)
        assert _get(f"{url}/incoming?limit=0").json() == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_fixture_gives_a_server_for_a_database(
    postgrest: Callable[..., Served], rules_database: str
) -> None:
    served = postgrest(rules_database, user="double_login", anon_role="double_anon")
    token = served.token("double_writer", host="laptop")
    rows = httpx.get(
        f"{served.url}/incoming?select=n&batch=eq.{BATCH}&n=eq.0",
        headers={"Authorization": f"Bearer {token}"},
        trust_env=False,
        timeout=60,
    )
    assert rows.json() == [{"n": 0}]
    assert isinstance(served.switches, Switches)
