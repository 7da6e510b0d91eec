"""A model of a client that writes, tears, truncates and replaces its log, and of an ingester that
is killed: no complete line is ever lost or doubled, whatever the order of events."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from recall.errors import StoreError
from recall_ingester.sinks import Batch, Written
from recall_ingester.sinks.postgres import PostgresSink
from recall_sql.connection import connect
from tests.db.ingesting import ingest, rows

SESSION = "11111111-2222-4333-8444-555555555555.jsonl"


class Killed(BaseException):
    """The process ends here."""


class KilledBeforeCommit(PostgresSink):
    """Everything is sent, nothing is committed."""

    def _write(self, connection: Any, batch: Batch) -> Written:
        with connection.transaction():
            super()._write(connection, batch)
            raise Killed


class KilledAfterCommit(PostgresSink):
    """The store has the batch, and the ingester never learns it."""

    def write(self, batch: Batch) -> Written:
        super().write(batch)
        raise Killed


def record(number: int, size: int) -> bytes:
    body = {"type": "user", "message": {"role": "user", "content": f"line {number} " + "x" * size}}
    return json.dumps(body).encode() + b"\n"


class Client(RuleBasedStateMachine):
    """The log as the client means it (``lines``, ``torn``) beside the file and the store."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.log = self.folder / SESSION
        self.log.write_bytes(b"")
        self.lines: list[bytes] = []
        self.torn = b""
        self.ever: set[str] = set()
        self.seen: set[str] = set()
        self.number = 0
        self.clock = 1_800_000_000_000_000_000
        with connect(self.url, application="tests", autocommit=True) as connection:
            connection.execute(
                "truncate recall.session, recall.message, recall.message_text,"
                " recall.message_retracted, recall.ingest_state, recall.quarantine"
            )

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def _touch(self) -> None:
        self.clock += 1_000_000_000
        os.utime(self.log, ns=(self.clock, self.clock))

    def _new(self, size: int) -> bytes:
        self.number += 1
        return record(self.number, size)

    @rule(count=st.integers(1, 4), size=st.integers(0, 3_000))
    def append(self, count: int, size: int) -> None:
        if self.torn:
            return
        new = [self._new(size) for _ in range(count)]
        self.lines += new
        with self.log.open("ab") as file:
            file.write(b"".join(new))
        self._touch()

    @rule(size=st.integers(0, 3_000), cut=st.floats(0.05, 0.9))
    def append_torn(self, size: int, cut: float) -> None:
        if self.torn:
            return
        whole = self._new(size)
        head = whole[: max(1, int(len(whole) * cut))]
        self.torn = whole[len(head) :]
        self.lines.append(whole)
        with self.log.open("ab") as file:
            file.write(head)
        self._touch()

    @precondition(lambda self: self.torn)
    @rule()
    def finish_torn(self) -> None:
        with self.log.open("ab") as file:
            file.write(self.torn)
        self.torn = b""
        self._touch()

    @precondition(lambda self: self.lines and not self.torn)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        keep = data.draw(st.integers(0, len(self.lines) - 1))
        self.lines = self.lines[:keep]
        self.log.write_bytes(b"".join(self.lines))
        self._touch()

    @precondition(lambda self: not self.torn)
    @rule(count=st.integers(0, 5), size=st.integers(0, 3_000))
    def replace(self, count: int, size: int) -> None:
        self.lines = [self._new(size) for _ in range(count)]
        other = self.folder / ".new"
        other.write_bytes(b"".join(self.lines))
        other.replace(self.log)
        self._touch()

    @precondition(lambda self: self.lines and not self.torn)
    @rule(data=st.data())
    def rewrite_at_the_same_size(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.lines) - 1))
        self.number += 1
        old = self.lines[place]
        text = json.loads(old)["message"]["content"]
        fresh = f"LINE {self.number} "
        if len(fresh) > len(text):
            return
        self.lines[place] = old.replace(text.encode(), (fresh + text[len(fresh) :]).encode())
        self.log.write_bytes(b"".join(self.lines))
        self._touch()

    @rule()
    def ingest_dies_before_commit(self) -> None:
        self._die(KilledBeforeCommit)

    @rule()
    def ingest_dies_after_commit(self) -> None:
        self._die(KilledAfterCommit)

    def _die(self, sink: type[PostgresSink]) -> None:
        with suppress(Killed, StoreError):
            ingest(self.url, self.folder, sink=sink)

    @rule()
    def ingest_whole(self) -> None:
        summary = ingest(self.url, self.folder)
        assert summary.lines_seen == (
            summary.stored + summary.merged + summary.quarantined + summary.skipped
        )
        complete = self.lines[:-1] if self.torn else self.lines
        wanted = [json.loads(line)["message"]["content"] for line in complete]
        live = rows(self.url, "select content from recall.message order by ordinal, part")
        assert [row[0] for row in live] == wanted
        self.seen |= set(wanted)
        assert ingest(self.url, self.folder).files_opened == 0

    @invariant()
    def nothing_that_was_stored_is_lost(self) -> None:
        kept = rows(
            self.url,
            "select content from recall.message union all"
            " select content from recall.message_retracted",
        )
        assert self.seen <= {row[0] for row in kept}

    @invariant()
    def every_live_message_is_in_the_text_index_once(self) -> None:
        odd = rows(
            self.url,
            "select m.id from recall.message m full join"
            " (select id from recall.message_text where not retracted) t on t.id = m.id"
            " where m.id is null or t.id is null",
        )
        assert odd == []


@pytest.mark.timeout(600)
def test_no_complete_line_is_lost_or_doubled(database: str) -> None:
    Client.url = database
    run_state_machine_as_test(
        Client,
        settings=settings(
            max_examples=40,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
