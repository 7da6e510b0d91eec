"""Errors as ``application/problem+json`` (RFC 9457), with the next step in ``hint``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from recall.errors import (
    AccessError,
    ClaimError,
    NotFoundError,
    RecallError,
    StoreError,
    StoreUnavailableError,
    UsageError,
)
from recall_api.reading import OutOfTimeError
from recall_api.sessions import AmbiguousReferenceError

MEDIA_TYPE = "application/problem+json"
#: When a client may ask again after the store was not available.
RETRY_AFTER_SECONDS = 5

#: Every kind of problem: its title. The ``type`` of a problem is a URN made of the kind.
TITLES: Mapping[str, str] = {
    "usage": "the request asks for something that cannot be",
    "ambiguous": "the reference fits more than one session",
    "not-found": "not in the store",
    "no-such-page": "no such page",
    "access": "not allowed",
    "token": "a token that counts is needed",
    "host": "the name or the installation is taken",
    "method": "not a method of this path",
    "too-long": "the request is too long",
    "too-many-requests": "too many requests at once",
    "not-set-up": "the server is not set up for this",
    "store-unavailable": "the store cannot be reached now",
    "store": "the store refused or failed",
    "disk-full": "there is no room to store more",
    "timeout": "the time limit was reached",
    "internal": "an error in Recall itself",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One refused or failed request. ``extra`` are more members of the document."""

    status: int
    kind: str
    detail: str
    hint: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The JSON body."""
        body = {
            "type": f"urn:recall:problem:{self.kind}",
            "title": TITLES[self.kind],
            "status": self.status,
            "detail": self.detail,
            "hint": self.hint,
        }
        return {**body, **self.extra}

    def response(self) -> Response:
        """The HTTP answer."""
        return Response(
            json.dumps(self.document(), ensure_ascii=False).encode(),
            self.status,
            headers=dict(self.headers),
            media_type=MEDIA_TYPE,
        )


def of_error(error: RecallError) -> Problem:
    """How an error of the tree looks over HTTP. Store errors carry no content by construction."""
    if isinstance(error, AmbiguousReferenceError):
        extra = {"candidates": error.candidates}
        return Problem(409, "ambiguous", error.message, error.hint, extra=extra)
    if isinstance(error, ClaimError):
        return Problem(409, "host", error.message, error.hint)
    if isinstance(error, NotFoundError):
        return Problem(404, "not-found", error.message, error.hint)
    if isinstance(error, UsageError):
        return Problem(400, "usage", error.message, error.hint)
    if isinstance(error, AccessError):
        return Problem(403, "access", error.message, error.hint)
    if isinstance(error, OutOfTimeError):
        return Problem(504, "timeout", error.message, error.hint)
    if isinstance(error, StoreUnavailableError):
        later = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        return Problem(503, "store-unavailable", error.message, error.hint, headers=later)
    if isinstance(error, StoreError):
        return Problem(500, "store", error.message, error.hint)
    return Problem(500, "internal", "the request failed", "the log of the API names the reason")
