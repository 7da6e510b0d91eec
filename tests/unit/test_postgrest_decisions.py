"""What an answer of PostgREST means, how long to wait, and how rows are put into requests."""

from __future__ import annotations

import json
import logging
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from recall.errors import (
    AccessError,
    ClaimError,
    SchemaError,
    StoreError,
    StoreUnavailableError,
)
from recall_ingester.outage import Outage
from recall_ingester.run import pause_after
from recall_ingester.sinks import postgrest_http
from recall_ingester.sinks.postgrest_http import (
    Decision,
    RefusedError,
    SinkErrors,
    StaleBatchError,
    Wire,
    decide,
    pause_seconds,
)
from recall_ingester.sinks.postgrest_rows import Item, Origin, Part, encode, parts

TOKEN = "secret-token"
Handler = Callable[[httpx.Request], httpx.Response]


@pytest.mark.parametrize(
    ("status", "code", "decision"),
    [
        # a status of its own says nothing: 500 is a duplicate key in one request, and a deadlock
        (500, "21000", Decision.REFUSED),
        (500, "40P01", Decision.AGAIN),
        (500, "57014", Decision.AGAIN),
        (500, "54000", Decision.REFUSED),
        (400, "22P05", Decision.REFUSED),
        (400, "22P02", Decision.REFUSED),
        (400, "23514", Decision.REFUSED),
        (400, "23502", Decision.REFUSED),
        (409, "23503", Decision.REFUSED),
        (409, "23505", Decision.AGAIN),
        (409, "PT409", Decision.STALE),
        (400, "PGRST102", Decision.REFUSED),
        (400, "PGRST204", Decision.FOREIGN),
        (404, "PGRST205", Decision.FOREIGN),
        (404, "PGRST202", Decision.FOREIGN),
        (404, "42P01", Decision.FOREIGN),
        (400, "40001", Decision.AGAIN),
        (500, "55P03", Decision.AGAIN),
        (503, "53300", Decision.AGAIN),
        (500, "57P01", Decision.AGAIN),
        (503, "08006", Decision.AGAIN),
        (500, "XX000", Decision.AGAIN),
        (503, "PGRST000", Decision.AGAIN),
        (503, "PGRST001", Decision.AGAIN),
        (503, "PGRST002", Decision.AGAIN),
        (504, "PGRST003", Decision.AGAIN),
        (401, "42501", Decision.ACCESS),
        (403, "42501", Decision.ACCESS),
        (401, "PGRST301", Decision.ACCESS),
        (401, "PGRST303", Decision.ACCESS),
        (401, "PT401", Decision.ACCESS),
        (401, "22023", Decision.ACCESS),  # a role that is not there
        (400, "22023", Decision.REFUSED),  # a body that is no array
        (429, "too-many-requests", Decision.AGAIN),
        (413, "too-long", Decision.REFUSED),
        (401, "token", Decision.ACCESS),
        (503, "store-unavailable", Decision.AGAIN),
        (404, "no-such-page", Decision.FOREIGN),
        (502, None, Decision.AGAIN),
        (429, None, Decision.AGAIN),
        (401, None, Decision.ACCESS),
        (404, None, Decision.FOREIGN),
        (302, None, Decision.FOREIGN),
        (413, None, Decision.REFUSED),
    ],
)
def test_the_code_decides(status: int, code: str | None, decision: Decision) -> None:
    assert decide(status, code) is decision


def wire(handler: Handler, pauses: list[float] | None = None) -> Wire:
    wait = (lambda _: None) if pauses is None else pauses.append
    return Wire("http://server/rest/", TOKEN, transport=httpx.MockTransport(handler), wait=wait)


def answers(*given: httpx.Response | Exception) -> tuple[Handler, list[httpx.Request]]:
    seen: list[httpx.Request] = []
    left: Iterator[httpx.Response | Exception] = iter(given)

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return handle, seen


def error(status: int, code: str, **more: Any) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "message": "m", "hint": None, **more})


def test_what_may_succeed_later_is_sent_again_as_it_was() -> None:
    handle, seen = answers(
        httpx.ReadError("x"), error(500, "40P01"), httpx.ReadTimeout("x"), httpx.Response(201)
    )
    pauses: list[float] = []
    given = wire(handle, pauses)
    given.upload("key", "batch,n", b"[]")
    assert len({(request.url, request.content) for request in seen}) == 1
    assert seen[0].url == "http://server/rest/incoming_key?columns=batch,n"
    assert seen[0].headers["prefer"] == "resolution=merge-duplicates,return=minimal"
    assert seen[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert "content-encoding" not in seen[0].headers
    assert len(pauses) == 3
    assert given.errors.as_json() == {"connection": 1, "40P01": 1, "timeout": 1}


def test_tries_are_bounded() -> None:
    handle, seen = answers(*[error(503, "PGRST001")] * 100)
    with pytest.raises(StoreUnavailableError, match="PGRST001"):
        wire(handle).call("checkpoints")
    assert len(seen) == 8


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 100_000, 60))
    # a clock of its own: other threads of this process look at the one of all
    clock = SimpleNamespace(monotonic=lambda: float(next(now)), sleep=time.sleep)
    monkeypatch.setattr(postgrest_http, "time", clock)
    handle, seen = answers(*[httpx.ReadTimeout("x")] * 100)
    with pytest.raises(StoreUnavailableError, match="in time"):
        wire(handle).call("checkpoints")
    assert len(seen) == 2


def test_a_server_that_was_never_there_is_given_up_soon() -> None:
    handle, seen = answers(*[httpx.ConnectError("x")] * 100)
    with pytest.raises(StoreUnavailableError, match="no Recall server answers"):
        wire(handle).call("checkpoints")
    assert len(seen) == 4
    handle, seen = answers(httpx.Response(200, json=[]), *[httpx.ConnectError("x")] * 100)
    known = wire(handle)
    known.call("checkpoints")
    with pytest.raises(StoreUnavailableError):
        known.call("checkpoints")
    assert len(seen) == 9


def test_a_certificate_that_is_not_trusted_is_told_at_once() -> None:
    reason = ssl.SSLCertVerificationError("refused")
    reason.verify_message = "self-signed certificate"
    error = httpx.ConnectError("wrapped")
    error.__cause__ = reason
    handle, seen = answers(error)
    with pytest.raises(StoreUnavailableError, match=r"of `http://server` is not trusted"):
        wire(handle).probe()
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (error(401, "PGRST303"), AccessError),
        (error(400, "23514"), RefusedError),
        (error(409, "PT409", message="incomplete"), StaleBatchError),
        (error(409, "PT409", message="`a` belongs to another installation"), ClaimError),
        (error(404, "PGRST202"), SchemaError),
        (httpx.Response(404, text="<html>"), StoreError),
        (httpx.Response(301, headers={"location": "http://elsewhere/"}), StoreError),
        (httpx.Response(200, text="<html>a login page</html>"), StoreError),
        (httpx.Response(200, text=""), StoreError),
    ],
)
def test_what_cannot_succeed_is_sent_once(answer: httpx.Response, raised: type[Exception]) -> None:
    handle, seen = answers(answer)
    with pytest.raises(raised):
        wire(handle).call("store_batch")
    assert len(seen) == 1


def test_problems_of_the_api_are_understood() -> None:
    problem = {
        "type": "urn:recall:problem:token", "status": 401, "detail": "this token was revoked",
        "hint": "join again",
    }  # fmt: skip
    handle, _ = answers(httpx.Response(401, json=problem))
    with pytest.raises(AccessError, match="was revoked") as caught:
        wire(handle).call("beat")
    assert caught.value.hint == "join again"


def test_a_large_body_goes_only_to_a_server_that_takes_the_token() -> None:
    large = b"[" + b" " * 1_000_000 + b"]"
    handle, seen = answers(error(401, "PGRST301"))
    with pytest.raises(AccessError):
        wire(handle).upload("message", "n", large)
    assert [request.method for request in seen] == ["GET"]
    handle, seen = answers(*[httpx.Response(201)] * 3)
    known = wire(handle)
    known.upload("message", "n", large)
    known.upload("message", "n", large)
    assert [request.method for request in seen] == ["GET", "POST", "POST"]


def test_a_broken_pipe_is_asked_about() -> None:
    large = b"[" + b" " * 1_000_000 + b"]"
    handle, seen = answers(httpx.Response(200), httpx.WriteError("x"), error(401, "PGRST303"))
    with pytest.raises(AccessError):
        wire(handle).upload("message", "n", large)
    assert [request.method for request in seen] == ["GET", "POST", "GET"]


def test_neither_token_nor_content_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "recall_ingester")
    told = {"message": f"value too long: {'content ' * 100}", "details": "Failing row (content)"}
    for status, code in [(503, "PGRST001"), (400, "22001"), (404, "PGRST204"), (401, "PGRST301")]:
        handle, _ = answers(*[error(status, code, **told)] * 10)
        with pytest.raises(Exception, match=r".") as caught:
            wire(handle).upload("message", "n", b'[{"content":"content"}]')
        hint = getattr(caught.value, "hint", "") or ""
        assert "content" not in f"{caught.value} {hint}"
    told_in_logs = " ".join(f"{vars(record)}" for record in caplog.records)
    assert "request sent again" in told_in_logs
    assert TOKEN not in told_in_logs
    assert "Failing row" not in told_in_logs


def test_idle_connections_end_before_the_server_closes_them() -> None:
    assert postgrest_http._KEEP_ALIVE_SECONDS < 28


def test_pauses_grow_differ_and_are_bounded() -> None:
    for attempt in range(1, 30):
        drawn = [pause_seconds(attempt) for _ in range(200)]
        assert 0 <= min(drawn) <= max(drawn) <= 15
        assert len(set(drawn)) > 100
    assert max(pause_seconds(1) for _ in range(200)) <= 0.1
    assert max(pause_seconds(8) for _ in range(200)) > 5
    asked_for = [pause_seconds(1, retry_after=5) for _ in range(200)]
    assert 5 <= min(asked_for) < max(asked_for) <= 7.5


def test_passes_that_fail_come_less_often_and_not_together() -> None:
    assert all(0.5 <= pause_after(1, 1.0) <= 2 for _ in range(100))
    drawn = [pause_after(500, 1.0) for _ in range(200)]
    assert 150 <= min(drawn) < max(drawn) <= 300
    assert max(drawn) - min(drawn) > 50
    assert all(1_800 <= pause_after(3, 3_600) <= 3_600 for _ in range(100))


def test_errors_are_counted_in_bounded_memory() -> None:
    errors = SinkErrors()
    for number in range(1_000):
        errors.add(f"C{number}")
    assert len(errors.as_json()) == 65
    assert sum(errors.as_json().values()) == 1_000


def item(size: int) -> Item:
    return Item(encode({"content": "x" * size}), Origin())


def test_requests_are_bounded_in_rows_and_bytes() -> None:
    made = list(parts(item(10) for _ in range(1_201)))
    assert [len(part.rows) for part in made] == [500, 500, 201]
    assert [n for part in made for n, _ in part.rows] == list(range(1_201))
    made = list(parts(item(300_000) for _ in range(40)))
    assert all(len(part.body("b" * 36)) <= 4_000_000 for part in made)
    assert len(made) == 4


def test_a_very_large_row_travels_alone() -> None:
    made = list(parts([item(10), item(32_000_000), item(10)]))
    assert [len(part.rows) for part in made] == [1, 1, 1]
    assert json.loads(made[1].body("b"))[0]["n"] == 1


def test_a_body_is_an_array_of_objects_with_batch_and_number() -> None:
    part = Part([(3, Item(encode({"a": "ä"}), Origin())), (4, Item(encode({"a": None}), Origin()))])
    assert json.loads(part.body("id")) == [
        {"batch": "id", "n": 3, "a": "ä"},
        {"batch": "id", "n": 4, "a": None},
    ]
    assert [half.rows for half in part.halves()] == [part.rows[:1], part.rows[1:]]


def test_text_that_is_no_unicode_becomes_json_all_the_same() -> None:
    assert json.loads(encode({"a": "\ud800"})) == {"a": "\ud800"}


def test_an_outage_is_told_with_its_beginning(tmp_path: Path) -> None:
    outage = Outage(tmp_path)

    def fail() -> str:
        with pytest.raises(StoreUnavailableError) as caught, outage.noted():
            raise StoreUnavailableError("no server answers", hint="start it")
        assert caught.value.hint == "start it"
        return caught.value.message

    first = fail()
    since = outage.since()
    assert since is not None
    assert first == f"no server answers, since {since:%Y-%m-%d %H:%M} UTC"
    (tmp_path / "run" / "unreachable-since").write_text("2026-01-02T03:04:05+00:00")
    assert fail() == "no server answers, since 2026-01-02 03:04 UTC"
    with outage.noted():
        pass
    assert outage.since() is None
