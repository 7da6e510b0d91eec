"""JSON web tokens with HS256: signing for tests, and verifying as the real server does."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from tests.double.refusal import Refusal

_SKEW_SECONDS = 30


def sign(secret: str, claims: Mapping[str, Any], *, algorithm: str = "HS256") -> str:
    """A token; any other algorithm than HS256 is only named, and the signature left empty."""
    head = {"alg": algorithm, "typ": "JWT"}
    text = f"{_encoded(json.dumps(head).encode())}.{_encoded(json.dumps(claims).encode())}"
    signature = _signature(secret, text) if algorithm == "HS256" else b""
    return f"{text}.{_encoded(signature)}"


def claims_of(
    authorization: str | None, secret: str | None, audience: str | None
) -> dict[str, Any] | None:
    """The verified claims of an ``Authorization`` header; None where it bears no token."""
    if authorization is None:
        return None
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return None
    token = token.strip()
    if not token:
        raise _undecodable("Empty JWT is sent in Authorization header")
    if secret is None:
        raise Refusal(500, "PGRST300", "Server lacks JWT secret")
    claims = _verified(token, secret)
    _check_times(claims)
    _check_audience(claims, audience)
    return claims


def anonymous_disabled() -> Refusal:
    """No token, and no role for those who have none."""
    return Refusal(
        401,
        "PGRST302",
        "Anonymous access is disabled",
        headers=(("WWW-Authenticate", "Bearer"),),
    )


def _verified(token: str, secret: str) -> dict[str, Any]:
    parts = token.split(".")
    if len(parts) != 3:
        raise _undecodable(f"Expected 3 parts in JWT; got {len(parts)}")
    try:
        head = json.loads(_decoded(parts[0]))
        signature = _decoded(parts[2])
        algorithm = head["alg"]
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise _undecodable("JWT cryptographic operation failed") from None
    if algorithm == "none":
        raise _undecodable(
            "Wrong or unsupported encoding algorithm",
            details="JWT is unsecured but expected 'alg' was not 'none'",
        )
    expected = _signature(secret, f"{parts[0]}.{parts[1]}")
    if algorithm != "HS256" or not hmac.compare_digest(expected, signature):
        raise _undecodable(
            "No suitable key or wrong key type",
            details="None of the keys was able to decode the JWT",
        )
    try:
        claims = json.loads(_decoded(parts[1]))
    except (ValueError, binascii.Error):
        claims = None
    if not isinstance(claims, dict):
        raise _wrong_claims("Parsing claims failed")
    return claims


def _check_times(claims: Mapping[str, Any]) -> None:
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise _wrong_claims(f"The JWT '{name}' claim must be a number")
    now = time.time()
    if (expires := claims.get("exp")) is not None and now - _SKEW_SECONDS >= expires:
        raise _wrong_claims("JWT expired")
    if (begins := claims.get("nbf")) is not None and now + _SKEW_SECONDS < begins:
        raise _wrong_claims("JWT not yet valid")
    if (issued := claims.get("iat")) is not None and now + _SKEW_SECONDS < issued:
        raise _wrong_claims("JWT issued at future")


def _check_audience(claims: Mapping[str, Any], audience: str | None) -> None:
    named = claims.get("aud")
    if named is None:
        return
    allowed = [named] if isinstance(named, str) else named
    if not isinstance(allowed, list) or not all(isinstance(one, str) for one in allowed):
        raise _wrong_claims("The JWT 'aud' claim must be a string or an array of strings")
    if audience is not None and allowed and audience not in allowed:
        raise _wrong_claims("JWT not in audience")


def _undecodable(message: str, details: str | None = None) -> Refusal:
    return _unauthorized("PGRST301", message, details)


def _wrong_claims(message: str) -> Refusal:
    return _unauthorized("PGRST303", message, None)


def _unauthorized(code: str, message: str, details: str | None) -> Refusal:
    challenge = f'Bearer error="invalid_token", error_description="{message}"'
    return Refusal(401, code, message, details=details, headers=(("WWW-Authenticate", challenge),))


def _signature(secret: str, text: str) -> bytes:
    return hmac.digest(secret.encode(), text.encode(), hashlib.sha256)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)
