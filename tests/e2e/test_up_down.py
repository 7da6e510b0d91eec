"""`recall up` and `recall down` for real: processes, a database, signals and `kill -9`."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from recall import processes
from recall.errors import BusyError
from recall.lock import HomeLock
from recall.supervisor import read_state
from tests.double.ports import TakenPort

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]

#: What a machine brings along and a test must not see.
_FOREIGN = ("RECALL_", "CLAUDE_", "CODEX_", "GEMINI_", "OPENCODE_", "VSCODE_", "XDG_", "PG")
_CANARY = "quokka-canary-word"
_LONGEST_SECONDS = 180.0


def wait_until(
    condition: Callable[[], object], *, what: str, seconds: float = _LONGEST_SECONDS
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


@dataclass
class Machine:
    """A user on a machine of their own, as far as Recall can tell."""

    folder: Path
    port: int
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "data" / "recall"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not is_foreign(name)}
        own = {
            "HOME": str(self.folder),
            "RECALL_HOME": str(self.home),
            "RECALL_LISTEN": f"127.0.0.1:{self.port}",
            "RECALL_HOST": "testbox",
            "RECALL_DISK_RESERVE_MB": "0",  # how full the disk of this machine is says nothing
        }
        return clean | own | self.extra

    def recall(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "recall", *arguments],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def start(self) -> subprocess.CompletedProcess[str]:
        result = self.recall("up", "--detach")
        assert result.returncode == 0, result.stderr
        return result

    def state(self) -> dict[str, Any]:
        state = read_state(self.home / "run" / "up.json")
        assert state is not None
        return state

    def part(self, name: str) -> Mapping[str, Any]:
        return next(part for part in self.state()["parts"] if part["name"] == name)

    def health(self) -> int | None:
        """The status of its report on itself; ``None`` where nobody answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=60) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return None

    def is_well(self) -> bool:
        """Whether each part runs and none of them complains."""
        return self.health() == 200 and all(
            part["state"] == "running" for part in self.state()["parts"]
        )

    def has_read(self) -> bool:
        """Whether the ingester that runs has ended its first pass, and waits for the next one."""
        beats = (
            "select count(*) from recall.worker_heartbeat where component = 'ingester'"
            f" and pid = {self.part('ingest')['pid']} and detail ->> 'state' = 'waiting'"
        )
        if self.count(beats) == "0":
            return False
        with suppress(BusyError), HomeLock(self.home / "run" / "ingest.lock", what="test"):
            return True
        return False

    def count(self, query: str) -> str:
        result = self.recall("db", "psql", "-XAtc", query)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def processes(self) -> list[str]:
        """Command lines of everything that carries this home in its environment."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.fsencode(self.home) in _environment(entry):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found.append(f"{entry.name} {command.decode(errors='replace')}")
            except OSError:
                continue
        return found

    def has_nothing_left(self) -> None:
        """Return when the last of its processes is gone: one that was stopped may take a moment to
        leave the table of the system."""
        wait_until(lambda: not self.processes(), what="the last process is gone")


def is_foreign(name: str) -> bool:
    return name.startswith(_FOREIGN)


def _environment(process: Path) -> bytes:
    return (process / "environ").read_bytes()


@pytest.fixture(scope="module")
def new_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []
    with ExitStack() as stack:

        def make(**extra: str) -> Machine:
            port = stack.enter_context(TakenPort()).number
            made.append(Machine(tmp_path_factory.mktemp("machine"), port, extra))
            return made[-1]

        yield make
        for machine in made:
            machine.recall("down")
            machine.has_nothing_left()


@dataclass(frozen=True)
class Started:
    """A machine without session logs on which Recall runs, and how it was after the start."""

    machine: Machine
    printed: str
    health: int | None


@pytest.fixture(scope="module")
def first_start(new_machine: Callable[..., Machine]) -> Started:
    machine = new_machine()
    printed = machine.start().stderr
    return Started(machine, printed, machine.health())


@pytest.fixture
def running(first_start: Started) -> Machine:
    """A machine on which Recall runs and is well; a test may do harm to it that goes by."""
    wait_until(first_start.machine.is_well, what="everything runs")
    return first_start.machine


def write_session(root: Path, number: int) -> None:
    session = f"0b9a3c52-7f3e-4d55-8a0e-00000000000{number}"
    record = {
        "type": "user",
        "uuid": f"5f1d2b7c-0d0a-4c43-9a52-00000000000{number}",
        "parentUuid": None,
        "sessionId": session,
        "timestamp": f"2026-06-0{number}T10:00:00.000Z",
        "cwd": "/home/dev/kettle",
        "message": {"role": "user", "content": f"the {_CANARY} number {number} boils over"},
    }
    folder = root / "projects" / "-home-dev-kettle"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{session}.jsonl").write_text(json.dumps(record) + "\n")


def test_first_start_without_logs_loads_samples_and_says_so(
    first_start: Started, running: Machine
) -> None:
    machine, printed = running, first_start.printed
    assert "no session log of a known agent was found" in printed
    assert "`recall purge --source sample`" in printed
    assert "$ recall search " in printed
    assert f"recall is running at {machine.url}" in printed
    sources = machine.count("select distinct source from recall.session")
    assert sources == "sample"


def test_api_answers_when_the_start_has_returned(first_start: Started, running: Machine) -> None:
    assert first_start.health is not None
    assert running.state()["ready"] is True


def test_second_start_is_refused(running: Machine) -> None:
    for arguments in (["up"], ["up", "--detach"]):
        result = running.recall(*arguments)
        assert result.returncode == 75
        pid = running.state()["pid"]
        assert f"recall is already running at {running.url} (pid {pid})" in result.stderr
        assert "`recall down`" in result.stderr


def test_home_is_for_its_owner_alone(running: Machine) -> None:
    assert running.home.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["api", "ingest"])
def test_killed_part_is_started_again_and_the_state_tells(running: Machine, name: str) -> None:
    before = running.part(name)
    os.kill(before["pid"], signal.SIGKILL)
    wait_until(
        lambda: (
            running.part(name)["restarts"] > before["restarts"]
            and running.part(name)["state"] == "running"
        ),
        what=f"{name} runs again",
    )
    after = running.part(name)
    assert after["last_exit"] == -signal.SIGKILL
    assert after["pid"] != before["pid"]
    wait_until(running.is_well, what="everything runs")


def test_killed_database_is_started_again_with_everything_in_it(running: Machine) -> None:
    sessions = running.count("select count(*) from recall.session")
    before = running.part("database")
    os.kill(before["pid"], signal.SIGKILL)
    wait_until(
        lambda: running.part("database")["pid"] not in {None, before["pid"]},
        what="the database runs again",
    )
    assert running.part("database")["restarts"] > before["restarts"]
    assert running.count("select count(*) from recall.session") == sessions
    wait_until(running.is_well, what="everything runs")


def test_doctor_finds_nothing_that_fails(running: Machine) -> None:
    result = running.recall("doctor", "--json")
    checks = json.loads(result.stdout)["checks"]
    assert [check for check in checks if check["status"] == "fail"] == []
    assert result.returncode == 0
    assert {"python", "home", "identity", "postgresql", "database", "schema", "checksums"} <= {
        check["name"] for check in checks
    }


def test_database_url_and_size_are_printed(running: Machine) -> None:
    assert running.recall("db", "url").stdout.startswith("postgresql:///recall?host=")
    sizes = json.loads(running.recall("db", "size", "--json").stdout)
    assert {"message", "message_text_tsv"} <= {item["name"] for item in sizes["relations"]}
    assert sizes["database_bytes"] > 1_000_000


def test_down_leaves_no_process_and_a_second_one_finds_nothing(
    new_machine: Callable[..., Machine],
) -> None:
    machine = new_machine()
    assert machine.recall("down").stdout == "nothing is running\n"
    assert not machine.home.exists()
    machine.start()
    pid = machine.state()["pid"]

    result = machine.recall("down", "--json")

    assert json.loads(result.stdout) == {"stopped": [{"name": "recall up", "pid": pid}]}
    machine.has_nothing_left()
    again = machine.recall("down")
    assert (again.returncode, again.stdout) == (0, "nothing is running\n")


def test_real_logs_are_read_without_samples_and_never_reach_the_log(
    new_machine: Callable[..., Machine],
) -> None:
    machine = new_machine()
    root = machine.folder / "claude"
    machine.extra["CLAUDE_CONFIG_DIR"] = str(root)
    for number in (1, 2):
        write_session(root, number)

    printed = machine.start().stderr

    assert "sample" not in printed
    row = next(line.split() for line in printed.splitlines() if line.startswith("claude-code"))
    assert row == ["claude-code", "2", "2", "2", "0"]
    assert _CANARY in printed  # the example search is about what the user wrote
    for log in (machine.home / "log").iterdir():
        assert _CANARY not in log.read_text(errors="replace")


def test_new_logs_come_in_while_it_runs(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine(RECALL_INGEST_EVERY_SECONDS="1")
    root = machine.folder / "claude"
    machine.extra["CLAUDE_CONFIG_DIR"] = str(root)
    write_session(root, 1)
    machine.start()
    write_session(root, 2)
    wait_until(
        lambda: machine.count("select count(*) from recall.session") == "2",
        what="the second session is stored",
    )


def test_purged_samples_stay_away_at_the_next_start(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine()
    machine.start()
    wait_until(machine.has_read, what="the first pass is over")
    purged = machine.recall("purge", "--source", "sample", "--yes")
    assert purged.returncode == 0, purged.stderr
    machine.recall("down")
    machine.start()
    assert machine.count("select count(*) from recall.session") == "0"


def test_parts_of_a_killed_supervisor_end_and_the_next_start_works(
    new_machine: Callable[..., Machine],
) -> None:
    machine = new_machine()
    machine.start()
    state = machine.state()
    os.kill(state["pid"], signal.SIGKILL)
    assert processes.wait_gone(state["pid"], state["process"], seconds=_LONGEST_SECONDS)

    machine.start()

    assert machine.state()["pid"] != state["pid"]
    for part in state["parts"]:
        if part["name"] != "database":
            assert not processes.is_same(part["pid"], part["process"])
    assert machine.health() is not None


def test_down_cleans_up_after_a_killed_supervisor(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine()
    machine.start()
    os.kill(machine.state()["pid"], signal.SIGKILL)
    stopped = json.loads(machine.recall("down", "--json").stdout)["stopped"]
    assert "database" in {item["name"] for item in stopped}
    machine.has_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_foreground_run_in_order(
    new_machine: Callable[..., Machine], number: signal.Signals
) -> None:
    machine = new_machine()
    with subprocess.Popen(
        [sys.executable, "-m", "recall", "up"],
        env=machine.env,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: (machine.home / "run" / "up.json").exists(), what="it has begun")
        wait_until(lambda: machine.state()["ready"], what="it is ready")
        process.send_signal(number)
        _, printed = process.communicate(timeout=_LONGEST_SECONDS)
    assert process.returncode == 0
    assert f"recall is running at {machine.url}" in printed
    machine.has_nothing_left()


def waits_for_a_lock(pid: int) -> bool:
    """Whether the system has a process wait for somebody's lock."""
    locks = Path("/proc/locks").read_text()
    return any(line.split()[1] == "->" and str(pid) in line.split() for line in locks.splitlines())


def test_signal_during_the_start_ends_everything(new_machine: Callable[..., Machine]) -> None:
    machine = new_machine()
    machine.home.mkdir(parents=True, mode=0o700)
    with (machine.home / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held until the signal has come
        process = subprocess.Popen(
            [sys.executable, "-m", "recall", "up", "--quiet"], env=machine.env
        )
        wait_until(lambda: waits_for_a_lock(process.pid), what="the database is about to be made")
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=_LONGEST_SECONDS) == 128 + signal.SIGTERM
    assert (machine.home / "pg").exists()
    machine.has_nothing_left()


@pytest.mark.parametrize("detach", [True, False])
def test_port_of_another_program_is_named(
    new_machine: Callable[..., Machine], detach: bool
) -> None:
    machine = new_machine()
    with socket.create_server(("127.0.0.1", machine.port)):
        result = machine.recall("up", *(["--detach"] if detach else []))
    assert result.returncode == 75
    assert f"`127.0.0.1:{machine.port}` is in use by another program" in result.stderr
    assert "RECALL_LISTEN" in result.stderr
    machine.has_nothing_left()
