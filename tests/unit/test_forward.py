"""What goes on to PostgREST, what comes back, and what stands in for it while it is away."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from recall_api.forward import Forwarder
from tests.db.serving import running
from tests.double.ports import TakenPort

TOKEN = {"Authorization": "Bearer a.b.c"}


async def tell(request: Request) -> Response:
    """A stand-in for PostgREST that answers with what it got."""
    told = {
        "method": request.method,
        "path": request.scope["raw_path"].decode(),
        "query": request.scope["query_string"].decode(),
        "headers": sorted(request.headers.items()),
        "body": (await request.body()).decode("latin-1"),
    }
    headers = {"Content-Range": "0-1/*", "Preference-Applied": "return=minimal", "Server": "x",
               "Location": "/incoming_key?n=eq.1", "Set-Cookie": "a=b"}  # fmt: skip
    status = int(request.query_params.get("status", "201"))
    return JSONResponse(told, status, headers=headers)


def postgrest() -> FastAPI:
    app = FastAPI()
    app.router.routes.append(Route("/base/{path:path}", tell, methods=["GET", "POST"]))
    return app


@contextmanager
def forwarding(rest_url: str | None) -> Iterator[httpx.Client]:
    forwarder = Forwarder(rest_url)

    async def forward(request: Request) -> Response:
        return await forwarder.forward(request, request.path_params["path"])

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await forwarder.close()

    app = FastAPI(lifespan=lifespan)
    app.add_route("/rest/{path:path}", forward, ["GET", "POST"])
    with running(app) as client:
        yield client


@pytest.fixture(scope="module")
def rest() -> Iterator[httpx.Client]:
    with (
        running(postgrest()) as upstream,
        forwarding(f"{str(upstream.base_url).rstrip('/')}/base") as client,
    ):
        yield client


def test_a_request_arrives_as_it_was_sent(rest: httpx.Client) -> None:
    query = "columns=n,batch&on_conflict=a%2Cb&x=%E2%82%AC"
    body = json.dumps([{"content": "ü €"}], ensure_ascii=False).encode()
    sent = TOKEN | {"Prefer": "resolution=merge-duplicates,return=minimal"}
    answer = rest.post(
        f"/rest/incoming_key?{query}",
        content=body,
        headers=sent | {"Content-Type": "application/json"},
    )
    assert answer.status_code == 201
    told = answer.json()
    assert (told["method"], told["path"], told["query"]) == ("POST", "/base/incoming_key", query)
    assert told["body"].encode("latin-1") == body
    headers = dict(told["headers"])
    assert headers["authorization"] == "Bearer a.b.c"
    assert headers["prefer"] == sent["Prefer"]
    assert headers["content-type"] == "application/json"


def test_only_what_the_protocol_needs_goes_on_and_comes_back(rest: httpx.Client) -> None:
    noise = {"Cookie": "a=b", "X-Forwarded-For": "1.2.3.4", "TE": "trailers", "X-Other": "x",
             "Connection": "keep-alive, x-other", "Role": "postgres"}  # fmt: skip
    assert rest.post("/rest/rpc/store_batch", headers=TOKEN).status_code == 201  # sets a cookie
    answer = rest.post("/rest/rpc/store_batch", content=b"{}", headers=TOKEN | noise)
    names = {name for name, _ in answer.json()["headers"]}
    assert names == {
        "accept", "accept-encoding", "authorization", "content-length", "host", "user-agent",
    }  # fmt: skip
    assert dict(answer.json()["headers"])["accept-encoding"] == "identity"
    assert answer.headers["content-range"] == "0-1/*"
    assert answer.headers["preference-applied"] == "return=minimal"
    assert answer.headers["content-type"] == "application/json"
    assert not {"set-cookie", "location"} & set(answer.headers)
    assert answer.headers["server"] == "uvicorn"


def speak(rest: httpx.Client, request: bytes) -> bytes:
    """The answer to bytes that no client library would send."""
    assert rest.base_url.port is not None
    with socket.create_connection((rest.base_url.host, rest.base_url.port), 60) as line:
        line.sendall(request)
        return b"".join(iter(lambda: line.recv(65_536), b""))


@pytest.mark.parametrize("length", [b"0", b"1", b"400"])
def test_of_two_lengths_of_a_body_only_the_counted_one_goes_on(
    length: bytes, rest: httpx.Client
) -> None:
    head = b"POST /rest/incoming_key HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    lengths = b"Content-Length: " + length + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = speak(rest, head + lengths + b"2\r\n{}\r\n0\r\n\r\n")
    assert b" 201 " in answer.split(b"\r\n")[0]
    told = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert told["body"] == "{}"
    assert dict(told["headers"])["content-length"] == "2"
    assert "transfer-encoding" not in dict(told["headers"])


@pytest.mark.parametrize(
    "head", [b"/rest/incoming_key?n=1#x HTTP/1.1", b"/rest/incoming_key HTTP/1.1\r\nPrefer: \xff"]
)
def test_what_cannot_be_said_to_postgrest_is_refused(head: bytes, rest: httpx.Client) -> None:
    answer = speak(
        rest, b"POST " + head + b"\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert b" 400 " in answer.split(b"\r\n")[0]


@pytest.mark.parametrize("status", [200, 400, 401, 403, 409, 500, 503])
def test_an_answer_comes_back_untouched(status: int, rest: httpx.Client) -> None:
    answer = rest.post(f"/rest/incoming_key?status={status}", headers=TOKEN)
    assert answer.status_code == status
    assert answer.json()["method"] == "POST"
    assert answer.headers["content-length"] == str(len(answer.content))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "incoming_session?limit=0", 201),
        ("GET", "session", 405),
        ("GET", "rpc/search_text?q=x", 405),
        ("GET", "", 404),
        ("POST", "", 404),
        ("POST", "rpc/", 404),
        ("POST", "rpc/a/b", 404),
        ("POST", "../admin", 404),
        ("POST", "%2e%2e/admin", 404),
        ("POST", "incoming_key%2f..%2fx", 404),
        ("POST", "incoming_key%3fa", 404),
        ("POST", "incoming_key%0d%0ax", 404),
        ("POST", "http:%2f%2fevil.example", 404),
        ("POST", "Incoming_Key", 404),
    ],
)
def test_only_tables_and_functions_are_reached(
    method: str, path: str, status: int, rest: httpx.Client
) -> None:
    assert rest.request(method, f"/rest/{path}", headers=TOKEN).status_code == status


def test_while_postgrest_is_away_the_client_is_told_when_to_come_back() -> None:
    with TakenPort() as nobody, forwarding(nobody.url) as rest:
        answer = rest.post("/rest/incoming_key", headers=TOKEN)
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert answer.json()["type"] == "urn:recall:problem:store-unavailable"
    assert "nothing was written" in answer.json()["hint"]


def test_a_server_without_postgrest_says_what_to_set() -> None:
    with forwarding(None) as rest:
        answer = rest.post("/rest/incoming_key", headers=TOKEN)
    assert answer.status_code == 404
    assert "RECALL_REST_URL" in answer.json()["hint"]


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (httpx.ReadTimeout, 504),
        (httpx.WriteTimeout, 504),
        (httpx.ReadError, 503),
        (httpx.RemoteProtocolError, 503),
        (httpx.PoolTimeout, 503),
        (httpx.ConnectTimeout, 503),
    ],
)
def test_a_write_whose_outcome_is_unknown_is_called_so(
    failure: type[httpx.TransportError], status: int
) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise failure("", request=request)

    async def forward(request: Request) -> Response:
        forwarder = Forwarder("http://postgrest:3000", transport=httpx.MockTransport(fail))
        return await forwarder.forward(request, "incoming_key")

    app = FastAPI()
    app.add_route("/", forward, ["POST"])
    with running(app) as client:
        answer = client.post("/")
    assert answer.status_code == status
    certain = failure in (httpx.PoolTimeout, httpx.ConnectTimeout)
    assert ("may have been written" in answer.json()["hint"]) is not certain


def test_a_large_answer_is_passed_on_in_pieces_and_an_unfinished_one_is_not_completed() -> None:
    async def cut(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"4000000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(1_000_000), "more_body": True})

    app = FastAPI()
    app.mount("/", cut)
    with running(app) as upstream, forwarding(str(upstream.base_url).rstrip("/")) as rest:  # noqa: SIM117
        with pytest.raises(httpx.RemoteProtocolError):
            rest.post("/rest/rpc/checkpoints", headers=TOKEN)
