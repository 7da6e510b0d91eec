"""What a command costs: wall time, processor time of all it started, and peak memory.

On Linux the benchmark adopts orphans (``PR_SET_CHILD_SUBREAPER``), so that the processor time of a
database server that detached itself from the command is counted as soon as it has ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_ORPHANS_SECONDS = 60.0

# Runs the command inside the interpreter that is measured, and writes down what it alone used.
# VmHWM and not ru_maxrss: the latter keeps the peak of the process that forked it.
_PROBE = """
import json, os, pathlib, resource, runpy, sys
target = pathlib.Path(sys.argv.pop(1))
try:
    runpy.run_module("recall", run_name="__main__")
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        peak = 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    cpu = used.ru_utime + used.ru_stime
    target.write_text(json.dumps({"cpu_seconds": cpu, "peak_bytes": peak}))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """One run of one command.

    ``cpu_seconds`` counts the command and everything it started, ``own_cpu_seconds`` and
    ``peak_bytes`` the process of the command alone (``None`` where that was not measured).
    """

    wall_seconds: float
    cpu_seconds: float | None
    own_cpu_seconds: float | None
    peak_bytes: int | None
    output: str


class CommandFailed(Exception):
    """The command that was to be measured ended with an error."""


def adopt_orphans() -> bool:
    """Become the parent of processes that detach themselves below this one, where that exists."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def run(argv: Sequence[str], env: Mapping[str, str], stop: Sequence[str] = ()) -> Cost:
    """Run a command to its end.

    ``stop`` is a command that ends what the first one left running; its time does not count.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            list(argv), env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=errors
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if stop:
            subprocess.run(stop, env=dict(env), capture_output=True, check=False)
        cpu = used.ru_utime + used.ru_stime + wait_for_orphans()
        output.seek(0)
        errors.seek(0)
        if process.returncode != 0:
            tail = errors.read().decode(errors="replace")[-2000:]
            raise CommandFailed(f"exit code {process.returncode} of {' '.join(argv[-4:])}\n{tail}")
        text = output.read().decode(errors="replace")
    return Cost(wall, cpu if sys.platform == "linux" else None, None, None, text)


def run_recall(arguments: Sequence[str], env: Mapping[str, str]) -> Cost:
    """Run the ``recall`` command of this interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "used.json"
        command = [sys.executable, "-c", _PROBE, str(probe), *arguments]
        cost = run(command, env, stop=[sys.executable, "-m", "recall", "down"])
        used: dict[str, Any] = json.loads(probe.read_text())
    return Cost(
        cost.wall_seconds,
        cost.cpu_seconds,
        used["cpu_seconds"],
        used["peak_bytes"],
        cost.output,
    )


def wait_for_orphans() -> float:
    """Wait for the adopted processes to end; the processor time of them and of their children."""
    total = 0.0
    deadline = time.monotonic() + _ORPHANS_SECONDS
    while time.monotonic() < deadline:
        try:
            pid, _, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return total
        if pid:
            total += used.ru_utime + used.ru_stime
        else:
            time.sleep(0.05)
    raise CommandFailed("the command left a process running")
