"""`recall ingest` as a person, a timer or a script runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recall.lock import HomeLock
from tests.db.ingesting import rows

SESSION = "11111111-2222-4333-8444-555555555555"
ROLLOUT = "rollout-2026-08-01T11-00-00-0198a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b.jsonl"

pytestmark = pytest.mark.timeout(600)


def line(text: str) -> str:
    record = {"type": "user", "message": {"role": "user", "content": text}}
    return json.dumps(record) + "\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "claude" / "projects" / "-p" / f"{SESSION}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(line("from the first client"))
    return path


@pytest.fixture
def env(home: Path, database: str, tmp_path: Path, log: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RECALL_")}
    return kept | {
        "HOME": str(tmp_path / "nobody"),
        "RECALL_HOME": str(home),
        "RECALL_DATABASE_URL": database,
        "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
        "CODEX_HOME": str(tmp_path / "codex"),
    }


def ingest(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "recall", "ingest", *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def eventually(condition: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert running.poll() is None, "it has ended"
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_clients_own_variables_tell_where_their_logs_are(
    env: dict[str, str], tmp_path: Path, database: str
) -> None:
    rollout = tmp_path / "codex" / "sessions" / "2026" / "08" / "01" / ROLLOUT
    rollout.parent.mkdir(parents=True)
    message = {"type": "user_message", "message": "from the second client"}
    rollout.write_text(json.dumps({"type": "event_msg", "payload": message}) + "\n")
    first = json.loads(ingest(env, "--once", "--json").stdout)
    assert {
        name: first[name]
        for name in (
            "files_seen", "files_opened", "lines_seen", "stored", "merged", "quarantined",
            "skipped", "messages", "sessions",
        )
    } == {
        "files_seen": 2, "files_opened": 2, "lines_seen": 2, "stored": 2, "merged": 0,
        "quarantined": 0, "skipped": 0, "messages": 2, "sessions": 2,
    }  # fmt: skip
    assert first["bytes_read"] > 0
    assert first["seconds"] > 0
    second = json.loads(ingest(env, "--json").stdout)
    assert (second["files_seen"], second["files_opened"], second["lines_seen"]) == (2, 0, 0)
    sources = rows(database, "select distinct source from recall.session order by 1")
    assert sources == [("claude-code",), ("codex",)]


def test_a_named_folder_takes_the_place_of_the_usual_one(
    env: dict[str, str], tmp_path: Path, database: str
) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "talk.jsonl").write_text(line("from elsewhere"))
    done = ingest(env, "--source", f"claude-code={other}")
    assert done.returncode == 0
    assert "1 lines = 1 stored + 0 merged + 0 quarantined + 0 skipped" in done.stdout
    assert rows(database, "select content from recall.message") == [("from elsewhere",)]


def test_second_ingester_says_who_holds_the_lock_and_exits_75(
    env: dict[str, str], home: Path
) -> None:
    with HomeLock(home / "run" / "ingest.lock", what="ingester"):
        done = ingest(env, "--once")
    assert done.returncode == 75
    assert f"(pid {os.getpid()})" in done.stderr
    assert "hint:" in done.stderr
    assert ingest(env, "--once").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", "nothing-known"], "unknown source `nothing-known`"),
        (["--source", "claude-code=/nowhere/at/all"], "`/nowhere/at/all` does not exist"),
        (["--once", "--watch"], "--once, --every and --watch exclude each other"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    env: dict[str, str], arguments: list[str], message: str
) -> None:
    done = ingest(env, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", [["--watch"], ["--every", "1"]])
def test_what_is_written_later_is_stored_until_the_command_is_stopped(
    env: dict[str, str], log: Path, database: str, how: list[str]
) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "recall", "ingest", *how],
        env=env | {"RECALL_INGEST_EVERY_SECONDS": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    count = "select count(*) from recall.message"
    try:
        eventually(lambda: rows(database, count) == [(1,)], running)
        with log.open("a") as file:
            file.write(line("written later"))
        eventually(lambda: rows(database, count) == [(2,)], running)
    finally:
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=180)
    assert running.returncode == 0, errors
