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
from recall_sql.connection import connect
from tests.db.embedding import check_store, expected, fetch, passages, say
from tests.faults.test_embed_kill import expire_leases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Whoever stores passages where some are stored waits while somebody holds the lock 1.
_HALFWAY = """
    create function public.wait_halfway() returns trigger language plpgsql as $$
    begin
        if exists (select from recall.passage) then
            perform pg_advisory_xact_lock_shared(1);
        end if;
        return null;
    end
    $$;
    create trigger halfway before insert on recall.passage
    for each statement execute function public.wait_halfway();
"""
_WAITS = "select 1 from pg_locks where locktype = 'advisory' and objid = 1 and not granted"


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
    with connect(database, application="tests", autocommit=True) as connection:
        connection.execute(_HALFWAY.encode())
        connection.execute("select pg_advisory_lock(1)")
        with start(environment) as process:
            try:
                deadline = time.monotonic() + 300
                while not connection.execute(_WAITS).fetchone():
                    assert time.monotonic() < deadline
                    assert process.poll() is None
                    time.sleep(0.05)
            finally:
                process.kill()
        stored = fetch(database, "select count(*) from recall.passage")[0][0]
    expire_leases(database)
    with start(environment) as again:
        assert again.wait() == 0
    assert passages(database) == expected(database, load_model(Settings()))
    assert 0 < stored < len(passages(database))
    assert fetch(database, "select * from recall.embed_queue") == []
    check_store(database)
