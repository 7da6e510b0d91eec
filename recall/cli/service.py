"""``recall service``: let the system read the session logs every few minutes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import typer

from recall import units
from recall.cli.output import note, print_json, screen
from recall.config import Settings, load_settings
from recall.errors import NotFoundError, TargetError, UsageError

app = typer.Typer(
    help="Read the session logs every few minutes, in the background.",
    no_args_is_help=True,
)

#: A name of its own, so that a test can be another system.
PLATFORM = sys.platform
_EVERY = 5
_SECONDS = 60
_TIMER, _SERVICE = "recall-ingest.timer", "recall-ingest.service"
_LABEL = "recall.ingest"
_TASK = "Recall Ingest"


@dataclass(frozen=True, slots=True)
class State:
    """What the service manager says."""

    file: Path
    active: bool
    last_exit: str | None = None
    next_run: str | None = None


class Manager(Protocol):
    """The service manager of a system."""

    name: str

    def files(self, plan: units.Plan) -> dict[Path, bytes]:
        """What is written, by its place."""
        ...

    def require(self, plan: units.Plan) -> None:
        """Raise :class:`UsageError`, with what to do, where it does not serve this user."""
        ...

    def start(self) -> None:
        """Load what was written, and start the first pass."""
        ...

    def stop(self) -> None:
        """Stop and forget it."""
        ...

    def forget(self) -> None:
        """Called when the files are gone."""
        ...

    def state(self) -> State:
        """What there is."""
        ...


@app.command("install")
def install(
    every: int = typer.Option(_EVERY, "--every", metavar="MINUTES", help="How often to read."),
    show: bool = typer.Option(False, "--print", help="Print what would be written, and end."),
) -> None:
    """Read the session logs every five minutes: a systemd timer, launchd agent or scheduled task.

    It belongs to your account, needs no other rights, and has no token in it. Install it again
    after Recall was moved; what was there is replaced.
    """
    settings = load_settings()
    manager, plan = _manager(settings), _plan(every)
    files = manager.files(plan)
    if show:
        for path, content in files.items():
            screen.print(f"# {path}", markup=False)
            encoding = "utf-16" if content.startswith(b"\xff\xfe") else "utf-8"
            typer.echo(content.decode(encoding))
        return
    manager.require(plan)
    for path, content in files.items():
        _write(path, content)
    manager.start()
    screen.print(f"the session logs are read every {plan.every} ({manager.name})", markup=False)
    _tell(settings, manager)


@app.command("status")
def status(json: bool = typer.Option(False, "--json", help="Print it as JSON.")) -> None:
    """Show whether it is installed, what came of the last pass, and when the next one is.

    Exit code 4 means that nothing is installed.
    """
    manager = _manager(load_settings())
    state = manager.state()
    if not state.file.exists():
        raise NotFoundError(
            "no service is installed", hint="`recall service install` reads every five minutes"
        )
    if json:
        print_json(
            {
                "manager": manager.name,
                "file": str(state.file),
                "active": state.active,
                "last_exit": state.last_exit,
                "next_run": state.next_run,
            }
        )
        return
    how = "active" if state.active else "installed, but not active: `recall service install`"
    screen.print(f"{manager.name}: {how}", markup=False)
    screen.print(f"file: {state.file}", markup=False)
    if state.last_exit is not None:
        screen.print(f"last pass: exit code {state.last_exit}", markup=False)
    if state.next_run:
        screen.print(f"next pass: {state.next_run}", markup=False)


@app.command("uninstall")
def uninstall() -> None:
    """Stop reading by itself. What was read stays, and so does whether this machine has joined."""
    manager, plan = _manager(load_settings()), _plan(_EVERY)
    files = [path for path in manager.files(plan) if path.exists()]
    if not files:
        screen.print("no service is installed", markup=False)
        return
    manager.stop()
    for path in files:
        path.unlink(missing_ok=True)
    manager.forget()
    screen.print(f"removed {', '.join(f'`{path}`' for path in files)}", markup=False)


def _plan(minutes: int) -> units.Plan:
    command = units.argument_list(sys.executable, windows=PLATFORM == "win32")
    home = os.environ.get("RECALL_HOME")
    home = str(Path(home).expanduser().absolute()) if home else None
    try:
        return units.Plan(tuple(command), minutes, home)
    except ValueError as error:
        raise UsageError(f"`recall service` {error}", hint="--every 5, or --every 60") from error


def _manager(settings: Settings) -> Manager:
    if PLATFORM == "darwin":
        return Launchd()
    if PLATFORM == "win32":
        return TaskScheduler(settings.home)
    return Systemd()


def _tell(settings: Settings, manager: Manager) -> None:
    passed_on = {"RECALL_HOME"}
    lost = sorted(name for name in os.environ if name.startswith("RECALL_"))
    if lost := [name for name in lost if name not in passed_on]:
        note(
            f"{', '.join(lost)} of this shell are not passed on: the service reads"
            f" `{settings.home / 'config.toml'}`, and `recall join` keeps the address and the token"
        )
    if PLATFORM == "win32" and os.environ.get("RECALL_HOME"):
        note("the task has the RECALL_HOME of your account: `setx RECALL_HOME ...` sets it")
    if settings.url is None:
        note("this machine feeds no server; `recall up` would read by itself")
    if isinstance(manager, Systemd) and not manager.lingers():
        note("it runs while you are logged in; `loginctl enable-linger` lets it run always")


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_bytes(content)
        new.replace(path)
    except OSError as error:
        raise TargetError(f"`{path}` cannot be written: {error.strerror}") from error


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """A program of the system; one that is missing or hangs failed like any other."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, "", f"`{command[0]}` is not installed")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", "it did not answer")


def _must(*command: str) -> None:
    done = _run(*command)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().split("\n")[-1]
        raise TargetError(f"`{' '.join(command[:3])}` failed: {said or 'it said nothing'}")


class Systemd:
    """A timer of the user's own service manager."""

    name = "systemd"

    def __init__(self) -> None:
        base = os.environ.get("XDG_CONFIG_HOME")
        self._folder = (Path(base) if base else Path.home() / ".config") / "systemd" / "user"

    def files(self, plan: units.Plan) -> dict[Path, bytes]:
        """The service and its timer."""
        return {
            self._folder / _SERVICE: units.systemd_service(plan).encode(),
            self._folder / _TIMER: units.systemd_timer(plan).encode(),
        }

    def require(self, plan: units.Plan) -> None:
        """Containers and some `su` sessions have no manager of the user."""
        done = _run("systemctl", "--user", "show-environment")
        if done.returncode == 0:
            return
        said = (done.stderr.strip().split("\n") or [""])[-1]
        raise UsageError(
            f"systemd does not serve this account here: {said or 'it said nothing'}",
            hint="log in as this user, not with `su` or `sudo` (or: loginctl enable-linger, then"
            " export XDG_RUNTIME_DIR=/run/user/$(id -u)); without systemd, add this line with"
            f" `crontab -e`:\n{units.crontab_line(plan)}",
        )

    def start(self) -> None:
        """The first pass starts at once; nobody waits for it."""
        _must("systemctl", "--user", "daemon-reload")
        _must("systemctl", "--user", "enable", _TIMER)
        _must("systemctl", "--user", "restart", _TIMER)
        _must("systemctl", "--user", "start", "--no-block", _SERVICE)

    def stop(self) -> None:
        """A pass that runs ends in order."""
        _run("systemctl", "--user", "disable", "--now", _TIMER)
        _run("systemctl", "--user", "stop", _SERVICE)

    def forget(self) -> None:
        """It still knows the units until it looks again."""
        _run("systemctl", "--user", "daemon-reload")

    def state(self) -> State:
        """What `systemctl show` says."""
        timer = self._show(_TIMER, "ActiveState,NextElapseUSecRealtime")
        service = self._show(_SERVICE, "ExecMainStatus,ExecMainExitTimestamp")
        ran = service.get("ExecMainExitTimestamp")
        return State(
            self._folder / _TIMER,
            timer.get("ActiveState") == "active",
            service.get("ExecMainStatus") if ran else None,
            timer.get("NextElapseUSecRealtime") or None,
        )

    def lingers(self) -> bool:
        """Whether the manager of this user runs without a session."""
        return _run("loginctl", "show-user", "--property=Linger", "--value").stdout.strip() == "yes"

    def _show(self, unit: str, names: str) -> dict[str, str]:
        done = _run("systemctl", "--user", "show", unit, f"--property={names}")
        pairs = (line.partition("=") for line in done.stdout.split("\n") if "=" in line)
        return {name: value for name, _, value in pairs}


class Launchd:
    """An agent of the user's session."""

    name = "launchd"

    def __init__(self) -> None:
        self._library = Path.home() / "Library"
        self._file = self._library / "LaunchAgents" / f"{_LABEL}.plist"

    def files(self, plan: units.Plan) -> dict[Path, bytes]:
        """The agent."""
        text = units.launchd_plist(plan, str(self._library / "Logs" / "recall-ingest.log"))
        return {self._file: text.encode()}

    def require(self, plan: units.Plan) -> None:
        """An agent needs a session with a desktop."""
        done = _run("launchctl", "print", self._domain())
        if done.returncode:
            raise UsageError(
                "launchd has no session of this account",
                hint="log in at the desktop; or add this line with `crontab -e`:\n"
                f"{units.crontab_line(plan)}",
            )

    def start(self) -> None:
        """What was loaded before has to go first."""
        _run("launchctl", "bootout", f"{self._domain()}/{_LABEL}")
        _must("launchctl", "bootstrap", self._domain(), str(self._file))

    def stop(self) -> None:
        """Ends a pass that runs as well."""
        _run("launchctl", "bootout", f"{self._domain()}/{_LABEL}")

    def forget(self) -> None:
        """It has forgotten."""

    def state(self) -> State:
        """What `launchctl print` says."""
        done = _run("launchctl", "print", f"{self._domain()}/{_LABEL}")
        found = re.search(r"last exit code = (\d+)", done.stdout)
        return State(self._file, done.returncode == 0, found[1] if found else None)

    def _domain(self) -> str:
        return f"gui/{os.getuid()}"


class TaskScheduler:
    """A task that runs while the user is logged in."""

    name = "Task Scheduler"

    def __init__(self, home: Path) -> None:
        self._file = home / "recall-ingest.xml"

    def files(self, plan: units.Plan) -> dict[Path, bytes]:
        """The definition, in the encoding that `schtasks` reads."""
        return {self._file: b"\xff\xfe" + units.windows_task(plan).encode("utf-16-le")}

    def require(self, plan: units.Plan) -> None:
        """Every Windows has it."""

    def start(self) -> None:
        """A task of the same name is replaced."""
        _must("schtasks", "/Create", "/F", "/TN", _TASK, "/XML", str(self._file))
        _must("schtasks", "/Run", "/TN", _TASK)

    def stop(self) -> None:
        """A pass that runs goes on to its end."""
        _run("schtasks", "/Delete", "/F", "/TN", _TASK)

    def forget(self) -> None:
        """It has forgotten."""

    def state(self) -> State:
        """What `schtasks` says. Its words are of the language of the system, so only the time of
        the next run is taken, as it is written."""
        done = _run("schtasks", "/Query", "/TN", _TASK, "/FO", "CSV", "/NH")
        fields = [field.strip('" \r') for field in done.stdout.strip().split(",")]
        return State(self._file, done.returncode == 0, None, fields[1] if len(fields) > 1 else None)
