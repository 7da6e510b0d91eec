"""``recall down``: stop what runs in this home."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import typer

from recall import processes
from recall.cli.extras import has_server
from recall.cli.output import print_json, screen
from recall.cli.running import find_running, only_one, stop_leftovers
from recall.config import load_settings

#: Parts get 10 s to end, and the database may have to write a checkpoint after that.
_GRACE_SECONDS = 45.0
_SECOND_GRACE_SECONDS = 20.0


def down(
    json: bool = typer.Option(False, "--json", help="Print what was stopped as JSON."),
) -> None:
    """Stop `recall up` and the embedded database of this home."""
    home = load_settings().home
    stopped = _stop_all(home) if home.exists() else []
    if json:
        print_json({"stopped": stopped})
        return
    for item in stopped:
        screen.print(f"stopped {item['name']} (pid {item['pid']})", markup=False)
    if not stopped:
        screen.print("nothing is running", markup=False)


def _stop_all(home: Path) -> list[dict[str, Any]]:
    stopped = _stop_up(home)
    with only_one(home):
        return stopped + stop_leftovers(home) + _stop_database(home)


def _stop_up(home: Path) -> list[dict[str, Any]]:
    """SIGTERM, a second one for "now", and SIGKILL last."""
    state = find_running(home)
    if state is None:
        return []
    pid, token = int(state["pid"]), str(state["process"])
    for number, seconds in (
        (signal.SIGTERM, _GRACE_SECONDS),
        (signal.SIGTERM, _SECOND_GRACE_SECONDS),
        (signal.SIGKILL, 10.0),
    ):
        processes.send(pid, number, whole_group=False)
        if processes.wait_gone(pid, token, seconds=seconds):
            break
    return [{"name": "recall up", "pid": pid}]


def _stop_database(home: Path) -> list[dict[str, Any]]:
    """The embedded database, if an `up` that was killed or another command left it running."""
    if not has_server():
        return []
    from recall_sql.embedded import EmbeddedServer

    server = EmbeddedServer(home)
    if not server.is_running():
        return []
    pid = server.process_id()
    server.stop()
    return [{"name": "database", "pid": pid}]
