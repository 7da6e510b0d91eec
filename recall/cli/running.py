"""What a home says about the `recall up` that runs in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recall import processes
from recall.errors import BusyError
from recall.lock import HomeLock, describe_holder
from recall.supervisor import read_state


def state_path(home: Path) -> Path:
    """The state file of `recall up`."""
    return home / "run" / "up.json"


def log_path(home: Path) -> Path:
    """Where `recall up --detach` writes its log."""
    return home / "log" / "up.log"


def make_home(home: Path) -> None:
    """Make the home for its owner alone; making a folder inside it first would leave it open."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)


def ingest_lock(home: Path) -> HomeLock:
    """Held by whatever changes what was ingested: one pass of the ingester, or a purge."""
    return HomeLock(home / "run" / "ingest.lock", what="ingest")


def find_running(home: Path) -> dict[str, Any] | None:
    """The state of the `recall up` that runs now, or ``None``."""
    state = read_state(state_path(home))
    if state and processes.is_same(int(state.get("pid", 0)), str(state.get("process"))):
        return state
    return None


def already_running(home: Path) -> BusyError:
    """The error for a second `recall up`."""
    hint = "stop it with `recall down`"
    if state := find_running(home):
        return BusyError(
            f"recall is already running at {state['url']} (pid {state['pid']})", hint=hint
        )
    holder = describe_holder(home / "run" / "up.lock")
    return BusyError(f"recall is just being started or stopped ({holder})", hint=hint)


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Hold the place of `recall up` in this home; a second one gets :func:`already_running`."""
    make_home(home)
    lock = HomeLock(home / "run" / "up.lock", what="recall up")
    try:
        lock.__enter__()
    except BusyError as error:
        raise already_running(home) from error
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def stop_leftovers(home: Path) -> list[dict[str, Any]]:
    """Stop parts whose `recall up` was killed; call it while holding the place of `recall up`.

    A pid in the state file is signalled only if it still names the process that was recorded. The
    database is not touched: the next start uses it as it is.
    """
    stopped = []
    for part in (read_state(state_path(home)) or {}).get("parts", []):
        pid, token = part.get("pid"), part.get("process")
        if part.get("name") == "database" or not isinstance(pid, int) or not token:
            continue
        if processes.stop_process(pid, token, grace_seconds=10, whole_group=True):
            stopped.append({"name": part["name"], "pid": pid})
    state_path(home).unlink(missing_ok=True)
    return stopped
