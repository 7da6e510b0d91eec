"""Who may ask the API: addresses, names, sites, methods and sizes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from recall.config import Settings
from recall_api import access
from recall_api.access import AccessMiddleware, Policy, judge

LAPTOP = "192.168.1.20"
SETTINGS = Settings(listen="10.1.2.3:7717", allowed_hosts=("recall.tailnet.example", "Box:7717"))
POLICY = Policy.of(SETTINGS)


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


def status_of(request: dict[str, Any], policy: Policy = POLICY) -> int:
    refusal = judge(policy, request)
    return 200 if refusal is None else refusal.status


OPEN_PEERS = [
    "127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "10.0.0.1", "172.16.0.1",
    "172.31.255.254", LAPTOP, "::ffff:192.168.1.20", "100.64.0.1", "100.127.255.254",
    "fd7a:115c:a1e0::1", "fc00::1", "fe80::1", "fe80::1%eth0",
]  # fmt: skip
SHUT_PEERS = [
    "8.8.8.8", "::ffff:8.8.8.8", "172.15.255.255", "172.32.0.1", "192.169.0.1", "100.63.255.255",
    "100.128.0.0", "11.0.0.1", "169.254.1.1", "0.0.0.0", "2001:db8::1", "2a00:1450::1",
    "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1", "::", "", "localhost", "127.0.0.1.evil.example",
    None,
]  # fmt: skip
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


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("peer", OPEN_PEERS)
def test_private_addresses_may_read(peer: str, method: str) -> None:
    assert status_of(scope(peer=peer, method=method)) == 200


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("peer", SHUT_PEERS)
def test_other_addresses_may_nothing(peer: str | None, method: str) -> None:
    assert status_of(scope(peer=peer, method=method)) == 403


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
    refusal = judge(POLICY, scope(method=method, peer=peer))
    assert refusal is not None
    assert (refusal.status, refusal.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("peer", ["127.0.0.1", LAPTOP, "8.8.8.8"])
@pytest.mark.parametrize(
    "header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Forwarded-Host", "Via"]
)
@pytest.mark.parametrize("value", ["127.0.0.1", "203.0.113.9", ""])
def test_forwarded_requests_are_refused_whatever_they_claim(
    header: str, value: str, peer: str
) -> None:
    assert status_of(scope(peer=peer, headers={header: value})) == 403


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


async def ask(app: AccessMiddleware, request: dict[str, Any]) -> int:
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(request, receive, send)
    return statuses[0]


def test_one_address_gets_so_many_answers_at_once_and_more_later() -> None:
    async def run() -> None:
        inner = Waiting()
        app = AccessMiddleware(inner, POLICY)
        first = [
            asyncio.create_task(ask(app, scope(peer=LAPTOP))) for _ in range(access.MOST_AT_ONCE)
        ]
        while inner.entered < access.MOST_AT_ONCE:
            await asyncio.sleep(0)
        assert await ask(app, scope(peer=LAPTOP)) == 429
        other = asyncio.create_task(ask(app, scope(peer="192.168.1.21")))
        health = asyncio.create_task(ask(app, scope(peer=LAPTOP, path="/health")))
        inner.release.set()
        assert await asyncio.gather(*first, other, health) == [200] * (access.MOST_AT_ONCE + 2)
        assert await ask(app, scope(peer=LAPTOP)) == 200

    asyncio.run(run())


def test_a_failed_answer_frees_its_place() -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError

    async def run() -> None:
        app = AccessMiddleware(fail, POLICY)
        for _ in range(access.MOST_AT_ONCE + 1):
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

        await AccessMiddleware(Waiting(), POLICY)({"type": "websocket"}, receive, send)
        return sent

    assert asyncio.run(run()) == [{"type": "websocket.close", "code": 1008}]
