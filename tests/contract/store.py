"""One database that cases are read into, over connections that stay open between passes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import zstandard

from recall.errors import SourceError
from recall_api.search import SearchRequest, search
from recall_ingester.exports import open_export
from recall_ingester.exports.recall_jsonl import validate
from recall_ingester.importing import Importer
from recall_ingester.loop import run_pass
from recall_ingester.run_state import Options
from recall_ingester.sinks import Sink
from recall_ingester.sinks.postgres import PostgresSink
from recall_ingester.sinks.postgrest import PostgrestSink
from recall_ingester.sources import get_source
from recall_ingester.sources.base import Source
from recall_ingester.summary import Summary
from recall_sql.connection import connect
from tests.contract.script import Case
from tests.db.ingesting import HOST, IDENTITY, MAX_LINE_BYTES, everything
from tests.db.over_http import Member

TABLES = (
    "session", "message", "message_retracted", "message_text", "prompt", "note", "quarantine",
    "ingest_state", "raw_segment", "raw_blob",
)  # fmt: skip
_CLOCK = "{first_seen,stored_at,created_at,read_at,replaced_at,retracted_at,source_missing_at}"
_NOTES = """
    select id, shelf, path, entry_key, ordinal, session_id, project, title, ts, content,
        fields::text
    from recall.note where is_current order by id
"""
#: What is kept of the newest generation of each path.
_SPANS = """
    select f.path, s.byte_offset, b.byte_length, b.codec, b.data
    from recall.ingest_state f
    left join recall.raw_segment s using (host, path, generation)
    left join recall.raw_blob b using (hash)
    where f.source_missing_at is null
    order by f.path, s.byte_offset
"""
#: Every text that a search can find, with its time, and whether it is live.
_TEXTS = """
    select content, ts, true from recall.message
    union all select content, ts, false from recall.message_retracted
    union all select content, ts, true from recall.prompt
    union all select concat_ws(' ', title, content), ts, is_current from recall.note
"""
#: What is only shown beside a text.
_BESIDE = """
    select coalesce(title, '') from recall.session
    union all select fields::text from recall.note where is_current
"""
#: The lines of a file are in one of the counts, or wait for their end.
_ACCOUNTS = """
    select path, lines_seen, lines_stored, lines_merged, lines_quarantined, lines_skipped,
        unreadable, unfinished_length, source_missing_at is not null
    from recall.ingest_state order by path
"""


class _Lasting(PostgresSink):
    """A sink whose connection outlives the pass: making one costs more than a small pass."""

    def close(self) -> None:
        pass

    def end(self) -> None:
        """Give the connection back."""
        super().close()


class _LastingOverHttp(PostgrestSink):
    """The same over HTTP."""

    def close(self) -> None:
        pass

    def end(self) -> None:
        """Close the connection."""
        super().close()


class Store:
    """A migrated database, and passes into it."""

    def __init__(self, url: str, member: Member | None = None) -> None:
        """``member`` is the host that writes over HTTP; without one, the database is written to."""
        self.url = url
        self._sinks = [
            member.make(_LastingOverHttp) if member else _Lasting(url, IDENTITY) for _ in range(3)
        ]
        self._connection: psycopg.Connection[Any] = connect(
            url, application="tests", autocommit=True
        )

    def close(self) -> None:
        """Give all connections back."""
        for sink in self._sinks:
            sink.end()
        self._connection.close()

    def clear(self) -> None:
        """Empty the store."""
        for table in TABLES:
            self._connection.execute(f"delete from recall.{table}")

    def read(
        self, case: Case, folder: Path, make_sink: Callable[[], Sink] | None = None
    ) -> Summary:
        """Read a case's folder: one pass, or one import of its file."""
        if case.way == "pass":
            return self.run([(case.open_source(folder), folder / case.root)], case, make_sink)
        with closing(make_sink() if make_sink else self._sinks[0]) as sink:
            importer = Importer(sink, options())
            if case.way == "export":
                importer.export(open_export([folder / case.main]))
            else:
                with (folder / case.main).open("rb") as stream:
                    found = validate(stream)
                if not found.is_valid:
                    raise SourceError("not in the import format")
                importer.recall_jsonl(folder / case.main)
            return importer.summary.rows

    def run(
        self,
        sources: list[tuple[Source, Path]],
        case: Case | None = None,
        make_sink: Callable[[], Sink] | None = None,
    ) -> Summary:
        """One pass over folders."""
        lasting = iter(self._sinks)
        return run_pass(
            [(source, [root]) for source, root in sources],
            make_sink or (lambda: next(lasting)),
            options(compares_all=case is not None and case.compares_all),
        )

    def read_beside(self, case: Case, folder: Path, other: Path) -> Summary:
        """One pass over a case's folder and over a session of Claude Code elsewhere."""
        own = (case.open_source(folder), folder / case.root)
        return self.run([own, (get_source("claude-code"), other)], case)

    def live(self) -> dict[str, Any]:
        """All live rows, and the original bytes as they are kept of each path that is there."""
        found: dict[str, Any] = everything(self.url, self._rows)
        found["notes"] = self._rows(_NOTES)
        found["bytes"] = self._bytes()
        return found

    def _bytes(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for path, offset, length, codec, data in self._rows(_SPANS):
            before = found.setdefault(path, b"")
            if offset is None:
                continue
            assert offset == len(before), path
            span = zstandard.decompress(data, max_output_size=length) if codec == "zstd" else data
            assert len(span) == length, path
            found[path] = before + span
        return found

    def all_rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every column of every row, the times of storing included."""
        return {
            table: sorted(self._rows(f"select t::text from recall.{table} t")) for table in TABLES
        }

    def rows_without_clock(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row, without what says when it was stored."""
        row = f"to_jsonb(t) - '{_CLOCK}'::text[]"
        for name in ("imported_at", "reconciled_at"):
            row += f" #- '{{parser_state,{name}}}'"
        return {
            table: sorted(self._rows(f"select ({row})::text from recall.{table} t"))
            for table in TABLES
        }

    def texts(self) -> list[tuple[str, Any, bool]]:
        """Every text that is stored, with its time, and whether it is live."""
        found: list[tuple[str, Any, bool]] = self._rows(_TEXTS)
        return found

    def beside(self) -> list[str]:
        """The titles of all sessions, and the fields of notes."""
        return [text for (text,) in self._rows(_BESIDE)]

    def ever_said(self) -> set[str]:
        """All texts, live or taken back."""
        return {text for text, _, _ in self.texts()}

    def accounts(self) -> list[tuple[Any, ...]]:
        """For each path: what became of its lines, and what was wrong with it."""
        return self._rows(_ACCOUNTS)

    def hits(self, word: str, *, include_retracted: bool = False) -> int:
        """How many hits a search for a word has."""
        request = SearchRequest(word, mode="text", include_retracted=include_retracted)
        return len(search(self._connection, request, budget_seconds=30)["hits"])

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        return self._rows(statement)

    def _rows(self, statement: str) -> list[Any]:
        return self._connection.execute(statement.encode()).fetchall()


def options(*, compares_all: bool = False) -> Options:
    """The options of a pass."""
    reconcile = 0.0 if compares_all else 86_400.0
    return Options(HOST, MAX_LINE_BYTES, redact=True, reconcile_seconds=reconcile)
