"""What a pass read can be put back byte for byte when the client has deleted it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from recall.cli import app
from recall.identity import load_identity
from recall.keys import path_key
from tests.db.ingesting import HOST, ingest, rows

pytestmark = pytest.mark.timeout(600)

Invoke = Callable[..., Result]

SESSION = "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f"
SESSIONS = "select distinct session_key from recall.ingest_state where session_key is not null"


@pytest.fixture
def recall(home: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs the command in this process, as the host that fed the database."""
    monkeypatch.setenv("RECALL_DATABASE_URL", database)
    load_identity(home, host=HOST)
    return lambda *arguments: CliRunner().invoke(app, [str(item) for item in arguments])


def line(number: int, text: str) -> bytes:
    message = {"role": "user", "content": text}
    record = {"type": "user", "uuid": f"u-{number}", "message": message}
    return json.dumps(record).encode() + b"\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "root" / "projects" / "p" / f"{SESSION}.jsonl"
    path.parent.mkdir(parents=True)
    return path


def results(done: Result) -> dict[str, str]:
    return {file["path"]: file["result"] for file in json.loads(done.stdout)["files"]}


@pytest.mark.corpus
@pytest.mark.parametrize(("client", "source"), [("claude", "claude-code"), ("codex", "codex")])
def test_every_session_of_the_corpus_comes_back(
    recall: Invoke, database: str, corpus: Path, tmp_path: Path, client: str, source: str
) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(corpus / client, logs, copy_function=shutil.copyfile)
    ingest(database, logs, source)
    of_sessions = "select path from recall.ingest_state where session_key is not null"
    before = {
        path: (Path(path).read_bytes(), Path(path).stat().st_mtime_ns)
        for (path,) in rows(database, of_sessions)
    }
    assert len(before) > 40
    verified = recall("verify", "--json")
    assert verified.exit_code == 0, verified.output
    assert set(results(verified).values()) == {"ok"}
    assert set(before) <= set(results(verified))

    for path in before:
        Path(path).unlink()
    assert set(results(recall("verify", "--json")).values()) <= {"ok", "gone"}
    for (key,) in rows(database, SESSIONS):
        done = recall("restore", key)
        if done.exit_code and rows(
            database, "select 1 from recall.ingest_state where session_key = %s and size = 0", key
        ):
            # An empty file tells of no session; it comes back by its path.
            [(path,)] = rows(
                database, "select path from recall.ingest_state where session_key = %s", key
            )
            done = recall("restore", path)
        assert done.exit_code == 0, (key, done.output)
    after = {path: (Path(path).read_bytes(), Path(path).stat().st_mtime_ns) for path in before}
    assert after == before
    # To the ingester, nothing happened: the files are opened, and hold what they held.
    again = ingest(database, logs, source)
    assert again.messages == 0
    assert rows(database, "select 1 from recall.message_retracted") == []
    assert set(results(recall("verify", "--json")).values()) == {"ok"}


def test_a_log_that_grew_in_any_steps_comes_back(recall: Invoke, database: str, log: Path) -> None:
    whole = b"".join(line(number, f"text {number} " * 50) for number in range(20))
    root = log.parents[2]
    for end in (0, 10, 700, 701, 5_000, 5_001, len(whole) - 3, len(whole)):
        log.write_bytes(whole[:end])
        ingest(database, root)
        log.unlink()
        if end == 0:
            continue
        assert recall("restore", SESSION).exit_code == 0
        assert log.read_bytes() == whole[:end]


def test_both_states_of_a_log_that_was_written_over_come_back(
    recall: Invoke, database: str, log: Path, tmp_path: Path
) -> None:
    first = line(1, "one") + line(2, "this is taken back") + line(3, "three")
    second = line(1, "one") + line(3, "three, now longer than before")
    for state in (first, second):
        log.write_bytes(state)
        ingest(database, log.parents[2])
    for generation, state in ((1, first), (2, second)):
        to = tmp_path / str(generation)
        done = recall("restore", SESSION, "--generation", generation, "--to", to)
        assert done.exit_code == 0, done.output
        assert (to / log.name).read_bytes() == state


def test_an_edit_that_moves_nothing_is_found_and_read_again(
    recall: Invoke, database: str, log: Path
) -> None:
    """An edit between the anchors of a log that also grew looks like an append to the ingester."""
    filler = [line(number, "x" * 900) for number in range(20)]
    log.write_bytes(b"".join([*filler[:10], line(99, "before"), *filler[10:]]))
    ingest(database, log.parents[2])
    log.write_bytes(b"".join([*filler[:10], line(99, "behind"), *filler[10:], line(100, "new")]))
    ingest(database, log.parents[2])
    texts = "select content from recall.message where native_id = 'u-99'"
    assert rows(database, texts) == [("before",)]

    done = recall("verify", "--json", "--reread")
    assert done.exit_code == 1
    (file,) = json.loads(done.stdout)["files"]
    assert file["result"] == "differs"
    assert file["differs_at"] == log.read_bytes().index(b"behind") + 2
    assert file["written_since"] is False

    ingest(database, log.parents[2])
    assert rows(database, texts) == [("behind",)]
    assert recall("verify").exit_code == 0


def test_bytes_that_were_not_kept_are_said_to_be_missing(
    recall: Invoke, database: str, log: Path
) -> None:
    log.write_bytes(line(1, "one"))
    ingest(database, log.parents[2], keep_raw=False)
    assert results(recall("verify", "--json")) == {path_key(log): "not kept"}
    with log.open("ab") as file:
        file.write(line(2, "two"))
    ingest(database, log.parents[2])
    assert results(recall("verify", "--json")) == {path_key(log): "ok"}
    with log.open("ab") as file:
        file.write(line(3, "three"))
    ingest(database, log.parents[2], keep_raw=False)
    assert results(recall("verify", "--json")) == {path_key(log): "not kept"}


def test_reparse_leaves_alone_what_is_not_kept_to_its_end(
    recall: Invoke, database: str, log: Path
) -> None:
    log.write_bytes(line(1, "one") + line(2, "two"))
    ingest(database, log.parents[2])
    with log.open("ab") as file:
        file.write(line(3, "three"))
    ingest(database, log.parents[2], keep_raw=False)
    before = rows(database, "select id, content from recall.message order by id")
    assert len(before) == 3

    done = recall("reparse", "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert (answer["files"], answer["incomplete"], answer["failed"]) == (0, 1, {})
    assert rows(database, "select id, content from recall.message order by id") == before

    ingest(database, log.parents[2])
    answer = json.loads(recall("reparse", "--json").stdout)
    assert (answer["files"], answer["incomplete"]) == (1, 0)
    assert rows(database, "select id, content from recall.message order by id") == before


def test_a_log_whose_name_is_not_utf8_comes_back(recall: Invoke, database: str, log: Path) -> None:
    path = log.parent.with_name(os.fsdecode(b"caf\xe9")) / log.name
    path.parent.mkdir()
    path.write_bytes(line(1, "one"))
    ingest(database, log.parents[2])
    path.unlink()
    assert recall("restore", SESSION).exit_code == 0
    assert path.read_bytes() == line(1, "one")
