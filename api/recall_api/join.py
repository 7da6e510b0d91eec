"""Joining: a code that a person carries from the server to a machine becomes its token."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from recall.errors import AccessError, ClaimError
from recall_api.reading import Answer, Connection
from recall_api.tokens import Claims, sign
from recall_sql.connection import translate_errors
from recall_sql.loader import load

#: Crockford's: no letter that looks like a digit. 25 of them are 125 random bits.
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_GROUPS, _GROUP = 5, 5
_LOOKS_LIKE = str.maketrans({"O": "0", "I": "1", "L": "1", "-": None, " ": None})

#: Failed attempts of one address within the time; the codes cannot be guessed, this saves work.
MOST_FAILURES = 10
FAILURE_SECONDS = 600.0
_MOST_ADDRESSES = 10_000


class JoinRequest(BaseModel):
    """What a machine sends to join."""

    model_config = ConfigDict(extra="forbid")

    code: Annotated[str, Field(min_length=1, max_length=200, description="As it was printed.")]
    install_id: Annotated[uuid.UUID, Field(description="Random id of the installation.")]
    host: Annotated[
        str | None,
        Field(max_length=255, description="The name that the installation has, if it has one."),
    ] = None


class JoinAnswer(BaseModel):
    """What it gets."""

    host: Annotated[str, Field(description="Its name in the store.")]
    token: Annotated[str, Field(description="A JWT, to be sent as a bearer token.")]


def new_code() -> str:
    """A code to be read and pasted."""
    letters = "".join(secrets.choice(_ALPHABET) for _ in range(_GROUPS * _GROUP))
    return "-".join(letters[at : at + _GROUP] for at in range(0, len(letters), _GROUP))


def hash_code(code: str) -> bytes:
    """What is stored of a code, however it was typed.

    Whoever measures how long a look-up of the hash takes learns about hashes, from which no code
    can be made; so a search in an index is as good as a comparison in constant time.
    """
    return hashlib.sha256(code.strip().upper().translate(_LOOKS_LIKE).encode()).digest()


def create_code(
    connection: Connection, host: str, *, replaces: bool, minutes: int
) -> tuple[str, datetime]:
    """A new code for a host, and until when it can be used."""
    code = new_code()
    values = {
        "code_hash": hash_code(code), "host": host, "replaces": replaces, "minutes": minutes,
    }  # fmt: skip
    row = connection.execute(load("access")["insert_code"], values).fetchone()
    assert row
    return code, row[0]


def join(connection: Connection, secret: str, request: JoinRequest) -> Answer:
    """Use a code: the name is now that of the installation, and its only token is this one.

    What is refused leaves the code as it was. Raises :class:`AccessError` for the code and
    :class:`ClaimError` for the name.
    """
    install_id = str(request.install_id)
    with translate_errors(), connection.transaction():
        host, replaces = _use_code(connection, request.code)
        if request.host is not None and request.host != host:
            raise ClaimError(
                f"the code is for the host `{host}`, and this installation is `{request.host}`",
                hint=f"`recall token create {request.host}` makes one for it; a machine gets"
                " another name only with a new home (RECALL_HOME)",
            )
        _claim_host(connection, host, install_id, replaces=replaces)
        claims = Claims(str(uuid.uuid4()), host, install_id)
        values = {"jti": claims.jti, "host": host, "install_id": install_id}
        sql = load("access")
        connection.execute(sql["revoke_tokens_of_host"], values)
        connection.execute(sql["insert_token"], values)
    return {"host": host, "token": sign(secret, claims)}


def _use_code(connection: Connection, code: str) -> tuple[str, bool]:
    code_hash = hash_code(code)
    row = connection.execute(load("access")["use_code"], {"code_hash": code_hash}).fetchone()
    if row is None or not secrets.compare_digest(row[0], code_hash):
        raise AccessError(
            "the code is wrong, was used before, or is too old",
            hint="`recall token create HOST` on the server makes a new one",
        )
    return row[1], row[2]


def _claim_host(connection: Connection, host: str, install_id: str, *, replaces: bool) -> None:
    sql = load("access")
    values = {"host": host, "install_id": install_id}
    other = connection.execute(sql["other_host_of_installation"], values).fetchone()
    if other is not None:
        raise ClaimError(
            f"this installation already stores its logs under the host name `{other[0]}`",
            hint=f"`recall token create {other[0]}` makes a code for it",
        )
    connection.execute(sql["take_host"], values)
    row = connection.execute(sql["lock_host"], values).fetchone()
    if row is not None and row[0] == install_id:
        return
    if not replaces:
        raise ClaimError(
            f"the host name `{host}` belongs to another installation",
            hint=f"choose another name, or move it to this machine with a code of"
            f" `recall token create {host} --replace`; the old machine can then write no more",
        )
    connection.execute(sql["move_host"], values)


@dataclass(slots=True)
class Failures:
    """How often each address failed lately; the oldest address is forgotten where they are many."""

    _seen: OrderedDict[str, tuple[float, int]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait_seconds(self, share: str) -> float:
        """How long this address has to wait for its next attempt."""
        with self._lock:
            since, count = self._seen.get(share, (0.0, 0))
        left = since + FAILURE_SECONDS - time.monotonic()
        return left if count >= MOST_FAILURES and left > 0 else 0.0

    def add(self, share: str) -> None:
        """One more; the time runs from the first."""
        now = time.monotonic()
        with self._lock:
            since, count = self._seen.pop(share, (now, 0))
            self._seen[share] = (now, 1) if now - since > FAILURE_SECONDS else (since, count + 1)
            while len(self._seen) > _MOST_ADDRESSES:
                self._seen.popitem(last=False)
