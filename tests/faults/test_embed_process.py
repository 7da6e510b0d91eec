"""The embedder as a process with the real model: killed outright in the midst of its work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from recall.config import Settings
from recall_embedder.model import load_model
from tests.db.embedding import check_store, expected, fetch, passages, say
from tests.faults.test_embed_kill import expire_leases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def environment(home: Path, database: str) -> Iterator[dict[str, str]]:
    yield {
        **os.environ,
        "RECALL_DATABASE_URL": database,
        "RECALL_HOST": "laptop",
        "RECALL_EMBED_LISTEN": "",
        "RECALL_EMBED_THREADS": "2",
        "PYTHONPATH": ":".join(path for path in sys.path if path),
    }


def start(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "recall", "embedder", "--once"]
    return subprocess.Popen(command, env=environment)


def test_killed_process_loses_and_doubles_nothing(
    database: str, environment: dict[str, str]
) -> None:
    for number in range(10):
        lines = [f"{number}/{line}: why is the checkout slow again " * 20 for line in range(30)]
        say(database, f"claude-code:laptop:{number}", lines)
    process = start(environment)
    deadline = time.monotonic() + 120
    while not fetch(database, "select from recall.passage limit 1"):
        assert time.monotonic() < deadline
        assert process.poll() is None
    process.kill()
    process.wait()
    stored = fetch(database, "select count(*) from recall.passage")[0][0]
    expire_leases(database)
    again = start(environment)
    assert again.wait(timeout=250) == 0
    assert passages(database) == expected(database, load_model(Settings()))
    assert 0 < stored < len(passages(database))
    assert fetch(database, "select * from recall.embed_queue") == []
    check_store(database)
