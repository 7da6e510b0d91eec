"""The server that this home has joined: its address, and the token of this machine.

They stand in ``joined.json`` of the home, which only its owner can read.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from recall.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Joined:
    """``url`` without a slash at the end, the name of this machine in the store, and its token."""

    url: str
    host: str
    token: str

    def __repr__(self) -> str:
        """Without the token: what is shown in a traceback or a log must not let anybody in."""
        return f"Joined(url={self.url!r}, host={self.host!r})"


def joined_path(home: Path) -> Path:
    """Where it is kept."""
    return home / "joined.json"


def read_joined(home: Path) -> Joined | None:
    """The server of this home; ``None`` if it joined none."""
    path = joined_path(home)
    try:
        data = json.loads(path.read_text("utf-8"))
        values = [data[name] for name in ("url", "host", "token")]
        if not all(isinstance(value, str) and value for value in values):
            raise ValueError
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"`{path}` cannot be read",
            hint="`recall leave` removes it; then join again with a new code",
        ) from None
    return Joined(*values)


def write_joined(home: Path, joined: Joined) -> None:
    """Keep it, whole or not at all; nobody else can read it at any moment."""
    _write(joined_path(home), asdict(joined))
    _joining_path(home).unlink(missing_ok=True)


def forget_joined(home: Path) -> bool:
    """Remove it; whether there was one."""
    try:
        joined_path(home).unlink()
    except FileNotFoundError:
        return False
    return True


def next_install_id(home: Path) -> str:
    """The id with which a home without an identity joins; the same until it has joined.

    If the answer of the server is lost, the name already belongs to this id.
    """
    path = _joining_path(home)
    try:
        return str(uuid.UUID(json.loads(path.read_text("utf-8"))["install_id"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        install_id = str(uuid.uuid4())
        _write(path, {"install_id": install_id})
        return install_id


def _joining_path(home: Path) -> Path:
    return home / "joining.json"


def _write(path: Path, data: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Such a file is made with mode 600.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        try:
            json.dump(data, file)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
