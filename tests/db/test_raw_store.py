"""Original bytes are read back exactly, or not at all."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recall.errors import DamagedError, StoreError
from recall_sql import raw
from recall_sql.connection import connect
from recall_sql.loader import load
from tests.db.raw_rows import Kept, add_blob, add_segments, digest_of, keep
from tests.db.serving import serving

PATH = "/logs/a.jsonl"
LINES = b"".join(b'{"n": %d, "text": "a line of a log"}\n' % n for n in range(300))
TORN = b'{"n": 300, "text": "not yet'


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with connect(database, application="tests", autocommit=True) as opened:
        yield opened


@pytest.fixture
def stored(database: str) -> Kept:
    """A file of eleven segments and one that is unfinished, with an earlier generation."""
    file = Kept(PATH, LINES, TORN, generation=2, earlier={1: LINES[:2500] + b"taken back\n"})
    keep(database, file)
    return file


def read(connection: Any, path: str = PATH, generation: int | None = None) -> bytes:
    file = raw.find_file(connection, "laptop", path)
    assert file is not None
    number = file.generation if generation is None else generation
    return b"".join(raw.read_chunks(connection, "laptop", path, number, file=file))


def test_a_file_comes_back_with_its_unfinished_end(connection: Any, stored: Kept) -> None:
    assert read(connection) == LINES + TORN
    assert read(connection, generation=1) == stored.earlier[1]
    kept = raw.generations(connection, "laptop", PATH)
    lengths = [(item.number, item.byte_length) for item in kept]
    assert lengths == [(1, 2511), (2, len(LINES + TORN))]


def test_an_empty_file_is_no_damage(connection: Any, database: str) -> None:
    keep(database, Kept(PATH, b""))
    assert read(connection) == b""


DAMAGES = {
    "a byte of a compressed blob is flipped": (
        "update recall.raw_blob set data = set_byte(data, 40, get_byte(data, 40) # 1)"
        " where hash = {third}",
        "2,000",
    ),
    "the blob holds other bytes of the same length": (
        "update recall.raw_blob set codec = 'none', data = decode(repeat('41', 1000), 'hex')"
        " where hash = {third}",
        "do not match their hash",
    ),
    "a blob is missing": ("delete from recall.raw_blob where hash = {third}", "missing"),
    "a blob is cut off": (
        "update recall.raw_blob set data = substr(data, 1, length(data) - 9) where hash = {third}",
        "2,000",
    ),
    "a blob is empty": ("update recall.raw_blob set data = '' where hash = {third}", "2,000"),
    "the codec is not the one": (
        "update recall.raw_blob set codec = 'none' where hash = {third}",
        "does not unpack to its length",
    ),
    "a blob claims another length": (
        "update recall.raw_blob set byte_length = 999 where hash = {third}",
        "differ in length",
    ),
    "the first segment is missing": (
        "delete from recall.raw_segment where generation = 2 and byte_offset = 0",
        "1,000 bytes are missing",
    ),
    "a segment is missing": (
        "delete from recall.raw_segment where generation = 2 and byte_offset = 2000",
        "byte 2,000: 1,000 bytes are missing",
    ),
    "the last segment is missing": (
        "delete from recall.raw_segment where generation = 2 and unfinished",
        "bytes are kept, the checkpoint says",
    ),
    "all segments are missing": (
        "delete from recall.raw_segment where generation = 2",
        "0 bytes are kept",
    ),
    "there is a gap": (
        "update recall.raw_segment set byte_offset = 2001"
        " where generation = 2 and byte_offset = 2000",
        "byte 2,000: 1 bytes are missing",
    ),
    "two segments overlap": (
        "update recall.raw_segment set byte_offset = 1999"
        " where generation = 2 and byte_offset = 2000",
        "byte 1,999: two segments overlap",
    ),
    "a segment stands twice": (
        "insert into recall.raw_segment (host, path, source, generation, byte_offset, byte_length,"
        " hash) select host, path, source, generation, 2500, byte_length, hash"
        " from recall.raw_segment"
        " where generation = 2 and byte_offset = 2000",
        "two segments overlap",
    ),
    "a segment has another length": (
        "update recall.raw_segment set byte_length = 1001"
        " where generation = 2 and byte_offset = 2000",
        "differ in length",
    ),
    "a segment has no length": (
        "update recall.raw_segment set byte_length = 0 where generation = 2 and byte_offset = 2000",
        "a segment of 0 bytes cannot be",
    ),
    "a segment has a negative length": (
        "update recall.raw_segment set byte_length = -5"
        " where generation = 2 and byte_offset = 2000",
        "cannot be",
    ),
    "a segment is too long to be one": (
        "update recall.raw_segment set byte_length = 2000000000"
        " where generation = 2 and byte_offset = 2000",
        "cannot be",
    ),
    "a finished segment follows an unfinished one": (
        "update recall.raw_segment set unfinished = true"
        " where generation = 2 and byte_offset = 2000",
        "a finished segment behind an unfinished one",
    ),
    "the unfinished end counts as finished": (
        "update recall.raw_segment set unfinished = false",
        "the unfinished bytes begin at another place",
    ),
    "the checkpoint is behind the segments": (
        "update recall.ingest_state set raw_bytes = raw_bytes - 7",
        "bytes are kept, the checkpoint says",
    ),
    "the checkpoint is ahead of the segments": (
        "update recall.ingest_state set raw_bytes = raw_bytes + 7",
        "bytes are kept, the checkpoint says",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_before_a_wrong_byte_is_given(
    connection: Any, stored: Kept, damage: str
) -> None:
    statement, message = DAMAGES[damage]
    third = f"'\\x{digest_of(LINES[2000:3000]).hex()}'"
    assert connection.execute(statement.format(third=third).encode()).rowcount > 0
    file = raw.find_file(connection, "laptop", PATH)
    given_out = b""
    with pytest.raises(DamagedError, match=message) as caught:
        for chunk in raw.read_chunks(connection, "laptop", PATH, 2, file=file):
            given_out += chunk
    assert (LINES + TORN).startswith(given_out)
    assert isinstance(caught.value, StoreError)
    assert "a line of a log" not in caught.value.message + str(caught.value.hint)
    # The connection is free again, and the other generation is not concerned unless it shares it.
    assert connection.execute("select 1").fetchone() == (1,)


def bomb_of(size: int, *, with_size: bool) -> bytes:
    """A frame that unpacks to ``size`` zeros, made without ever holding them."""
    packer = zstandard.ZstdCompressor().compressobj(size=size if with_size else -1)
    zeros = bytes(1_000_000)
    pieces = [packer.compress(zeros) for _ in range(size // len(zeros))]
    return b"".join(pieces) + packer.flush()


@pytest.mark.parametrize("with_size", [True, False])
def test_a_decompression_bomb_costs_no_memory(
    connection: Any, stored: Kept, with_size: bool
) -> None:
    bomb = bomb_of(300_000_000, with_size=with_size)
    assert len(bomb) < 1_000_000
    connection.execute(
        "update recall.raw_blob set data = %s where hash = %s",
        (bomb, digest_of(LINES[2000:3000])),
    )
    # 5: forget the peak, which another test may have set.
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_memory()
    with pytest.raises(DamagedError, match="does not unpack to its length"):
        read(connection)
    assert peak_memory() - before < 64_000_000


def peak_memory() -> int:
    """The most memory that this process ever had, in bytes; it counts what C code takes too."""
    status = Path("/proc/self/status").read_text()
    return next(
        int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")
    )


def test_a_blob_that_is_too_large_is_not_fetched(connection: Any, stored: Kept) -> None:
    connection.execute(
        "update recall.raw_blob set codec = 'none', data = decode(repeat('41', 20000000), 'hex')"
        " where hash = %s",
        (digest_of(LINES[2000:3000]),),
    )
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError, match="a blob of 20,000,000 bytes cannot be"):
            read(connection)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_large_file_is_read_one_segment_at_a_time(connection: Any, database: str) -> None:
    data = random.Random(7).randbytes(24_000_000)
    keep(database, Kept(PATH, data), cut=262_144)
    tracemalloc.start()
    try:
        found = raw.find_file(connection, "laptop", PATH)
        position = 0
        for chunk in raw.read_chunks(connection, "laptop", PATH, 1, file=found):
            assert chunk == data[position : position + len(chunk)]
            position += len(chunk)
        assert position == len(data)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_a_stream_gives_any_sizes_and_can_be_left_early(connection: Any, stored: Kept) -> None:
    whole = LINES + TORN
    file = raw.find_file(connection, "laptop", PATH)
    assert file is not None
    with raw.open_stream(connection, file) as stream:
        pieces = [stream.read(1), stream.read(1500), stream.read(0)]
        while piece := stream.read(777):
            pieces.append(piece)
        assert stream.read(10) == b""
    assert b"".join(pieces) == whole
    with raw.open_stream(connection, file, 1) as stream:
        assert stream.read(20) == stored.earlier[1][:20]
    with raw.open_stream(connection, file) as stream:
        assert stream.read() == whole
    assert connection.execute("select 1").fetchone() == (1,)


def test_a_damaged_stream_raises_and_never_just_ends(connection: Any, stored: Kept) -> None:
    connection.execute("delete from recall.raw_segment where generation = 2 and unfinished")
    file = raw.find_file(connection, "laptop", PATH)
    assert file is not None
    with raw.open_stream(connection, file) as stream, pytest.raises(DamagedError):
        while stream.read(4096):
            pass


def test_a_compressed_log_is_unpacked_through_the_stream(connection: Any, database: str) -> None:
    packed = zstandard.ZstdCompressor().compress(LINES)
    keep(database, Kept("/logs/b.jsonl.zst", packed), cut=100)
    file = raw.find_file(connection, "laptop", "/logs/b.jsonl.zst")
    assert file is not None
    with raw.open_stream(connection, file) as stream:
        assert zstandard.ZstdDecompressor().stream_reader(stream).read() == LINES


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=400),
    torn=st.binary(max_size=60),
    cut=st.integers(1, 90),
    sizes=st.lists(st.integers(1, 150), min_size=1),
)
def test_what_was_cut_anywhere_comes_back_in_any_pieces(
    connection: Any, database: str, data: bytes, torn: bytes, cut: int, sizes: list[int]
) -> None:
    connection.execute("truncate recall.raw_segment, recall.raw_blob, recall.ingest_state")
    keep(database, Kept(PATH, data, torn), cut=cut)
    file = raw.find_file(connection, "laptop", PATH)
    assert file is not None
    assert file.why_not_kept is None
    found = b""
    with raw.open_stream(connection, file) as stream:
        while piece := stream.read(sizes[len(found) % len(sizes)]):
            found += piece
    assert found == data + torn


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (Kept(PATH, LINES, keep=False), "keep_raw"),
        (Kept(PATH, b"", keep=False, size=50), "keep_raw"),
        (Kept(PATH, LINES, keep=False, size=-1), "keep_raw"),
        (Kept(PATH + ".zst", LINES, keep=False, size=50), "keep_raw"),
        (Kept("/db#1", b"", keep=False, container="/db"), "keep_raw"),
        (Kept(PATH, LINES, size=len(LINES) + 1), f"only its first {len(LINES):,} bytes"),
        (Kept(PATH, LINES), None),
        (Kept(PATH, LINES, TORN), None),
        (Kept(PATH, LINES, size=-1), None),
        (Kept(PATH, LINES, size=len(LINES) - 50), None),  # it grew while it was read
        (Kept(PATH, b"", TORN), None),
        (Kept("/db#1", LINES, container="/db", size=999_999), None),
    ],
)
def test_it_is_known_whether_all_bytes_are_kept(
    connection: Any, database: str, file: Kept, reason: str | None
) -> None:
    keep(database, file)
    found = raw.find_file(connection, "laptop", file.path)
    assert found is not None
    why = found.why_not_kept
    assert (why is None) if reason is None else (why is not None and reason in why)


def test_a_checkpoint_and_its_segments_are_one_view(
    connection: Any, database: str, stored: Kept
) -> None:
    grown = LINES + TORN + b'"}\n'
    with raw.snapshot(connection):
        file = raw.find_file(connection, "laptop", PATH)
        with connect(database, application="tests") as ingester:
            ingester.execute("delete from recall.raw_segment where unfinished")
            rest = grown[len(LINES) :]
            add_blob(ingester, rest)
            ingester.execute(
                "insert into recall.raw_segment (host, path, source, generation, byte_offset,"
                " byte_length, hash) values ('laptop', %s, 'claude-code', 2, %s, %s, %s)",
                (PATH, len(LINES), len(rest), digest_of(rest)),
            )
            ingester.execute(
                "update recall.ingest_state set raw_bytes = %s, unfinished_length = 0",
                (len(grown),),
            )
        chunks = raw.read_chunks(connection, "laptop", PATH, 2, file=file)
        assert b"".join(chunks) == LINES + TORN
    assert read(connection) == grown


def test_the_first_segment_comes_without_a_sort_or_a_scan_of_blobs(
    connection: Any, stored: Kept
) -> None:
    for number in range(40):
        other = Kept(f"/logs/{number}.jsonl", b"")
        add_segments(connection, other, 1, random.Random(number).randbytes(5000), cut=250)
    connection.execute("analyze recall.raw_segment, recall.raw_blob")
    place = {"host": "laptop", "path": PATH, "generation": 2, "most": 1 << 24}
    plan = connection.execute("explain " + load("raw")["segments"], place).fetchall()
    text = "\n".join(row[0] for row in plan)
    assert "raw_blob_pkey" in text
    assert "Seq Scan on raw_blob" not in text


def test_places_are_all_files_page_by_page(
    connection: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw, "_PLACES", 2)
    expected = []
    for number, host in enumerate(["a", "a", "a", "b", "b", "c"]):
        path = f"/logs/{number % 3}.jsonl"
        source = "codex" if number % 2 else "claude-code"
        keep(database, Kept(path, b"x", host=host, source=source))
        expected.append((host, path))
    add_segments(connection, Kept("/logs/orphan", b""), 1, b"orphan", cut=9)
    connection.execute(
        "update recall.ingest_state set unreadable = 'permission denied', size = 0, lines_seen = 0,"
        " lines_stored = 0 where host = 'c'"
    )
    assert list(raw.places(connection)) == [*sorted(expected[:5]), ("laptop", "/logs/orphan")]
    assert list(raw.places(connection, source="codex")) == sorted(expected[1:4:2])


@pytest.mark.parametrize(
    ("found", "difference", "more"),
    [
        (b"abcdef", None, False),
        (b"abcdefg", None, True),
        (b"abXdef", 2, False),
        (b"Xbcdef", 0, False),
        (b"abcdeX", 5, False),
        (b"abcd", 4, False),
        (b"", 0, False),
    ],
)
def test_a_comparison_finds_the_first_byte(
    tmp_path: Path, found: bytes, difference: int | None, more: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(found)
    with path.open("rb", buffering=0) as opened:
        comparison = raw.Comparison(opened)
        for chunk in (b"ab", b"cd", b"ef"):
            comparison.add(chunk)
        assert comparison.first_difference == difference
        if difference is None:
            assert comparison.has_more() is more


def raw_words(text: str) -> set[str]:
    words = ("raw_blob", "raw_segment", "raw_bytes", "recall restore", "byte_offset")
    return {word for word in words if word in text}


# Not those that only a host with a token may use (tests/db/test_incoming.py tells who may do what):
# they take what it sends, and tell where its own bytes stand.
EXPOSED = """
    select c.relname, pg_get_viewdef(c.oid) from pg_class c
    where c.relnamespace = 'api'::regnamespace and c.relkind in ('v', 'm')
        and not starts_with(c.relname::text, 'incoming_')
    union all
    select c.relname, c.relname from pg_class c
    where c.relnamespace = 'api'::regnamespace and c.relkind not in ('v', 'm', 'i')
    union all
    select p.proname, p.prosrc from pg_proc p
    where p.pronamespace = 'api'::regnamespace and p.proname <> 'raw_spans'
"""


def test_the_api_schema_exposes_no_original_bytes(connection: Any) -> None:
    def exposing() -> list[str]:
        rows = connection.execute(EXPOSED).fetchall()
        assert rows
        return [name for name, text in rows if raw_words(text)]

    assert exposing() == []
    connection.execute("create view api.leak as select s.path, b.data from recall.raw_segment s"
                       " join recall.raw_blob b using (hash)")  # fmt: skip
    assert exposing() == ["leak"]


def test_no_route_gives_original_bytes(database: str, stored: Kept) -> None:
    with serving(database) as api:
        document = api.get("/openapi.json").json()
        assert "/sessions" in document["paths"]
        for path in document["paths"]:
            assert not {"raw", "restore", "original", "blob", "segment"} & set(
                path.replace("{", "/").replace("}", "/").split("/")
            )
        for path in ("/raw", "/raw/a.jsonl", "/restore", "/sessions/x/raw"):
            assert api.get(path).status_code == 404
