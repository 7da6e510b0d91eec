"""A host that joined and means harm: what is of others stays as it is, can be read, and goes on."""

from __future__ import annotations

import json
import uuid
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from hashlib import blake2b
from typing import Any

import httpx
import psycopg
import pytest
import zstandard

from recall.config import Settings
from recall.identity import Identity
from recall.keys import message_id, stable_id
from recall.records import MessageRow
from recall_ingester.checkpoint import Counts
from recall_ingester.sinks import Batch
from recall_sql.connection import connect
from tests.db.incoming import Door, _wire, everything_stored
from tests.db.ingesting import rows
from tests.db.over_http import join, serve
from tests.db.serving import serving
from tests.db.test_incoming import (
    NOTES,
    SECOND_HOST,
    batch,
    first_batch,
    key_of,
    message,
    note,
    piece,
    prompt,
    session,
)
from tests.double.fixtures import SECRET, Served

Rows = dict[str, list[Any]]


@pytest.fixture
def mallory(database: str) -> Iterator[Door]:
    """A host beside one that has stored something."""
    with closing(Door(database)) as door:
        door.store(first_batch())
    with closing(Door(database, SECOND_HOST)) as door:
        yield door


def evil(ordinal: int, **extra: Any) -> MessageRow:
    return replace(message(ordinal, "evil", host=SECOND_HOST), **extra)


def of_mallory(**kinds: Any) -> Batch:
    return batch(piece(1, host=SECOND_HOST), **kinds)


LIVE = message_id(key_of(), 1, 0)
STOLEN = {
    "a message as a note": of_mallory(
        notes=[(0, replace(note("x", "evil", host=SECOND_HOST), id=LIVE))]
    ),
    "a message as a prompt": of_mallory(
        prompts=[(0, replace(prompt("evil", host=SECOND_HOST), id=LIVE))]
    ),
    "a note as a message": of_mallory(
        messages=[(0, evil(0, id=note("one", "first text of one").id))]
    ),
    "what a message will be kept under": of_mallory(
        taken_back=[(0, evil(0, id=LIVE, content_hash=message(1, "it grows").content_hash))]
    ),
}


@pytest.mark.parametrize("name", STOLEN)
def test_an_id_of_another_host_is_refused(name: str, mallory: Door, database: str) -> None:
    before = everything_stored(database)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="of a row of another host"):
        mallory.store(STOLEN[name])
    assert everything_stored(database) == before


def test_a_text_cannot_take_the_place_of_another_as_its_copy(mallory: Door, database: str) -> None:
    copied = message(0, "the old words")
    forged = replace(message(0, "old words, old words", host=SECOND_HOST), copy_key=copied.copy_key)
    real = replace(message(1, "the old words", host=SECOND_HOST), copy_key=copied.copy_key)
    mallory.store(of_mallory(messages=[(0, forged), (0, real)]))
    kept = "select ordinal, copy_key from recall.message where session_key = %s order by ordinal"
    assert rows(database, kept, key_of(SECOND_HOST)) == [(0, None), (1, copied.copy_key)]
    with serving(database) as api:
        hits = api.get("/search", params={"q": "old words"}).json()["hits"]
    assert len(hits) == 2


def test_a_session_of_another_host_gets_no_children(mallory: Door) -> None:
    row = session(host=SECOND_HOST, name="child")
    for parent, allowed in ((key_of(SECOND_HOST), True), (key_of(), False)):
        child = replace(row, parent_key=parent, relation="subagent")
        sent = of_mallory(sessions={("k", "p"): child})
        if allowed:
            mallory.store(sent)
        else:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                mallory.store(sent)


def test_asking_to_drop_bytes_that_are_in_use_holds_nobody_up(mallory: Door, database: str) -> None:
    used = [f"\\x{row[0].hex()}" for row in rows(database, "select hash from recall.raw_segment")]
    assert used
    with connect(database, application="tests") as other:
        other.execute("select pg_advisory_xact_lock_shared(7883960468427862124)")
        mallory.connection.execute("set lock_timeout = '1s'")
        given = {"session_keys": [], "wrote": 0, "replaced_raw": [*used, "\\x00"]}
        assert mallory.call("finish_pass", **given) == {"dropped_blobs": 0}


HUGE = 2**63 - 2
TIMES = ("infinity", "-infinity", "294276-01-01T00:00:00Z", "4000-01-01 BC")


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def tell(door: Door, detail: str) -> None:
    with door.request() as connection:
        connection.execute("select api.beat(%s::json)", (detail,))


@pytest.mark.parametrize(
    "detail", [deep(4_000), json.dumps({"a": "x" * 70_000}), '{"interval_seconds": 1e400}'],
    ids=["deep", "long", "endless"],
)  # fmt: skip
def test_a_beat_that_nobody_could_read_is_refused(detail: str, mallory: Door) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="could read"):
        tell(mallory, detail)


def test_the_status_is_shown_whatever_a_host_says(mallory: Door, database: str) -> None:
    tell(mallory, '{"interval_seconds": 1e299, "sources": [1], "version": {}, "sink_errors": 3}')
    for path in ("/a", "/b"):
        counted = Counts(seen=HUGE, skipped=HUGE)
        mallory.store(batch(replace(piece(path=path, host=SECOND_HOST), before=counted)))
    with serving(database, Settings(rest_url="http://127.0.0.1:9")) as api:
        for path in ("/status", "/health"):
            answer = api.get(path)
            assert answer.status_code == 200, path
            json.loads(answer.text, parse_constant=pytest.fail)
        metrics = api.get("/metrics").text.splitlines()
    failed = [line for line in metrics if line.startswith("recall_collector_up") and "} 0" in line]
    assert failed == []
    assert any(line.startswith(f'recall_host_up{{host="{SECOND_HOST}"}}') for line in metrics)


@pytest.mark.parametrize("moment", TIMES)
@pytest.mark.parametrize(
    ("kind", "row", "names"),
    [
        ("key", evil(0), ("ts",)),
        ("message", evil(0), ("ts",)),
        ("taken_back", evil(0), ("ts",)),
        ("prompt", prompt("evil", host=SECOND_HOST), ("ts",)),
        ("note", note("x", "evil", host=SECOND_HOST), ("ts",)),
        ("session", session(host=SECOND_HOST), ("started_at", "ended_at")),
    ],
    ids=["key", "message", "taken_back", "prompt", "note", "session"],
)
def test_a_time_that_nobody_could_read_is_refused(
    moment: str, kind: str, row: Any, names: tuple[str, ...], mallory: Door
) -> None:
    sent = {"batch": str(uuid.uuid4()), "n": 0, **asdict(row)}
    if kind == "key":
        wanted = ("session_key", "ordinal", "part", "id", "role", "kind", "ts", "content_hash",
                  "is_error", "on_active_branch", "batch", "n")  # fmt: skip
        sent = {name: sent[name] for name in wanted} | {"piece": 0}
    assert mallory.upload(kind, [sent]) == 1
    for name in names:
        with pytest.raises(psycopg.errors.CheckViolation):
            mallory.upload(kind, [sent | {name: moment}])


@pytest.mark.parametrize(
    "fields", [deep(300), '{"a": 1' + "0" * 400 + "}"], ids=["deep", "endless"]
)
def test_fields_that_nobody_could_read_are_refused(fields: str, mallory: Door) -> None:
    sent = asdict(note("x", "evil", host=SECOND_HOST)) | {"batch": str(uuid.uuid4()), "n": 0}
    assert mallory.upload("note", [sent]) == 1
    with pytest.raises(psycopg.errors.CheckViolation):
        mallory.upload("note", [sent | {"fields": json.loads(fields)}])


def test_a_checkpoint_that_nobody_could_read_is_refused(mallory: Door) -> None:
    name, body = mallory.send(batch(piece(host=SECOND_HOST)))
    body["pieces"][0]["checkpoint"]["described"] = json.loads(deep(300))
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        mallory.call("store_batch", batch=name, body=body)


@pytest.fixture(scope="module")
def rest(module_database: str) -> Iterator[tuple[httpx.Client, str]]:
    """The API before PostgREST, and the database behind it."""
    with serve(module_database) as served:
        yield from _open(served, module_database)


def _open(served: Served, database: str) -> Iterator[tuple[httpx.Client, str]]:
    identity = Identity(SECOND_HOST, "7c1e8a52-3f0d-4f69-9d0b-6a5b4c3d2e1f")
    member = join(served, database, identity)
    settings = Settings(jwt_secret=SECRET, rest_url=served.url)
    with serving(database, settings) as api:
        api.headers["Authorization"] = f"Bearer {member.token}"
        yield api, database


def wire(row: Any) -> dict[str, Any]:
    values = row if isinstance(row, dict) else asdict(row)
    return {"batch": str(uuid.uuid4()), "n": 0, **_wire(values)}


def post(api: httpx.Client, kind: str, body: Any, media_type: str = "application/json") -> int:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = api.post(
        f"/rest/incoming_{kind}",
        content=content,
        headers={"Content-Type": media_type, "Prefer": "return=minimal"},
    )
    if answer.status_code == 400:
        assert answer.json()["code"] == "23514", answer.text
    return answer.status_code


def real_prompt() -> dict[str, Any]:
    """A prompt as the ingester makes them."""
    row = asdict(prompt("a prompt", host=SECOND_HOST)) | {"session_key": key_of(SECOND_HOST)}
    digest = row["content_hash"].hex()
    at = row["ts"].isoformat()
    row["id"] = stable_id("prompt", "claude-code", SECOND_HOST, at, "s1", digest)
    return row


def real_note() -> dict[str, Any]:
    row = asdict(note("one", "text", host=SECOND_HOST))
    place = ("ledger", "ledger", SECOND_HOST, NOTES, "one")
    row["id"] = stable_id("note", *place, row["content_hash"].hex())
    return row


def blob(data: bytes, packed: bytes | None = None) -> dict[str, Any]:
    return {
        "hash": blake2b(data, digest_size=32).digest(),
        "byte_length": len(data),
        "codec": "none" if packed is None else "zstd",
        "data_base64": b64encode(data if packed is None else packed).decode(),
    }


GOOD: dict[str, tuple[str, dict[str, Any]]] = {
    "message": ("message", asdict(evil(0))),
    "taken back": ("taken_back", asdict(evil(0))),
    "prompt": ("prompt", real_prompt()),
    "note": ("note", real_note()),
    "bytes": ("blob", blob(b"0123")),
    "packed bytes": ("blob", blob(b"0" * 9_999, zstandard.compress(b"0" * 9_999))),
}
NEXT = message_id(key_of(), 20, 0)
BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "the next message of another host": ("message", asdict(evil(0, id=NEXT))),
    "the same as text": ("message", asdict(evil(0)) | {"id": str(NEXT)}),
    "text of another hash": ("message", asdict(evil(0)) | {"content": "other"}),
    "what another message will be kept under": ("taken_back", asdict(evil(0, id=NEXT))),
    "as a prompt": ("prompt", real_prompt() | {"id": NEXT}),
    "as a note": ("note", real_note() | {"id": NEXT}),
    "a note of another place": ("note", real_note() | {"path": "/other"}),
    "bytes of another name": ("blob", blob(b"0123") | {"hash": b"\0" * 32}),
    "bytes that are not as long": ("blob", blob(b"0123") | {"byte_length": 5}),
    "packed bytes of another name": ("blob", blob(b"0" * 99, zstandard.compress(b"1" * 99))),
    "bytes that are not packed": ("blob", blob(b"0" * 99, b"0" * 99)),
    "bytes that unpack to much more": (
        "blob", blob(b"0" * 99, zstandard.compress(b"0" * 50_000_000)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_rows_under_their_own_ids_are_taken(name: str, rest: tuple[httpx.Client, str]) -> None:
    kind, row = GOOD[name]
    assert post(rest[0], kind, [wire(row)]) == 201
    assert post(rest[0], kind, wire(row)) in (200, 201)
    assert post(rest[0], kind, []) in (200, 201)


@pytest.mark.parametrize("name", BAD)
def test_rows_under_other_ids_are_refused(name: str, rest: tuple[httpx.Client, str]) -> None:
    kind, row = BAD[name]
    good = next(one for also, one in GOOD.values() if also == kind)
    assert post(rest[0], kind, [wire(row)]) == 400
    assert post(rest[0], kind, wire(row)) == 400
    assert post(rest[0], kind, [wire(good), wire(row)]) == 400


def test_the_look_at_rows_cannot_be_talked_around(rest: tuple[httpx.Client, str]) -> None:
    good, bad = json.dumps([wire(evil(0))]), json.dumps([wire(evil(0, id=NEXT))])
    twice = good.replace('"id": ', f'"id": {NEXT}, "id": ', 1)
    other_order = good.replace('"id": ', '"id": 5, "\\u0069d": ', 1)
    for body in (twice, other_order, "[" * 4_000, "nothing", "[1]", "[[]]", "{}", "null"):
        assert post(rest[0], "message", body.encode()) == 400, body[:40]
    for encoding in ("utf-16", "utf-32", "utf-8-sig"):
        assert post(rest[0], "message", good.encode(encoding)) == 400
    for media_type in ("text/csv", "application/x-www-form-urlencoded", "text/plain", "x"):
        assert post(rest[0], "message", bad.encode(), media_type) == 400
    for path in (
        "incoming_message/", "%69ncoming_message", "x/../incoming_message", "incoming_message%00",
    ):  # fmt: skip
        answer = rest[0].post(
            f"/rest/{path}", content=bad, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in (400, 404), path
