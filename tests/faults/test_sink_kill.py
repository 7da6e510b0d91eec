"""The ingester dies at any request of a pass over HTTP: the next pass completes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from threading import Lock

import httpx
import pytest

from recall_ingester.sinks.postgrest import PostgrestSink
from tests.db.ingesting import rows
from tests.db.over_http import empty, join
from tests.faults.sink_bench import Bench, line, log

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Killed(BaseException):
    """The process is gone: nothing that it would still do happens."""


class Fate(httpx.BaseTransport):
    """A connection whose process dies before or after its n-th request, over all sinks."""

    def __init__(self, dies_at: int, *, after: bool) -> None:
        self.seen = 0
        self._dies_at = dies_at
        self._after = after
        self._lock = Lock()
        self._inner = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with self._lock:
            self.seen += 1
            number = self.seen
        if number > self._dies_at or (number == self._dies_at and not self._after):
            raise Killed
        response = self._inner.handle_request(request)
        if number == self._dies_at:
            response.close()
            raise Killed
        return response

    def close(self) -> None:
        self._inner.close()

    def sink(self, *given: object, **named: object) -> PostgrestSink:
        return PostgrestSink(*given, transport=self, **named)  # type: ignore[arg-type]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_request(bench: Bench, after: bool) -> None:
    unfinished = log(bench.folder, 2)
    unfinished.write_bytes(unfinished.read_bytes() + line("half a line", 9)[:40])
    dies_at, died = 0, True
    while died:
        dies_at += 1
        empty(bench.database)
        bench.member = join(bench.served, bench.database)
        fate = Fate(dies_at, after=after)
        try:
            bench.read(fate.sink)
            died = fate.seen >= dies_at
        except Killed:
            bench.read()
        bench.check()
    assert dies_at > 10


CHILD = """
import sys
from pathlib import Path
from recall.identity import Identity
from recall_ingester.loop import run_pass
from recall_ingester.run_state import Options
from recall_ingester.sinks.postgrest import PostgrestSink
from recall_ingester.sources import get_source
url, token, host, install_id, folder = sys.argv[1:]
identity = Identity(host, install_id)
run_pass([(get_source("claude-code"), [Path(folder)])], lambda: PostgrestSink(url, token, identity),
         Options(host, 33_554_432, True))
"""


def start(bench: Bench) -> subprocess.Popen[bytes]:
    member = bench.member
    return subprocess.Popen(
        [
            sys.executable, "-c", CHILD, member.served.url, member.token, member.identity.host,
            member.identity.install_id, str(bench.folder),
        ],
        env={**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("moment", "path"),
    [
        ("before body", "/incoming_key"),
        ("before commit", "/incoming_message"),
        ("before commit", "/rpc/store_batch"),
        ("after commit", "/rpc/store_batch"),
    ],
)
def test_kill_9_while_the_server_works(bench: Bench, moment: str, path: str) -> None:
    with bench.served.switches.hold(moment, path=path) as held:  # type: ignore[arg-type]
        process = start(bench)
        held.wait()
        process.send_signal(signal.SIGKILL)
        process.wait()
    bench.read()
    bench.check()


MEASURED = """
import json, re
status = Path("/proc/self/status").read_text()
print(json.dumps({"peak_mb": int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) // 1024}))
"""


def peak_mb(bench: Bench) -> int:
    """Memory of a process that reads the folder once."""
    member = bench.member
    done = subprocess.run(
        [
            sys.executable, "-c", CHILD + MEASURED, member.served.url, member.token,
            member.identity.host, member.identity.install_id, str(bench.folder),
        ],
        env={**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True,
        check=True,
    )  # fmt: skip
    return int(json.loads(done.stdout)["peak_mb"])


def test_memory_does_not_follow_the_size_of_a_pass(bench: Bench) -> None:
    with log(bench.folder).open("ab") as file:
        for number in range(25):
            file.write(line(f"{number} " + "word " * 300_000, number))
    assert peak_mb(bench) < 200
    assert rows(bench.database, "select count(*) from recall.message") == [(49,)]


def test_the_longest_line_costs_bounded_memory(bench: Bench) -> None:
    log(bench.folder).write_bytes(line("ab cD1 \n" * 3_600_000))
    assert peak_mb(bench) < 300
    assert rows(bench.database, "select max(length(content)) from recall.message") == [
        (28_800_000,)
    ]
