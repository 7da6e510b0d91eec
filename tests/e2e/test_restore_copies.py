"""What was set aside, and files in very long paths, come back by the commands."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from recall.cli import app
from recall.identity import load_identity
from recall_sql.connection import connect
from tests.db.ingesting import HOST, ingest

pytestmark = pytest.mark.timeout(600)

Invoke = Callable[..., Result]
SESSION = "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f"


@pytest.fixture
def recall(home: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs the command in this process, as the host that fed the database."""
    monkeypatch.setenv("RECALL_DATABASE_URL", database)
    load_identity(home, host=HOST)
    return lambda *arguments: CliRunner().invoke(app, [str(item) for item in arguments])


def line(text: str) -> bytes:
    message = {"role": "user", "content": text}
    return json.dumps({"type": "user", "uuid": text, "message": message}).encode() + b"\n"


def results(done: Result) -> set[str]:
    return {file["result"] for file in json.loads(done.stdout)["files"]}


def test_a_state_that_was_set_aside_comes_back(
    recall: Invoke, database: str, tmp_path: Path
) -> None:
    log = tmp_path / "root" / "projects" / "p" / f"{SESSION}.jsonl"
    log.parent.mkdir(parents=True)
    log.write_bytes(line("one") + line("two"))
    ingest(database, tmp_path / "root")
    with connect(database, application="tests") as connection:
        connection.execute("delete from recall.ingest_state")
    log.write_bytes(line("other"))
    ingest(database, tmp_path / "root")
    done = recall("verify", "--json")
    assert (done.exit_code, results(done)) == (0, {"ok"})
    listed = json.loads(recall("restore", SESSION, "--dry-run", "--json").stdout)["files"]
    assert listed[0]["generations"] == [-1, 1]
    for generation, state in ((-1, line("one") + line("two")), (1, line("other"))):
        to = tmp_path / str(generation)
        done = recall("restore", SESSION, "--generation", generation, "--to", to)
        assert done.exit_code == 0, done.output
        assert (to / log.name).read_bytes() == state


def test_a_file_in_a_very_long_path_comes_back(
    recall: Invoke, database: str, tmp_path: Path
) -> None:
    names = random.Random(1)
    folder = tmp_path / "root" / "projects"
    while len(str(folder)) < 3_000:
        folder = folder / "".join(names.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=200))
    folder.mkdir(parents=True)
    log = folder / f"{SESSION}.jsonl"
    log.write_bytes(line("one"))
    ingest(database, tmp_path / "root")
    assert results(recall("verify", "--json")) == {"ok"}
    log.unlink()
    assert results(recall("verify", "--json")) == {"gone"}
    for named in (SESSION, log, f"{folder.name}/{log.name}"):
        log.unlink(missing_ok=True)
        done = recall("restore", named)
        assert done.exit_code == 0, done.output
        assert log.read_bytes() == line("one")
    done = recall("restore", SESSION, "--to", tmp_path / "to")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "to" / log.name).read_bytes() == line("one")
