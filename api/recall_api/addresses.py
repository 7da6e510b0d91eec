"""Whose request it is: the address of the peer, or the one that a trusted proxy names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Headers = Sequence[tuple[bytes, bytes]]

_LOOPBACK = ("127.0.0.0/8", "::1/128")
_PRIVATE = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "fc00::/7",
    "fe80::/10",
)
#: From where the store can be read without a token.
OPEN_NETWORKS: list[Network] = [ipaddress.ip_network(block) for block in (*_LOOPBACK, *_PRIVATE)]
#: A private address cannot be rebound: the browser already knows whom it talks to.
HOST_NETWORKS: list[Network] = [*OPEN_NETWORKS, ipaddress.ip_network("169.254.0.0/16")]

#: What proxies add to tell whom they ask for. Only the first two are ever believed.
_FORWARDING = frozenset({
    b"x-forwarded-for", b"forwarded", b"via", b"x-forwarded-host", b"x-real-ip", b"x-client-ip",
    b"true-client-ip", b"cf-connecting-ip",
})  # fmt: skip

_V4_HOP = re.compile(r"([0-9.]+)(?::[0-9]{1,5})?")
_V6_HOP = re.compile(r"\[([0-9A-Fa-f:.]+)(?:%[^\]]*)?\](?::[0-9]{1,5})?|([0-9A-Fa-f:.]+)(?:%\S*)?")
#: One `name=value` of a `Forwarded` header with what ends it: `;`, `,` or the end.
_PAIR = re.compile(r'\s*([!#$%&\'*+.^_`|~\w-]+)=("(?:[^"\\]|\\.)*"|[^\s";,]*)\s*([;,]|$)', re.ASCII)


class UntoldError(ValueError):
    """Nobody can say who asks: a proxy that is not trusted, or one that does not tell."""


def parse_address(text: str) -> Address | None:
    """An IP address; an IPv4 address that is written as IPv6 is the IPv4 address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def is_in(address: Address | None, networks: Iterable[Network]) -> bool:
    """Whether one of the networks holds the address."""
    return address is not None and any(address in network for network in networks)


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and networks of a setting that was checked when it was read."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def is_forwarded(headers: Headers) -> bool:
    """Whether the request says that it came through a proxy."""
    return any(name.lower() in _FORWARDING for name, _ in headers)


def find_client(peer: Address, headers: Headers, proxies: Sequence[Network]) -> Address:
    """Who asks: the peer itself, or the right-most hop that is no trusted proxy.

    Only the peer is known for sure, so what a header says counts only if the peer is a trusted
    proxy; each trusted proxy vouches for the hop on its left. If both headers are there, one may be
    the client's own invention, which a proxy passes on unread: then they have to agree.
    Raises :class:`UntoldError`.
    """
    if not is_forwarded(headers):
        return peer
    if not is_in(peer, proxies):
        raise UntoldError
    chains = [
        chain for chain in (_x_forwarded_for(headers), _forwarded(headers)) if chain is not None
    ]
    clients = {_right_most_untrusted(chain, proxies) for chain in chains}
    if len(clients) != 1:
        raise UntoldError
    return clients.pop()


def share_of(address: Address) -> str:
    """What counts as one address for limits: one customer has a whole /64 of public IPv6."""
    if isinstance(address, ipaddress.IPv6Address) and not is_in(address, OPEN_NETWORKS):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def values_of(headers: Headers, wanted: bytes) -> list[str]:
    """The values of a header, one for each time that it stands there."""
    return [value.decode("latin-1").strip() for name, value in headers if name.lower() == wanted]


def _right_most_untrusted(chain: Sequence[str], proxies: Sequence[Network]) -> Address:
    """The hop that the last trusted proxy saw. A proxy that asks for itself is its own client."""
    client: Address | None = None
    for hop in reversed(chain):
        client = _hop_address(hop)
        if client is None:
            raise UntoldError
        if not is_in(client, proxies):
            break
    if client is None:
        raise UntoldError
    return client


def _hop_address(hop: str) -> Address | None:
    """The address of a hop, which may have a port; ``unknown`` and invented names have none."""
    if match := _V4_HOP.fullmatch(hop):
        return parse_address(match[1])
    if match := _V6_HOP.fullmatch(hop):
        return parse_address(match[1] or match[2])
    return None


def _x_forwarded_for(headers: Headers) -> list[str] | None:
    """The hops of all lines of the header in their order; ``None`` without one."""
    lines = values_of(headers, b"x-forwarded-for")
    return [hop.strip() for hop in ",".join(lines).split(",")] if lines else None


def _forwarded(headers: Headers) -> list[str] | None:
    """The same for RFC 7239; an element without ``for`` is a hop that nobody knows."""
    lines = values_of(headers, b"forwarded")
    if not lines:
        return None
    text = ",".join(lines)
    hops: list[str] = []
    here, at = "", 0
    while True:
        match = _PAIR.match(text, at)
        if match is None:
            raise UntoldError
        name, value, end = match.groups()
        if name.lower() == "for":
            if here:
                raise UntoldError
            here = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
        at = match.end()
        if end != ";":
            hops.append(here)
            here = ""
        if not end:
            return hops
