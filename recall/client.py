"""The HTTP client of a Recall server: the same answers as the server's own functions give."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx

from recall import __version__
from recall.config import Settings
from recall.errors import (
    AccessError,
    BusyError,
    ConfigError,
    NotFoundError,
    RecallError,
    StoreError,
    StoreUnavailableError,
    UsageError,
)

Params = Mapping[str, Any]
Answer = dict[str, Any]

#: A larger answer is not read to its end; the API gives none that large.
MOST_ANSWER_BYTES = 64 * 2**20
_CONNECT_SECONDS = 5.0
#: What a server needs on top of the time that a search may take.
_GRACE_SECONDS = 10.0


class RecallClient:
    """Asks the server at ``url``. Every error is a :class:`RecallError` with a hint."""

    def __init__(self, settings: Settings, *, transport: httpx.BaseTransport | None = None) -> None:
        if settings.url is None:
            raise ConfigError("`url` is not set", hint="set RECALL_URL to the address of a server")
        self._url = base_url(settings.url)
        headers = {"Accept": "application/json", "User-Agent": f"recall/{__version__}"}
        if settings.token:
            headers["Authorization"] = f"Bearer {settings.token}"
        seconds = settings.search_timeout_seconds + _GRACE_SECONDS
        self._http = httpx.Client(
            base_url=self._url,
            headers=headers,
            timeout=httpx.Timeout(seconds, connect=_CONNECT_SECONDS),
            follow_redirects=False,  # a token goes to the configured server and nowhere else
            trust_env=False,  # the server is on a private network, no proxy stands before it
            verify=ssl.create_default_context() if self._url.startswith("https:") else True,
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def search(self, params: Params) -> Answer:
        """``GET /search``."""
        return self._get("/search", params)

    def sessions(self, params: Params) -> Answer:
        """``GET /sessions``."""
        return self._get("/sessions", params)

    def session(self, ref: str) -> Answer:
        """``GET /sessions/{key}``."""
        return self._get(f"/sessions/{_segment(ref)}", {})

    def messages(self, ref: str, params: Params) -> Answer:
        """``GET /sessions/{key}/messages``."""
        return self._get(f"/sessions/{_segment(ref)}/messages", params)

    def message(self, message_id: str, params: Params) -> Answer:
        """``GET /messages/{id}``."""
        return self._get(f"/messages/{_segment(message_id)}", params)

    def ledger(self, params: Params) -> Answer:
        """``GET /ledger``."""
        return self._get("/ledger", params)

    def memories(self, params: Params) -> Answer:
        """``GET /memories``."""
        return self._get("/memories", params)

    def status(self, params: Params) -> Answer:
        """``GET /status``."""
        return self._get("/status", params)

    def join(self, code: str, install_id: str, host: str | None) -> Answer:
        """``POST /join``: the name and the token of this machine for a code."""
        return self._ask(
            "POST", "/join", {}, {"code": code, "install_id": install_id, "host": host}
        )

    def _get(self, path: str, params: Params) -> Answer:
        return self._ask("GET", path, params, None)

    def _ask(self, method: str, path: str, params: Params, sent: Answer | None) -> Answer:
        status, body = self._fetch(method, path, _query(params), sent)
        answer = self._decode(status, body)
        if status != 200:
            raise self._error(status, answer)
        return answer

    def _fetch(
        self, method: str, path: str, query: httpx.QueryParams, sent: Answer | None
    ) -> tuple[int, bytes]:
        try:
            with self._http.stream(method, path, params=query, json=sent) as response:
                body = bytearray()
                for piece in response.iter_bytes():
                    body += piece
                    if len(body) > MOST_ANSWER_BYTES:
                        raise StoreError(
                            f"the answer of `{self._url}` is over {MOST_ANSWER_BYTES >> 20} MiB",
                            hint="ask for less with `--limit` or a filter",
                        )
                return response.status_code, bytes(body)
        except httpx.ConnectError as error:
            raise unreachable(self._url, error) from error
        except httpx.TimeoutException as error:
            raise StoreUnavailableError(
                f"`{self._url}` did not answer in time",
                hint="narrow the request with filters, or try again later",
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise StoreUnavailableError(
                f"the connection to `{self._url}` failed ({type(error).__name__})",
                hint="is the address (of `recall join` or RECALL_URL) that of a Recall server?",
            ) from error

    def _decode(self, status: int, body: bytes) -> Answer:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict):
            return answer
        raise StoreError(
            f"what answers at `{self._url}` is not a Recall server (status {status}, no JSON)",
            hint="check the address (of `recall join` or RECALL_URL); a proxy or a login page may"
            " stand in between",
        )

    def _error(self, status: int, problem: Answer) -> RecallError:
        """The error that the server had, in the words that it used."""
        detail = problem.get("detail")
        if not isinstance(detail, str) or "status" not in problem:
            return StoreError(
                f"what answers at `{self._url}` is not a Recall server (status {status})",
                hint="check the address (of `recall join` or RECALL_URL)",
            )
        hint = problem.get("hint")
        return _error_class(status)(detail, hint=hint if isinstance(hint, str) else None)


def _error_class(status: int) -> type[RecallError]:
    if status == 404:
        return NotFoundError
    if status in (401, 403):
        return AccessError
    if status == 429:
        return BusyError
    if status in (502, 503, 504):
        return StoreUnavailableError
    if 400 <= status < 500:
        return UsageError
    return StoreError


def unreachable(url: str, error: httpx.HTTPError) -> StoreUnavailableError:
    """Nothing answers at an address, and why, as far as TLS tells."""
    reason = tls_error(error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return StoreUnavailableError(
            f"the certificate of `{url}` is not trusted ({reason.verify_message})",
            hint="add its authority to the certificates of this system, or name it in"
            " SSL_CERT_FILE",
        )
    if reason is not None:
        return StoreUnavailableError(
            f"what answers at `{url}` does not speak TLS", hint="is it http, not https?"
        )
    return StoreUnavailableError(
        f"no Recall server answers at `{url}`",
        hint="is it running, and is this machine in its network? `recall join` or RECALL_URL"
        " named it",
    )


def tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """What TLS had against a connection; the libraries in between wrap it."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def base_url(url: str) -> str:
    """An address without a slash at its end; :class:`ConfigError` if it cannot be a server's."""
    try:
        urlsplit(url)  # knows what is wrong with a bracket
        parsed = httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        parsed = httpx.URL("")
    wrong = parsed.userinfo or parsed.query or parsed.fragment or not parsed.host
    if parsed.scheme not in ("http", "https") or wrong:
        raise ConfigError(
            "`url` must be the http or https address of a Recall server",
            hint="for example RECALL_URL=http://server:7717",
        )
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii')}{parsed.path.rstrip('/')}"


def _segment(text: str) -> str:
    """One part of a path; dots are escaped too, because `..` would climb."""
    return quote(text, safe="", errors="replace").replace(".", "%2E")


def _query(params: Params) -> httpx.QueryParams:
    query: list[tuple[str, str | int | float | bool | None]] = []
    for name, value in params.items():
        values = value if isinstance(value, list | tuple) else [value]
        for item in values:
            if item is not None:
                text = str(item).lower() if isinstance(item, bool) else str(item)
                query.append((name, text.encode("utf-8", "replace").decode()))
    return httpx.QueryParams(query)
