"""`recall status` on a server that several machines feed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recall_sql.connection import connect
from tests.db.serving import Store, serving

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def store(database: str) -> Store:
    return Store(database)


def run(home: Path, *arguments: str, **more: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RECALL_")}
    done = subprocess.run(
        [sys.executable, "-m", "recall", "status", *arguments],
        env=kept | {"RECALL_HOME": str(home), **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def beat(url: str, host: str, seconds_ago: int, **detail: Any) -> None:
    with connect(url, application="tests") as connection:
        connection.execute(
            "insert into recall.worker_heartbeat (component, instance, host, pid, beat_at, detail)"
            " values ('ingester', %s, %s, 7, now() - make_interval(secs => %s), %s)",
            (host, host, seconds_ago, json.dumps(detail)),
        )


def fill(store: Store) -> None:
    store.add_file("/logs/a", lines=(4, 3, 0, 1, 0))
    store.add_quarantine("/logs/a", 10)
    store.add_file("/logs/locked", unreadable="permission denied")
    store.add_file("/logs/b", host="desk", source="codex", lines=(1, 1, 0, 0, 0))
    with connect(store.url, application="tests") as connection:
        connection.execute("update recall.ingest_state set read_at = now() - interval '10 days'")
        connection.execute(
            "insert into recall.host (host, install_id) values ('new', gen_random_uuid())"
        )
    found = {"claude-code": 2}
    errors = {"PGRST003": 4}
    beat(
        store.url, "laptop", 190, state="waiting", sources=found, version="9.8", sink_errors=errors
    )
    beat(store.url, "desk", 3 * 86_400, state="waiting", sources={"codex": 1})


def test_each_machine_and_source_has_a_line_and_a_silent_machine_is_marked(
    home: Path, store: Store
) -> None:
    fill(store)
    shown = run(home, RECALL_DATABASE_URL=store.url).splitlines()
    table = {tuple(line.split()[:2]): line for line in shown if line.startswith(("laptop", "desk"))}
    header = next(line for line in shown if line.startswith("host "))
    assert header.split() == [
        "host",
        "source",
        "files",
        "sessions",
        "lines",
        "newest",
        "synced",
        "lag",
        "quarantined",
        "unreadable",
        "last",
        "beat",
        "remarks",
    ]

    def cells(line: str, first: str, last: str) -> list[str]:
        return line[header.index(first) : header.index(last)].split()

    laptop, desk = table["laptop", "claude-code"], table["desk", "codex"]
    assert cells(laptop, "synced", "quarantined") == ["3m", "3m"]
    assert cells(laptop, "quarantined", "last beat") == ["1", "1"]
    assert cells(laptop, "last beat", "remarks") == ["3m", "ago,", "9.8"]
    assert cells(desk, "synced", "quarantined") == ["3d", "3d"]
    assert cells(desk, "last beat", "remarks") == ["SILENT:", "3d", "ago"]
    assert "new: nothing came yet; last beat SILENT: never" in shown
    assert "laptop: errors in its last pass when it stored: PGRST003 (4)" in shown


def test_a_joined_machine_asks_the_server_and_gets_the_same(home: Path, store: Store) -> None:
    fill(store)
    local = json.loads(run(home, "--json", RECALL_DATABASE_URL=store.url))
    with serving(store.url) as api:
        remote = json.loads(run(home, "--json", RECALL_URL=str(api.base_url)))
        assert "SILENT: 3d ago" in run(home, RECALL_URL=str(api.base_url))
    assert [row["host"] for row in remote["hosts"]] == ["desk", "laptop", "new"]
    assert [row["silent"] for row in remote["hosts"]] == [True, False, True]
    assert local.keys() == remote.keys()
    for name in ("hosts", "sources"):
        assert [row.keys() for row in local[name]] == [row.keys() for row in remote[name]]
    sources = {(row["host"], row["source"]): row for row in remote["sources"]}
    assert sources["laptop", "claude-code"]["lag_seconds"] >= 190
    assert sources["laptop", "claude-code"]["quarantined"] == 1
