"""Passes over folders, for tests: real files, the real sink, a real database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recall.identity import Identity
from recall_ingester.loop import run_pass
from recall_ingester.run_state import Options
from recall_ingester.sinks.postgres import PostgresSink
from recall_ingester.sources import get_source
from recall_ingester.summary import Summary
from recall_sql.connection import connect

HOST = "testhost"
IDENTITY = Identity(HOST, "6e1b0f5e-0000-4000-8000-000000000000")
MAX_LINE_BYTES = 33_554_432


def ingest(
    url: str,
    folder: Path,
    source: str = "claude-code",
    *,
    sink: type[PostgresSink] = PostgresSink,
    max_line_bytes: int = MAX_LINE_BYTES,
    redact: bool = True,
    keep_raw: bool = True,
    reconcile_seconds: float = 86_400.0,
    max_document_bytes: int = 134_217_728,
) -> Summary:
    """One pass over a folder as one source."""
    return run_pass(
        [(get_source(source), [folder])],
        lambda: sink(url, IDENTITY),
        Options(
            HOST,
            max_line_bytes,
            redact,
            keep_raw=keep_raw,
            reconcile_seconds=reconcile_seconds,
            max_document_bytes=max_document_bytes,
        ),
    )


def rows(url: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of a statement."""
    with connect(url, application="tests") as connection:
        return connection.execute(statement.encode(), values).fetchall()


_MESSAGES = """
    select session_key, ordinal, part, id, role, kind, ts, ts_origin, content, content_hash,
        copy_key, project, branch, tool, call_id, native_id, model, is_error, is_damaged
    from recall.message order by session_key, ordinal, part
"""
_INDEX = """
    select id, chunk, ts, source, host, project, role, kind, tool, session_key, tsv::text
    from recall.message_text where not retracted order by id, chunk
"""
_SESSIONS = """
    select session_key, parent_key, relation, title, project, branch, model, started_at, ended_at
    from recall.session order by session_key
"""
_PROMPTS = "select id, session_key, project, ts, content from recall.prompt order by id"


def everything(
    url: str, ask: Callable[[str], list[tuple[Any, ...]]] | None = None
) -> dict[str, list[tuple[Any, ...]]]:
    """All live rows of the store, comparable between two stores; ``ask`` spares new connections."""
    ask = ask or (lambda statement: rows(url, statement))
    return {
        "messages": ask(_MESSAGES),
        "index": ask(_INDEX),
        "sessions": ask(_SESSIONS),
        "prompts": ask(_PROMPTS),
    }


def contents(url: str) -> list[str]:
    """The texts of all live messages, in order."""
    return [row[0] for row in rows(url, "select content from recall.message order by 1")]
