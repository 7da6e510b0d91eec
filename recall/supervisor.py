"""Keeps the parts of one installation running, and tells the truth about them in a state file.

The supervisor owns no policy about what the parts are. It starts each one, starts it again when it
ends, waits longer the more often that happens, and stops all of them when it is asked to.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from recall import processes
from recall.errors import RecallError

logger = logging.getLogger(__name__)

FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 60.0
#: A part that ran this long had a start that worked; its next failure counts as the first.
HEALTHY_AFTER_SECONDS = 300.0
GRACE_SECONDS = 10.0
KILL_SECONDS = 5.0
_TICK_SECONDS = 0.5
_STOP_TICK_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1


class Child(Protocol):
    """One run of a part."""

    @property
    def pid(self) -> int | None:
        """The process that stands for the part."""
        ...

    def poll(self) -> int | None:
        """``None`` while it runs, then its exit code; ``-N`` if signal N ended it."""
        ...

    def terminate(self) -> None:
        """Ask it to end."""
        ...

    def kill(self) -> None:
        """End it, with everything that it started."""
        ...


class Part(Protocol):
    """Something that is to be kept running."""

    @property
    def name(self) -> str:
        """Its name in the state file and in messages."""
        ...

    def start(self) -> Child:
        """Start it. Raises ``OSError`` or :class:`RecallError` if that does not work."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessPart:
    """A part that is a command. Its log lines go to the supervisor's own stderr."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]

    def start(self) -> Child:
        """Start the command as the leader of a process group of its own."""
        process = subprocess.Popen(
            list(self.argv),
            env=dict(self.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=_end_with_parent(),
        )
        return ProcessChild(process)


def _end_with_parent() -> Callable[[], None] | None:
    """On Linux, let the kernel end the child when the supervisor is killed outright."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork; after it only the call is safe

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))

    return ask


class ProcessChild:
    """A running command and its process group."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The leader of the group."""
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code. What the leader left behind in its group is killed before it is reaped:
        until then its pid cannot name anything else."""
        if self._process.returncode is None and self._has_ended():
            self.kill()
        return self._process.poll()

    def terminate(self) -> None:
        """SIGTERM to the group."""
        processes.send(self.pid, signal.SIGTERM, whole_group=True)

    def kill(self) -> None:
        """SIGKILL to the group."""
        processes.send(self.pid, signal.SIGKILL, whole_group=True)

    def _has_ended(self) -> bool:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return False
        with suppress(ChildProcessError):
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.pid, options) is not None
        return False


class StateFile:
    """What `recall up` tells about itself: one JSON document, always whole.

    A disk that is full or read-only must not end the processes that the file is about, so a failed
    write is logged and the next change tries again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fields: dict[str, Any] = {}

    def update(self, **fields: Any) -> None:
        """Set fields and replace the file if that changed anything."""
        if all(key in self._fields and self._fields[key] == fields[key] for key in fields):
            return
        self._fields |= fields
        try:
            _replace(self._path, json.dumps(self._fields, indent=2))
        except OSError as error:
            logger.warning("state file not written", extra={"reason": error.strerror})

    def remove(self) -> None:
        """Nothing runs any more."""
        self._path.unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        try:
            file.write(text)
            file.flush()
            Path(file.name).replace(path)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise


def read_state(path: Path) -> dict[str, Any] | None:
    """The document that :class:`StateFile` wrote; ``None`` if there is none that can be read."""
    try:
        state = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) else None


@dataclass(slots=True)
class _Slot:
    """A part and what happened to it."""

    part: Part
    child: Child | None = None
    token: str | None = None
    restarts: int = 0
    failures: int = 0
    last_exit: int | None = None
    last_error: str | None = None
    started: float = 0.0
    started_at: datetime | None = None
    next_try: float = 0.0
    next_try_at: datetime | None = None

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.part.name,
            "state": "running" if self.child else "waiting" if self.next_try_at else "stopped",
            "pid": self.child.pid if self.child else None,
            "process": self.token if self.child else None,
            "restarts": self.restarts,
            "last_exit": self.last_exit,
            "last_error": self.last_error,
            "started_at": _iso(self.started_at),
            "next_try_at": _iso(self.next_try_at),
        }


def _iso(at: datetime | None) -> str | None:
    return at.isoformat(timespec="seconds") if at else None


@dataclass(frozen=True, slots=True)
class Clock:
    """Time, chance and waiting, so that a test can do without them."""

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    chance: Callable[[], float] = random.random
    #: Waits this long or until the event is set.
    wait: Callable[[threading.Event, float], object] = threading.Event.wait


@dataclass(slots=True)
class Supervisor:
    """Runs parts until :meth:`request_stop`.

    ``foundation`` is a part that the others stand on (the database). The caller has started it and
    stops it after everything else; in between it is watched and started again like the others.
    """

    parts: Sequence[Part]
    state: StateFile
    foundation: tuple[Part, Child] | None = None
    clock: Clock = field(default_factory=Clock)
    grace_seconds: float = GRACE_SECONDS
    _slots: list[_Slot] = field(init=False)
    _base: _Slot | None = field(init=False, default=None)
    _stops: int = field(init=False, default=0)
    _wake: threading.Event = field(init=False, default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._slots = [_Slot(part) for part in self.parts]
        if self.foundation:
            part, child = self.foundation
            self._base = _Slot(part)
            self._adopt(self._base, child)

    def request_stop(self) -> None:
        """Stop soon; a second call stops at once. Safe to call from a signal handler."""
        self._stops += 1
        self._wake.set()

    def run(self, tick: Callable[[], None] | None = None) -> None:
        """Keep the parts running until a stop is requested or ``tick`` raises; then stop them."""
        try:
            while not self._stops:
                self.step()
                if tick:
                    tick()
                self.clock.wait(self._wake, _TICK_SECONDS)
        finally:
            self.stop()

    def step(self) -> None:
        """Look at each part once: notice an end, start what is due, record what changed."""
        for slot in self._all():
            if slot.child and (code := slot.child.poll()) is not None:
                self._ended(slot, code)
            if not slot.child and self.clock.monotonic() >= slot.next_try:
                self._start(slot)
        self._record()

    def restarts(self, name: str) -> int:
        """How often the part has ended and had to be started again."""
        return next(slot.restarts for slot in self._all() if slot.part.name == name)

    def is_running(self, name: str) -> bool:
        """Whether the part ran when it was last looked at."""
        return any(slot.child is not None for slot in self._all() if slot.part.name == name)

    def stop(self) -> None:
        """Ask all parts to end; kill what is left after the grace, or on a second request."""
        running = [slot for slot in self._slots if slot.child]
        for slot in running:
            assert slot.child
            slot.child.terminate()
        deadline = self.clock.monotonic() + self.grace_seconds
        while running := self._reap(running):
            self._wake.clear()
            if self._stops > 1 or self.clock.monotonic() >= deadline:
                self._kill(running)
                break
            self.clock.wait(self._wake, _STOP_TICK_SECONDS)
        self._record()

    def _kill(self, running: Sequence[_Slot]) -> None:
        """Kill and wait; a process that even the kernel cannot end now is left to it."""
        for slot in running:
            assert slot.child
            slot.child.kill()
        deadline = self.clock.monotonic() + KILL_SECONDS
        while (running := self._reap(running)) and self.clock.monotonic() < deadline:
            self.clock.wait(threading.Event(), _STOP_TICK_SECONDS)

    def _all(self) -> list[_Slot]:
        return [self._base, *self._slots] if self._base else self._slots

    def _start(self, slot: _Slot) -> None:
        try:
            self._adopt(slot, slot.part.start())
        except (OSError, RecallError) as error:
            slot.last_error = str(error)
            self._schedule(slot)
            logger.error(
                "part does not start", extra={"part": slot.part.name, "reason": str(error)}
            )

    def _adopt(self, slot: _Slot, child: Child) -> None:
        slot.child = child
        slot.token = processes.identify(child.pid) if child.pid else None
        slot.started = self.clock.monotonic()
        slot.started_at = self.clock.now()
        slot.next_try_at = None
        slot.last_error = None

    def _ended(self, slot: _Slot, code: int) -> None:
        slot.child = None
        slot.last_exit = code
        if self.clock.monotonic() - slot.started >= HEALTHY_AFTER_SECONDS:
            slot.failures = 0
        self._schedule(slot)
        logger.warning("part ended", extra={"part": slot.part.name, "exit": code})

    def _schedule(self, slot: _Slot) -> None:
        """The next try: twice as late each time, spread so that parts do not move in step."""
        delay = min(FIRST_DELAY_SECONDS * 2.0 ** min(slot.failures, 16), LONGEST_DELAY_SECONDS)
        delay *= 0.75 + 0.25 * self.clock.chance()
        slot.failures += 1
        slot.restarts += 1
        slot.next_try = self.clock.monotonic() + delay
        slot.next_try_at = self.clock.now() + timedelta(seconds=delay)

    def _reap(self, slots: Sequence[_Slot]) -> list[_Slot]:
        left = []
        for slot in slots:
            if slot.child and (code := slot.child.poll()) is not None:
                slot.child, slot.last_exit = None, code
            elif slot.child:
                left.append(slot)
        return left

    def _record(self) -> None:
        self.state.update(parts=[slot.describe() for slot in self._all()])
