"""`recall doctor` where an API runs without `recall up`, as in the container of the appliance."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from recall import disk
from recall.cli import app
from recall.config import Settings
from recall.disk import Room
from recall_api.app import create_app
from recall_sql.authenticator import SERVICES, let_service_in
from tests.db.serving import Store, running
from tests.double.fixtures import with_user


@pytest.fixture
def as_api(database: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The settings of the container of the API, in which nothing is read."""
    let_service_in(database, "api", "a password")
    url = with_user(database, SERVICES["api"])
    monkeypatch.setenv("RECALL_DATABASE_URL", url)
    monkeypatch.setenv("RECALL_SOURCES", "memory")
    return url


def doctor() -> Result:
    return CliRunner().invoke(app, ["doctor", "--json"])


def checks(done: Result) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_the_port_of_recalls_own_api_is_no_problem(
    as_api: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(database).beat()
    with running(create_app(Settings(), as_api)) as client:
        listen = f"{client.base_url.host}:{client.base_url.port}"
        monkeypatch.setenv("RECALL_LISTEN", listen)
        done = doctor()
    found = checks(done)
    assert found["running"]["status"] == "ok", found["running"]
    assert found["running"]["detail"] == f"the API of Recall answers at {listen}"
    assert found["schema"]["status"] == found["checksums"]["status"] == "ok"
    assert done.exit_code == 0, found


def test_an_api_that_is_not_well_is_told(as_api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(create_app(Settings(), "postgresql://127.0.0.1:1/none")) as client:
        monkeypatch.setenv("RECALL_LISTEN", f"{client.base_url.host}:{client.base_url.port}")
        found = checks(doctor())
    assert found["running"]["status"] == "warn"
    assert found["running"]["detail"].endswith("not well: database")
    assert found["running"]["hint"].startswith(str(client.base_url))


def test_an_api_of_another_store_is_in_the_way_of_recall_up(
    as_api: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(database).beat()
    with running(create_app(Settings(), as_api)) as client:
        monkeypatch.setenv("RECALL_LISTEN", f"{client.base_url.host}:{client.base_url.port}")
        monkeypatch.delenv("RECALL_DATABASE_URL")
        found = checks(doctor())["running"]
    assert found["status"] == "warn", found
    assert "was not started by `recall up` here" in found["detail"]
    assert "RECALL_LISTEN" in found["hint"]


@contextmanager
def answering(status: int, body: bytes) -> Iterator[int]:
    """Another program on a port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b'{"ok": true}', b'{"components": []}', b'{"components": {"x": 1}}']
)
def test_another_program_on_the_port_is_one(
    home: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    with answering(200, body) as port:
        monkeypatch.setenv("RECALL_LISTEN", f"127.0.0.1:{port}")
        done = doctor()
    assert done.exit_code == 1
    found = checks(done)["running"]
    assert found["status"] == "fail"
    assert "is in use by another program" in found["detail"]


@pytest.mark.parametrize(("free", "status"), [(1_000_000_000, "fail"), (9_000_000_000, "ok")])
def test_the_room_for_the_database_is_told(
    as_api: str, monkeypatch: pytest.MonkeyPatch, free: int, status: str
) -> None:
    monkeypatch.setattr(disk, "look", lambda settings: Room(free, 2_000_000_000))
    found = checks(doctor())["disk"]
    assert found["status"] == status
    assert f"{free / 1e9:.1f} GB free" in found["detail"]


def test_a_volume_that_cannot_be_seen_is_told(
    as_api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would stop before that disk is full."""
    assert "disk" not in checks(doctor())
    monkeypatch.setenv("RECALL_DATABASE_VOLUME", str(tmp_path / "missing"))
    found = checks(doctor())["disk"]
    assert found["status"] == "warn"
    assert "is not watched" in found["detail"]
