"""Batches that come over HTTP: the same rows as by COPY, whole or not at all, of the own host."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import psycopg
import pytest

from recall.identity import Identity
from recall.keys import content_hash, message_id, stable_id
from recall.records import MessageRow, NoteRow, PromptRow, QuarantineRow, RawSpan, SessionRow
from recall_ingester.checkpoint import Checkpoint, Counts, Stat
from recall_ingester.sinks import Batch, Piece
from recall_ingester.sinks.piece_objects import checkpoint_of_object
from recall_ingester.sinks.postgres import PostgresSink
from recall_sql.connection import connect
from tests.db.incoming import Door, IncomingSink, everything_stored
from tests.db.ingesting import HOST, IDENTITY, ingest, rows
from tests.double.stage import until

PATH = "/home/dev/log.jsonl"
NOTES = "/home/dev/ledger.jsonl"
NOON = datetime(2026, 8, 1, 12, tzinfo=UTC)
SECOND_HOST = "otherhost"


def key_of(host: str = HOST, name: str = "s1") -> str:
    return f"claude-code:{host}:{name}"


def message(
    ordinal: int, text: str, *, host: str = HOST, name: str = "s1", part: int = 0, **extra: Any
) -> MessageRow:
    key = key_of(host, name)
    digest = content_hash(text)
    values: dict[str, Any] = {
        "session_key": key, "ordinal": ordinal, "part": part, "id": message_id(key, ordinal, part),
        "role": "user", "kind": "text", "ts": NOON, "ts_origin": "record", "content": text,
        "content_hash": digest, "copy_key": stable_id("copy", text), "project": "/home/dev",
        "branch": "main", "tool": None, "call_id": None, "native_id": None, "model": None,
        "is_error": False, "is_damaged": False, "redactions": 0,
    }  # fmt: skip
    return MessageRow(**{**values, **extra})


def note(name: str, text: str, ordinal: int = 0, *, host: str = HOST, path: str = NOTES) -> NoteRow:
    digest = content_hash(text)
    return NoteRow(
        shelf="ledger", id=stable_id("note", host, path, name, digest.hex()), source="ledger",
        host=host, path=path, entry_key=name, ordinal=ordinal, session_id="abc", project="/p",
        title=f"title of {name}", ts=NOON, content=text, content_hash=digest,
        fields={"status": "done", "list": [1, None, "ä"]},
    )  # fmt: skip


def prompt(text: str, ordinal: int = 0, *, host: str = HOST) -> PromptRow:
    return PromptRow(
        id=stable_id("prompt", host, text), source="claude-code", host=host, ordinal=ordinal,
        session_key=None, project=None, ts=NOON, content=text, content_hash=content_hash(text),
    )  # fmt: skip


def session(*, host: str = HOST, name: str = "s1", **extra: Any) -> SessionRow:
    values: dict[str, Any] = {
        "session_key": key_of(host, name), "source": "claude-code", "host": host,
        "external_id": name, "parent_key": None, "relation": None, "title": "a title",
        "title_rank": 1, "project": "/home/dev", "branch": None, "model": None,
        "client_version": None, "started_at": NOON, "ended_at": NOON, "path": PATH,
    }  # fmt: skip
    return SessionRow(**{**values, **extra})


def span(data: bytes, offset: int = 0, generation: int = 1, path: str = PATH) -> RawSpan:
    digest = blake2b(data, digest_size=32).digest()
    return RawSpan(path, generation, offset, len(data), digest, "none", data)


def bad_span(offset: int, generation: int = 1, reason: str = "not JSON") -> QuarantineRow:
    return QuarantineRow(
        HOST, PATH, generation, offset, 4, 7, "claude-code", key_of(), reason, b"\1" * 32,
        b"{\x00\xff[", False,
    )  # fmt: skip


def piece(
    row_lines: int = 0, *, path: str = PATH, generation: int = 1, before: Counts | None = None,
    name: str | None = "s1", host: str = HOST, **extra: Any,
) -> Piece:  # fmt: skip
    """A piece of a file, whose checkpoint moves behind it."""
    counts = Counts(seen=row_lines)
    if not extra.get("counted", True):
        counts.quarantined = row_lines
    counts.skip("nothing in it")
    key = key_of(host, name) if name else None
    checkpoint = Checkpoint(
        path, "claude-code", key, Stat(100, 1, 2, 2**62), byte_offset=90, lines=row_lines + 1,
        generation=generation, parser_state={"last": "ü", "depth": [1.5, None]}, raw_bytes=90,
        described={"label": "log"}, unfinished_length=3, unfinished_hash=b"\0\1\2",
    )  # fmt: skip
    values = {"checkpoint": checkpoint, "row_lines": row_lines, **extra}
    return Piece(
        path,
        "claude-code",
        generation,
        counts,
        session_key=key,
        before=before or Counts(),
        **values,
    )


def batch(*pieces: Piece, **kinds: Any) -> Batch:
    made = Batch(list(pieces))
    for kind, found in kinds.items():
        setattr(made, kind, found)
    return made


def first_batch(host: str = HOST) -> Batch:
    row = session(host=host)
    return batch(
        piece(4, host=host),
        piece(2, path=NOTES, name=None, host=host),
        sessions={(row.session_key, PATH): row},
        messages=[
            (0, message(0, "the old words", host=host)),
            (0, message(1, "it grows", host=host, native_id="n1")),
            (0, message(1, "a tool ran", host=host, part=1, role="tool", kind="tool_result")),
            (0, message(2, "taken back later " * 2_000, host=host, native_id="n2")),
        ],
        prompts=[(0, prompt("a prompt", host=host)), (0, prompt("a prompt", 1, host=host))],
        notes=[
            (1, note("one", "first text of one", host=host)),
            (1, note("two", "two", 1, host=host)),
        ],
        quarantine=[bad_span(40), bad_span(40, reason="torn"), bad_span(50)]
        if host == HOST
        else [],
        raw=[span(b"0123456789"), span(b"abcdef", 10), span(b"abcdef", 10)],
    )


def story() -> Iterator[Batch]:
    """Everything that can happen to rows, batch by batch."""
    yield first_batch()
    yield first_batch()
    row = session(title="a better title", title_rank=2, ended_at=None)
    # Rewritten (0), grown (1, 0), retired (1, 1), moved from 2 to 5, and the bytes come again.
    yield batch(
        piece(3, generation=2, retire=(0, None), raw_from=0, supersedes_raw=True),
        sessions={
            (row.session_key, PATH): row,
            (row.session_key, "/z"): session(title="worse", path="/z"),
        },
        messages=[
            (0, message(0, "the new words")),
            (0, message(1, "it grows and grows", native_id="n1")),
            (0, message(5, "taken back later " * 2_000, native_id="n2")),
        ],
        raw=[span(b"new bytes of it", 0, 2)],
    )
    # What a file says was taken back: one is live, one is new and comes twice, one is kept already.
    yield batch(
        piece(1),
        messages=[(0, message(6, "six"))],
        taken_back=[
            (0, message(6, "six")),
            (0, message(7, "an answer that was thrown away")),
            (0, message(7, "an answer that was thrown away", branch="later")),
            (0, message(0, "the old words")),
        ],
    )
    # One entry gets a new text; then the whole ledger is read again without the other one.
    yield batch(piece(1, path=NOTES, name=None), notes=[(0, note("one", "second text of one"))])
    yield batch(
        piece(1, path=NOTES, name=None, retire=(0, None)),
        notes=[(0, note("one", "first text of one", 3))],
    )
    # Two pieces of one file, a piece whose lines were counted before, and a row that comes twice.
    before = Counts(seen=8, stored=5, skipped=3, skip_reasons={"nothing in it": 2, "empty": 1})
    yield batch(
        piece(2, before=before, checkpoint=None),
        piece(2, before=before),
        piece(3, path="/other.jsonl", name="s2", counted=False, retire=(4, 9)),
        sessions={
            (key_of(name="s2"), "/other.jsonl"): session(
                name="s2", relation="fork", parent_key=key_of(), title=None, title_rank=0
            )
        },
        messages=[
            (0, message(10, "ten")),
            (0, message(11, "eleven")),
            (1, message(11, "eleven, written again")),
            (2, message(4, "in a copy", name="s2", tool="Bash", kind="tool_call", is_error=True)),
        ],
        prompts=[(1, prompt("another prompt", 3)), (2, prompt("another prompt", 4))],
        raw=[span(b"abcdef", 0, 1, "/other.jsonl")],
    )
    yield batch(piece(1, path="/nothing.jsonl", name=None))


Doors = Callable[..., Door]


@pytest.fixture
def doors() -> Iterator[Doors]:
    """Opens connections of hosts, and closes them."""
    with ExitStack() as opened:
        yield lambda *given, **named: opened.enter_context(closing(Door(*given, **named)))


@pytest.fixture
def pair(new_database: Callable[..., str], template: str) -> tuple[str, str]:
    """Two stores with a generation of passages that waits for what changes."""
    urls = new_database(template), new_database(template)
    for url in urls:
        with connect(url, application="tests") as connection:
            connection.execute(
                "select recall.create_embedding_generation('m', 8, 'mean', 64, 8, array['text'])"
            )
    return urls


def test_both_ways_give_the_same_rows_and_the_same_answers(
    doors: Doors, pair: tuple[str, str]
) -> None:
    by_copy, by_http = pair
    seen = []
    with closing(PostgresSink(by_copy, IDENTITY)) as sink:
        door = doors(by_http)
        for number, (one, other) in enumerate(zip(story(), story(), strict=True)):
            answer = sink.write(one)
            seen.append(answer)
            told = door.store(other)
            assert sorted(told.replaced_raw) == sorted(answer.replaced_raw), number
            told.replaced_raw[:] = answer.replaced_raw
            assert told == answer, number
            assert everything_stored(by_http) == everything_stored(by_copy), number
    # The story tells what it says: nothing new the second time, three taken back, and so on.
    assert [answer.messages for answer in seen] == [7, 0, 3, 1, 1, 1, 4, 0]
    assert [answer.retired for answer in seen] == [0, 0, 2, 1, 0, 0, 0, 0]
    assert [counts.merged for counts in seen[1].counts] == [4, 2]
    for table, number in {"message_retracted": 3, "note": 3, "quarantine": 2, "prompt": 2}.items():
        assert len(everything_stored(by_http)[table]) == number, table
    left = "select count(*) from recall.incoming_message"
    assert rows(by_http, left) == [(0,)]


def test_passes_over_files_give_the_same_rows(pair: tuple[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "projects" / "-home-dev"
    folder.mkdir(parents=True)
    log = folder / "11111111-2222-4333-8444-555555555555.jsonl"
    history = tmp_path / "history.jsonl"
    for words in (["one", "two", "three"], ["one", "2", "three", "four"], ["one"]):
        log.write_text("".join(_line(n, text) for n, text in enumerate(words)) + '{"torn')
        history.write_text(
            "".join(f'{{"display":"{text}","timestamp":1785574800000}}\n' for text in words)
        )
        later = len(words) * 10**9 + 10**18
        os.utime(log, ns=(later, later))
        by_copy = ingest(pair[0], tmp_path)
        by_http = ingest(pair[1], tmp_path, sink=IncomingSink)
        assert by_copy.lines_seen > 0
        assert by_http.as_json() | {"seconds": 0} == by_copy.as_json() | {"seconds": 0}
        assert everything_stored(pair[1]) == everything_stored(pair[0])


def _line(number: int, text: str) -> str:
    record = {
        "type": "user",
        "uuid": f"00000000-0000-4000-8000-{number:012d}",
        "timestamp": f"2026-08-01T09:00:{number:02d}.000Z",
        "message": {"role": "user", "content": text},
    }
    return json.dumps(record) + "\n"


def test_the_same_batch_again_gets_the_recorded_answer(doors: Doors, database: str) -> None:
    door = doors(database)
    name, body = door.send(first_batch())
    answer = door.call("store_batch", batch=name, body=body)
    stored = everything_stored(database)
    assert door.call("store_batch", batch=name, body=body) == answer
    assert everything_stored(database) == stored


def test_a_second_call_waits_for_the_first_that_nobody_waits_for(
    doors: Doors, database: str
) -> None:
    first, second = doors(database), doors(database)
    name, body = first.send(first_batch())
    values = {"batch": name, "body": json.dumps(body)}
    statement = "select api.store_batch(%(batch)s, %(body)s)"
    with ThreadPoolExecutor() as threads, first.request() as connection:
        row = connection.execute(statement, values).fetchone()
        waiting = threads.submit(second.call, "store_batch", batch=name, body=body)
        _until_somebody_waits(database)
        connection.execute("reset role")
    assert row is not None
    assert waiting.result(60) == row[0]
    assert rows(database, "select count(*) from recall.message") == [(4,)]


def _until_somebody_waits(url: str) -> None:
    waiting = (
        "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
        " and datname = current_database()"
    )
    with connect(url, application="tests", autocommit=True) as connection:
        until(lambda: connection.execute(waiting).fetchone() is not None)


def test_rows_that_a_crash_took_are_missed_and_nothing_is_stored(
    doors: Doors, database: str
) -> None:
    door = doors(database)
    name, body = door.send(first_batch())
    with connect(database, application="tests") as connection:
        connection.execute("truncate recall.incoming_document")
    with pytest.raises(psycopg.Error, match="incomplete") as caught:
        door.call("store_batch", batch=name, body=body)
    assert caught.value.sqlstate == "PT409"
    for table in ("session", "message", "ingest_state", "stored_batch"):
        assert rows(database, f"select count(*) from recall.{table}") == [(0,)]
    assert door.store(first_batch()).messages == 7


@pytest.mark.parametrize("kind", ["message", "prompt", "note", "document", "blob"])
def test_what_is_to_be_stored_and_did_not_come_is_told(
    doors: Doors, database: str, kind: str
) -> None:
    door = doors(database)
    name, body = door.send(first_batch())
    with door.request() as connection:
        connection.execute(f"delete from api.incoming_{kind}")
    body["rows"][kind] = 0
    with pytest.raises(psycopg.Error, match="changed meanwhile") as caught:
        door.call("store_batch", batch=name, body=body)
    assert caught.value.sqlstate == "PT409"
    assert rows(database, "select count(*) from recall.session") == [(0,)]


def test_rows_that_were_stored_since_they_were_asked_for_are_merged(
    doors: Doors, database: str
) -> None:
    door = doors(database)
    name, body = door.send(first_batch())
    door.store(first_batch())
    stored = everything_stored(database)
    answer = door.call("store_batch", batch=name, body=body)
    assert (answer["messages"], answer["raw_bytes"]) == (0, 0)
    after = everything_stored(database)
    assert [row[0]["lines_merged"] for row in after.pop("ingest_state")] == [2, 4]
    del stored["ingest_state"]
    assert after == stored


BAD_ROWS: list[tuple[str, str, Any, str]] = [
    ("message", "role", "robot", "23514"),
    ("message", "content", "a\x00b", "22P05"),
    ("message", "content", None, "23502"),
    ("message", "ts", "yesterday-ish", "22007"),
    ("message", "content_hash", "\\xno", "22023"),
    ("message", "session_key", f"claude-code:{HOST}:" + "".join(map(str, range(1_000))), "23514"),
    ("key", "id", 2**63, "22003"),
    ("session", "relation", "cousin", "23514"),
    ("note", "shelf", "attic", "23514"),
    ("note", "entry_key", "k" * 2_400, "23514"),
    ("note", "fields", "\x00", "22P05"),
    ("blob", "data_base64", "no base64!", "22023"),
    ("blob", "codec", "lzma", "23514"),
    ("document", "document", " ".join(f"word{n}" for n in range(200_000)) + "\n", "54000"),
    ("document", "content_hash", "\\x00", "23514"),
]


@pytest.mark.parametrize(
    ("kind", "column", "value", "sqlstate"),
    BAD_ROWS,
    ids=[f"{r[0]}-{r[1]}-{r[3]}" for r in BAD_ROWS],
)
def test_a_bad_row_is_refused_when_it_comes(
    doors: Doors, module_database: str, kind: str, column: str, value: Any, sqlstate: str
) -> None:
    door = doors(module_database)
    name, _ = door.send(first_batch())
    with door.request() as connection:
        row = connection.execute(
            f"select to_json(i) from api.incoming_{kind} i where batch = %s and n = 0", (name,)
        ).fetchone()
    assert row is not None
    good = dict(row[0])
    assert door.upload(kind, [good]) == 1
    with pytest.raises(psycopg.Error) as caught:
        door.upload(kind, [good | {"n": 1}, good | {column: value}])
    assert caught.value.sqlstate == sqlstate


def test_a_row_of_another_host_is_refused(doors: Doors, database: str) -> None:
    door = doors(database)
    name = str(uuid.uuid4())
    for found in (first_batch(SECOND_HOST), batch(quarantine=[])):
        if found.messages:
            with pytest.raises(psycopg.Error, match="row-level security") as caught:
                door.send(found)
            assert caught.value.sqlstate == "42501"
    theirs = doors(database, SECOND_HOST)
    name, body = theirs.send(first_batch(SECOND_HOST))
    with door.request() as connection:
        assert connection.execute("select from api.incoming_message").fetchall() == []
        assert connection.execute("delete from api.incoming_message").rowcount == 0
        assert connection.execute("update api.incoming_key set ordinal = 9").rowcount == 0
    with door.request() as connection, pytest.raises(psycopg.Error, match="row-level security"):
        connection.execute(
            "insert into api.incoming_span (host, batch, n, path, generation, byte_offset,"
            " byte_length, hash, unfinished)"
            " values ('otherhost', gen_random_uuid(), 0, '', 1, 0, 0, '', false)"
        )
    with pytest.raises(psycopg.Error, match="incomplete"):
        door.call("store_batch", batch=name, body=body)
    foreign = batch(piece(0, host=SECOND_HOST))
    name, body = door.send(foreign)
    with pytest.raises(psycopg.Error, match="another host") as caught:
        door.call("store_batch", batch=name, body=body)
    assert caught.value.sqlstate == "42501"


def test_notes_and_prompts_of_another_host_stay_as_they_are(doors: Doors, database: str) -> None:
    """Ids come from the sender, and a wrong one must not reach what another host stored."""
    doors(database).store(first_batch())
    stored = everything_stored(database)
    forged = note("one", "forged", host=SECOND_HOST)
    kept = note("one", "first text of one")
    with connect(database, application="tests") as connection:
        connection.execute("update recall.note set is_current = false where id = %s", (kept.id,))
    row = {name: getattr(forged, name) for name in forged.__slots__} | {"id": kept.id}
    door = doors(database, SECOND_HOST)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="of a row of another host"):
        door.store(batch(piece(1, path=NOTES, name=None), notes=[(0, NoteRow(**row))]))
    with connect(database, application="tests") as connection:
        connection.execute("update recall.note set is_current = true where id = %s", (kept.id,))
    after = everything_stored(database)
    for table in ("note", "message_text"):
        assert after[table] == stored[table]


def test_without_a_host_nothing_is_written(doors: Doors, database: str) -> None:
    door = doors(database, host=None)
    calls: dict[str, dict[str, Any]] = {
        "register": {"install_id": str(uuid.uuid4())},
        "changed_rows": {"batch": str(uuid.uuid4())},
        "known_blobs": {"hashes": []},
        "store_batch": {"batch": str(uuid.uuid4()), "body": {}},
        "checkpoints": {},
        "mark": {"missing": [], "unreadable": {}},
        "mark_present": {"paths": [], "readable": []},
        "raw_spans": {"path": PATH, "generation": 1},
        "finish_pass": {"session_keys": [], "wrote": 0, "replaced_raw": []},
        "beat": {"detail": {}},
    }
    for name, values in calls.items():
        with pytest.raises(psycopg.Error, match="needs the token of a host") as caught:
            door.call(name, **values)
        assert caught.value.sqlstate == "42501", name
    with pytest.raises(psycopg.Error, match="row-level security"):
        door.send(first_batch())


READS = {
    "search_text", "search_exact", "search_regex", "search_semantic", "search_ledger", "memories",
    "search_coverage", "full_hits",
}  # fmt: skip
WRITES = {
    "register", "changed_rows", "known_blobs", "store_batch", "checkpoints", "mark", "mark_present",
    "raw_spans", "finish_pass", "beat",
}  # fmt: skip
READ_TABLES = {
    "api.sessions", "recall.session", "recall.message", "recall.message_retracted",
    "recall.prompt", "recall.note", "recall.message_text", "recall.entry",
}  # fmt: skip


def test_each_role_may_do_exactly_what_is_listed(module_database: str) -> None:
    may_run = """
        select p.proname from pg_proc p
        where p.pronamespace = 'api'::regnamespace and has_function_privilege(%s, p.oid, 'execute')
    """
    may = """
        select n.nspname || '.' || c.relname
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname in ('api', 'recall') and c.relkind in ('r', 'v', 'p')
            and has_table_privilege(%s, c.oid, %s)
    """
    incoming = {row[0] for row in rows(module_database, "select unnest(recall.incoming_kinds())")}
    staged = {f"{schema}.incoming_{kind}" for schema in ("api", "recall") for kind in incoming}
    for role, functions, tables in (
        ("recall_anon", READS, READ_TABLES),
        ("recall_writer", READS | WRITES, READ_TABLES | staged),
    ):
        found = {row[0] for row in rows(module_database, may_run, role)}
        assert found - {"check_request"} == functions, role
        assert {row[0] for row in rows(module_database, may, role, "select")} == tables, role
        for privilege in ("insert", "update", "delete"):
            allowed = {row[0] for row in rows(module_database, may, role, privilege)}
            assert allowed == (staged if role == "recall_writer" else set()), (role, privilege)
        assert not rows(module_database, may, role, "truncate"), role


def test_anybody_may_search_and_list_sessions(doors: Doors, database: str) -> None:
    doors(database).store(first_batch())
    reader = doors(database, host=None, role="recall_anon")
    assert [hit["ordinal"] for hit in reader.call("search_text", q="old words")["hits"]] == [0]
    assert [hit["ordinal"] for hit in reader.call("search_exact", q="it gro")["hits"]] == [1]
    assert [hit["ordinal"] for hit in reader.call("search_regex", q="it g.o")["hits"]] == [1]
    assert reader.call("search_ledger", q="first")["stored"] == 2
    assert reader.call("memories")["stored"] == 0
    assert reader.call("search_coverage")["quarantined"] == 2
    vector = "{0,0,0,0,0,0,0,1}"
    assert reader.call("search_semantic", query_vector=vector, model="m")["reason"] == "no-vectors"
    with reader.request() as connection:
        found = connection.execute("select session_key, title from api.sessions").fetchall()
    assert found == [(key_of(), "a title")]


@pytest.mark.parametrize(
    "relation",
    [
        "recall.raw_blob", "recall.raw_segment", "recall.token", "recall.join_code",
        "recall.ingest_state", "recall.quarantine", "recall.host", "recall.stored_batch",
        "recall.incoming_message", "api.incoming_message", "api.incoming_blob",
    ],
)  # fmt: skip
def test_nobody_reads_what_is_not_for_searching(
    doors: Doors, module_database: str, relation: str
) -> None:
    reader = doors(module_database, host=None, role="recall_anon")
    with pytest.raises(psycopg.errors.InsufficientPrivilege), reader.request() as connection:
        connection.execute(f"select from {relation}".encode())


def test_two_hosts_at_once_store_all_that_is_theirs(doors: Doors, database: str) -> None:
    def passes(host: str) -> int:
        door = doors(database, host)
        wrote = 0
        for number in range(5):
            again = first_batch(host)
            for place, (at, row) in enumerate(again.messages):
                text = f"{row.content} {number}"
                again.messages[place] = (
                    at, message(row.ordinal + 10 * number, text, host=host, part=row.part)
                )  # fmt: skip
            again.raw.append(span(b"bytes that both have %d" % number, 100 + number))
            wrote += door.store(again).messages
        return wrote

    with ThreadPoolExecutor() as threads:
        wrote = list(threads.map(passes, (HOST, SECOND_HOST)))
    assert wrote == [23, 23]
    found = "select split_part(session_key, ':', 2), count(*) from recall.message group by 1"
    assert sorted(rows(database, found)) == [(SECOND_HOST, 20), (HOST, 20)]
    assert rows(database, "select count(*) from recall.raw_blob") == [(7,)]


def test_a_name_is_claimed_once(doors: Doors, database: str) -> None:
    door = doors(database)
    assert door.call("register", install_id=IDENTITY.install_id) == {"host": HOST}
    assert door.call("register", install_id=IDENTITY.install_id) == {"host": HOST}
    with pytest.raises(psycopg.Error, match="another installation") as caught:
        door.call("register", install_id=str(uuid.uuid4()))
    assert caught.value.sqlstate == "PT409"


def test_checkpoints_and_spans_come_back_as_they_are(doors: Doors, database: str) -> None:
    door = doors(database)
    door.store(first_batch())
    with closing(PostgresSink(database, IDENTITY)) as sink:
        known = sink.checkpoints()
        assert sink.raw_spans(PATH, 1) == [
            (at, length, bytes.fromhex(digest[2:]))
            for at, length, digest in door.call("raw_spans", path=PATH, generation=1)
        ]
    found = door.call("checkpoints")
    assert [row["path"] for row in found] == sorted(known)
    assert {row["path"]: checkpoint_of_object(row) for row in found} == known
    assert door.call("checkpoints", after=NOTES) == found[1:]
    assert door.call("checkpoints", most=1) == found[:1]
    assert doors(database, SECOND_HOST).call("checkpoints") == []
    assert doors(database, SECOND_HOST).call("raw_spans", path=PATH, generation=1) == []


def test_what_is_gone_and_unreadable_is_noted(doors: Doors, pair: tuple[str, str]) -> None:
    unreadable = {"/folder": ("claude-code", "denied"), PATH: ("claude-code", "torn")}
    door = doors(pair[1])
    with closing(PostgresSink(pair[0], IDENTITY)) as sink:
        sink.write(first_batch())
        sink.mark(missing=[PATH, NOTES], unreadable=unreadable)
        door.store(first_batch())
        door.call("mark", missing=[PATH, NOTES], unreadable=unreadable)
        states = "select path, source_missing_at is not null, unreadable from recall.ingest_state"
        assert sorted(rows(pair[1], states)) == sorted(rows(pair[0], states))
        assert len(rows(pair[1], states)) == 3
        sink.mark_present([PATH], readable=["/folder"])
        assert door.call("mark_present", paths=[PATH], readable=["/folder"]) == {"marked": 2}
        assert sorted(rows(pair[1], states)) == sorted(rows(pair[0], states))


def test_the_end_of_a_pass_links_copies_and_drops_bytes(doors: Doors, database: str) -> None:
    door = doors(database)
    copy = [(0, message(n, text, name="s2")) for n, text in enumerate(("one", "two"))]
    parent = [(0, message(0, "one"))]
    for rows_of, name in ((parent, "s1"), (copy, "s2")):
        row = session(name=name)
        door.store(
            batch(piece(2, name=name), sessions={(row.session_key, PATH): row}, messages=rows_of)
        )
    whole: dict[str, Any] = {
        "name": "s3",
        "retire": (0, None),
        "raw_from": 0,
        "supersedes_raw": True,
    }
    door.store(batch(piece(0, **whole), raw=[span(b"old bytes")]))
    again = batch(piece(0, generation=2, **whole), raw=[span(b"new bytes", generation=2)])
    replaced = door.store(again).replaced_raw
    assert len(replaced) == 1
    hashes = [f"\\x{digest.hex()}" for digest in replaced]
    keys = [key_of(name="s2"), key_of(SECOND_HOST)]
    answer = door.call("finish_pass", session_keys=keys, wrote=9_999, replaced_raw=hashes)
    assert answer == {"dropped_blobs": 1}
    lineage = rows(database, "select session_key, parent_key from recall.session order by 1")
    assert lineage == [(key_of(), None), (key_of(name="s2"), key_of())]
    assert rows(database, "select data from recall.raw_blob") == [(b"new bytes",)]


def test_the_end_of_a_pass_sweeps_what_was_given_up(doors: Doors, database: str) -> None:
    door = doors(database)
    door.send(first_batch())
    door.store(first_batch())
    with connect(database, application="tests") as connection:
        connection.execute("update recall.incoming_key set sent_at = now() - interval '25 hours'")
        connection.execute("update recall.stored_batch set stored_at = now() - interval '25 hours'")
    door.call("finish_pass", session_keys=[], wrote=0, replaced_raw=[])
    assert rows(database, "select count(*) from recall.incoming_key") == [(0,)]
    assert rows(database, "select count(*) from recall.incoming_message") == [(4,)]
    assert rows(database, "select count(*) from recall.stored_batch") == [(0,)]


def test_each_host_has_its_own_sign_of_life(doors: Doors, database: str) -> None:
    for host in (HOST, SECOND_HOST):
        doors(database, host).call("beat", detail={"host": host}, pid=7)
    with closing(PostgresSink(database, Identity(HOST, IDENTITY.install_id))) as sink:
        sink.beat({"by": "copy"})
    found = rows(
        database, "select component, instance, host from recall.worker_heartbeat order by 2"
    )
    assert found == [("ingester", SECOND_HOST, SECOND_HOST), ("ingester", HOST, HOST)]
    detail = rows(database, "select detail from recall.worker_heartbeat where host = %s", HOST)
    assert detail == [({"by": "copy"},)]


@pytest.mark.parametrize("table", ["session", "message", "prompt", "note", "quarantine"])
def test_what_waits_has_every_column_of_what_it_becomes(module_database: str, table: str) -> None:
    """A column that a later migration gives to a table has to travel too."""
    made_by_the_store = {
        "first_seen", "stored_at", "created_at", "is_current", "replaced_at"
    }  # fmt: skip
    columns = "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
    columns += " and not attisdropped"
    final = {row[0] for row in rows(module_database, columns, f"recall.{table}")}
    waiting = {row[0] for row in rows(module_database, columns, f"recall.incoming_{table}")}
    assert final - waiting <= made_by_the_store
