"""A small database with tables behind views, and a server for it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tests.double.config import Config
from tests.double.fixtures import SECRET, Served, start, with_user

if TYPE_CHECKING:
    from recall_sql.embedded import EmbeddedServer

BATCH = "8f7f4f3e-0000-4000-8000-000000000000"


@contextmanager
def database_for_rules(server: EmbeddedServer) -> Iterator[str]:
    """The URL of a database with the tables of ``rules.sql`` and one row, dropped afterwards."""
    name = f"test_{uuid.uuid4().hex}"
    _execute(server.url_for("postgres"), f"create database {name} template template0")
    url = server.url_for(name)
    _execute(url, Path(__file__).with_name("rules.sql").read_text(encoding="utf-8"))
    _execute(
        url,
        "insert into store.incoming (host, batch, n, content)"
        f" values ('laptop', '{BATCH}', 0, 'before')",
    )
    yield url
    _execute(server.url_for("postgres"), f"drop database {name} with (force)")


def serve_rules(url: str, **settings: Any) -> Served:
    """A server for it, with the settings of our own configuration."""
    given = {
        "anon_role": "double_anon",
        "jwt_secret": SECRET,
        "jwt_aud": "recall",
        "pre_request": "api.check_request",
        **settings,
    }
    return start(Config(with_user(url, "double_login"), **given))


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())
