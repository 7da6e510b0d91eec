"""Optional parts of the distribution, and the one message for a part that is missing."""

from __future__ import annotations

from importlib.util import find_spec

from recall.errors import MissingExtraError

#: What each part needs. The embedded PostgreSQL is missed where it is to be started, and only
#: there: with `database_url` nothing needs it.
_PARTS = {
    "server": ("fastapi", "jwt", "prometheus_client", "psycopg", "uvicorn"),
    "embedder": ("prometheus_client", "psycopg"),
}


def has_server() -> bool:
    """Whether the ``server`` extra is installed, or as much of it as ``recall[api]`` has."""
    return _has("server")


#: The ways out for commands that can also work with a server elsewhere.
JOIN_OR_INSTALL = (
    "`recall join URL CODE`, as `recall token create` on a server prints it, or"
    " pip install 'recall[server]' for a store of this machine"
)


def need_server(part: str = "server", *, hint: str = "pip install 'recall[server]'") -> None:
    """Raise :class:`MissingExtraError` unless what a part of the server needs is installed."""
    if not _has(part):
        raise MissingExtraError("this command needs the server part", hint=hint)


def _has(part: str) -> bool:
    return all(find_spec(name) for name in _PARTS[part])
