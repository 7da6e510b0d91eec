"""`recall service`: what is written, what the service managers are told, and what is said."""

from __future__ import annotations

import json
import os
import plistlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from recall import units
from recall.cli import app, service
from recall.errors import NotFoundError, TargetError, UsageError

ROOT = Path(__file__).resolve().parents[2]
PASS = ("-P", "-m", "recall", "ingest", "--once")
#: The plans whose files stand in ``ops/``.
LINUX = units.Plan(("/home/me/recall/.venv/bin/python", *PASS), 5)
MAC = units.Plan(("/Users/me/recall/.venv/bin/python", *PASS), 5)
WINDOWS = units.Plan((r"C:\Users\me\recall\.venv\Scripts\pythonw.exe", *PASS), 5)
ODD = units.Plan(('/home/m e/100% "real" $HOME/python', *PASS), 5, "/srv/re call/50%")

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("systemd/recall-ingest.service", units.systemd_service(LINUX)),
        ("systemd/recall-ingest.timer", units.systemd_timer(LINUX)),
        (
            "launchd/recall.ingest.plist",
            units.launchd_plist(MAC, "/Users/me/Library/Logs/recall-ingest.log"),
        ),
        ("windows/recall-ingest.xml", units.windows_task(WINDOWS)),
    ],
)
def test_the_files_in_ops_are_what_the_command_writes(place: str, text: str) -> None:
    assert (ROOT / "ops" / place).read_text("utf-8") == text


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Service managers that write down what they are asked, and do what ``<name>.answer`` says."""
    folder = tmp_path / "bin"
    folder.mkdir()
    record = tmp_path / "calls"
    record.touch()
    for name in ("systemctl", "loginctl", "launchctl", "schtasks"):
        program = folder / name
        program.write_text(
            "#!/bin/sh\n"
            f'echo "{name} $*" >>"{record}"\n'
            f'if [ -f "{folder}/{name}.answer" ]; then . "{folder}/{name}.answer"; fi\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return lambda: record.read_text().splitlines()


@pytest.fixture
def answer(tmp_path: Path) -> Callable[[str, str], None]:
    """Lets a fake program run some shell."""

    def give(name: str, script: str) -> None:
        (tmp_path / "bin" / f"{name}.answer").write_text(script)

    return give


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `recall service` for an account with an odd name on a system."""
    account = tmp_path / "m e"
    account.mkdir()
    monkeypatch.setenv("HOME", str(account))
    for name in [name for name in os.environ if name.startswith("RECALL_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(account / "share"))

    def start(*arguments: str, platform: str = "linux") -> Result:
        monkeypatch.setattr(service, "PLATFORM", platform)
        return CliRunner().invoke(app, ["service", *arguments])

    return start


def systemd_file(tmp_path: Path, kind: str) -> Path:
    return tmp_path / "m e" / ".config" / "systemd" / "user" / f"recall-ingest.{kind}"


def test_systemd_gets_a_timer_of_the_user(
    run: Run, calls: Callable[[], list[str]], tmp_path: Path
) -> None:
    done = run("install")
    assert done.exit_code == 0, done.output
    assert "read every 5 minutes (systemd)" in done.output
    timer = systemd_file(tmp_path, "timer").read_text()
    assert "OnCalendar=*:0/5\n" in timer
    assert "Persistent=true" in timer
    assert "RandomizedDelaySec=" in timer
    assert " -P -m recall ingest --once\n" in systemd_file(tmp_path, "service").read_text()
    assert calls() == [
        "systemctl --user show-environment",
        "systemctl --user daemon-reload",
        "systemctl --user enable recall-ingest.timer",
        "systemctl --user restart recall-ingest.timer",
        "systemctl --user start --no-block recall-ingest.service",
        "loginctl show-user --property=Linger --value",
    ]
    assert "enable-linger" in done.output


def test_uninstall_leaves_nothing(run: Run, calls: Callable[[], list[str]], tmp_path: Path) -> None:
    assert run("install", "--every", "60").exit_code == 0
    before = len(calls())
    done = run("uninstall")
    assert done.exit_code == 0, done.output
    assert calls()[before:] == [
        "systemctl --user disable --now recall-ingest.timer",
        "systemctl --user stop recall-ingest.service",
        "systemctl --user daemon-reload",
    ]
    assert not list(systemd_file(tmp_path, "timer").parent.iterdir())
    again = run("uninstall")
    assert again.exit_code == 0
    assert "no service is installed" in again.output


def test_without_a_bus_nothing_is_written_and_a_crontab_line_is_offered(
    run: Run, calls: Callable[[], list[str]], answer: Callable[[str, str], None], tmp_path: Path
) -> None:
    answer("systemctl", "echo 'Failed to connect to bus: No medium found' >&2; exit 1\n")
    done = run("install", "--every", "10")
    assert isinstance(done.exception, UsageError)
    assert "No medium found" in done.exception.message
    hint = done.exception.hint or ""
    assert "enable-linger" in hint
    assert hint.splitlines()[-1].startswith("*/10 * * * * ")
    assert not systemd_file(tmp_path, "timer").exists()
    assert calls() == ["systemctl --user show-environment"]


def test_without_systemd_it_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = run("install")
    assert isinstance(done.exception, UsageError)
    assert "`systemctl` is not installed" in done.exception.message


def test_what_systemctl_refuses_is_an_error(
    run: Run, calls: Callable[[], list[str]], answer: Callable[[str, str], None]
) -> None:
    answer("systemctl", 'case "$*" in *enable*) echo "Unit is masked." >&2; exit 1;; esac\n')
    done = run("install")
    assert isinstance(done.exception, TargetError)
    assert "Unit is masked." in done.exception.message
    assert calls()[-1].endswith("enable recall-ingest.timer")


def test_no_token_reaches_a_unit_and_it_is_said_that_settings_do_not(
    run: Run, calls: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "h o%me"
    monkeypatch.setenv("RECALL_HOME", str(home))
    monkeypatch.setenv("RECALL_TOKEN", "a-very-secret-token")
    monkeypatch.setenv("RECALL_URL", "http://recall.invalid")
    done = run("install")
    assert done.exit_code == 0, done.output
    assert calls()
    unit = systemd_file(tmp_path, "service").read_text()
    assert f'Environment="RECALL_HOME={tmp_path}/h o%%me"\n' in unit
    assert "RECALL_TOKEN, RECALL_URL of this shell are not passed on" in done.output
    for file in systemd_file(tmp_path, "service").parent.iterdir():
        assert "secret" not in file.read_text()
        assert "recall.invalid" not in file.read_text()


def test_print_writes_nothing(run: Run, calls: Callable[[], list[str]], tmp_path: Path) -> None:
    done = run("install", "--print", "--every", "7")
    assert done.exit_code == 0, done.output
    assert f"# {systemd_file(tmp_path, 'timer')}\n" in done.output
    assert "OnCalendar=*:0/7\n" in done.output
    assert not calls()
    assert not systemd_file(tmp_path, "timer").exists()


def test_status_tells_of_the_last_and_the_next_pass(
    run: Run, calls: Callable[[], list[str]], answer: Callable[[str, str], None]
) -> None:
    missing = run("status")
    assert isinstance(missing.exception, NotFoundError)
    assert run("install").exit_code == 0
    answer(
        "systemctl",
        'case "$*" in\n'
        "*timer*) echo ActiveState=active\n"
        "echo 'NextElapseUSecRealtime=Mon 2026-11-30 12:05:00 UTC';;\n"
        "*service*) echo ExecMainStatus=69\n"
        "echo 'ExecMainExitTimestamp=Mon 2026-11-30 12:00:00 UTC';;\n"
        "esac\n",
    )
    told = json.loads(run("status", "--json").stdout)
    assert told["active"] is True
    assert told["last_exit"] == "69"
    assert told["next_run"] == "Mon 2026-11-30 12:05:00 UTC"
    assert "exit code 69" in run("status").stdout
    assert calls()


def test_launchd_gets_an_agent(
    run: Run,
    calls: Callable[[], list[str]],
    answer: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RECALL_HOME", str(tmp_path / "a & b"))
    done = run("install", "--every", "15", platform="darwin")
    assert done.exit_code == 0, done.output
    file = tmp_path / "m e" / "Library" / "LaunchAgents" / "recall.ingest.plist"
    agent = plistlib.loads(file.read_bytes())
    assert agent["ProgramArguments"][1:] == list(PASS)
    assert agent["StartInterval"] == 900
    assert agent["EnvironmentVariables"] == {"RECALL_HOME": str(tmp_path / "a & b")}
    domain = f"gui/{os.getuid()}"
    assert calls() == [
        f"launchctl print {domain}",
        f"launchctl bootout {domain}/recall.ingest",
        f"launchctl bootstrap {domain} {file}",
    ]
    answer("launchctl", "echo '	last exit code = 75'\n")
    assert json.loads(run("status", "--json", platform="darwin").stdout)["last_exit"] == "75"
    assert run("uninstall", platform="darwin").exit_code == 0
    assert not file.exists()
    assert calls()[-1] == f"launchctl bootout {domain}/recall.ingest"


def test_the_task_scheduler_gets_a_task(
    run: Run, calls: Callable[[], list[str]], tmp_path: Path
) -> None:
    done = run("install", "--every", "120", platform="win32")
    assert done.exit_code == 0, done.output
    (file,) = (tmp_path / "m e" / "share").rglob("recall-ingest.xml")
    task = ElementTree.fromstring(file.read_bytes())
    space = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}
    assert task.findtext(".//t:Interval", namespaces=space) == "PT2H"
    assert task.findtext(".//t:Arguments", namespaces=space) == " ".join(PASS)
    assert calls() == [
        f"schtasks /Create /F /TN Recall Ingest /XML {file}",
        "schtasks /Run /TN Recall Ingest",
    ]
    assert run("uninstall", platform="win32").exit_code == 0
    assert not file.exists()


@pytest.mark.parametrize("minutes", ["0", "61", "90", "1500"])
def test_an_interval_that_no_calendar_has_is_refused(run: Run, minutes: str) -> None:
    done = run("install", "--every", minutes)
    assert isinstance(done.exception, UsageError)
    assert "1 to 59 minutes" in done.exception.message


def test_odd_paths_stay_one_word() -> None:
    unit = units.systemd_service(ODD)
    assert r'ExecStart="/home/m e/100%% \"real\" $$HOME/python" -P -m recall' in unit
    assert 'Environment="RECALL_HOME=/srv/re call/50%%"' in unit
    agent = plistlib.loads(units.launchd_plist(ODD, "/x").encode())
    assert agent["ProgramArguments"] == list(ODD.command)
    assert agent["EnvironmentVariables"] == {"RECALL_HOME": ODD.home}


def test_the_crontab_line_is_what_a_shell_reads_as_the_command(tmp_path: Path) -> None:
    program = tmp_path / "100% $HOME" / "say"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$RECALL_HOME" "$@" >"$(dirname "$0")/said"\n')
    program.chmod(0o755)
    line = units.crontab_line(units.Plan((str(program), "a b"), 5, "/srv/re call"))
    assert line.startswith("*/5 * * * * ")
    command = line.removeprefix("*/5 * * * * ").replace("\\%", "%")  # as cron does
    assert "%" not in line.replace("\\%", "")
    subprocess.run(["/bin/sh", "-c", command], check=True)
    assert (program.parent / "said").read_text() == "/srv/re call\na b\n"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    program = tmp_path / "100% real" / "python"
    program.parent.mkdir()
    shutil.copy("/bin/true", program)
    plan = units.Plan((str(program), *PASS), 5, "/srv/re call/50%")
    files = [tmp_path / "recall-ingest.service", tmp_path / "recall-ingest.timer"]
    files[0].write_text(units.systemd_service(plan))
    files[1].write_text(units.systemd_timer(plan))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if "recall-ingest" in line]
    assert not said
    for minutes in (1, 7, 59, 60, 120, 1440):
        calendar = units.systemd_timer(units.Plan(("x",), minutes)).partition("OnCalendar=")[2]
        expression = calendar.partition("\n")[0]
        subprocess.run(["systemd-analyze", "calendar", expression], check=True, capture_output=True)
