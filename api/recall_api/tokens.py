"""Tokens of hosts: signed by this server, and known to it, so that each can be revoked.

PostgREST checks the same tokens by the same secret and the same function of the database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import jwt
from psycopg_pool import ConnectionPool
from starlette.concurrency import run_in_threadpool

from recall.errors import StoreError
from recall_api.problems import Problem, of_error
from recall_api.reading import Connection
from recall_sql.connection import translate_errors
from recall_sql.loader import load

AUDIENCE = "recall"
#: The role of the database with which PostgREST does what a host asks for.
ROLE = "recall_writer"
_ALGORITHM = "HS256"
#: Revoking ends a token; that it expires at all is for those that nobody remembers.
_LIFETIME = timedelta(days=3_653)
_CLAIMS = ("aud", "exp", "host", "iat", "install_id", "jti", "role")
#: How long a check waits for a connection of the pool.
_POOL_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token says: its own id, and whose it is."""

    jti: str
    host: str
    install_id: str


def sign(secret: str, claims: Claims) -> str:
    """The token of a host."""
    now = datetime.now(UTC)
    payload = {
        "role": ROLE,
        "host": claims.host,
        "install_id": claims.install_id,
        "jti": claims.jti,
        "iat": now,
        "exp": now + _LIFETIME,
        "aud": AUDIENCE,
    }
    return jwt.encode(payload, secret, algorithm=_ALGORITHM)


def read_token(secret: str, token: str) -> Claims | None:
    """What a token says, if this server signed it for a host and it has not expired."""
    try:
        payload = jwt.decode(
            token,
            secret,
            algorithms=[_ALGORITHM],
            audience=AUDIENCE,
            # A clock that was set back must not shut the hosts out; `exp` is far away.
            options={"require": list(_CLAIMS), "verify_iat": False},
        )
    except jwt.InvalidTokenError:
        return None
    values = [payload[name] for name in ("jti", "host", "install_id")]
    if payload["role"] != ROLE or not all(isinstance(value, str) for value in values):
        return None
    return Claims(*values)


def no_secret() -> Problem:
    """This server cannot have tokens."""
    return Problem(
        503,
        "not-set-up",
        "this server has no tokens: `jwt_secret` is not set",
        "name a file with at least 32 random bytes in RECALL_JWT_SECRET_FILE of the server",
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    """Checks tokens against the secret and, at every request, against the store."""

    secret: str | None
    pool: Callable[[], ConnectionPool[Connection]]

    async def refusal(self, token: str) -> Problem | None:
        """Why a token does not count: 401, or 5xx where that cannot be said now."""
        if self.secret is None:
            return no_secret()
        claims = read_token(self.secret, token)
        if claims is None:
            return _refused("the token is not one of this server, or it has expired")
        return await run_in_threadpool(self._ask_store, claims)

    def _ask_store(self, claims: Claims) -> Problem | None:
        values = {"jti": claims.jti, "host": claims.host, "install_id": claims.install_id}
        try:
            with translate_errors(), self.pool().connection(_POOL_SECONDS) as connection:
                row = connection.execute(load("access")["token_refusal"], values).fetchone()
        except StoreError as error:
            return of_error(error)
        reason = row[0] if row else None
        return _refused(reason) if reason else None


def _refused(reason: str) -> Problem:
    return Problem(
        401,
        "token",
        reason,
        "`recall token create HOST` on the server prints the line to join again with",
        headers={"WWW-Authenticate": 'Bearer error="invalid_token"'},
    )
