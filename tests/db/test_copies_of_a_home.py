"""Two copies of one home write under one host name and know the same paths: a machine was cloned, a
backup went on beside the original, a folder is synced. Neither loses a byte to the other one."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from recall_ingester import checkpoint, pieces
from recall_ingester.original import SPAN_BYTES
from recall_ingester.sinks.overtaken import OvertakenError
from recall_ingester.sinks.postgres import PostgresSink
from recall_sql.connection import connect
from recall_sql.embedded import EmbeddedServer
from tests.db.copies import Copies, Interrupted, dies_at, newest, states
from tests.db.ingesting import IDENTITY, contents, rows
from tests.db.over_http import copy_of, empty, join, serve
from tests.db.test_incoming import PATH, batch, key_of, message, piece, session, span
from tests.double.fixtures import Served

NAME = "5d0f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f"


@pytest.fixture(scope="module")
def _served(server: EmbeddedServer, template: str) -> Iterator[tuple[str, Served]]:
    with copy_of(server, template) as url, serve(url) as served:
        yield url, served


@pytest.fixture(params=["embedded", "http"])
def copies(request: pytest.FixtureRequest, _served: tuple[str, Served], tmp_path: Path) -> Copies:
    url, served = _served
    empty(url)
    root = tmp_path / "root"
    root.mkdir()
    if request.param == "embedded":
        return Copies(url, lambda: PostgresSink(url, IDENTITY), root)
    return Copies(url, join(served, url).sink, root)


@pytest.fixture
def log(copies: Copies) -> Path:
    path = copies.root / "projects" / "p" / f"{NAME}.jsonl"
    path.parent.mkdir(parents=True)
    return path


def line(text: str, *, words: int = 0) -> bytes:
    record = {
        "type": "user",
        "uuid": f"u-{text}",
        "timestamp": "2026-05-01T10:00:00Z",
        "message": {"role": "user", "content": text + " word" * words},
    }
    return json.dumps(record).encode() + b"\n"


def put(path: Path, data: bytes) -> None:
    """The file of the other copy: another inode, another time."""
    other = path.with_suffix(".other")
    other.write_bytes(data)
    other.replace(path)


def writer(path: Path, data: bytes, copies: Copies) -> Callable[[], None]:
    """A pass of the other copy."""

    def run() -> None:
        put(path, data)
        copies.read()

    return run


COMMON = line("common one") + line("common two")


def test_appends_that_cross_are_both_kept(copies: Copies, log: Path) -> None:
    one, other = COMMON + line("only one"), COMMON + line("only other") + line("and more")
    put(log, COMMON)
    copies.read()
    put(log, one)
    copies.read_beside(writer(log, other, copies))
    assert set(states(copies.database, log).values()) >= {other}
    put(log, one)
    copies.read()
    assert set(states(copies.database, log).values()) == {one, other}
    assert newest(copies.database, log) == one
    assert contents(copies.database) == ["common one", "common two", "only one"]


def test_what_is_overtaken_is_read_again_in_the_same_pass(copies: Copies, log: Path) -> None:
    one, other = COMMON + line("only one"), COMMON + line("only other")
    put(log, COMMON)
    copies.read()
    put(log, one)

    def beside() -> None:
        put(log, other)
        copies.read()
        put(log, one + line("later"))

    summary = copies.read_beside(beside)
    assert not summary.unreadable
    assert set(states(copies.database, log).values()) == {other, one + line("later")}
    assert newest(copies.database, log) == one + line("later")


def test_a_neighbour_in_the_batch_is_stored_all_the_same(
    copies: Copies, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recall_ingester.loop._WORKERS", 1)  # so that it is one batch
    neighbour = log.with_name("7c1f2c1e-8a4b-4c3d-9e2f-0a1b2c3d4e5f.jsonl")
    put(log, COMMON)
    copies.read()
    put(log, COMMON + line("only one"))
    neighbour.write_bytes(line("beside"))

    def beside() -> None:
        neighbour.unlink()
        put(log, COMMON + line("only other"))
        copies.read()

    copies.read_beside(beside)
    assert contents(copies.database) == ["beside", "common one", "common two", "only other"]
    assert states(copies.database, neighbour) == {1: line("beside")}


def test_files_that_were_written_over_at_the_same_time(copies: Copies, log: Path) -> None:
    one, other = line("new one") + COMMON, line("new other") + COMMON
    put(log, COMMON)
    copies.read()
    put(log, one)
    copies.read_beside(writer(log, other, copies))
    put(log, one)
    copies.read()
    assert set(states(copies.database, log).values()) == {COMMON, one, other}


def test_new_files_of_one_name(copies: Copies, log: Path) -> None:
    one, other = line("new one"), line("new other") * 2
    put(log, one)
    copies.read_beside(writer(log, other, copies))
    put(log, one)
    copies.read()
    assert set(states(copies.database, log).values()) == {one, other}


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_long_read_that_is_crossed_in_the_middle(
    copies: Copies, log: Path, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "_BATCH_MESSAGES", 2)
    one = COMMON + b"".join(line(f"one {n}") for n in range(6))
    other = COMMON + b"".join(line(f"other number {n}") for n in range(7))
    put(log, COMMON)
    copies.read()
    put(log, one)
    copies.read_beside(writer(log, other, copies), batch=batch)
    assert other in states(copies.database, log).values()
    put(log, one)
    copies.read()
    found = states(copies.database, log)
    assert one in found.values()
    assert all(one.startswith(data) or data == other for data in found.values())
    assert newest(copies.database, log) == one


def test_unfinished_ends_that_differ(copies: Copies, log: Path) -> None:
    one, other = COMMON + line("one")[:-1], COMMON + line("the other")[:-1]
    put(log, COMMON)
    copies.read()
    put(log, one)
    copies.read_beside(writer(log, other, copies))
    put(log, one)
    copies.read()
    assert set(states(copies.database, log).values()) == {one, other}


def test_an_unfinished_end_that_grew_makes_room(copies: Copies, log: Path) -> None:
    whole = COMMON + line("three")
    for length in (len(COMMON) + 5, len(whole) - 1, len(whole)):
        put(log, whole[:length])
        copies.read()
    assert states(copies.database, log) == {1: whole}


def test_turns_of_two_copies_that_grow(copies: Copies, log: Path) -> None:
    one = other = COMMON
    for n in range(3):
        one, other = one + line(f"one {n}"), other + line(f"the other {n}")
        for data in (one, other):
            put(log, data)
            copies.read()
            assert newest(copies.database, log) == data
    assert {one, other} <= set(states(copies.database, log).values())


def test_bytes_that_a_pass_left_when_it_died(
    copies: Copies, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are stored before their checkpoint: of a line that is longer than fits one batch."""
    monkeypatch.setattr("recall_ingester.original._WAITING_BYTES", 1)
    noise = os.urandom(SPAN_BYTES * 2).hex()
    one, other = line(f"one {noise}"), line(f"other {noise[::-1]}")
    put(log, one)
    with pytest.raises(Interrupted):
        copies.read(dies_at(2))
    left = states(copies.database, log)[1]
    assert left
    assert one.startswith(left)
    put(log, other)
    copies.read()
    found = states(copies.database, log)
    assert newest(copies.database, log) == other
    assert left in found.values()
    put(log, one)
    copies.read()
    assert newest(copies.database, log) == one
    assert left not in states(copies.database, log).values(), "it stands in the newest"


def test_bytes_of_a_file_without_a_checkpoint(copies: Copies, log: Path) -> None:
    one, other = COMMON + line("one"), line("other")
    put(log, one)
    copies.read()
    with connect(copies.database, application="tests") as connection:
        connection.execute("delete from recall.ingest_state")
    put(log, other)
    copies.read()
    assert set(states(copies.database, log).values()) == {one, other}


def test_bytes_that_are_not_kept_by_one_of_the_copies(copies: Copies, log: Path) -> None:
    torn, whole = COMMON + line("three")[:-9], COMMON + line("three") + line("four")
    put(log, torn)
    copies.read()
    put(log, torn[:-1] + b"!")
    copies.read(keep_raw=False)
    put(log, torn)
    copies.read(keep_raw=False)
    assert torn in states(copies.database, log).values()
    put(log, whole)
    copies.read(keep_raw=False)
    assert torn in states(copies.database, log).values()
    put(log, whole + line("five"))
    copies.read()
    assert newest(copies.database, log) == whole + line("five")


def test_a_torn_end_is_kept_when_bytes_are_not_any_more(copies: Copies, log: Path) -> None:
    torn, whole = COMMON + line("three")[:-9], COMMON + line("three")
    put(log, torn)
    copies.read()
    with log.open("ab") as file:
        file.write(whole[len(torn) :])
    copies.read(keep_raw=False)
    assert newest(copies.database, log) == torn
    os.utime(log, (1, 1))
    copies.read()
    assert newest(copies.database, log) == whole


# Rows of a database, and documents.


def opencode(path: Path, *texts: str) -> None:
    """The database of a client, with one session of so many messages."""
    path.unlink(missing_ok=True)
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
        client.execute(
            "insert into session values ('s', 'p1', null, 't', '/', '1', 1, ?)", (len(texts),)
        )
        for at, text in enumerate(texts):
            row: tuple[Any, ...] = (f"m{at}", "s", at, at, '{"role":"user"}')
            client.execute("insert into message values (?, ?, ?, ?, ?)", row)
            data = json.dumps({"type": "text", "text": text})
            row = (f"p{at}", f"m{at}", "s", at, at, data)
            client.execute("insert into part values (?, ?, ?, ?, ?, ?)", row)


def words_kept(url: str, path: str) -> set[str]:
    """All texts in quotes of all states that are kept."""
    data = b"".join(states(url, path).values()).decode().replace("\\", "")
    return set(data.split('"'))


@pytest.mark.parametrize("together", [False, True])
def test_sessions_of_databases_that_went_apart(copies: Copies, together: bool) -> None:
    copies.source = "opencode"
    path = copies.root / "opencode.db"
    opencode(path, "common")
    copies.read()
    opencode(path, "common", "mine")
    other = ("common", "theirs", "and more", "and more again")
    if together:

        def beside() -> None:
            opencode(path, *other)
            copies.read()

        copies.read_beside(beside)
    else:
        copies.read()
        opencode(path, *other)
        copies.read()
    opencode(path, "common", "mine")
    copies.read()
    kept = words_kept(copies.database, f"{path}#s")
    assert {"common", "mine", "theirs", "and more", "and more again"} <= kept
    assert b"mine" in newest(copies.database, f"{path}#s")


def test_a_session_that_only_grows_leaves_no_earlier_states(copies: Copies) -> None:
    copies.source = "opencode"
    path = copies.root / "opencode.db"
    texts = [f"text {n}" for n in range(4)]
    for length in range(1, 5):
        opencode(path, *texts[:length])
        copies.read()
    assert len(states(copies.database, f"{path}#s")) == 1


def chat(path: Path, *texts: str) -> None:
    """The document of a client, with so many messages; no text: a document that holds nothing."""
    requests = [
        {"requestId": f"r{n}", "timestamp": 1_780_000_000_000 + n, "response": [],
         "message": {"text": text, "parts": []}}
        for n, text in enumerate(texts)
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, json.dumps({"version": 3, "sessionId": path.stem, "requests": requests}).encode())


@pytest.fixture
def document(copies: Copies) -> Path:
    copies.source = "vscode-copilot"
    return copies.root / "workspaceStorage" / "0123abcd" / "chatSessions" / f"{NAME}.json"


def test_documents_that_went_apart(copies: Copies, document: Path) -> None:
    one, other = ("common", "mine"), ("common", "theirs", "more")
    chat(document, "common")
    copies.read()
    chat(document, *one)

    def beside() -> None:
        chat(document, *other)
        copies.read()

    copies.read_beside(beside)
    for _ in range(2):
        for texts in (one, other):
            chat(document, *texts)
            copies.read()
            kept = words_kept(copies.database, str(document))
            assert {"common", "mine", "theirs", "more"} <= kept


def test_each_state_of_which_a_text_was_taken_back_again(copies: Copies) -> None:
    """Its bytes are not those of the state before, though the text is the same."""
    sink = copies.make_sink()
    whole: dict[str, Any] = {"retire": (0, None), "raw_from": 0, "supersedes_raw": True}
    for generation, has_text in enumerate((True, False, True, False), 1):
        texts = ["stays", "comes and goes"] if has_text else ["stays"]
        one = batch(
            piece(len(texts), generation=generation, **whole),
            sessions={(key_of(), PATH): session()},
            messages=[(0, message(n, text)) for n, text in enumerate(texts)],
            raw=[span(b"state %d" % generation, generation=generation)],
        )
        sink.write(one)
    sink.close()
    kept = "select generation from recall.raw_segment order by 1"
    assert rows(copies.database, kept) == [(1,), (3,), (4,)]


def test_a_document_that_was_emptied_takes_nothing_with_it(copies: Copies, document: Path) -> None:
    chat(document, "common")
    copies.read()
    chat(document)
    copies.read()
    assert "common" in words_kept(copies.database, str(document))
    assert contents(copies.database) == ["common"]


def test_a_document_that_only_grows_leaves_no_earlier_states(
    copies: Copies, document: Path
) -> None:
    texts = [f"text {n}" for n in range(4)]
    for length in range(1, 5):
        chat(document, *texts[:length])
        copies.read()
    assert len(states(copies.database, document)) == 1


def count(copies: Copies, table: str) -> int:
    found: int = rows(copies.database, f"select count(*) from recall.{table}")[0][0]
    return found


# What stays is what differs, however often it comes.


def test_turns_of_two_copies_leave_two_states(copies: Copies, log: Path) -> None:
    one = other = COMMON
    for n in range(4):
        one, other = one + line(f"one {n}"), other + line(f"the other {n}")
        for data in (one, other):
            put(log, data)
            copies.read()
    assert sorted(states(copies.database, log).values()) == sorted([one, other])
    assert count(copies, "raw_blob") == 2


def test_a_new_time_leaves_no_state_behind(copies: Copies, log: Path) -> None:
    put(log, COMMON)
    copies.read()
    with log.open("ab") as file:
        file.write(line("three"))
    copies.read()
    for time in range(3):
        os.utime(log, (time, time))
        copies.read()
    assert list(states(copies.database, log).values()) == [COMMON + line("three")]


def test_a_state_that_only_begins_alike_stays(copies: Copies, log: Path) -> None:
    long = b"".join(line(f"line {n}", words=900) for n in range(150))
    one, other = long + line("only one"), long + line("only other")
    assert len(long) > 2 * SPAN_BYTES
    for data in (one, other):
        put(log, data)
        copies.read()
    assert sorted(states(copies.database, log).values()) == sorted([one, other])


def test_documents_that_take_turns_leave_two_states(copies: Copies, document: Path) -> None:
    for _ in range(3):
        for text in ("mine", "theirs"):
            chat(document, "common", text)
            copies.read()
    assert len(states(copies.database, document)) == 2
    assert {"common", "mine", "theirs"} <= words_kept(copies.database, str(document))


@pytest.mark.parametrize("length", [10, 3 * SPAN_BYTES])
def test_rows_that_are_written_over_are_kept_once(copies: Copies, length: int) -> None:
    """Of many rows not the whole state each time; a long row stands in several spans."""
    copies.source = "opencode"
    path = copies.root / "opencode.db"
    many = [f"text {n}" for n in range(20)]
    last = [f"{'x' * length} {version}" for version in ("a", "b", "c", "a", "b", "c")]
    for time, text in enumerate(last, 1_000):
        opencode(path, *many, text)
        with closing(sqlite3.connect(path)) as client, client:
            client.execute("update session set time_updated = ?", (time,))
            client.execute("update part set time_updated = ? where id = 'p20'", (time,))
        copies.read()
    found = states(copies.database, f"{path}#s")
    assert sorted(found) == [-1, 1]
    assert set(last) <= words_kept(copies.database, f"{path}#s")
    kept = b"".join(found.values()).decode()
    assert all(kept.count(text) <= 2 for text in last)
    assert "text 3" not in found[-1].decode()


def test_a_torn_line_longer_than_a_batch(
    copies: Copies, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recall_ingester.original._WAITING_BYTES", 1)
    whole = COMMON + line(os.urandom(SPAN_BYTES * 2).hex())
    for data in (whole[:-9], whole):
        log.write_bytes(data)
        copies.read()
        assert states(copies.database, log) == {1: data}


def test_an_end_that_came_while_bytes_were_not_kept(copies: Copies, log: Path) -> None:
    whole = COMMON + line("three")
    put(log, whole[:-9])
    copies.read()
    with log.open("ab") as file:
        file.write(whole[-9:-1])
    copies.read(keep_raw=False)
    copies.read()
    assert newest(copies.database, log) == whole[:-1]


@pytest.mark.parametrize("more", ["", " and more", " word" * 2_000])
def test_a_file_that_is_written_over_while_it_is_read(
    copies: Copies, log: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    """In its place, not by another file of its name: what was read does not stand any more."""
    monkeypatch.setattr(pieces, "_BATCH_MESSAGES", 2)
    first = COMMON + line("three")
    put(log, first)
    other = line("other one" + more) + line("other two") + line("other three") + line("four")
    copies.read_beside(lambda: log.write_bytes(other))
    copies.read()
    assert newest(copies.database, log) == other
    assert any(state.startswith(first) for state in states(copies.database, log).values())


def test_an_end_that_is_written_over_while_the_file_is_read(
    copies: Copies, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn, other = COMMON + line("three")[:-9], COMMON + line("other three")
    put(log, torn)
    copies.read()
    log.write_bytes(torn + b"more")
    real = checkpoint.judge

    def judge(*given: Any, **named: Any) -> Any:
        found = real(*given, **named)
        log.write_bytes(other)
        return found

    with monkeypatch.context() as patch:
        patch.setattr("recall_ingester.starting_point.judge", judge)
        copies.read()
    assert torn in states(copies.database, log).values()


# A machine with an earlier version says only how many lines it goes on from.


@pytest.fixture
def earlier_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(batch: Any) -> list[dict[str, Any]]:
        found = module.piece_objects(batch)
        for told_piece in found:
            del told_piece["builds_on"], told_piece["continues"], told_piece["contains"]
        return found

    from recall_ingester.sinks import piece_objects as module

    for sink in ("postgres_rows", "postgrest"):
        monkeypatch.setattr(f"recall_ingester.sinks.{sink}.piece_objects", told)


@pytest.mark.usefixtures("earlier_version")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (COMMON + line("only one"), COMMON + line("only other") + line("and more")),
        (COMMON + line("one")[:-1], COMMON + line("the other")[:-1]),
        (line("new one") + COMMON, line("new other") + COMMON),
    ],
)
def test_machines_with_an_earlier_version(
    copies: Copies, log: Path, one: bytes, other: bytes
) -> None:
    put(log, COMMON)
    copies.read()
    put(log, one)
    copies.read_beside(writer(log, other, copies))
    assert other in states(copies.database, log).values()
    for data in (one, other, one):
        put(log, data)
        copies.read()
        assert newest(copies.database, log) == data
    assert {one, other} <= set(states(copies.database, log).values())


@pytest.mark.usefixtures("earlier_version")
def test_torn_lines_of_an_earlier_version_leave_no_states(copies: Copies, log: Path) -> None:
    log.touch()
    for n in range(4):
        whole = line(f"text {n}")
        for part in (whole[:20], whole[20:]):
            with log.open("ab") as file:
                file.write(part)
            copies.read()
    assert states(copies.database, log) == {1: log.read_bytes()}


def test_of_batches_that_build_on_one_state_one_is_stored(copies: Copies) -> None:
    """However close together they come."""
    first = batch(piece(1), messages=[(0, message(0, "common"))], raw=[span(b"common" * 15)])
    sink = copies.make_sink()
    sink.write(first)
    sink.close()
    ready = Barrier(4)

    def write(number: int) -> bool:
        data = b"copy %d" % number
        one = batch(
            piece(1, raw_from=90, builds_on=first.pieces[0].checkpoint),
            messages=[(0, message(1, f"from {number}"))],
            raw=[span(data, 90)],
        )
        assert one.pieces[0].checkpoint is not None
        one.pieces[0].checkpoint = replace(
            one.pieces[0].checkpoint, byte_offset=96, lines=3, tail_hash=data, raw_bytes=96
        )
        sink = copies.make_sink()
        try:
            ready.wait(60)
            sink.write(one)
        except OvertakenError as error:
            assert error.paths == [PATH]
            return False
        finally:
            sink.close()
        return True

    with ThreadPoolExecutor(4) as pool:
        stored = list(pool.map(write, range(4)))
    assert sorted(stored) == [False, False, False, True]
    found = rows(copies.database, "select hash from recall.raw_segment order by byte_offset")
    assert len(found) == 2
    assert bytes(found[1][0]) == span(b"copy %d" % stored.index(True)).hash
