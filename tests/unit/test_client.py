"""The HTTP client: what a server or something else answers, as an error with a hint."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from recall import client
from recall.client import RecallClient
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

URL = "http://server.example:7717"


def ask(
    answer: Callable[[httpx.Request], httpx.Response], *, token: str | None = None
) -> dict[str, Any]:
    settings = Settings(url=URL, token=token)
    with RecallClient(settings, transport=httpx.MockTransport(answer)) as server:
        return server.session("a/b")


def problem(status: int, hint: str | None = "do this") -> httpx.Response:
    body = {"type": "x", "title": "t", "status": status, "detail": "what happened", "hint": hint}
    return httpx.Response(status, json=body)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, UsageError),
        (401, AccessError),
        (403, AccessError),
        (404, NotFoundError),
        (409, UsageError),
        (414, UsageError),
        (429, BusyError),
        (500, StoreError),
        (503, StoreUnavailableError),
        (504, StoreUnavailableError),
    ],
)
def test_a_problem_becomes_the_error_that_the_server_had(
    status: int, kind: type[RecallError]
) -> None:
    with pytest.raises(RecallError) as failed:
        ask(lambda _: problem(status))
    assert type(failed.value) is kind
    assert (failed.value.message, failed.value.hint) == ("what happened", "do this")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>Sign in</html>"),
        httpx.Response(200, text=""),
        httpx.Response(200, json=["a", "list"]),
        httpx.Response(502, text="Bad Gateway"),
        httpx.Response(302, headers={"location": "http://elsewhere.example/"}),
        httpx.Response(404, json={"detail": "Not Found"}),
        httpx.Response(500, json={"error": "x"}),
        httpx.Response(200, content=b"[" * 200_000),
    ],
)
def test_what_is_no_recall_server_is_said_to_be_none(answer: httpx.Response) -> None:
    with pytest.raises(StoreError, match="is not a Recall server") as failed:
        ask(lambda _: answer)
    assert failed.value.hint and "RECALL_URL" in failed.value.hint


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (httpx.ConnectError("refused"), "no Recall server answers"),
        (httpx.ConnectTimeout("slow"), "did not answer in time"),
        (httpx.ReadTimeout("slow"), "did not answer in time"),
        (httpx.RemoteProtocolError("broken"), "failed"),
        (httpx.ReadError("reset"), "failed"),
    ],
)
def test_a_server_that_is_away_can_be_asked_again(error: Exception, told: str) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(StoreUnavailableError, match=told) as failed:
        ask(answer)
    assert failed.value.retryable
    assert failed.value.hint


def refused_by(reason: ssl.SSLError) -> httpx.ConnectError:
    """As the library gives it on: what TLS said stands two causes deep."""
    between = OSError("wrapped")
    between.__context__ = reason
    error = httpx.ConnectError("wrapped again")
    error.__cause__ = between
    return error


def test_a_certificate_that_is_not_trusted_is_told_as_that() -> None:
    reason = ssl.SSLCertVerificationError("refused")
    reason.verify_message = "self-signed certificate"

    def answer(_: httpx.Request) -> httpx.Response:
        raise refused_by(reason)

    told = r"certificate of `\S+` is not trusted \(self-signed certificate\)"
    with pytest.raises(StoreUnavailableError, match=told) as failed:
        ask(answer)
    assert failed.value.hint and "SSL_CERT_FILE" in failed.value.hint


def test_a_server_without_tls_is_told_as_that() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise refused_by(ssl.SSLError("wrong version number"))

    with pytest.raises(StoreUnavailableError, match="does not speak TLS"):
        ask(answer)


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_ANSWER_BYTES", 1_000)
    sent: list[int] = []

    def pieces() -> Iterator[bytes]:
        while True:
            sent.append(100)
            yield b"x" * 100

    with pytest.raises(StoreError, match="the answer of"):
        ask(lambda _: httpx.Response(200, content=pieces()))
    assert sum(sent) <= 1_200


def test_the_token_goes_to_the_server_and_follows_no_redirect() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(307, headers={"location": "http://elsewhere.example/"})

    with pytest.raises(StoreError):
        ask(answer, token="a-token")
    assert [request.url.host for request in seen] == ["server.example"]
    assert seen[0].headers["authorization"] == "Bearer a-token"
    ask(lambda request: httpx.Response(200, json={"auth": request.headers.get("authorization")}))
    assert ask(lambda r: httpx.Response(200, json=dict(r.headers))).get("authorization") is None


@pytest.mark.parametrize(
    ("ref", "path"),
    [
        ("claude-code:laptop:a/agent-b", "/sessions/claude-code%3Alaptop%3Aa%2Fagent-b"),
        ("..", "/sessions/%2E%2E"),
        ("a?b#c%2F", "/sessions/a%3Fb%23c%252F"),
        ("ü\ud800", "/sessions/%C3%BC%3F"),
    ],
)
def test_a_key_is_one_part_of_the_path(ref: str, path: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"path": request.url.raw_path.decode()})

    with RecallClient(Settings(url=URL), transport=httpx.MockTransport(answer)) as server:
        assert server.session(ref) == {"path": path}


def test_parameters_are_sent_as_the_api_reads_them() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"query": list(request.url.params.multi_items())})

    asked = {"q": "a&b=c +", "role": ["user", "tool"], "limit": 3, "cursor": None, "flag": True}
    with RecallClient(Settings(url=URL), transport=httpx.MockTransport(answer)) as server:
        query = server.search(asked)["query"]
    assert query == [
        ["q", "a&b=c +"], ["role", "user"], ["role", "tool"], ["limit", "3"], ["flag", "true"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "url",
    ["server", "ftp://server", "http://", "http://user:pw@server", "http://[", "//server", "/"],
)
def test_an_address_that_is_none_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigError) as failed:
        RecallClient(Settings(url=url))
    assert "pw" not in json.dumps([failed.value.message, failed.value.hint])


def test_a_server_below_a_path_keeps_the_path() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"url": str(request.url)})

    settings = Settings(url="https://server.example/recall/")
    with RecallClient(settings, transport=httpx.MockTransport(answer)) as server:
        assert server.status({}) == {"url": "https://server.example/recall/status"}
