"""Machines that have joined one server and feed it over HTTP, with nothing but the base install."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zstandard

from recall.config import Settings
from recall.identity import Identity, find_identity
from recall.joined import Joined, write_joined
from recall_api.app import create_app
from recall_api.join import create_code
from recall_ingester.importing import Importer
from recall_ingester.loop import run_pass
from recall_ingester.run import select_sources
from recall_ingester.run_state import Options
from recall_ingester.sinks.postgres import PostgresSink
from recall_sql.connection import connect
from tests.db.ingesting import MAX_LINE_BYTES, everything, rows
from tests.db.over_http import serve
from tests.db.serving import running
from tests.double.fixtures import SECRET
from tests.double.ports import TakenPort
from tests.unit.test_guards import WITHOUT_SERVER

SESSION = "11111111-2222-4333-8444-555555555555"
ROLLOUT = "rollout-2026-08-01T11-00-00-0198a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b.jsonl"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Relay:
    """A line to the server that can be cut: the address stays, and nothing answers there."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._taken = TakenPort()
        self.url = self._taken.url
        self._listener: socket.socket | None = None

    def connect(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._taken.number), reuse_port=True)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def close(self) -> None:
        """Cut it for good, and give up the address."""
        self.cut()
        self._taken.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(self._target)
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65_536):
            other.sendall(data)
    for end in (one, other):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@dataclass
class Machine:
    """A home, its own session logs, and the place where they seem to stand on every machine."""

    name: str
    folder: Path
    user: Path
    relay: Relay

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def env(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("RECALL_")}
        return kept | {
            "HOME": str(self.user),
            "RECALL_HOME": str(self.home),
            "CLAUDE_CONFIG_DIR": str(self.user / "claude"),
            "CODEX_HOME": str(self.user / "codex"),
            "NO_COLOR": "1",
        }

    def sit_down(self) -> None:
        """From now on this machine's files are those at the common place."""
        self.user.unlink(missing_ok=True)
        self.user.symlink_to(self.folder / "user")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command, without anything of the server part."""
        code = f"sys.argv = ['recall', *{list(arguments)!r}]\nfrom recall.cli import main\nmain()"
        return subprocess.Popen(
            [sys.executable, "-c", WITHOUT_SERVER + code],
            env=self.env | {"PYTHONPATH": ":".join(path for path in sys.path if path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        self.sit_down()
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=240)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def ingest(self) -> dict[str, Any]:
        done = self.run("ingest", "--once", "--json")
        assert done.returncode == 0, done.stderr
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary

    def say(self, number: int, text: str) -> None:
        """Go on with the sessions of both clients and with the memory."""
        user = self.folder / "user"
        message = {"role": "user", "content": f"{text} to claude on {self.name}"}
        _add(
            user / "claude" / "projects" / "-home-dev-shop" / f"{SESSION}.jsonl",
            {"type": "user", "uuid": f"{number:08d}-0000-4000-8000-000000000000",
             "timestamp": f"2026-08-01T09:00:{number:02d}.000Z", "message": message},
        )  # fmt: skip
        payload = {"type": "user_message", "message": f"{text} to codex on {self.name}"}
        _add(
            user / "codex" / "sessions" / "2026" / "08" / "01" / ROLLOUT,
            {"timestamp": f"2026-08-01T11:00:{number:02d}.000Z", "type": "event_msg",
             "payload": payload},
        )  # fmt: skip
        entry = {"display": f"{text} on {self.name}", "project": "/p", "sessionId": SESSION,
                 "timestamp": 1_785_000_000_000 + number}  # fmt: skip
        _add(user / "claude" / "history.jsonl", entry)

    def export(self) -> Path:
        """A file in the import format, under the same name on each machine."""
        path = self.folder / "user" / "given.jsonl"
        _add(
            path,
            {"recall": 1, "source": "own-agent"},
            {"type": "session", "id": "s", "title": f"of {self.name}"},
            {"type": "message", "session": "s", "role": "user", "text": f"given on {self.name}"},
        )
        return self.user / path.name


def _add(path: Path, *records: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for record in records:
            file.write(json.dumps(record).encode() + b"\n")


@pytest.fixture
def machines(tmp_path: Path, database: str) -> Iterator[tuple[Machine, Machine]]:
    """Two machines that have joined; each has a line of its own to the server."""
    with _server(database) as port, ExitStack() as stack:
        made = []
        for name in ("laptop", "desktop"):
            folder = tmp_path / name
            (folder / "user").mkdir(parents=True)
            relay = stack.enter_context(closing(Relay(port)))
            machine = Machine(name, folder, tmp_path / "user", relay)
            relay.connect()
            with connect(database, application="tests") as connection:
                code, _ = create_code(connection, name, replaces=False, minutes=15)
            joined = machine.run("join", machine.relay.url, code)
            assert joined.returncode == 0, joined.stderr
            made.append(machine)
        yield made[0], made[1]


@contextmanager
def _server(database: str) -> Iterator[int]:
    with (
        serve(database) as served,
        running(create_app(Settings(jwt_secret=SECRET, rest_url=served.url), database)) as api,
    ):
        yield api.base_url.port or 0


def _identity(machine: Machine) -> Identity:
    found = find_identity(machine.home)
    assert found is not None
    return found


def _embedded(machine: Machine, database: str, given: Path) -> None:
    """One run over the files of a machine, straight into a database."""
    machine.sit_down()
    identity = _identity(machine)
    options = Options(identity.host, MAX_LINE_BYTES, redact=True)
    sources = select_sources(Settings(home=machine.home), (), machine.env)
    run_pass(sources, lambda: PostgresSink(database, identity), options)
    sink = PostgresSink(database, identity)
    Importer(sink, options).recall_jsonl(given)
    sink.close()


_ACCOUNTS = """
    select host, path, source, session_key, lines, byte_offset, generation, lines_seen,
        lines_stored, lines_merged, lines_quarantined, lines_skipped, raw_bytes
    from recall.ingest_state order by host, path
"""
_SPANS = """
    select s.host, s.path, b.byte_length, b.codec, b.data from recall.raw_segment s
    join recall.raw_blob b using (hash) order by s.host, s.path, s.generation, s.byte_offset
"""


def _stored(database: str) -> dict[str, Any]:
    """All rows of all hosts, comparable between stores that were filled in other steps."""
    kept: dict[tuple[str, str], bytes] = {}
    for host, path, length, codec, data in rows(database, _SPANS):
        plain = zstandard.decompress(data, max_output_size=length) if codec == "zstd" else data
        kept[host, path] = kept.get((host, path), b"") + plain
    retracted = "select count(*) from recall.message_retracted"
    return {
        **everything(database),
        "accounts": rows(database, _ACCOUNTS),
        "bytes": kept,
        "retracted": rows(database, retracted),
        "quarantine": rows(database, "select * from recall.quarantine"),
    }


def test_two_machines_with_the_same_files_leave_what_one_run_each_leaves(
    machines: tuple[Machine, Machine],
    database: str,
    new_database: Callable[..., str],
    template: str,
) -> None:
    laptop, desktop = machines
    for machine in machines:
        machine.say(1, "hello")
        assert machine.ingest()["messages"] == 3
    desktop.relay.cut()
    for machine in machines:
        machine.say(2, "later")
    assert laptop.ingest()["messages"] == 3
    since = []
    for _ in range(2):
        away = desktop.run("ingest", "--once")
        assert away.returncode == 69
        assert away.stdout == ""
        found = re.search(
            r"^error: no Recall server answers at `\S+`, since (\S+ \S+) UTC$", away.stderr, re.M
        )
        assert found, away.stderr
        since.append(found[1])
    assert since[0] == since[1]
    doctor = desktop.run("doctor")
    assert doctor.returncode == 1
    assert f"no Recall server answers at `{desktop.relay.url}`, since {since[0]}" in " ".join(
        doctor.stdout.split()
    )
    desktop.say(3, "away")
    desktop.relay.connect()
    for machine in machines:
        machine.say(4, "together")
    assert desktop.ingest()["messages"] == 9
    assert laptop.ingest()["messages"] == 3
    for machine in machines:
        assert machine.ingest()["files_opened"] == 0
        given = machine.export()
        imported = machine.run("import", str(given), "--json")
        assert imported.returncode == 0, imported.stderr
        assert json.loads(imported.stdout)["rows"]["messages"] == 1
    other = new_database(template)
    for machine in machines:
        _embedded(machine, other, given)
    wanted, stored = _stored(other), _stored(database)
    for name, expected in wanted.items():
        assert stored[name] == expected, name
    hosts = "select host, count(*) from recall.session group by host order by host"
    assert rows(database, hosts) == [("desktop", 3), ("laptop", 3)]
    assert desktop.run("doctor").returncode == 0


def _eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.mark.parametrize("how", [("--every", "1"), ("--watch",)], ids=lambda how: how[0])
def test_a_running_ingester_outlives_an_outage(
    machines: tuple[Machine, Machine], database: str, how: tuple[str, ...]
) -> None:
    laptop, _ = machines
    laptop.relay.cut()
    laptop.say(1, "hello")
    laptop.sit_down()
    with laptop.start("ingest", *how) as process:
        try:
            assert process.stderr is not None
            told = json.loads(process.stderr.readline())
            while told["event"] != "pass failed":
                told = json.loads(process.stderr.readline())
            assert "since" in told["reason"]
            laptop.relay.connect()
            stored = "select count(*) from recall.message"
            _eventually(lambda: rows(database, stored) == [(2,)])
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0


def test_the_longest_message_goes_through_the_whole_server(
    machines: tuple[Machine, Machine], database: str
) -> None:
    laptop, _ = machines
    text = "ab cD1 \n" * 3_600_000  # a line of 32 MB
    laptop.say(1, text)
    assert laptop.ingest()["quarantined"] == 0
    stored = "select max(length(content)) from recall.message"
    assert rows(database, stored)[0][0] >= len(text)


def test_a_revoked_token_is_one_line_with_what_to_do(
    machines: tuple[Machine, Machine], database: str
) -> None:
    laptop, desktop = machines
    laptop.say(1, "hello")
    desktop.say(1, "hello")
    with connect(database, application="tests", autocommit=True) as connection:
        connection.execute("update recall.token set revoked_at = now() where host = 'laptop'")
    refused = laptop.run("ingest", "--once")
    assert refused.returncode == 77
    assert "this token was revoked" in refused.stderr
    assert "hint:" in refused.stderr
    assert "recall token create" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert desktop.ingest()["messages"] == 3


@pytest.mark.parametrize(
    "command",
    [["up"], ["reparse"], ["verify"], ["purge", "--source", "codex", "--yes"], ["reembed"]],
    ids=lambda command: command[0],
)
def test_what_needs_a_store_of_its_own_says_so(tmp_path: Path, command: list[str]) -> None:
    with closing(Relay(9)) as nowhere:  # never connected
        machine = Machine("laptop", tmp_path / "laptop", tmp_path / "user", nowhere)
        (machine.folder / "user").mkdir(parents=True)
        write_joined(machine.home, Joined(nowhere.url, "laptop", "a.b.c"))
        refused = machine.run(*command)
    assert refused.returncode == 2
    assert refused.stderr.count("error:") == 1
    assert refused.stderr.count("hint:") == 1
    assert "server" in refused.stderr
    assert "pip install" not in refused.stderr
