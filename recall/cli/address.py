"""The address of the HTTP API: reading it from the settings, and taking it."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

from recall.errors import BusyError, ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    """Where the API listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """How a program on this machine reaches it."""
        host = self.host
        if host == "0.0.0.0":  # noqa: S104  only compared
            host = "127.0.0.1"
        elif host == "::":
            host = "::1"
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def parse_listen(listen: str) -> Address:
    """``HOST:PORT`` or ``[IPV6]:PORT``."""
    host, _, port = listen.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigError(
            f"`listen` must be HOST:PORT, not `{listen}`", hint="for example 127.0.0.1:7717"
        )
    return Address(host, int(port))


def bind(address: Address) -> socket.socket:
    """A listening-ready socket. Raises :class:`BusyError` if another program has the port."""
    family = socket.AF_INET6 if _is_ipv6(address.host) else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((address.host, address.port))
    except OSError as error:
        taken.close()
        where = f"{address.host}:{address.port}"
        if error.errno == errno.EADDRINUSE:
            raise BusyError(
                f"`{where}` is in use by another program",
                hint=f"stop it, or choose another port: RECALL_LISTEN={address.host}:<port>",
            ) from error
        raise ConfigError(
            f"cannot listen on `{where}`: {error.strerror or error}",
            hint="set RECALL_LISTEN to an address of this machine, for example 127.0.0.1:7717",
        ) from error
    return taken


def check_free(address: Address) -> None:
    """Raise the error that :func:`bind` would raise, without keeping the port."""
    bind(address).close()


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False
