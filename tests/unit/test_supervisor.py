from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from recall import processes
from recall.errors import StoreUnavailableError
from recall.supervisor import (
    Child,
    Clock,
    ProcessPart,
    StateFile,
    Supervisor,
    read_state,
)

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class FakeTime:
    """Waiting moves the clock and never takes time."""

    seconds: float = 0.0
    chance: float = 1.0
    while_waiting: list[float] = field(default_factory=list)

    def clock(self) -> Clock:
        return Clock(
            monotonic=lambda: self.seconds,
            now=lambda: START + timedelta(seconds=self.seconds),
            chance=lambda: self.chance,
            wait=self.wait,
        )

    def wait(self, event: threading.Event, timeout: float) -> None:
        self.while_waiting.append(timeout)
        if not event.is_set():
            self.seconds += timeout


@dataclass
class FakeChild:
    pid: int | None = None
    code: int | None = None
    ends_on_terminate: bool = True
    signals: list[str] = field(default_factory=list)

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.signals.append("term")
        if self.ends_on_terminate:
            self.code = -signal.SIGTERM

    def kill(self) -> None:
        self.signals.append("kill")
        self.code = -signal.SIGKILL


@dataclass
class FakePart:
    name: str = "api"
    stubborn: bool = False
    fails: int = 0
    started: list[FakeChild] = field(default_factory=list)

    def start(self) -> Child:
        if self.fails:
            self.fails -= 1
            raise StoreUnavailableError("no room")
        self.started.append(FakeChild(ends_on_terminate=not self.stubborn))
        return self.started[-1]

    @property
    def current(self) -> FakeChild:
        return self.started[-1]


@pytest.fixture
def state_path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "up.json"


def supervise(state_path: Path, time: FakeTime, *parts: FakePart) -> Supervisor:
    return Supervisor(parts, StateFile(state_path), clock=time.clock())


def recorded(state_path: Path, name: str = "api") -> dict[str, object]:
    state = read_state(state_path)
    assert state is not None
    return next(part for part in state["parts"] if part["name"] == name)


def crash_and_wait(supervisor: Supervisor, part: FakePart, time: FakeTime) -> float:
    """Let the part end and count the seconds until it is started again."""
    count, before = len(part.started), time.seconds
    part.current.code = 1
    while len(part.started) == count:
        supervisor.step()
        time.seconds += 0.25
    return time.seconds - before


def test_part_that_ends_is_started_again_after_a_delay(state_path: Path) -> None:
    time, part = FakeTime(), FakePart()
    supervisor = supervise(state_path, time, part)
    supervisor.step()
    part.current.code = -signal.SIGKILL
    supervisor.step()

    waiting = recorded(state_path)
    assert len(part.started) == 1
    assert waiting["state"] == "waiting"
    assert waiting["last_exit"] == -9
    assert waiting["restarts"] == 1
    assert waiting["next_try_at"] == "2026-03-01T12:00:01+00:00"

    time.seconds = 1.0
    supervisor.step()
    assert len(part.started) == 2
    assert recorded(state_path)["state"] == "running"
    assert recorded(state_path)["last_exit"] == -9
    assert supervisor.restarts("api") == 1


def test_delay_doubles_up_to_a_minute(state_path: Path) -> None:
    time, part = FakeTime(), FakePart()
    supervisor = supervise(state_path, time, part)
    supervisor.step()

    delays = [crash_and_wait(supervisor, part, time) for _ in range(9)]

    assert [round(delay) for delay in delays] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_delay_is_spread_by_chance(state_path: Path) -> None:
    time, part = FakeTime(chance=0.0), FakePart()
    supervisor = supervise(state_path, time, part)
    supervisor.step()
    part.current.code = 1
    supervisor.step()
    time.seconds = 0.74
    supervisor.step()
    assert len(part.started) == 1
    time.seconds = 0.75
    supervisor.step()
    assert len(part.started) == 2


def test_five_healthy_minutes_make_the_next_failure_the_first(state_path: Path) -> None:
    time, part = FakeTime(), FakePart()
    supervisor = supervise(state_path, time, part)
    supervisor.step()
    for _ in range(4):
        crash_and_wait(supervisor, part, time)
    time.seconds += 300

    assert crash_and_wait(supervisor, part, time) < 1.5
    assert supervisor.restarts("api") == 5


def test_part_that_cannot_start_is_tried_again_and_its_reason_is_shown(state_path: Path) -> None:
    time, part = FakeTime(), FakePart(fails=1)
    supervisor = supervise(state_path, time, part)
    supervisor.step()
    assert recorded(state_path)["last_error"] == "no room"
    assert recorded(state_path)["state"] == "waiting"

    time.seconds = 1.0
    supervisor.step()
    assert recorded(state_path)["last_error"] is None
    assert recorded(state_path)["state"] == "running"


def test_one_failing_part_does_not_touch_the_others(state_path: Path) -> None:
    time, api, ingest = FakeTime(), FakePart("api"), FakePart("ingest")
    supervisor = supervise(state_path, time, api, ingest)
    supervisor.step()
    crash_and_wait(supervisor, api, time)
    assert len(ingest.started) == 1
    assert recorded(state_path, "ingest")["restarts"] == 0


def test_foundation_is_restarted_but_left_running_at_the_stop(state_path: Path) -> None:
    time, api, database, first = FakeTime(), FakePart(), FakePart("database"), FakeChild()
    supervisor = Supervisor(
        [api], StateFile(state_path), foundation=(database, first), clock=time.clock()
    )
    supervisor.step()
    assert database.started == []
    first.code = 1
    supervisor.step()
    time.seconds = 1.0
    supervisor.step()
    assert recorded(state_path, "database")["restarts"] == 1

    supervisor.stop()
    assert api.current.signals == ["term"]
    assert database.current.signals == []


def test_run_stops_the_parts_when_asked(state_path: Path) -> None:
    time, part = FakeTime(), FakePart()
    supervisor = supervise(state_path, time, part)
    supervisor.run(tick=supervisor.request_stop)
    assert part.current.signals == ["term"]
    assert recorded(state_path)["state"] == "stopped"


def test_run_stops_the_parts_when_the_tick_fails(state_path: Path) -> None:
    time, part = FakeTime(), FakePart()
    supervisor = supervise(state_path, time, part)

    def fail() -> None:
        raise StoreUnavailableError("gone")

    with pytest.raises(StoreUnavailableError):
        supervisor.run(tick=fail)
    assert part.current.signals == ["term"]


def test_part_that_ignores_the_request_is_killed_after_the_grace(state_path: Path) -> None:
    time, part = FakeTime(), FakePart(stubborn=True)
    supervisor = supervise(state_path, time, part)
    supervisor.run(tick=supervisor.request_stop)
    assert part.current.signals == ["term", "kill"]
    assert 10 <= time.seconds < 11


def test_second_request_kills_at_once(state_path: Path) -> None:
    time, part = FakeTime(), FakePart(stubborn=True)
    supervisor = supervise(state_path, time, part)

    def twice() -> None:
        supervisor.request_stop()
        supervisor.request_stop()

    supervisor.run(tick=twice)
    assert part.current.signals == ["term", "kill"]
    assert time.seconds < 1


def test_state_file_that_cannot_be_written_does_not_stop_the_supervisor(tmp_path: Path) -> None:
    blocker = tmp_path / "run"
    blocker.write_text("a file where the folder should be")
    part = FakePart()
    supervisor = supervise(blocker / "up.json", FakeTime(), part)
    supervisor.step()
    assert len(part.started) == 1


def test_state_file_is_replaced_and_never_left_half_written(state_path: Path) -> None:
    state = StateFile(state_path)
    state.update(pid=1, stage="starting")
    first = state_path.stat().st_ino
    state.update(stage="ready")
    assert state_path.stat().st_ino != first
    assert read_state(state_path) == {"pid": 1, "stage": "ready"}
    assert [path.name for path in state_path.parent.iterdir()] == ["up.json"]


def test_damaged_state_file_reads_as_absent(state_path: Path) -> None:
    state_path.parent.mkdir()
    state_path.write_text('{"pid": 1')
    assert read_state(state_path) is None


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], process_group=0)
    yield process
    process.kill()
    process.wait()


def test_process_is_named_by_its_start_and_not_only_by_its_pid(
    sleeper: subprocess.Popen[bytes],
) -> None:
    token = processes.identify(sleeper.pid)
    assert token is not None
    assert processes.is_same(sleeper.pid, token)
    assert not processes.stop_process(sleeper.pid, "another run", grace_seconds=1)
    assert sleeper.poll() is None


def test_process_that_ended_and_was_not_reaped_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    token = processes.identify(sleeper.pid)
    assert token is not None
    assert processes.stop_process(sleeper.pid, token, grace_seconds=60, whole_group=True)
    assert processes.identify(sleeper.pid) is None  # a zombie: nobody has waited for it yet
    assert sleeper.wait() == -signal.SIGTERM


def test_process_that_ignores_sigterm_is_killed() -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", code + "; time.sleep(600)"], stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()  # from here on it ignores the signal
        token = processes.identify(process.pid)
        assert token is not None
        assert processes.stop_process(process.pid, token, grace_seconds=0.2)
    assert process.returncode == -signal.SIGKILL


def test_what_a_part_left_behind_ends_with_it(tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    script = f"sleep 600 & echo $! > {note}.part && mv {note}.part {note}; exit 3"
    child = ProcessPart("shell", ["/bin/sh", "-c", script], os.environ).start()
    assert child.pid is not None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    grandchild = int(note.read_text())
    token = processes.identify(grandchild)
    assert token is not None

    assert child.poll() == 3
    assert processes.wait_gone(grandchild, token, seconds=60)
