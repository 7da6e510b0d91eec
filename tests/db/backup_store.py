"""A store with something in every kind of table, for the tests of backups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg

from recall_sql.connection import connect
from tests.db.embedding import Bench, fetch, say
from tests.db.raw_rows import Kept, keep
from tests.db.serving import Line, Store

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]

RARE = "quokkaberry"
KEY = "claude-code:laptop:aaaa1111"
LOG = b"".join(b'{"n": %d, "text": "a line\xff of a log"}\n' % n for n in range(300))


def fill(url: str) -> None:
    """Messages, notes of what a client took back, original bytes, and passages with vectors."""
    store = Store(url)
    key = store.add_session(
        "aaaa1111",
        [
            f"please put the {RARE} into the container",
            Line("I will look at --shm-size", role="assistant"),
            Line("ENOSPC: no space left on device, write", role="tool", kind="tool_result"),
            Line('"quoted", with a \\ backslash\tand a tab\nand ünïcödé \U0001f980', role="user"),
        ],
        title="Shared memory",
    )
    assert key == KEY
    store.add_prompt("a prompt of a history", session=key)
    store.retract(key, 0, "what stood here before")
    store.add_quarantine("/logs/a.jsonl", 17)
    keep(url, Kept("/logs/a.jsonl", LOG, session_key=key))
    embed(url)


def embed(url: str) -> None:
    """Passages of some more messages, and vectors of a model that is a hash."""
    say(url, "codex:laptop:bbbb2222", [f"thought number {n} about walruses" for n in range(12)])
    drain(url)


def drain(url: str) -> None:
    """Let an embedder make all vectors that are missing."""
    bench = Bench(url)
    try:
        bench.begin()
        bench.drain()
    finally:
        bench.close()


def execute(url: str, statement: str, *values: Any) -> None:
    with connect(url, application="tests", autocommit=True) as connection:
        connection.execute(statement.encode(), values or None)


def count(url: str, table: str) -> int:
    return int(fetch(url, f"select count(*) from {table}")[0][0])


def databases(url: str) -> set[str]:
    """The names of all databases of the server."""
    return {row[0] for row in fetch(url, "select datname from pg_database")}


def everything(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the store as text. What a backup itself writes is left out."""
    tables = fetch(
        url,
        "select relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = 'recall' and c.relkind = 'r' and c.relpersistence = 'p'"
        " and relname not in ('backup', 'schema_version') order by 1",
    )
    return {
        name: fetch(url, f"select t::text from recall.{name} t order by 1") for (name,) in tables
    }


def named(url: str, name: str) -> str:
    """Another database of the same server."""
    return psycopg.conninfo.make_conninfo(url, dbname=name)


def command(home: Path, arguments: list[str], more: Mapping[str, str], script: str = "") -> Done:
    """Run the command as a process; ``script`` is run in it first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RECALL_")}
    own = {
        "RECALL_HOME": str(home),
        "RECALL_EMBED_LISTEN": "",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    code = f"import sys\n{script}\nsys.argv = ['recall', *{arguments!r}]\n"
    code += "from recall.cli import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=kept | own | dict(more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def errors_of(done: Done) -> str:
    """What it complained about, on one line."""
    assert "Traceback" not in done.stderr, done.stderr
    return " ".join(done.stderr.split())
