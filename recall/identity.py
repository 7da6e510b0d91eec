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
    path = home / "identity.json"
    try:
        data = json.loads(path.read_text())
        identity = Identity(host=str(data["host"]), install_id=str(data["install_id"]))
    except FileNotFoundError:
        return _create(path, host)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"`{path}` cannot be read as an identity",
            hint="restore it from a backup; a new one would store this machine's logs twice",
        ) from error
    if host and host != identity.host:
        raise ConfigError(
            f"this home already stores its logs under the host name `{identity.host}`",
            hint="unset RECALL_HOST; the name is chosen once and never changes",
        )
    return identity


def _create(path: Path, host: str | None) -> Identity:
    name = _ALLOWED.sub("-", (host or socket.gethostname()).lower()).strip("-.") or "localhost"
    identity = Identity(host=name, install_id=str(uuid.uuid4()))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump({"host": identity.host, "install_id": identity.install_id}, file)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)
    return identity
