"""Parts of the operating commands that need no database and no server."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recall import processes, samples
from recall.cli import app, main
from recall.cli import extras as extras_module
from recall.cli.address import Address, bind, parse_listen
from recall.cli.found import pick_query
from recall.cli.running import find_running, stop_leftovers
from recall.errors import BusyError, ConfigError, MissingExtraError, UsageError
from recall.identity import Identity, write_identity
from recall.joined import Joined, write_joined


@pytest.fixture(autouse=True)
def user_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test looks at the session logs of whoever runs it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], process_group=0)
    yield process
    process.kill()
    process.wait()


def write_state(home: Path, pid: int, token: str | None) -> None:
    (home / "run").mkdir()
    part = {"name": "api", "pid": pid, "process": token}
    state = {"pid": pid, "process": token, "url": "http://127.0.0.1:1", "parts": [part]}
    (home / "run" / "up.json").write_text(json.dumps(state))


def test_leftover_part_is_stopped(home: Path, sleeper: subprocess.Popen[bytes]) -> None:
    write_state(home, sleeper.pid, processes.identify(sleeper.pid))
    assert stop_leftovers(home) == [{"name": "api", "pid": sleeper.pid}]
    assert sleeper.wait(timeout=60) == -15
    assert not (home / "run" / "up.json").exists()


def test_pid_that_now_names_another_process_is_left_alone(
    home: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    write_state(home, sleeper.pid, "the run before the reboot")
    assert find_running(home) is None
    assert stop_leftovers(home) == []
    assert sleeper.poll() is None


@pytest.mark.parametrize(
    ("listen", "expected", "url"),
    [
        ("127.0.0.1:7717", Address("127.0.0.1", 7717), "http://127.0.0.1:7717"),
        ("0.0.0.0:80", Address("0.0.0.0", 80), "http://127.0.0.1:80"),
        ("[::1]:7717", Address("::1", 7717), "http://[::1]:7717"),
        ("[::]:7717", Address("::", 7717), "http://[::1]:7717"),
        ("localhost:7717", Address("localhost", 7717), "http://localhost:7717"),
    ],
)
def test_listen_address_is_read(listen: str, expected: Address, url: str) -> None:
    assert parse_listen(listen) == expected
    assert expected.url == url


@pytest.mark.parametrize(
    "listen", ["7717", ":7717", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "::1:7717", "a:b"]
)
def test_listen_address_of_another_form_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_listen(listen)


def test_taken_port_and_foreign_address_are_told_apart() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(BusyError, match="in use by another program"):
            bind(Address("127.0.0.1", other.getsockname()[1]))
    with pytest.raises(ConfigError, match="cannot listen"):
        bind(Address("192.0.2.1", 7717))  # an address that is never assigned


def test_example_query_is_a_pair_of_rare_words_of_a_recent_text() -> None:
    texts = [
        "please check the build again",
        "the upload fails with a certificate mismatch",
        "check the build and the upload",
    ]
    assert pick_query(texts) == "certificate mismatch"


def test_example_query_is_never_a_command_or_a_possible_secret() -> None:
    assert pick_query(["<command-name>/clear permanently</command-name>"]) is None
    assert pick_query(["sk1234567890abcdef 9f86d081884c7d65"]) is None
    assert pick_query([]) is None


def test_samples_are_copied_once_and_keep_their_time(tmp_path: Path) -> None:
    root = samples.copy_to(tmp_path / "samples")
    files = sorted(root.glob("projects/*/*.jsonl"))
    assert len(files) >= 4
    times = [file.stat().st_mtime_ns for file in files]
    samples.copy_to(tmp_path / "samples")
    assert [file.stat().st_mtime_ns for file in files] == times


def test_every_sample_line_belongs_to_the_session_of_its_file() -> None:
    for file in Path(samples.__file__).parent.rglob("*.jsonl"):
        for line in file.read_text("utf-8").splitlines():
            record = json.loads(line)
            assert record["sessionId"] == file.stem
            slug = record.get("cwd", "").replace("/", "-")
            assert slug in {"", file.parent.name}


def test_command_without_the_server_part_says_what_to_install(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras_module, "find_spec", lambda name: None if "psycopg" in name else 1)
    result = CliRunner().invoke(app, ["up"])
    assert isinstance(result.exception, MissingExtraError)
    assert result.exception.hint == "pip install 'recall[server]'"


def test_doctor_reports_a_wrong_setting_and_fails(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALL_LISTEM", "127.0.0.1:7717")
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    failed = [c for c in json.loads(result.stdout)["checks"] if c["status"] == "fail"]
    assert [check["name"] for check in failed] == ["settings"]
    assert "RECALL_LISTEM" in failed[0]["detail"]


def test_doctor_reports_a_taken_port_and_a_damaged_identity(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "identity.json").write_text("{")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setenv("RECALL_LISTEN", f"127.0.0.1:{other.getsockname()[1]}")
        result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    failed = {c["name"] for c in json.loads(result.stdout)["checks"] if c["status"] == "fail"}
    assert failed == {"identity", "running"}


@pytest.mark.parametrize(
    "url",
    [
        "laptop",
        "server:7717",
        "ftp://server",
        "http://",
        "http://server?x=1",
        "http://me:pw@server",
    ],
)
def test_what_is_no_address_of_a_server_is_not_joined(
    home: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("RECALL_HOME", str(home))
    done = CliRunner().invoke(app, ["join", url, "AAAAA-BBBBB-CCCCC-DDDDD-EEEEE"])
    assert isinstance(done.exception, UsageError)
    assert "pw" not in done.exception.message
    assert not list(home.iterdir())


def test_a_machine_that_feeds_a_server_needs_no_free_port(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port may be that of the server itself, in a container of the same machine."""
    monkeypatch.setenv("RECALL_HOME", str(home))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("RECALL_LISTEN", f"127.0.0.1:{port}")
        alone = CliRunner().invoke(app, ["doctor"])
        write_joined(home, Joined("http://127.0.0.1:1", "laptop", "token"))
        write_identity(home, Identity("laptop", "0" * 32))
        joined = CliRunner().invoke(app, ["doctor"])
    assert "is in use by another program" in alone.stdout
    assert "is in use by another program" not in joined.stdout


def test_a_home_that_cannot_be_written_is_told_without_a_traceback(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_joined(home, Joined("http://127.0.0.1:1", "laptop", "token"))
    write_identity(home, Identity("laptop", "0" * 32))
    (home / "run").touch()  # where the folder with the locks would be
    monkeypatch.setenv("RECALL_HOME", str(home))
    monkeypatch.setattr("sys.argv", ["recall", "ingest"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 73
    told = capsys.readouterr().err
    assert "cannot be used: " in told
    assert "hint: " in told
