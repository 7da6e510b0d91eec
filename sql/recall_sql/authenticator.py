"""The roles with which services log in: PostgREST, the API and the embedder. None owns anything."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg import sql

from recall.errors import SchemaError
from recall_sql.connection import connect, translate_errors
from recall_sql.loader import load

NAME = "recall_authenticator"
#: What it may become. The migrations make them.
_BECOMES = ("recall_anon", "recall_writer")
#: The services of Recall itself, and the role of each.
SERVICES: Mapping[str, str] = MappingProxyType({"api": "recall_api", "embedder": "recall_embedder"})


def let_in(url: str, password: str) -> None:
    """Give the role of PostgREST its password, and make it where it is missing.

    It takes the role of each request. :class:`SchemaError` where the roles of the migrations are
    missing.
    """
    with translate_errors(), connect(url, application="recall authenticator") as connection:
        for name in _BECOMES:
            if not _has_role(connection, name):
                raise _missing(name)
        if not _has_role(connection, NAME):
            connection.execute(sql.SQL("create role {}").format(sql.Identifier(NAME)))
        _set_password(connection, NAME, password, sql.SQL("login noinherit"))
        for name in _BECOMES:
            # said once more: a grant keeps what it was given with, whatever the role is later
            grant = sql.SQL("grant {} to {} with inherit false, set true")
            connection.execute(grant.format(sql.Identifier(name), sql.Identifier(NAME)))
        connection.execute(load("operate")["forbid_temporary"])
        connection.execute("notify pgrst, 'reload schema'")


def let_service_in(url: str, service: str, password: str) -> str:
    """Give the role of a service its rights and its password; the name of the role.

    :class:`SchemaError` for a role that is missing, and for one that could do everything: another
    program of that server made it.
    """
    name = SERVICES[service]
    with translate_errors(), connect(url, application="recall login") as connection:
        if not _has_role(connection, name):
            raise _missing(name)
        row = connection.execute(load("operate")["is_almighty"], {"name": name}).fetchone()
        if row and row[0]:
            raise SchemaError(
                f"the role `{name}` may do more than a service should",
                hint=f"as an administrator: alter role {name} nosuperuser nocreatedb nocreaterole"
                " noreplication nobypassrls; and revoke the roles that it is a member of",
            )
        connection.execute(load("operate")["allow_services"])
        connection.execute(load("operate")["forbid_temporary"])
        _set_password(connection, name, password, sql.SQL("login"))
    return name


def _has_role(connection: psycopg.Connection[Any], name: str) -> bool:
    row = connection.execute(load("operate")["has_role"], {"name": name}).fetchone()
    return bool(row and row[0])


def _missing(name: str) -> SchemaError:
    return SchemaError(
        f"the server has no role `{name}`",
        hint="run `recall db migrate` as a role that may create roles",
    )


def _set_password(
    connection: psycopg.Connection[Any], name: str, password: str, options: sql.SQL
) -> None:
    """What travels is the SCRAM verifier, from which nobody gets the password: neither a log of
    statements nor the server."""
    verifier = connection.pgconn.encrypt_password(
        password.encode(), name.encode(), b"scram-sha-256"
    ).decode()
    settings = sql.SQL("alter role {} with {} password {}")
    connection.execute(settings.format(sql.Identifier(name), options, sql.Literal(verifier)))
