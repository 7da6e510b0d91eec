"""Purge: one source goes completely, everything else stays, and an interruption costs nothing."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from recall import samples
from recall.cli import app
from recall.cli import purge as purge_command
from recall.cli.running import ingest_lock
from recall.config import Settings, load_settings
from recall.errors import BusyError, NotFoundError, UsageError
from recall.identity import Identity
from recall_ingester.run import run_once
from recall_ingester.sources.claude_code import ClaudeCode
from recall_sql.connection import connect


@pytest.fixture
def store(home: Path, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Samples, and the same files with a broken line and a prompt history as a real source."""
    monkeypatch.setenv("RECALL_DATABASE_URL", database)
    settings = load_settings()
    identity = Identity("laptop", "6d1c9bb2-5f4b-4f57-9d6f-0a5f6f3f2f10")
    root = samples.copy_to(tmp_path / "claude")
    (root / "history.jsonl").write_text('{"display":"why is it slow","timestamp":1770000000000}\n')
    transcript = next(root.rglob("projects/*/*.jsonl"))
    transcript.write_bytes(transcript.read_bytes() + b"{not json\n")
    loaded = samples.copy_to(home / "samples")
    for source, folder in ((ClaudeCode(), root), (ClaudeCode("sample", "Samples"), loaded)):
        run_once(settings, identity, database_url=database, sources=[(source, [folder])])
    return database


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, ["purge", *arguments], input=text)


def rows_by_source(url: str) -> dict[str, dict[str, int]]:
    """Rows of every table of the store that belong to a source, whatever tables there are."""
    found: dict[str, dict[str, int]] = {}
    with connect(url) as conn:
        columns = conn.execute(
            "select table_name, array_agg(column_name::text) from information_schema.columns"
            " where table_schema = 'recall' group by table_name"
        ).fetchall()
        for table, names in columns:
            if "source" in names:
                expression = "source"
            elif "session_key" in names:
                expression = "split_part(session_key, ':', 1)"
            else:
                continue
            for source, count in conn.execute(
                f"select {expression}, count(*) from recall.{table} group by 1"
            ):
                found.setdefault(source, {})[table] = count
    return found


def settings_of(home: Path) -> Settings:
    return load_settings({"RECALL_HOME": str(home)})


def test_purge_removes_every_row_of_the_source_and_no_other(store: str) -> None:
    before = rows_by_source(store)
    assert set(before) == {"claude-code", "sample"}
    assert {"session", "message", "message_text", "prompt", "quarantine", "ingest_state"} <= set(
        before["claude-code"]
    )

    result = run("--source", "claude-code", "--yes")

    assert result.exit_code == 0, result.output
    assert rows_by_source(store) == {"sample": before["sample"]}
    assert "the next ingest stores them again" in result.stderr
    assert run("--source", "sample", "--yes").exit_code == 0
    with connect(store) as conn:
        for table in ("raw_segment", "raw_blob"):
            assert conn.execute(f"select count(*) from recall.{table}").fetchone() == (0,)


def test_counts_are_reported_as_json(store: str) -> None:
    before = rows_by_source(store)["sample"]
    result = run("--source", "sample", "--yes", "--json")
    answer = json.loads(result.stdout)
    assert answer["source"] == "sample"
    assert answer["deleted"]["sessions"] == before["session"] == 5
    assert answer["deleted"]["messages"] == before["message"]
    assert answer["deleted"]["spans_of_original_bytes"] == before["raw_segment"] > 0
    assert answer["deleted"]["checkpoints"] == before["ingest_state"]


def test_small_batches_delete_everything_too(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge_command, "_BATCH_ROWS", 7)
    assert run("--source", "claude-code", "--yes").exit_code == 0
    assert set(rows_by_source(store)) == {"sample"}


def test_purge_that_was_interrupted_leaves_no_checkpoint_of_what_is_gone(store: str) -> None:
    with connect(store, autocommit=True) as conn:
        conn.execute(
            "create function stop_here() returns trigger language plpgsql as"
            " $$ begin raise exception 'power failure'; end $$"
        )
        conn.execute(
            "create trigger stop_here before delete on recall.prompt"
            " for each statement execute function stop_here()"
        )
    assert run("--source", "claude-code", "--yes").exit_code != 0
    left = rows_by_source(store)["claude-code"]
    assert "ingest_state" not in left
    assert left["message"] > 0

    with connect(store, autocommit=True) as conn:
        conn.execute("drop trigger stop_here on recall.prompt")
    assert run("--source", "claude-code", "--yes").exit_code == 0
    assert set(rows_by_source(store)) == {"sample"}


def test_dry_run_deletes_nothing(store: str) -> None:
    before = rows_by_source(store)
    result = run("--source", "sample", "--dry-run")
    assert result.exit_code == 0
    assert "nothing was deleted" in result.stdout
    assert rows_by_source(store) == before


def test_purged_samples_do_not_come_back(store: str, home: Path) -> None:
    assert not purge_command.samples_are_purged(settings_of(home))
    run("--source", "sample", "--yes")
    assert purge_command.samples_are_purged(settings_of(home))
    assert not (home / "samples").exists()


def test_other_host_is_left_alone(store: str) -> None:
    result = run("--source", "claude-code", "--host", "desktop", "--yes")
    assert isinstance(result.exception, NotFoundError)
    assert "claude-code" in rows_by_source(store)
    assert run("--source", "claude-code", "--host", "laptop", "--yes").exit_code == 0
    assert "claude-code" not in rows_by_source(store)


def test_unknown_source_names_those_that_are_stored(store: str) -> None:
    result = run("--source", "claud-code", "--yes")
    assert isinstance(result.exception, NotFoundError)
    assert result.exception.hint == "stored sources: claude-code, sample"


def test_without_a_terminal_it_has_to_be_told_to_go_on(store: str) -> None:
    before = rows_by_source(store)
    result = run("--source", "sample", text="sample\n")
    assert isinstance(result.exception, UsageError)
    assert rows_by_source(store) == before


def test_ingest_that_is_at_work_is_not_disturbed(store: str, home: Path) -> None:
    before = rows_by_source(store)
    with ingest_lock(home):
        result = run("--source", "sample", "--yes")
    assert isinstance(result.exception, BusyError)
    assert rows_by_source(store) == before
    assert (home / "samples").exists()


@pytest.mark.parametrize(("typed", "deleted"), [("claude-code", True), ("yes", False)])
def test_real_source_is_deleted_only_after_its_name_was_typed(
    store: str, typed: str, deleted: bool
) -> None:
    terminal, stdin = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "recall", "purge", "--source", "claude-code"],
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.write(terminal, typed.encode() + b"\n")
    code = process.wait()
    os.close(terminal)
    os.close(stdin)
    assert code == (0 if deleted else 2)
    assert ("claude-code" not in rows_by_source(store)) is deleted
