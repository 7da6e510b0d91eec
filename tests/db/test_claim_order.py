"""Which of two files of one session keeps its id does not depend on which thread was faster."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from recall_ingester import loop
from recall_ingester.plan import Work
from recall_ingester.read_work import read_work
from recall_ingester.turns import Turns
from tests.db.ingesting import HOST, ingest, rows
from tests.faults.sink_bench import line

NAME = "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f"


def test_the_first_file_of_the_plan_keeps_the_id(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (tmp_path / "projects" / name / f"{NAME}.jsonl" for name in ("-a", "-b"))
    for number, path in enumerate((first, second)):
        path.parent.mkdir(parents=True)
        path.write_bytes(line(f"of {path.parent.name}", number))
    second_asks = Event()
    read, wait = read_work, Turns.wait

    def slow(run: Any, item: Work, output: Any) -> None:
        if item.key == str(first):
            assert second_asks.wait(60)
        read(run, item, output)

    def ask(turns: Turns, item: Work) -> None:
        if item.key == str(second):
            second_asks.set()
        wait(turns, item)

    monkeypatch.setattr(loop, "read_work", slow)
    monkeypatch.setattr(Turns, "wait", ask)
    ingest(database, tmp_path)
    found = dict(rows(database, "select content, session_key from recall.message"))
    assert found["of -a"] == f"claude-code:{HOST}:{NAME}"
    assert found["of -b"].startswith(f"claude-code:{HOST}:{NAME}@")


def test_a_file_that_cannot_be_read_holds_up_no_other(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (tmp_path / "projects" / name / f"{NAME}.jsonl" for name in ("-a", "-b"))
    for path in (first, second):
        path.parent.mkdir(parents=True)
        path.write_bytes(line(f"of {path.parent.name}", 1))
    read = read_work

    def fail(run: Any, item: Work, output: Any) -> None:
        if item.key == str(first):
            raise OSError(5, "input/output error")
        read(run, item, output)

    monkeypatch.setattr(loop, "read_work", fail)
    assert list(ingest(database, tmp_path).unreadable) == [str(first)]
    assert rows(database, "select content from recall.message") == [("of -b",)]
