"""A disk that is almost full: nothing more is stored, nothing is lost, and searches go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from recall import disk
from recall.cli import app
from recall.cli.first_pass import first_pass
from recall.config import Settings
from recall.disk import Room
from recall.errors import StoreUnavailableError
from recall.identity import write_identity
from recall.joined import Joined, write_joined
from recall_api import answers_status
from recall_api.app import create_app
from recall_ingester.sinks.overloaded import NoRoomError
from tests.db.embedding import HashModel, fetch, passages, say
from tests.db.over_http import Member, join, read, serve
from tests.db.serving import Store, running
from tests.db.test_embed_run import all_embedded, embedding
from tests.double.fixtures import SECRET

GB = 1_000_000_000
KEY = "claude-code:laptop:one"
MESSAGES = "select count(*) from recall.message"


@dataclass
class Disk:
    """What the file system would say."""

    free: int = 100 * GB
    reserve: int = 2 * GB
    looked: list[int] = field(default_factory=list)

    def look(self, *_settings: Settings) -> Room:
        self.looked.append(self.free)
        return Room(self.free, self.reserve)


@pytest.fixture
def volume(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The volume of the database, which can be filled by a number."""
    found = Disk()
    monkeypatch.setattr(disk, "look", found.look)
    return found


@dataclass
class Server:
    """The API with PostgREST behind it, and a host that joined."""

    api: httpx.Client
    member: Member

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.member.token}"}


@pytest.fixture
def server_of(database: str, volume: Disk) -> Iterator[Server]:
    with serve(database) as served:
        member = join(served, database)
        settings = Settings(jwt_secret=SECRET, rest_url=served.url)
        with running(create_app(settings, database)) as api:
            url = f"{str(api.base_url).rstrip('/')}/rest"
            through = replace(member, served=replace(served, url=url))
            yield Server(api, through)


def write(folder: Path, name: str, *texts: str) -> None:
    folder.mkdir(exist_ok=True)
    lines = [
        {
            "type": "user", "sessionId": name, "uuid": f"{name}-{number}", "cwd": "/shop",
            "timestamp": f"2026-03-01T12:00:0{number}Z",
            "message": {"role": "user", "content": text},
        }
        for number, text in enumerate(texts)
    ]  # fmt: skip
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_server_takes_nothing_more_and_gets_it_later(
    database: str, server_of: Server, volume: Disk, tmp_path: Path
) -> None:
    logs, member = tmp_path / "logs", server_of.member
    write(logs, "11111111-2222-4333-8444-555555555555", "one", "two")
    read(member, logs)
    assert fetch(database, MESSAGES) == [(2,)]
    write(logs, "21111111-2222-4333-8444-555555555555", "three")
    volume.free = GB // 2
    with pytest.raises(NoRoomError, match=r"is almost full \(0.5 GB free\), and it stores nothing"):
        read(member, logs)
    assert member.pauses == []  # it is not asked again and again
    assert fetch(database, MESSAGES) == [(2,)]
    assert fetch(database, "select count(*) from recall.incoming_message") == [(0,)]
    volume.free = 100 * GB
    summary = read(member, logs)
    assert summary.files_opened == 1
    assert fetch(database, MESSAGES) == [(3,)]


def test_what_does_not_store_goes_on(server_of: Server, volume: Disk, tmp_path: Path) -> None:
    write(tmp_path / "logs", "11111111-2222-4333-8444-555555555555", "one", "two")
    read(server_of.member, tmp_path / "logs")
    volume.free = 0
    api, headers = server_of.api, server_of.headers
    found = api.get("/search", params={"q": "two", "mode": "exact"}).json()
    assert len(found["hits"]) == 1
    assert api.get("/rest/incoming_session?limit=0", headers=headers).status_code == 200
    beat = api.post("/rest/rpc/beat", headers=headers, json={"detail": {}, "pid": 1})
    assert beat.status_code == 200, beat.text
    for path in ("incoming_message?columns=id", "rpc/store_batch", "rpc/mark"):
        refused = api.post(f"/rest/{path}", headers=headers, json=[])
        assert refused.status_code == 507
        assert refused.headers["content-type"] == "application/problem+json"
        told = refused.json()
        assert (told["code"], told["free_bytes"]) == ("53100", 0)
        assert told["type"] == "urn:recall:problem:disk-full"
        assert "make room" in told["hint"]
    assert api.post("/rest/incoming_message").status_code == 401  # as before


def test_the_server_says_so(server_of: Server, volume: Disk, tmp_path: Path, home: Path) -> None:
    api, member = server_of.api, server_of.member
    status = api.get("/status").json()
    assert answers_status.StatusAnswer(**status).model_dump() == status
    assert status["disk"] == {
        "ok": True, "free_bytes": 100 * GB, "reserve_bytes": 2 * GB, "detail": None,
    }  # fmt: skip
    write_joined(home, Joined(str(api.base_url).rstrip("/"), member.identity.host, member.token))
    assert "disk" not in CliRunner().invoke(app, ["status"]).stdout
    volume.free = GB // 2
    health = api.get("/health")
    assert health.status_code == 503
    part = health.json()["components"]["disk"]
    assert not part["ok"]
    assert "500 MB free" in part["detail"]
    told = CliRunner().invoke(app, ["status"])
    line = next(line for line in told.stdout.split("\n") if line.startswith("disk"))
    assert "500.0 MB free; nothing more is stored below 2.0 GB" in line
    assert "nothing is lost" in told.stderr


def test_a_machine_says_it_in_one_line(
    server_of: Server, volume: Disk, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, member = server_of.api, server_of.member
    url = str(api.base_url).rstrip("/")
    write_joined(home, Joined(url, member.identity.host, member.token))
    write_identity(home, member.identity)
    write(tmp_path / "logs", "11111111-2222-4333-8444-555555555555", "one")
    volume.free = GB // 2
    command = ["ingest", "--once", "--source", f"claude-code={tmp_path / 'logs'}"]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, StoreUnavailableError)
    assert f"the disk of the Recall server at `{url}` is almost full" in done.exception.message
    assert "nothing is lost" in (done.exception.hint or "")
    assert done.exception.exit_code == 69


# One machine


def test_ingest_stops_before_it_fills_its_own_disk(
    database: str, volume: Disk, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALL_DATABASE_URL", database)
    write(tmp_path / "logs", "11111111-2222-4333-8444-555555555555", "one", "two")
    command = ["ingest", "--once", "--source", f"claude-code={tmp_path / 'logs'}"]
    volume.free = GB // 2
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, StoreUnavailableError)
    assert "almost full: 500 MB free" in done.exception.message
    assert "disk_reserve_mb" in (done.exception.hint or "")
    assert fetch(database, MESSAGES) == [(0,)]
    assert fetch(database, "select count(*) from recall.ingest_state") == [(0,)]
    volume.free = 100 * GB
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert fetch(database, MESSAGES) == [(2,)]


def test_recall_up_goes_on_with_what_is_stored(
    database: str, volume: Disk, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    projects = tmp_path / ".claude" / "projects"
    projects.mkdir(parents=True)
    write(projects / "shop", "11111111-2222-4333-8444-555555555555", "one", "two")
    volume.free = GB // 2
    first_pass(Settings(home=home), database)
    told = capsys.readouterr().err
    assert "almost full: 500 MB free" in told
    assert "going on with what is stored" in told
    assert fetch(database, MESSAGES) == [(0,)]
    volume.free = 100 * GB
    first_pass(Settings(home=home), database)
    assert fetch(database, MESSAGES) == [(2,)]


def test_recall_up_does_not_start_without_its_database(volume: Disk, home: Path) -> None:
    with pytest.raises(StoreUnavailableError):
        first_pass(Settings(home=home), "postgresql://127.0.0.1:1/none")


# The embedder


def test_the_embedder_pauses_and_goes_on(database: str, volume: Disk) -> None:
    model = HashModel()
    volume.free = GB // 2
    say(database, KEY, ["one", "two"])
    Store(database).beat()
    with embedding(database, model) as (embedder, waker):
        waker.wait_until_idle(lambda: embedder.health.problem is not None)
        report: dict[str, Any] = embedder.health.report()
        assert not report["ok"]
        assert "500 MB free" in report["problem"]
        assert report["hint"] == disk.HINT
        assert passages(database) == []
        assert fetch(database, "select from recall.embed_queue") == []
        volume.free = 100 * GB
        waker.wake()
        waker.wait_until_idle(all_embedded(database, model))
        waker.wait_until_idle(lambda: embedder.health.problem is None)


def test_status_has_the_reason_of_the_embedder(database: str, volume: Disk) -> None:
    volume.free = GB // 2
    with (
        embedding(database, HashModel()) as (_, waker),
        running(create_app(Settings(), database)) as api,
    ):
        waker.wait_until_idle()
        parts = {row["component"]: row for row in api.get("/status").json()["components"]}
        assert "almost full" in parts["embedder"]["detail"]["reasons"][0]
