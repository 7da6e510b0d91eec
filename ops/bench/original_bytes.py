"""What keeping the original bytes costs in the store: their share, and what one sync writes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from ops.bench import big_inputs, corpus, measure
from recall_sql.connection import connect
from recall_sql.embedded import EmbeddedServer

_STEPS = 30
_HISTORY_BYTES = 50_000_000

_SIZES = """
    select coalesce(sum(octet_length(data)), 0)::bigint,
        coalesce(sum(byte_length), 0)::bigint,
        count(*),
        pg_total_relation_size('recall.raw_blob') + pg_total_relation_size('recall.raw_segment'),
        pg_database_size(current_database())
    from recall.raw_blob
"""
_WRITTEN = """
    select coalesce(sum(byte_length), 0)::bigint, coalesce(sum(octet_length(data)), 0)::bigint,
        pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint
    from recall.raw_blob
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The original bytes in a store.

    ``original_bytes`` is their length before compression, each once; ``table_bytes`` is what the
    two tables take with their indexes, of the ``database_bytes`` of everything.
    """

    data_bytes: int
    original_bytes: int
    blobs: int
    table_bytes: int
    database_bytes: int


@contextmanager
def _opened(store: Path) -> Iterator[psycopg.Connection[Any]]:
    """The database of a home, started for as long as it is used."""
    server = EmbeddedServer(store)
    server.start()
    try:
        with connect(server.url, application="bench", autocommit=True) as connection:
            yield connection
    finally:
        server.stop()


def sizes(store: Path) -> Sizes:
    """What is kept in a store that nobody uses."""
    with _opened(store) as connection:
        row = connection.execute(_SIZES).fetchone()
    measure.wait_for_orphans()
    assert row is not None
    return Sizes(*row)


def thirty_appends(folder: Path, env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Append to a long file thirty times; what each pass writes, with original bytes and without.

    The servers run all the time: a restart would write a checkpoint of its own.
    """
    home = folder / "home"
    path = home / ".claude" / "projects" / "-p" / f"{corpus.new_id('appends', 1)}.jsonl"
    corpus.build_large(path, size=_HISTORY_BYTES)
    stores = {"with": folder / "store-with", "without": folder / "store-without"}
    environments = {
        name: {
            **env,
            "HOME": str(home),
            "RECALL_HOME": str(store),
            "RECALL_KEEP_RAW": str(name == "with").lower(),
        }
        for name, store in stores.items()
    }
    chance, prose = random.Random(23), big_inputs.Prose(23)
    with _opened(stores["with"]) as kept, _opened(stores["without"]) as plain:
        connections = {"with": kept, "without": plain}
        for own in environments.values():
            _ingest(own)
        rows = []
        for step in range(_STEPS):
            before = {name: _written(connection) for name, connection in connections.items()}
            row: dict[str, Any] = {"file_bytes": path.stat().st_size}
            row["appended_bytes"] = _append(path, step, chance, prose)
            for own in environments.values():
                _ingest(own)
            after = {name: _written(connection) for name, connection in connections.items()}
            row["kept_bytes"] = after["with"][0] - before["with"][0]
            row["stored_bytes"] = after["with"][1] - before["with"][1]
            row["wal_bytes"] = after["with"][2] - before["with"][2]
            row["wal_bytes_without"] = after["without"][2] - before["without"][2]
            rows.append(row)
    measure.wait_for_orphans()
    return rows


def _append(path: Path, step: int, chance: random.Random, prose: big_inputs.Prose) -> int:
    """From one line to about half a megabyte."""
    lines = [
        corpus.claude_message(
            path.stem, f"{step} {number}", prose.text(chance.randrange(50, 8_000))
        )
        for number in range(int(2 ** (step % 8)))
    ]
    with path.open("ab") as file:
        return file.write(b"".join(lines))


def _ingest(env: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "recall", "ingest", "--once", "--json"]
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False)
    if done.returncode:
        raise measure.CommandFailed(f"exit code {done.returncode}\n{done.stderr[-2000:]}")
    assert json.loads(done.stdout)["files_opened"] == 1


def _written(connection: psycopg.Connection[Any]) -> tuple[int, int, int]:
    row = connection.execute(_WRITTEN).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def report_sizes(found: Mapping[str, Any], file_bytes: int) -> list[str]:
    """The share of the original bytes in one sentence."""
    return [
        "",
        f"Original bytes: {file_bytes / 1e6:,.0f} MB of files are kept in"
        f" {found['data_bytes'] / 1e6:,.0f} MB ({found['data_bytes'] / file_bytes:.1%}) of"
        f" {found['blobs']:,} segments; their tables with all indexes take"
        f" {found['table_bytes'] / 1e6:,.0f} MB ({found['table_bytes'] / file_bytes:.1%} of the"
        f" files, {found['table_bytes'] / found['database_bytes']:.1%} of the database).",
    ]


def report_appends(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each step, and the sums."""
    lines = [
        "",
        "| step | file before | appended | new original bytes | as stored | WAL"
        " | WAL without original bytes |",
        "|---|---|---|---|---|---|---|",
    ]
    names = ("appended_bytes", "kept_bytes", "stored_bytes", "wal_bytes", "wal_bytes_without")
    for step, row in enumerate(rows, 1):
        values = " | ".join(f"{row[name]:,}" for name in names)
        lines.append(f"| {step} | {row['file_bytes']:,} | {values} |")
    sums = " | ".join(f"{sum(row[name] for row in rows):,}" for name in names)
    lines.append(f"| all | | {sums} |")
    return lines
