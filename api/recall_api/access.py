"""Who may ask, under which name, how, and whether a token is needed. Nothing else looks first.

Reading is open to this machine and private networks, so three doors to the outside are shut:

- From any other address a token is needed. What counts is the address of the connection. What a
  proxy says counts only if that proxy is configured; else a request that says it was forwarded is
  refused, because anybody may stand behind a proxy.
- The ``Host`` header must be a known name or a private address. Otherwise a web page could point a
  name of its own at this machine and read the answers (DNS rebinding).
- A browser must not ask on behalf of another site, not even without reading the answer: whether and
  when an answer comes tells what is stored. Sites that are configured may read, and never write.

Writing always needs a token, except for joining, where a code takes its place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import Scope

from recall.config import Settings
from recall_api.addresses import (
    HOST_NETWORKS,
    OPEN_NETWORKS,
    Address,
    Headers,
    Network,
    UntoldError,
    find_client,
    is_in,
    parse_address,
    parse_networks,
    share_of,
    values_of,
)
from recall_api.problems import Problem

LONGEST_QUERY_BYTES = 8_192
LONGEST_PATH_BYTES = 4_096
LONGEST_HEADERS_BYTES = 16_384

_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@/\s]+))(?::[0-9]{0,5})?")


@dataclass(frozen=True, slots=True)
class Door:
    """One way into the API: what may come through, and how long its body may take."""

    methods: tuple[str, ...]
    most_body_bytes: int = 0
    body_seconds: float = 0.0
    writes: bool = False
    has_token: bool = True


READING = Door(("GET", "HEAD"))
#: What hosts send: 4 MB at a time, but a message that is longer goes as it is, escaped as JSON.
REST = Door(("POST", "GET", "HEAD"), 72 * 2**20, 120.0, writes=True)
JOINING = Door(("POST",), 4_096, 10.0, writes=True, has_token=False)


def door_of(path: str) -> Door:
    """The door that leads to a path."""
    if path == "/join":
        return JOINING
    return REST if path == "/rest" or path.startswith("/rest/") else READING


@dataclass(frozen=True, slots=True)
class Policy:
    """The names under which this API may be addressed, and whom it believes."""

    names: frozenset[str]
    proxies: tuple[Network, ...] = ()
    origins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        """``localhost``, the host parts of ``listen`` and ``public_url``, and ``allowed_hosts``."""
        public = urlsplit(settings.public_url or "").netloc
        given = ("localhost", settings.listen, public, *settings.allowed_hosts)
        return cls(
            frozenset(name for text in given if (name := _usable_name(text))),
            parse_networks(settings.trusted_proxies),
            frozenset(settings.cors_origins),
        )


@dataclass(frozen=True, slots=True)
class Visit:
    """A request that may go on: whose it is, and what is still to be checked."""

    door: Door
    #: The address that limits count by.
    share: str
    needs_token: bool
    token: str | None
    #: Another site, whose page may read the answer.
    origin: str | None


def judge(policy: Policy, scope: Scope) -> Visit | Problem:
    """Why a request is refused, or what is to be known about it.

    Looks at host, site, address, token, method and size, in this order; a token is only looked
    for, not at.
    """
    headers: Headers = list(scope["headers"])
    door = door_of(scope["path"])
    refusal = _judge_host(policy, headers) or _judge_site(policy, door, headers)
    client = refusal or _find_client(policy, scope.get("client"), headers)
    if isinstance(client, Problem):
        return client
    needs_token = door.has_token and (door.writes or not is_in(client, OPEN_NETWORKS))
    token = _bearer(headers) if door.has_token else None
    if needs_token and token is None:
        return _no_token(door)
    if refusal := _judge_method(door, scope["method"]) or _judge_size(door, scope, headers):
        return refusal
    origins = values_of(headers, b"origin")
    origin = origins[0] if len(origins) == 1 and origins[0].lower() in policy.origins else None
    return Visit(door, share_of(client), needs_token, token, origin)


def has_body(headers: Headers) -> bool:
    """Whether a request says that it has a body."""
    lengths = values_of(headers, b"content-length")
    return bool(values_of(headers, b"transfer-encoding")) or any(size != "0" for size in lengths)


def _judge_host(policy: Policy, headers: Headers) -> Problem | None:
    hosts = values_of(headers, b"host")
    name = _host_name(hosts[0]) if len(hosts) == 1 else None
    if name is not None and (name in policy.names or is_in(parse_address(name), HOST_NETWORKS)):
        return None
    return Problem(
        403,
        "access",
        "the API is not known under the name in the `Host` header",
        "use localhost or an IP address, or add the name to RECALL_ALLOWED_HOSTS",
    )


def _judge_site(policy: Policy, door: Door, headers: Headers) -> Problem | None:
    """Browsers say from which site a page asks; a link that a person follows is no page's doing."""
    known = frozenset() if door.writes else policy.origins
    host = values_of(headers, b"host")[0].lower()
    origins = [origin.lower() for origin in values_of(headers, b"origin")]
    foreign = any(origin.partition("://")[2] != host and origin not in known for origin in origins)
    if values_of(headers, b"sec-fetch-site") == ["cross-site"] and not origins:
        navigates = values_of(headers, b"sec-fetch-mode") == ["navigate"]
        foreign = door.writes or not navigates
    if foreign:
        return Problem(
            403,
            "access",
            "pages of other sites cannot ask this API",
            "RECALL_CORS_ORIGINS lists the sites whose pages may read",
        )
    return None


def _find_client(
    policy: Policy, peer: tuple[str, int] | None, headers: Headers
) -> Address | Problem:
    address = parse_address(peer[0]) if peer is not None else None
    if address is None:
        return Problem(403, "access", "nobody knows from which address the request comes")
    try:
        return find_client(address, headers, policy.proxies)
    except UntoldError:
        if is_in(address, policy.proxies):
            told = "the proxy does not tell for which address it asks"
            hint = "let it set `X-Forwarded-For`, and remove `Forwarded` of its clients"
        else:
            told = "the request was forwarded by a proxy, so nobody knows who asks"
            hint = "ask the API directly, or name the proxy in RECALL_TRUSTED_PROXIES"
        return Problem(403, "access", told, hint)


def _bearer(headers: Headers) -> str | None:
    """The token of a request. Other ways to say who one is do not count here."""
    values = values_of(headers, b"authorization")
    schemes = [value.partition(" ")[0].lower() for value in values]
    if "bearer" not in schemes:
        return None
    # Of several, one would be checked here and another one behind.
    return values[0].partition(" ")[2].strip() if len(values) == 1 else ""


def _no_token(door: Door) -> Problem:
    what = "writing" if door.writes else "reading from outside of private networks"
    return Problem(
        401,
        "token",
        f"{what} needs the token of a host",
        "`recall token create HOST` on the server prints the line that joins a machine",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _judge_method(door: Door, method: str) -> Problem | None:
    if method in door.methods:
        return None
    most, last = ", ".join(door.methods[:-1]), door.methods[-1]
    told = f"only {most} and {last} are answered here" if most else f"only {last} is answered here"
    allowed = ", ".join(door.methods)
    return Problem(405, "method", told, "see /openapi.json", headers={"Allow": allowed})


def _judge_size(door: Door, scope: Scope, headers: Headers) -> Problem | None:
    if len(scope["query_string"]) > LONGEST_QUERY_BYTES:
        return Problem(
            414, "too-long", f"the query string is over {LONGEST_QUERY_BYTES} bytes",
            "search for a shorter part of the text",
        )  # fmt: skip
    if len(scope.get("raw_path") or scope["path"].encode()) > LONGEST_PATH_BYTES:
        return Problem(414, "too-long", f"the path is over {LONGEST_PATH_BYTES} bytes")
    if sum(len(name) + len(value) for name, value in headers) > LONGEST_HEADERS_BYTES:
        return Problem(431, "too-long", f"the headers are over {LONGEST_HEADERS_BYTES} bytes")
    if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
        return Problem(400, "usage", "the request holds a NUL character, which no text here has")
    return _judge_body(door, headers)


def _judge_body(door: Door, headers: Headers) -> Problem | None:
    """What is known of a body before it comes."""
    if not has_body(headers):
        return None
    if not door.most_body_bytes:
        return Problem(413, "too-long", "a request that reads has no body")
    encodings = values_of(headers, b"content-encoding")
    if any(encoding.lower() != "identity" for encoding in encodings):
        return Problem(415, "usage", "the body is compressed", "send it as it is")
    lengths = values_of(headers, b"content-length")
    if any(not size.isdigit() or int(size) > door.most_body_bytes for size in lengths):
        return too_large(door)
    return None


def too_large(door: Door) -> Problem:
    """A body is over what this door lets through."""
    return Problem(
        413, "too-long", f"the body is over {door.most_body_bytes} bytes", "send it in parts"
    )


def _usable_name(text: str) -> str | None:
    """A configured name; an address that means every address names nobody."""
    address = parse_address(text)
    if address is None:
        name = _host_name(text)
        address = parse_address(name) if name else None
    else:
        name = str(address)
    return None if address is not None and address.is_unspecified else name


def _host_name(authority: str) -> str | None:
    """The name in ``name:port``, in the one form in which names are compared."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        return None
    name = (match["v6"] or match["name"]).lower().removesuffix(".")
    address = parse_address(name)
    return str(address) if address is not None else name or None
