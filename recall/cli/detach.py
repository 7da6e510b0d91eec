"""``recall up --detach``: the same command in a session of its own, and its log."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import typer

from recall.cli.found import print_found
from recall.cli.output import note, notes
from recall.cli.running import already_running, find_running, log_path, make_home, state_path
from recall.config import Settings
from recall.errors import RecallError
from recall.supervisor import read_state

_LOG_BYTES = 4_000_000
_TAIL_LINES = 20
_POLL_SECONDS = 0.1


def start(settings: Settings, *, ingest: bool, embed: bool, quiet: bool) -> None:
    """Start `recall up` in the background and return when its API answers.

    If it ends instead, print the end of its log and end with its exit code.
    """
    if find_running(settings.home):
        raise already_running(settings.home)
    make_home(settings.home)
    path = log_path(settings.home)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as log:
        begin = log.tell() if log.seekable() else 0
        process = subprocess.Popen(
            _command(ingest=ingest, embed=embed),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, settings.home, quiet=quiet)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    if process.returncode is not None:
        _fail(process.returncode, path, begin)
    if not quiet:
        _tell(settings, ingest=ingest)


def _command(*, ingest: bool, embed: bool) -> list[str]:
    command = [sys.executable, "-P", "-m", "recall", "up", "--quiet"]
    left_out = {"--no-ingest": not ingest, "--no-embed": not embed}
    return [*command, *(option for option, given in left_out.items() if given)]


def _wait_until_ready(process: subprocess.Popen[bytes], home: Path, *, quiet: bool) -> None:
    with notes.status("starting") as status:
        if quiet:
            status.stop()
        while process.poll() is None:
            state = read_state(state_path(home))
            if state and state.get("pid") == process.pid:
                if state.get("ready"):
                    return
                status.update(str(state.get("stage")))
            time.sleep(_POLL_SECONDS)


def _fail(code: int, log: Path, begin: int) -> None:
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").splitlines()
    if code == 0:  # somebody stopped it before it was ready
        raise RecallError("recall was stopped while it started")
    for line in lines[-_TAIL_LINES:]:
        note(line)
    note(f"\nrecall did not start; its whole log is `{log}`")
    raise typer.Exit(code if code > 0 else 128 - code)


def _tell(settings: Settings, *, ingest: bool) -> None:
    from recall_sql.embedded import EmbeddedServer

    state = find_running(settings.home)
    if state is None:
        raise RecallError("recall ended just after its start", hint="see its log")
    print_found(settings, settings.database_url or EmbeddedServer(settings.home).url, ingest=ingest)
    note(f"\nrecall is running at {state['url']} (pid {state['pid']}; `recall down` stops it)")


def trim_log(path: Path) -> None:
    """Begin the log of this process anew when it is large, if the log is what stderr writes to.

    All writers append, so the file can be cut under them; its last content is kept beside it.
    """
    with suppress(OSError, ValueError):
        status = os.fstat(sys.stderr.fileno())
        if status.st_size > _LOG_BYTES and os.path.samestat(status, path.stat()):
            shutil.copyfile(path, path.with_suffix(".log.1"))
            os.truncate(path, 0)
