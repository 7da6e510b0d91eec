"""Errors as PostgREST answers them: status, JSON and headers by SQLSTATE or ``PGRST`` code."""

from __future__ import annotations

import json
import re

_EXACT = {
    "23503": 409, "23505": 409, "25006": 405, "57P01": 503, "P0001": 400, "42883": 404,
    "42P01": 404, "42P17": 500, "21000": 500, "53400": 500,
}  # fmt: skip
_CLASSES = {
    "08": 503, "09": 500, "0L": 403, "0P": 403, "25": 500, "28": 403, "2D": 500, "38": 500,
    "39": 500, "3B": 500, "40": 500, "53": 503, "54": 500, "55": 500, "57": 500, "58": 500,
    "F0": 500, "HV": 500, "P0": 500, "XX": 500,
}  # fmt: skip


class Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        details: str | None = None,
        hint: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details
        self.hint = hint
        self.headers = headers

    def body(self, verbosity: str = "verbose") -> bytes:
        """The JSON of the answer, its keys in the order that the real server uses."""
        told = {"code": self.code, "details": self.details, "hint": self.hint}
        if verbosity == "minimal":
            told = {"code": self.code}
        return json.dumps(
            told | {"message": self.message}, separators=(",", ":"), ensure_ascii=False
        ).encode()

    def all_headers(self) -> list[tuple[str, str]]:
        """The headers that belong to the error, in front of those of its media type."""
        found = [("Retry-After", "0")] if self.status == 503 else []
        found.append(("Content-Type", "application/json; charset=utf-8"))
        if not any(name == "Content-Range" for name, _ in self.headers):
            found.append(("Proxy-Status", f"PostgREST; error={self.code}"))
        return found + list(self.headers)


class DatabaseError(Exception):
    """What the database said; ``lost`` where its connection is gone with it."""

    def __init__(
        self,
        sqlstate: str | None,
        message: str,
        details: str | None = None,
        hint: str | None = None,
        *,
        lost: bool = False,
    ) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message
        self.details = details
        self.hint = hint
        self.lost = lost

    def refusal(self, *, authenticated: bool) -> Refusal:
        """The answer; whether the caller has a role of its own decides between 403 and 401."""
        code = self.sqlstate or "XX000"
        if code == "PGRST":
            return _raised(self)
        status = self._status(code, authenticated)
        challenge = (("WWW-Authenticate", "Bearer"),) if status == 401 else ()
        return Refusal(
            status, code, self.message, details=self.details, hint=self.hint, headers=challenge
        )

    def _status(self, code: str, authenticated: bool) -> int:
        if code == "42501":
            return 403 if authenticated else 401
        if code == "22023":
            unknown_role = re.fullmatch(r'role ".*" does not exist', self.message)
            return 401 if unknown_role else 400
        if code == "21000" and self.message.endswith("requires a WHERE clause"):
            return 400
        if code.startswith("PT"):
            return int(code[2:]) if code[2:].isdigit() else 500
        return _EXACT.get(code) or _CLASSES.get(code[:2], 400)


def _raised(error: DatabaseError) -> Refusal:
    """An error that a function made for the client: message and detail are JSON."""
    try:
        told = json.loads(error.message)
        how = json.loads(error.details or "")
        return Refusal(
            int(how["status"]),
            told["code"],
            told["message"],
            details=told.get("details"),
            hint=told.get("hint"),
            headers=tuple((how.get("headers") or {}).items()),
        )
    except (ValueError, KeyError, TypeError):
        return Refusal(
            500, "PGRST121", "Could not parse JSON in the \"RAISE SQLSTATE 'PGRST'\" error"
        )


def no_connection(reason: str) -> Refusal:
    """No connection could be opened."""
    return Refusal(503, "PGRST000", "Database connection error.", details=reason)


def connection_lost() -> Refusal:
    """The connection went away during a request."""
    return Refusal(
        503,
        "PGRST001",
        "Database client error. Retrying the connection.",
        details="no connection to the server\n",
    )


def no_schema_cache() -> Refusal:
    """The database has not answered since the server was started."""
    return Refusal(503, "PGRST002", "Could not query the database for the schema cache. Retrying.")


def pool_exhausted() -> Refusal:
    """Every connection of the pool was busy for as long as a request may wait for one."""
    return Refusal(504, "PGRST003", "Timed out acquiring connection from connection pool.")
