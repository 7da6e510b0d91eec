"""Who may do what: addresses x headers x methods x tokens -> status.

The tables are those of ``docs/access.md``. Each way to come in is one of three callers, and what a
caller may do does not depend on the way.
"""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest

from recall.config import Settings, load_settings
from recall.errors import ConfigError
from recall_api.access import Policy
from recall_api.admission import AccessMiddleware
from recall_api.problems import Problem

SETTINGS = Settings(trusted_proxies=("127.0.0.1", "172.18.0.0/16", "fd00:5::/64"))
WITH_PROXIES = Policy.of(SETTINGS)
WITHOUT = Policy.of(Settings())

Headers = tuple[tuple[str, str], ...]
Way = tuple[str | None, Headers, Policy]


def xff(*lines: str) -> Headers:
    return tuple(("x-forwarded-for", line) for line in lines)


def fwd(*lines: str) -> Headers:
    return tuple(("forwarded", line) for line in lines)


#: Who comes how: the address of the connection, the headers, and the policy.
OPEN: list[Way] = [
    *[(peer, (), policy) for peer, policy in product(
        [
            "127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "10.0.0.1", "172.16.0.1",
            "172.31.255.254", "192.168.1.20", "::ffff:192.168.1.20", "100.64.0.1",
            "100.127.255.254", "::ffff:100.64.0.1", "fd7a:115c:a1e0::1", "fc00::1", "fe80::1",
            "fe80::1%eth0",
        ],
        [WITHOUT, WITH_PROXIES],
    )],
    ("127.0.0.1", xff("192.168.1.20"), WITH_PROXIES),
    ("::ffff:127.0.0.1", xff("192.168.1.20"), WITH_PROXIES),
    ("172.18.0.9", xff("192.168.1.20:5123"), WITH_PROXIES),
    ("fd00:5::9", xff("[fd00:6::1]:5123"), WITH_PROXIES),
    ("fd00:5::9", xff("::ffff:10.1.2.3"), WITH_PROXIES),
    ("127.0.0.1", fwd("for=192.168.1.20;proto=https"), WITH_PROXIES),
    ("127.0.0.1", fwd('For="[fd00:6::1]:47011"'), WITH_PROXIES),
    # What stands left of the hop that the last trusted proxy saw was written by the client.
    ("127.0.0.1", xff("8.8.8.8, 192.168.1.20"), WITH_PROXIES),
    ("127.0.0.1", xff("nonsense, 192.168.1.20, 172.18.0.4"), WITH_PROXIES),
    # A proxy that asks for itself.
    ("127.0.0.1", xff("127.0.0.1"), WITH_PROXIES),
    ("127.0.0.1", xff("172.18.0.4, 127.0.0.1"), WITH_PROXIES),
    # Both headers agree; what else proxies add says nothing.
    ("127.0.0.1", xff("10.9.9.9") + fwd("for=10.9.9.9"), WITH_PROXIES),
    ("127.0.0.1", (*xff("10.9.9.9"), ("via", "1.1 Caddy"), ("x-real-ip", "8.8.8.8")), WITH_PROXIES),
]  # fmt: skip
OUTSIDE: list[Way] = [
    *[(peer, (), policy) for peer, policy in product(
        [
            "8.8.8.8", "::ffff:8.8.8.8", "172.15.255.255", "172.32.0.1", "192.169.0.1",
            "100.63.255.255", "100.128.0.0", "11.0.0.1", "169.254.1.1", "0.0.0.0", "2001:db8::1",
            "2a00:1450::1", "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1", "::",
        ],
        [WITHOUT, WITH_PROXIES],
    )],
    ("127.0.0.1", xff("8.8.8.8"), WITH_PROXIES),
    ("172.18.0.9", xff("[2001:db8::1]:443"), WITH_PROXIES),
    ("172.18.0.9", xff("2001:db8::1"), WITH_PROXIES),
    ("127.0.0.1", fwd("for=8.8.8.8"), WITH_PROXIES),
    ("127.0.0.1", fwd('by=203.0.113.43;for="8.8.8.8:80"'), WITH_PROXIES),
    # A client that writes the header itself stands left of its own address.
    ("127.0.0.1", xff("127.0.0.1, 8.8.8.8"), WITH_PROXIES),
    ("127.0.0.1", xff("192.168.1.20", "8.8.8.8"), WITH_PROXIES),
    ("127.0.0.1", xff("10.0.0.1, 8.8.8.8, 172.18.0.4"), WITH_PROXIES),
    ("127.0.0.1", fwd("for=127.0.0.1, for=8.8.8.8"), WITH_PROXIES),
    ("127.0.0.1", fwd("for=127.0.0.1", "for=8.8.8.8"), WITH_PROXIES),
    ("127.0.0.1", fwd('for="10.0.0.1, for=10.0.0.2";x=y, for=8.8.8.8'), WITH_PROXIES),
    ("127.0.0.1", (*xff("8.8.8.8"), ("x-real-ip", "127.0.0.1")), WITH_PROXIES),
    ("127.0.0.1", (*xff("8.8.8.8"), ("cf-connecting-ip", "10.0.0.1")), WITH_PROXIES),
]  # fmt: skip
NOBODY: list[Way] = [
    *[(peer, (), WITHOUT) for peer in (None, "", "localhost", "127.0.0.1.evil.example")],
    # From any peer that is no trusted proxy, forwarding is refused, whatever it says.
    *[(peer, ((name, value),), policy) for peer, name, value, policy in product(
        ["10.0.0.9", "8.8.8.8"],
        ["x-forwarded-for", "forwarded", "x-real-ip", "x-forwarded-host", "via", "x-client-ip",
         "true-client-ip", "cf-connecting-ip"],
        ["127.0.0.1", "for=127.0.0.1", "203.0.113.9", ""],
        [WITHOUT, WITH_PROXIES],
    )],
    ("127.0.0.1", xff("10.0.0.1"), WITHOUT),
    # A trusted proxy that does not tell, or tells nothing that is an address.
    *[("127.0.0.1", headers, WITH_PROXIES) for headers in (
        (("via", "1.1 proxy"),), (("x-real-ip", "10.0.0.1"),), (("x-forwarded-host", "x"),),
        xff(""), xff("unknown"), xff("10.0.0.1, "), xff("10.0.0.1,unknown"), xff("1.2.3"),
        xff("10.0.0.1:port"), xff("localhost"), xff("[10.0.0.1]x"), xff("10.0.0.1, ", ""),
        fwd(""), fwd("for=unknown"), fwd("for=_hidden"), fwd("proto=https"), fwd("10.0.0.1"),
        fwd("for=10.0.0.1;for=10.0.0.2"), fwd('for="10.0.0.1'), fwd("for=10.0.0.1,"),
        fwd("for=10.0.0.1, proto=https"),
    )],
    # One of two headers is the client's own invention, and nobody knows which.
    ("127.0.0.1", xff("8.8.8.8") + fwd("for=10.0.0.1"), WITH_PROXIES),
    ("127.0.0.1", xff("10.0.0.1") + fwd("for=8.8.8.8"), WITH_PROXIES),
    ("127.0.0.1", xff("10.0.0.1") + fwd("for=unknown"), WITH_PROXIES),
]  # fmt: skip
CALLERS: dict[str, list[Way]] = {"open": OPEN, "outside": OUTSIDE, "nobody": NOBODY}

READ = [("GET", "/search"), ("HEAD", "/sessions/x"), ("GET", "/health"), ("GET", "/metrics")]
WRITE = [
    ("POST", "/rest/incoming_key"),
    ("POST", "/rest/rpc/store_batch"),
    ("GET", "/rest/incoming_session"),
    ("HEAD", "/rest/incoming_session"),
]
JOIN = [("POST", "/join")]
OTHER = [("POST", "/search"), ("DELETE", "/sessions/x"), ("PUT", "/"), ("OPTIONS", "/search")]
#: What a caller may do: no token, one that counts, one that does not, one that cannot be checked.
STATUS = [
    ("open", READ, (200, 200, 401, 200)),
    ("open", WRITE, (401, 200, 401, 503)),
    ("open", JOIN, (200, 200, 200, 200)),
    ("open", OTHER, (405, 405, 405, 405)),
    ("outside", READ, (401, 200, 401, 503)),
    ("outside", WRITE, (401, 200, 401, 503)),
    ("outside", JOIN, (200, 200, 200, 200)),
    ("outside", OTHER, (401, 405, 405, 405)),
    ("nobody", [*READ, *WRITE, *JOIN, *OTHER], (403, 403, 403, 403)),
]
TOKENS = (None, "good", "bad", "unknown")


class Tokens:
    """The store's answers, by what the token says of itself."""

    async def refusal(self, token: str) -> Problem | None:
        statuses = {"good": None, "unknown": 503}
        status = statuses.get(token, 401)
        return None if status is None else Problem(status, "token", token)


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def ask(
    policy: Policy, peer: str | None, headers: Headers, method: str, path: str, token: str | None
) -> int:
    statuses: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    given = [("host", "localhost"), *headers]
    if token is not None:
        given.append(("authorization", f"Bearer {token}"))
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "client": (peer, 50_000) if peer is not None else None,
        "headers": [(name.encode(), value.encode()) for name, value in given],
    }
    await AccessMiddleware(answer, policy, Tokens(), 60)(scope, receive, send)
    return statuses[0]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize(
    ("caller", "requests", "statuses"), STATUS, ids=lambda value: str(value)[:24]
)
def test_what_a_caller_may_do(
    caller: str, requests: list[tuple[str, str]], statuses: tuple[int, ...], token: str | None
) -> None:
    expected = statuses[TOKENS.index(token)]

    ways = [(way, what) for way in CALLERS[caller] for what in requests]

    async def run() -> list[int]:
        return [await ask(policy, peer, headers, *what, token)
                for (peer, headers, policy), what in ways]  # fmt: skip

    found = asyncio.run(run())
    assert [way for way, status in zip(ways, found, strict=True) if status != expected] == []


@pytest.mark.parametrize(
    ("value", "token"),
    [
        ("Bearer good", 200),
        ("bearer good", 200),
        ("Bearer  good ", 200),
        ("Basic Z29vZDpnb29k", 401),
        ("good", 401),
        ("Bearer", 401),
        ("Bearer good, good", 401),
    ],
)
def test_only_a_bearer_token_counts(value: str, token: int) -> None:
    headers = (("authorization", value),)
    status = asyncio.run(ask(WITHOUT, "8.8.8.8", headers, "GET", "/search", None))
    assert status == token


def test_of_two_tokens_none_counts() -> None:
    headers = (("authorization", "Bearer good"),)
    assert asyncio.run(ask(WITHOUT, "8.8.8.8", headers, "GET", "/search", "good")) == 401


def test_a_password_for_a_proxy_is_no_token() -> None:
    headers = (("authorization", "Basic Z29vZDpnb29k"),)
    assert asyncio.run(ask(WITHOUT, "10.0.0.1", headers, "GET", "/search", None)) == 200


@pytest.mark.parametrize("value", ["*", "0.0.0.0/0", "::/0", "10.0.0.1,*", "proxy", "10.0.0.1/8"])
def test_not_everybody_can_be_a_trusted_proxy(value: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_settings({"RECALL_TRUSTED_PROXIES": value, "RECALL_HOME": "/nonexistent"})
    assert "RECALL_TRUSTED_PROXIES" in error.value.message


@pytest.mark.parametrize("value", ["*", "null", "notes.example", "https://x.example/path", "a b"])
def test_not_every_page_can_be_let_in(value: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_settings({"RECALL_CORS_ORIGINS": value, "RECALL_HOME": "/nonexistent"})
    assert "RECALL_CORS_ORIGINS" in error.value.message
