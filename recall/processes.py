"""Other processes: is this pid still the one that was started, and how to stop it for certain."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def identify(pid: int) -> str | None:
    """A token that names this run of the process, or ``None`` if it is gone (a zombie is gone).

    A pid alone is used again by the system; the token holds the start time, so a recorded pid is
    signalled only while it still names the process that was recorded.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None if _BOOT_ID.exists() else _identify_by_ps(pid)
    except OSError:
        return None
    # The command name stands in parentheses and may hold anything; what follows does not.
    fields = status.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return f"{_BOOT_ID.read_text()[:8]}-{fields[19]}"


def yield_to_others(steps: int = 19) -> None:
    """Let this process, and the threads that it starts from now on, have the processor last.

    For work that can wait beside answers that somebody waits for. Nothing happens where the system
    has no such thing.
    """
    if hasattr(os, "nice"):
        os.nice(steps)


def _identify_by_ps(pid: int) -> str | None:
    """For systems without ``/proc``."""
    result = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],  # noqa: S607  ps has no fixed place
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, started = result.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def is_same(pid: int, token: str) -> bool:
    """Whether the recorded process still runs."""
    return identify(pid) == token


def stop_process(pid: int, token: str, *, grace_seconds: float, whole_group: bool = False) -> bool:
    """SIGTERM, then SIGKILL after the grace; ``False`` if the process had ended before.

    ``whole_group`` is for a process that leads a group of its own: its children go with it.
    """
    if not is_same(pid, token):
        return False
    send(pid, signal.SIGTERM, whole_group=whole_group)
    if not wait_gone(pid, token, seconds=grace_seconds):
        send(pid, signal.SIGKILL, whole_group=whole_group)
        wait_gone(pid, token, seconds=10)
    return True


def wait_gone(pid: int, token: str, *, seconds: float) -> bool:
    """Wait for the process to end; ``False`` if it still runs when the time is over."""
    deadline = time.monotonic() + seconds
    while is_same(pid, token):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def send(pid: int, number: signal.Signals, *, whole_group: bool) -> None:
    """Send a signal; a process or group that has just ended is not an error."""
    with suppress(ProcessLookupError):
        if whole_group and pid != os.getpgrp():
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
