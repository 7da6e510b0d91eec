"""The first start of the appliance: its secrets, and the address under which it is found.

``python -m recall.appliance`` is what the service ``setup`` of ``compose.yaml`` runs. Each folder
that it writes to is a volume that only those containers have who need what is in it. A secret that
is there is never written over: the database was made with its password, and machines joined with
tokens of the old key.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

#: Asking for a route sends nothing; this address of the documentation range has the default one.
_ANYWHERE = ("192.0.2.1", 9)
_SECRET_BYTES = 32
_DATABASE = "postgresql://{user}:{password}@db:5432/recall"
_ADMINISTRATOR = "recall"
#: Other containers read them as accounts whose numbers are not known here, and nobody else sees
#: the volume.
_SHARED, _OWN = 0o444, 0o400
_ADDRESS = """\
# Written at each start of the appliance. Settings of your own belong into `.env`.
public_url = "{url}"
"""


@dataclass(frozen=True, slots=True)
class Folders:
    """The volumes of secrets: of the owner of the database, of PostgreSQL, of PostgREST, of the API
    and of the embedder."""

    own: Path
    database: Path
    rest: Path
    api: Path
    embedder: Path


def make_secrets(folders: Folders) -> list[str]:
    """Make what is not there yet; the names of what was made.

    ``own`` gets everything. What stands in two places is written there first and copied from there,
    so that a start which was interrupted, or a volume of a version that knew less of them, is
    completed by the next start.
    """
    made: list[str] = []

    def keep(path: Path, mode: int, value: Callable[[], str]) -> str:
        if not path.exists():
            _write(path, value(), mode)
            made.append(path.name)
        return path.read_text("ascii")

    def new() -> str:
        return secrets.token_hex(_SECRET_BYTES)

    def keep_url(folder: Path, mode: int, user: str, password: str) -> None:
        url = _DATABASE.format(user=user, password=password)
        keep(folder / "database_url", mode, lambda: url)

    own = folders.own
    administrator = keep(own / "database_password", _OWN, new)
    jwt_secret = keep(own / "jwt_secret", _OWN, new)
    keep_url(own, _OWN, _ADMINISTRATOR, administrator)
    keep(folders.database / "password", _SHARED, lambda: administrator)
    for service, role, folder in (
        ("authenticator", "recall_authenticator", folders.rest),
        ("api", "recall_api", folders.api),
        ("embedder", "recall_embedder", folders.embedder),
    ):
        password = keep(own / f"{service}_password", _OWN, new)
        keep_url(folder, _SHARED, role, password)
    for folder in (folders.rest, folders.api):
        keep(folder / "jwt_secret", _SHARED, lambda: jwt_secret)
    return made


def write_address(home: Path, port: int) -> str | None:
    """Keep the address that this machine has towards others; ``None`` without a network.

    It is a guess, made again at each start: ``RECALL_PUBLIC_URL`` wins over it.
    """
    address = own_address()
    if address is None:
        return None
    url = f"http://{address}:{port}"
    _write(home / "config.toml", _ADDRESS.format(url=url), 0o644)
    return url


def own_address() -> str | None:
    """The IPv4 address of the default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANYWHERE)
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _write(path: Path, text: str, mode: int) -> None:
    """Whole or not at all, and never readable for more than it will be in the end."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="ascii") as file:
        try:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def main(argv: Sequence[str] | None = None) -> int:
    """Make the secrets, find the address, and say how a machine joins."""
    parser = argparse.ArgumentParser(prog="python -m recall.appliance")
    parser.add_argument("--home", type=Path, required=True, help="the home of the API")
    for folder in fields(Folders):
        parser.add_argument(
            f"--{folder.name}", type=Path, required=True, help="one of the folders of secrets"
        )
    parser.add_argument("--port", type=int, required=True, help="the published port of the API")
    given = parser.parse_args(argv)
    try:
        made = make_secrets(Folders(*(getattr(given, item.name) for item in fields(Folders))))
        url = write_address(given.home, given.port)
    except OSError as error:
        sys.stderr.write(f"error: `{error.filename}` cannot be written: {error.strerror}\n")
        return 1
    public = os.environ.get("RECALL_PUBLIC_URL")
    lines = [
        f"made {len(made)} secrets" if made else "the secrets of the first start are kept",
        f"other machines reach this server at {public or url or 'an address that is not known'}"
        + ("" if public else " (a guess; RECALL_PUBLIC_URL in .env sets the right one)"),
        "to join a machine, run here:",
        "  docker compose exec api recall token create NAME-OF-THE-MACHINE",
        "and paste the line that it prints on that machine",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
