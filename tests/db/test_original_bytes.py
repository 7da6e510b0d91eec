"""What a pass keeps of the original bytes: all of them, and once."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import zstandard

from recall.errors import StoreError
from recall.keys import path_key
from recall_ingester.original import SPAN_BYTES
from recall_sql.connection import connect
from tests.db.ingesting import ingest, rows


def kept(url: str, path: Path) -> bytes:
    """The bytes that are kept of a file, in the order of their offsets, which leave no gap."""
    spans = rows(
        url,
        """
        select s.byte_offset, b.byte_length, b.codec, b.data
        from recall.raw_segment s
        join recall.raw_blob b using (hash)
        join recall.ingest_state f using (host, path, generation)
        where s.path = %s
        order by s.byte_offset
        """,
        path_key(path),
    )
    data = b""
    for offset, length, codec, packed in spans:
        assert offset == len(data)
        span = bytes(packed)
        if codec == "zstd":
            span = zstandard.ZstdDecompressor().decompress(span, max_output_size=length)
        assert len(span) == length <= SPAN_BYTES
        data += span
    return data


def stored_bytes(url: str) -> int:
    return int(rows(url, "select coalesce(sum(byte_length), 0) from recall.raw_blob")[0][0])


def line(number: int, text: str) -> bytes:
    return (
        f'{{"type":"user","uuid":"u-{number}","timestamp":"2026-05-01T10:00:00Z","message":'
        f'{{"role":"user","content":"{text}"}}}}\n'
    ).encode()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "root" / "projects" / "p" / "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f.jsonl"
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
def root(log: Path) -> Path:
    return log.parents[2]


def test_growth_in_thirty_steps_keeps_each_appended_byte_once(
    database: str, root: Path, log: Path
) -> None:
    numbers = random.Random(7)
    for step in range(30):
        before = stored_bytes(database)
        new = b"".join(
            line(100 * step + at, f"{step} {at} " + f"{numbers.getrandbits(4000):x}")
            for at in range(numbers.randrange(1, 30))
        )
        with log.open("ab") as file:
            file.write(new)
        ingest(database, root)
        assert stored_bytes(database) - before == len(new)
        assert kept(database, log) == log.read_bytes()


def test_unfinished_tail_is_kept_and_makes_room_for_its_line(
    database: str, root: Path, log: Path
) -> None:
    whole = line(1, "one") + line(2, "two")
    for length in range(0, len(whole) + 1, 37):
        log.write_bytes(whole[:length])
        ingest(database, root)
        assert kept(database, log) == whole[:length]
    log.write_bytes(whole)
    ingest(database, root)
    assert kept(database, log) == whole
    # Tails that were replaced are not left behind.
    unused = "select count(*) from recall.raw_blob b where not exists"
    unused += " (select from recall.raw_segment s where s.hash = b.hash)"
    assert rows(database, unused) == [(0,)]


def test_tail_that_was_written_over_is_read_again_and_both_are_kept(
    database: str, root: Path, log: Path
) -> None:
    log.write_bytes(line(1, "one") + line(2, "two")[:-1])
    ingest(database, root)
    log.write_bytes(line(1, "one") + line(2, "other, longer than that was")[:-1])
    ingest(database, root)
    assert kept(database, log) == log.read_bytes()
    assert rows(database, "select distinct generation from recall.raw_segment order by 1") == [
        (1,),
        (2,),
    ]
    assert rows(database, "select content from recall.message_retracted") == [("two",)]


def test_line_longer_than_the_limit_is_kept(database: str, root: Path, log: Path) -> None:
    long = (f"{random.Random(1).getrandbits(8_000_000):x}").encode()
    log.write_bytes(line(1, "one") + long + b"\n" + line(2, "two") + long)
    ingest(database, root, max_line_bytes=65_536)
    assert kept(database, log) == log.read_bytes()
    with log.open("ab") as file:
        file.write(b"\n" + line(3, "three"))
    ingest(database, root, max_line_bytes=65_536)
    assert kept(database, log) == log.read_bytes()


def test_identical_files_are_kept_once(database: str, root: Path, log: Path) -> None:
    text = "".join(f"{random.Random(at).getrandbits(4000):x}" for at in range(800))
    log.write_bytes(b"".join(line(at, text[at * 1000 : at * 1000 + 1000]) for at in range(800)))
    ingest(database, root)
    before = stored_bytes(database)
    copy = log.with_name("6d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f.jsonl")
    copy.write_bytes(log.read_bytes())
    ingest(database, root)
    assert stored_bytes(database) == before
    assert kept(database, copy) == log.read_bytes()


def test_file_read_before_bytes_were_kept_is_completed_by_the_next_pass(
    database: str, root: Path, log: Path
) -> None:
    log.write_bytes(line(1, "one") + line(2, "two"))
    ingest(database, root, keep_raw=False)
    assert kept(database, log) == b""
    assert ingest(database, root, keep_raw=False).files_opened == 0
    summary = ingest(database, root)
    assert (summary.files_opened, summary.lines_seen) == (1, 0)
    assert kept(database, log) == log.read_bytes()
    assert ingest(database, root).files_opened == 0


def test_bytes_and_rows_are_stored_together_or_not_at_all(
    database: str, root: Path, log: Path
) -> None:
    log.write_bytes(line(1, "one"))
    # The checkpoint is the last thing that a batch stores.
    with connect(database, application="tests") as connection:
        connection.execute("alter table recall.ingest_state add constraint refused check (false)")
    with pytest.raises(StoreError, match="refused"):
        ingest(database, root)
    for table in ("raw_blob", "raw_segment", "message", "ingest_state"):
        assert rows(database, f"select count(*) from recall.{table}") == [(0,)]


@pytest.mark.corpus
@pytest.mark.parametrize("source", ["claude-code", "codex"])
def test_every_file_of_the_corpus_is_kept_byte_for_byte(
    database: str, corpus: Path, source: str
) -> None:
    root = corpus / {"claude-code": "claude", "codex": "codex"}[source]
    ingest(database, root, source)
    paths = [row[0] for row in rows(database, "select path from recall.ingest_state")]
    assert len(paths) > 40
    for path in paths:
        assert kept(database, Path(path)) == Path(path).read_bytes(), os.fspath(path)


def test_session_of_a_database_that_is_too_large_is_kept_and_not_parsed(
    database: str, tmp_path: Path
) -> None:
    path = tmp_path / "opencode.db"
    with closing(sqlite3.connect(path)) as client, client:
        client.executescript("""
            create table project (id text primary key, worktree text, time_updated integer);
            create table session (id text primary key, project_id text, parent_id text, title text,
                directory text, version text, time_created integer, time_updated integer);
            create table message (id text primary key, session_id text, time_created integer,
                time_updated integer, data text);
            create table part (id text primary key, message_id text, session_id text,
                time_created integer, time_updated integer, data text);
            insert into project values ('p1', '/srv/shop', 1);
        """)
        for name, length in (("large", 400_000), ("small", 10)):
            client.execute(
                "insert into session values (?, 'p1', null, ?, '/', '1', 1, 2)", (name, name)
            )
            for at in range(4):
                client.execute(
                    'insert into message values (?, ?, ?, 2, \'{"role":"user"}\')',
                    (f"m-{name}-{at}", name, at),
                )
                text = f'{{"type":"text","text":"{"word " * (length // 5)}"}}'
                client.execute(
                    "insert into part values (?, ?, ?, 1, 2, ?)",
                    (f"p-{name}-{at}", f"m-{name}-{at}", name, text),
                )
    for _ in range(2):
        ingest(database, tmp_path, "opencode", max_document_bytes=1_048_576)
        assert rows(database, "select distinct session_key from recall.message") == [
            ("opencode:testhost:small",)
        ]
    large = f"{path}#large"
    reason = rows(
        database, "select reason, byte_length from recall.quarantine where path = %s", large
    )
    assert reason[0][0] == "larger than max_document_bytes (1048576)"
    bytes_of = "select sum(byte_length) from recall.raw_segment where path = %s"
    assert rows(database, bytes_of, large) == [(reason[0][1],)]
    assert reason[0][1] > 1_600_000
    assert ingest(database, tmp_path, "opencode", max_document_bytes=1_048_576).bytes_read == 0
