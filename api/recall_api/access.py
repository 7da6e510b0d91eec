"""Who may ask, under which name, how, and how much at once. Nothing else looks at a request first.

The read API is open without a token, so three doors to the outside are shut:

- The peer must be on this machine or on a private network. Only the address of the connection
  counts. A request that says it was forwarded comes through a proxy, behind which anybody may
  stand; as no proxy can be configured as trusted, it is refused and never believed.
- The ``Host`` header must be a known name or a private address. Otherwise a web page could point a
  name of its own at this machine and read the answers (DNS rebinding).
- A browser must not ask on behalf of another site, not even without reading the answer: whether and
  when an answer comes tells what is stored.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Receive, Scope, Send

from recall.config import Settings
from recall_api.problems import Problem

LONGEST_QUERY_BYTES = 8_192
LONGEST_PATH_BYTES = 4_096
LONGEST_HEADERS_BYTES = 16_384
#: Requests of one address that are worked on at the same time; health checks count by themselves.
MOST_AT_ONCE = 8
_METHODS = ("GET", "HEAD")

_LOOPBACK = ("127.0.0.0/8", "::1/128")
_PRIVATE = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "fc00::/7",
    "fe80::/10",
)
_OPEN_NETWORKS = [ipaddress.ip_network(block) for block in (*_LOOPBACK, *_PRIVATE)]
#: A private address cannot be rebound: the browser already knows whom it talks to.
_HOST_NETWORKS = [*_OPEN_NETWORKS, ipaddress.ip_network("169.254.0.0/16")]

#: What proxies add to tell whom they ask for.
_FORWARDING = frozenset({
    b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"x-client-ip",
    b"true-client-ip", b"cf-connecting-ip",
})  # fmt: skip

_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@/\s]+))(?::[0-9]{0,5})?")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Policy:
    """The names under which this API may be addressed."""

    names: frozenset[str]

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        """``localhost``, the host part of ``listen`` and ``allowed_hosts``."""
        given = ("localhost", settings.listen, *settings.allowed_hosts)
        return cls(frozenset(name for text in given if (name := _usable_name(text))))


def judge(policy: Policy, scope: Scope) -> Problem | None:
    """Why a request is refused, or ``None``: host, site, peer, method and size, in this order."""
    headers: list[tuple[bytes, bytes]] = list(scope["headers"])
    return (
        _judge_host(policy, headers)
        or _judge_site(headers)
        or _judge_peer(scope.get("client"), headers)
        or _judge_method(scope["method"])
        or _judge_size(scope, headers)
    )


def _judge_host(policy: Policy, headers: list[tuple[bytes, bytes]]) -> Problem | None:
    hosts = _values(headers, b"host")
    name = _host_name(hosts[0]) if len(hosts) == 1 else None
    if name is not None and (name in policy.names or _is_in(_address(name), _HOST_NETWORKS)):
        return None
    return Problem(
        403,
        "access",
        "the API is not known under the name in the `Host` header",
        "use localhost or an IP address, or add the name to RECALL_ALLOWED_HOSTS",
    )


def _judge_site(headers: list[tuple[bytes, bytes]]) -> Problem | None:
    """Browsers say from which site a page asks; a link that a person follows is no page's doing."""
    host = _values(headers, b"host")[0].lower()
    origins = [origin.lower() for origin in _values(headers, b"origin")]
    foreign = any(origin.partition("://")[2] != host for origin in origins)
    if _values(headers, b"sec-fetch-site") == ["cross-site"]:
        foreign = foreign or _values(headers, b"sec-fetch-mode") != ["navigate"]
    if foreign:
        return Problem(403, "access", "pages of other sites cannot ask this API")
    return None


def _judge_peer(
    client: tuple[str, int] | None, headers: list[tuple[bytes, bytes]]
) -> Problem | None:
    if client is None or not _is_in(_address(client[0]), _OPEN_NETWORKS):
        return Problem(
            403,
            "access",
            "the API answers only to this machine, private networks and the tailnet",
            "reach it through an SSH tunnel or a VPN",
        )
    if any(name.lower() in _FORWARDING for name, _ in headers):
        return Problem(
            403,
            "access",
            "the request was forwarded by a proxy, so nobody knows who asks",
            "ask the API directly, or through an SSH tunnel or a VPN",
        )
    return None


def _judge_method(method: str) -> Problem | None:
    if method in _METHODS:
        return None
    return Problem(
        405, "method", "only GET and HEAD are answered", headers={"Allow": ", ".join(_METHODS)}
    )


def _judge_size(scope: Scope, headers: list[tuple[bytes, bytes]]) -> Problem | None:
    if len(scope["query_string"]) > LONGEST_QUERY_BYTES:
        return Problem(
            414, "too-long", f"the query string is over {LONGEST_QUERY_BYTES} bytes",
            "search for a shorter part of the text",
        )  # fmt: skip
    if len(scope.get("raw_path") or scope["path"].encode()) > LONGEST_PATH_BYTES:
        return Problem(414, "too-long", f"the path is over {LONGEST_PATH_BYTES} bytes")
    if sum(len(name) + len(value) for name, value in headers) > LONGEST_HEADERS_BYTES:
        return Problem(431, "too-long", f"the headers are over {LONGEST_HEADERS_BYTES} bytes")
    lengths = _values(headers, b"content-length")
    if _values(headers, b"transfer-encoding") or any(length != "0" for length in lengths):
        return Problem(413, "too-long", "a request that reads has no body")
    if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
        return Problem(400, "usage", "the request holds a NUL character, which no text here has")
    return None


def _values(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for name, value in headers if name.lower() == wanted]


def _usable_name(text: str) -> str | None:
    """A configured name; an address that means every address names nobody."""
    address = _address(text)
    if address is None:
        name = _host_name(text)
        address = _address(name) if name else None
    else:
        name = str(address)
    return None if address is not None and address.is_unspecified else name


def _host_name(authority: str) -> str | None:
    """The name in ``name:port``, in the one form in which names are compared."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        return None
    name = (match["v6"] or match["name"]).lower().removesuffix(".")
    address = _address(name)
    return str(address) if address is not None else name or None


def _address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def _is_in(
    address: Address | None, networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network]
) -> bool:
    return address is not None and any(address in network for network in networks)


@dataclass(slots=True)
class AccessMiddleware:
    """Refuses what :func:`judge` refuses, and too many requests of one address at once."""

    app: ASGIApp
    policy: Policy
    _active: Counter[tuple[str, bool]] = field(default_factory=Counter)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http":
            await self.app(scope, receive, send)
        elif refusal := judge(self.policy, scope):
            await refusal.response()(scope, receive, send)
        else:
            await self._admit(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = (scope["client"][0], scope["path"] == "/health")
        if self._active[key] >= MOST_AT_ONCE:
            refusal = Problem(
                429,
                "too-many-requests",
                f"{MOST_AT_ONCE} requests from this address are being answered",
                "ask again when one of them is done",
                headers={"Retry-After": "1"},
            )
            await refusal.response()(scope, receive, send)
            return
        self._active[key] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._active[key] -= 1
            if not self._active[key]:
                del self._active[key]
