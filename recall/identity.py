"""Who this machine is in the store: a host name chosen once, and a random install id."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from recall.errors import ConfigError

_ALLOWED = re.compile(r"[^a-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Identity:
    """The host name under which this machine's rows are stored, and the id of this installation."""

    host: str
    install_id: str


def load_identity(home: Path, *, host: str | None = None) -> Identity:
    """Read ``identity.json`` of a home, or make it on first use.

    A later change of the machine's hostname changes nothing. ``host`` names the machine on first
    use only; asking for another name later is an error, because rows already carry the first one.
    """
    identity = find_identity(home)
    if identity is None:
        identity = Identity(host_name(host or socket.gethostname()), str(uuid.uuid4()))
        write_identity(home, identity)
        return identity
    if host and host != identity.host:
        raise ConfigError(
            f"this home already stores its logs under the host name `{identity.host}`",
            hint="unset RECALL_HOST; the name is chosen once and never changes",
        )
    return identity


def find_identity(home: Path) -> Identity | None:
    """The identity of a home; ``None`` if it has none yet."""
    path = home / "identity.json"
    try:
        data = json.loads(path.read_text())
        return Identity(host=str(data["host"]), install_id=str(data["install_id"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"`{path}` cannot be read as an identity",
            hint="restore it from a backup; a new one would store this machine's logs twice",
        ) from error


def write_identity(home: Path, identity: Identity) -> None:
    """Give a home its identity, whole or not at all."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile("w", dir=home, delete=False) as file:
        json.dump({"host": identity.host, "install_id": identity.install_id}, file)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(home / "identity.json")


def host_name(text: str) -> str:
    """The form in which the name of a host is stored."""
    return _ALLOWED.sub("-", text.lower()).strip("-.") or "localhost"
