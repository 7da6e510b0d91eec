"""A folder of logs, a server to write to over HTTP, and what a store has to hold in the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from recall_ingester.sinks.postgrest import PostgrestSink
from tests.db.ingesting import everything, ingest, rows
from tests.db.over_http import Member, read
from tests.double.fixtures import Served

SESSIONS = [f"{number:08d}-2222-4333-8444-555555555555" for number in range(3)]


@dataclass
class Bench:
    """A folder of logs, a database behind a server, and one that was filled without any fault."""

    folder: Path
    database: str
    other: str
    member: Member
    served: Served

    def read(self, kind: Callable[..., PostgrestSink] = PostgrestSink) -> Any:
        """One pass over HTTP."""
        return read(self.member, self.folder, kind=kind)

    def check(self) -> None:
        """The store holds what a pass without faults leaves, and no rows that wait."""
        ingest(self.other, self.folder)
        assert everything(self.database) == everything(self.other)
        counts = """
            select path, byte_offset, lines, lines_seen, lines_stored, lines_merged,
                lines_quarantined, lines_skipped, raw_bytes
            from recall.ingest_state order by path
        """
        assert rows(self.database, counts) == rows(self.other, counts)
        for path in log(self.folder).parent.iterdir():
            assert kept(self.database, path) == path.read_bytes()
        again = self.read()
        assert (again.files_opened, again.messages) == (0, 0)


def kept(database: str, path: Path) -> bytes:
    """The original bytes that are stored of a file."""
    spans = """
        select b.byte_length, b.codec, b.data from recall.raw_segment s
        join recall.raw_blob b using (hash) where s.path = %s order by s.byte_offset
    """
    return b"".join(
        zstandard.decompress(data, max_output_size=length) if codec == "zstd" else data
        for length, codec, data in rows(database, spans, str(path))
    )


def line(text: str, number: int = 0, *more: dict[str, Any]) -> bytes:
    record = {
        "type": "user",
        "uuid": f"00000000-0000-4000-8000-{number:012d}",
        "timestamp": f"2026-08-01T09:00:{number % 60:02d}.000Z",
        "cwd": "/home/dev/shop",
        "message": {"role": "user", "content": [{"type": "text", "text": text}, *more]},
    }
    return json.dumps(record).encode() + b"\n"


def log(folder: Path, number: int = 0) -> Path:
    return folder / "projects" / "-home-dev-shop" / f"{SESSIONS[number]}.jsonl"
