"""The role with which PostgREST logs in. It owns nothing, and takes the role of each request."""

from __future__ import annotations

from psycopg import sql

from recall.errors import SchemaError
from recall_sql.connection import connect, translate_errors
from recall_sql.loader import load

NAME = "recall_authenticator"
#: What it may become. The migrations make them.
_BECOMES = ("recall_anon", "recall_writer")


def let_in(url: str, password: str) -> None:
    """Give the role its password, and make it where it is missing.

    What travels is the SCRAM verifier, from which nobody gets the password: neither a log of
    statements nor the server. :class:`SchemaError` where the roles of the migrations are missing.
    """
    role = sql.Identifier(NAME)
    with translate_errors(), connect(url, application="recall authenticator") as connection:
        found = load("operate")["has_role"]
        for name in (*_BECOMES, NAME):
            row = connection.execute(found, {"name": name}).fetchone()
            if row and row[0]:
                continue
            if name != NAME:
                raise SchemaError(
                    f"the server has no role `{name}`",
                    hint="run `recall db migrate` as a role that may create roles",
                )
            connection.execute(sql.SQL("create role {}").format(role))
        verifier = connection.pgconn.encrypt_password(
            password.encode(), NAME.encode(), b"scram-sha-256"
        ).decode()
        settings = sql.SQL("alter role {} with login noinherit password {}")
        connection.execute(settings.format(role, sql.Literal(verifier)))
        for name in _BECOMES:
            # said once more: a grant keeps what it was given with, whatever the role is later
            grant = sql.SQL("grant {} to {} with inherit false, set true")
            connection.execute(grant.format(sql.Identifier(name), role))
        connection.execute("notify pgrst, 'reload schema'")
