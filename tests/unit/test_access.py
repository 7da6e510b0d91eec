"""Who may ask the API: names, sites, methods and sizes; how much at once, and how long.

Addresses, proxies and tokens have a table of their own in ``test_access_table.py``.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from recall.config import Settings
from recall_api import access, admission
from recall_api.access import REST, Policy, Visit, judge
from recall_api.admission import AccessMiddleware
from recall_api.problems import Problem

LAPTOP = "192.168.1.20"
SETTINGS = Settings(listen="10.1.2.3:7717", allowed_hosts=("recall.tailnet.example", "Box:7717"))
POLICY = Policy.of(SETTINGS)


TOKEN = {"authorization": "Bearer x"}
ORIGIN = "https://notes.example"
OPEN_TO_PAGES = Policy.of(Settings(cors_origins=(ORIGIN,)))


def scope(
    *,
    peer: str | None = "127.0.0.1",
    host: str | None = "localhost:7717",
    method: str = "GET",
    path: str = "/search",
    query: bytes = b"q=x",
    headers: dict[str, str] | None = None,
) -> dict[str, Any]:
    given = dict(headers or {})
    if host is not None:
        given["host"] = host
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "client": (peer, 50_000) if peer is not None else None,
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }


def refusal_of(request: dict[str, Any], policy: Policy = POLICY) -> Problem | None:
    verdict = judge(policy, request)
    return verdict if isinstance(verdict, Problem) else None


def status_of(request: dict[str, Any], policy: Policy = POLICY) -> int:
    refusal = refusal_of(request, policy)
    return 200 if refusal is None else refusal.status


KNOWN_HOSTS = [
    "localhost", "localhost:7717", "LOCALHOST:1", "localhost.", "127.0.0.1", "127.0.0.1:80",
    "[::1]", "[::1]:7717", "192.168.1.20:7717", "10.1.2.3", "100.101.102.103", "[fd7a::1]:7717",
    "[fe80::1]", "169.254.7.7", "[::ffff:127.0.0.1]", "recall.tailnet.example",
    "Recall.Tailnet.Example:443",
    "box", "box:9",
]  # fmt: skip
UNKNOWN_HOSTS = [
    "evil.example", "evil.example:7717", "localhost.evil.example", "127.0.0.1.evil.example",
    "evil.example@localhost", "localhost@evil.example", "8.8.8.8", "[2001:db8::1]", "2130706433",
    "0x7f000001", "127.1", "0.0.0.0:7717", "[::]", "", ".", "localhost:port", "local host",
    "[::1", "::1", "tailnet.example", "*", "localhost/../", "localhost#", None,
]  # fmt: skip


@pytest.mark.parametrize("peer", ["127.0.0.1", LAPTOP, "fd00::2"])
@pytest.mark.parametrize("host", KNOWN_HOSTS)
def test_known_names_are_answered(host: str, peer: str) -> None:
    assert status_of(scope(host=host, peer=peer)) == 200


@pytest.mark.parametrize("peer", ["127.0.0.1", LAPTOP])
@pytest.mark.parametrize("host", UNKNOWN_HOSTS)
def test_unknown_names_are_refused(host: str | None, peer: str) -> None:
    assert status_of(scope(host=host, peer=peer)) == 403


def test_two_host_headers_are_refused() -> None:
    request = scope()
    request["headers"].append((b"Host", b"localhost"))
    assert status_of(request) == 403


@pytest.mark.parametrize("listen", ["0.0.0.0:7717", "[::]:7717"])
def test_listening_everywhere_names_nobody(listen: str) -> None:
    policy = Policy.of(Settings(listen=listen))
    assert policy.names == {"localhost"}
    assert status_of(scope(host=listen), policy) == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"])
@pytest.mark.parametrize("peer", ["127.0.0.1", LAPTOP])
def test_only_reading_methods_are_answered(method: str, peer: str) -> None:
    refusal = refusal_of(scope(method=method, peer=peer))
    assert refusal is not None
    assert (refusal.status, refusal.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    ("path", "allowed"), [("/join", "POST"), ("/rest/incoming_session", "POST, GET, HEAD")]
)
def test_where_hosts_write_other_methods_are_refused(path: str, allowed: str, method: str) -> None:
    refusal = refusal_of(scope(method=method, path=path, headers=TOKEN))
    assert refusal is not None
    assert (refusal.status, refusal.headers["Allow"]) == (405, allowed)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://localhost:7717"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_pages_of_other_sites_cannot_ask(headers: dict[str, str], status: int) -> None:
    assert status_of(scope(headers=headers)) == status


@pytest.mark.parametrize(
    ("headers", "path", "method", "status"),
    [
        ({"origin": ORIGIN}, "/search", "GET", 200),
        ({"origin": ORIGIN, "sec-fetch-site": "cross-site"}, "/search", "GET", 200),
        ({"origin": ORIGIN.upper()}, "/search", "GET", 200),
        ({"sec-fetch-site": "cross-site"}, "/search", "GET", 403),
        ({"origin": "http://notes.example"}, "/search", "GET", 403),
        ({"origin": "https://notes.example:444"}, "/search", "GET", 403),
        ({"origin": "https://x.notes.example"}, "/search", "GET", 403),
        ({"origin": "null"}, "/search", "GET", 403),
        ({"origin": ORIGIN}, "/join", "POST", 403),
        ({"origin": ORIGIN, **TOKEN}, "/rest/incoming_key", "POST", 403),
        ({"origin": "http://localhost:7717"}, "/join", "POST", 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, "/join", "POST", 403),
        ({"origin": ORIGIN}, "/search", "OPTIONS", 405),
    ],
)
def test_pages_of_configured_sites_read_and_never_write(
    headers: dict[str, str], path: str, method: str, status: int
) -> None:
    request = scope(headers=headers, path=path, method=method)
    assert status_of(request, OPEN_TO_PAGES) == status


def test_the_host_of_the_public_address_is_known() -> None:
    policy = Policy.of(Settings(public_url="https://recall.home.example:8443/x"))
    assert policy.names == {"localhost", "127.0.0.1", "recall.home.example"}


@pytest.mark.parametrize(
    ("request_scope", "status"),
    [
        (scope(query=b"q=" + b"x" * (access.LONGEST_QUERY_BYTES - 2)), 200),
        (scope(query=b"q=" + b"x" * (access.LONGEST_QUERY_BYTES - 1)), 414),
        (scope(path="/" + "x" * access.LONGEST_PATH_BYTES), 414),
        (scope(headers={"x-long": "x" * access.LONGEST_HEADERS_BYTES}), 431),
        (scope(headers={"content-length": "0"}), 200),
        (scope(headers={"content-length": "1"}), 413),
        (scope(headers={"transfer-encoding": "chunked"}), 413),
        (scope(query=b"q=a%00b"), 400),
        (scope(path="/sessions/a\x00b"), 400),
    ],
)
def test_requests_are_bounded(request_scope: dict[str, Any], status: int) -> None:
    assert status_of(request_scope) == status


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/rest/incoming_key", {"content-length": "75497472"}, 200),
        ("/rest/incoming_key", {"content-length": "75497473"}, 413),
        ("/rest/incoming_key", {"content-length": "9" * 30}, 413),
        ("/rest/incoming_key", {"content-length": "-1"}, 413),
        ("/rest/incoming_key", {"transfer-encoding": "chunked"}, 200),
        ("/rest/incoming_key", {"content-length": "9", "content-encoding": "gzip"}, 415),
        ("/rest/incoming_key", {"content-length": "9", "content-encoding": "identity"}, 200),
        ("/join", {"content-length": "4096"}, 200),
        ("/join", {"content-length": "4097"}, 413),
        ("/join/", {"content-length": "1"}, 405),
        ("/restless", {"content-length": "1"}, 405),
    ],
)
def test_bodies_are_bounded_by_what_the_path_is_for(
    path: str, headers: dict[str, str], status: int
) -> None:
    assert status_of(scope(path=path, method="POST", headers=TOKEN | headers)) == status


class Waiting:
    """An application whose answers end when the test says so."""

    def __init__(self) -> None:
        self.entered = 0
        self.release = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.entered += 1
        await self.release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Tokens:
    """Says of each token what the test wants."""

    def __init__(self, refusal: Problem | None = None) -> None:
        self.answer = refusal
        self.asked: list[str] = []

    async def refusal(self, token: str) -> Problem | None:
        self.asked.append(token)
        return self.answer


def guarded(
    inner: Any, tokens: Tokens | None = None, *, policy: Policy = POLICY, seconds: float = 60
) -> AccessMiddleware:
    return AccessMiddleware(inner, policy, tokens or Tokens(), seconds)


def pieces(*bodies: bytes, then: str = "http.disconnect") -> Any:
    """A ``receive`` that gives the pieces of a body, and then says that the client is gone."""
    left = [
        {"type": "http.request", "body": body, "more_body": at < len(bodies)}
        for at, body in enumerate(bodies, 1)
    ]

    async def receive() -> dict[str, Any]:
        return left.pop(0) if left else {"type": then}

    return receive


async def exchange(app: AccessMiddleware, request: dict[str, Any], receive: Any) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await app(request, receive, send)
    return sent


async def ask(app: AccessMiddleware, request: dict[str, Any], receive: Any = None) -> int:
    sent = await exchange(app, request, receive or pieces(b""))
    return int(sent[0]["status"])


def test_one_address_gets_so_many_answers_at_once_and_more_later() -> None:
    async def run() -> None:
        inner = Waiting()
        app = guarded(inner)
        first = [
            asyncio.create_task(ask(app, scope(peer=LAPTOP))) for _ in range(admission.MOST_AT_ONCE)
        ]
        while inner.entered < admission.MOST_AT_ONCE:
            await asyncio.sleep(0)
        assert await ask(app, scope(peer=LAPTOP)) == 429
        other = asyncio.create_task(ask(app, scope(peer="192.168.1.21")))
        health = asyncio.create_task(ask(app, scope(peer=LAPTOP, path="/health")))
        inner.release.set()
        assert await asyncio.gather(*first, other, health) == [200] * (admission.MOST_AT_ONCE + 2)
        assert await ask(app, scope(peer=LAPTOP)) == 200

    asyncio.run(run())


def test_a_failed_answer_frees_its_place() -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError

    async def run() -> None:
        app = guarded(fail)
        for _ in range(admission.MOST_AT_ONCE + 1):
            with pytest.raises(RuntimeError):
                await ask(app, scope())

    asyncio.run(run())


def test_a_websocket_is_closed_before_it_opens() -> None:
    async def run() -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> dict[str, Any]:
            raise AssertionError

        await guarded(Waiting())({"type": "websocket"}, receive, send)
        return sent

    assert asyncio.run(run()) == [{"type": "websocket.close", "code": 1008}]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the body that it got, and knows when the client is gone."""
    message = await receive()
    gone = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"] + gone["type"].encode()})


def rest(**headers: str) -> dict[str, Any]:
    return scope(path="/rest/incoming_key", method="POST", headers=TOKEN | headers)


def test_a_body_arrives_whole_however_it_was_cut() -> None:
    request = rest(**{"transfer-encoding": "chunked"})
    sent = asyncio.run(exchange(guarded(echo), request, pieces(b"ab", b"", b"c")))
    assert sent[1]["body"] == b"abchttp.disconnect"


def test_a_body_without_a_length_is_counted() -> None:
    bodies = [bytes(20_000_000)] * 4
    request = rest(**{"transfer-encoding": "chunked"})
    sent = asyncio.run(exchange(guarded(Waiting()), request, pieces(*bodies)))
    assert sent[0]["status"] == 413
    assert (b"connection", b"close") in sent[0]["headers"]


def test_a_slow_body_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "REST", replace(REST, body_seconds=0.05))

    async def run() -> list[Any]:
        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0.01)  # one byte at a time, for ever
            return {"type": "http.request", "body": b"x", "more_body": True}

        return await exchange(guarded(Waiting()), rest(**{"content-length": "4000"}), receive)

    sent = asyncio.run(run())
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


def test_a_client_that_leaves_within_its_body_gets_no_answer() -> None:
    inner = Waiting()
    request = rest(**{"content-length": "4000"})
    assert asyncio.run(exchange(guarded(inner), request, pieces())) == []
    assert inner.entered == 0


def test_a_token_is_checked_before_a_byte_of_the_body_is_read() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    tokens = Tokens(Problem(401, "token", "revoked"))
    sent = asyncio.run(
        exchange(guarded(Waiting(), tokens), rest(**{"content-length": "4000"}), receive)
    )
    assert sent[0]["status"] == 401
    assert (b"connection", b"close") in sent[0]["headers"]
    assert tokens.asked == ["x"]


def test_an_answer_that_takes_too_long_ends() -> None:
    sent = asyncio.run(exchange(guarded(Waiting(), seconds=0.01), scope(), pieces(b"")))
    assert sent[0]["status"] == 504


def test_an_answer_that_has_begun_is_cut_and_not_mixed_with_another() -> None:
    async def begin(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    sent = asyncio.run(exchange(guarded(begin, seconds=0.01), scope(), pieces(b"")))
    assert [message["type"] for message in sent] == ["http.response.start"]


def test_only_a_configured_site_may_read_the_answer_and_without_credentials() -> None:
    async def run(origin: str) -> dict[bytes, bytes]:
        app = guarded(echo, policy=OPEN_TO_PAGES)
        request = scope(headers={"origin": origin})
        sent = await exchange(app, request, pieces(b""))
        return dict(sent[0]["headers"])

    headers = asyncio.run(run(ORIGIN))
    assert headers[b"access-control-allow-origin"] == ORIGIN.encode()
    assert headers[b"vary"] == b"Origin"
    assert b"access-control-allow-credentials" not in headers
    for other in ("http://localhost:7717", "https://evil.example"):
        assert b"access-control-allow-origin" not in asyncio.run(run(other))


def test_public_ipv6_addresses_of_one_customer_share_their_places() -> None:
    shares = [
        judge(POLICY, scope(peer=peer, headers=TOKEN))
        for peer in ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", "2001:db8:1:3::1", "fd00::1")
    ]
    assert [visit.share for visit in shares if isinstance(visit, Visit)] == [
        "2001:db8:1:2::/64", "2001:db8:1:2::/64", "2001:db8:1:3::/64", "fd00::1",
    ]  # fmt: skip


def test_what_waits_in_memory_is_bounded_by_address_and_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "MOST_HELD_BYTES", 10)
    monkeypatch.setattr(admission, "MOST_HELD_BYTES_AT_ALL", 15)
    inner = Waiting()
    app = guarded(inner)

    async def post(peer: str, size: int) -> int:
        request = {**rest(**{"content-length": str(size)}), "client": (peer, 50_000)}
        sent = await exchange(app, request, pieces(bytes(size)))
        return int(sent[0]["status"])

    async def run() -> None:
        first = asyncio.create_task(post("10.0.0.1", 10))
        while inner.entered < 1:
            await asyncio.sleep(0)
        assert await post("10.0.0.1", 1) == 429
        assert await post("10.0.0.2", 6) == 429
        second = asyncio.create_task(post("10.0.0.2", 5))
        while inner.entered < 2:
            await asyncio.sleep(0)
        inner.release.set()
        assert (await first, await second) == (200, 200)
        assert await post("10.0.0.2", 10) == 200
        assert not await exchange(app, rest(**{"content-length": "4"}), pieces())
        assert await post("127.0.0.1", 10) == 200

    asyncio.run(run())
