"""``recall join`` and ``recall leave``: whether this machine feeds a server."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import typer

from recall.cli.output import note, print_json, screen
from recall.client import RecallClient, base_url
from recall.config import Settings, find_home, load_settings
from recall.errors import AccessError, ConfigError, RecallError, StoreError, UsageError
from recall.identity import Identity, find_identity, host_name, write_identity
from recall.joined import (
    Joined,
    forget_joined,
    joined_path,
    next_install_id,
    read_joined,
    write_joined,
)


def join(
    url: str = typer.Argument(..., metavar="URL", help="Address of the server."),
    code: str = typer.Argument(
        ..., metavar="CODE", help="What `recall token create` printed on the server; used once."
    ),
    json: bool = typer.Option(False, "--json", help="Print the server and the name as JSON."),
) -> None:
    """Let this machine feed a server.

    `recall token create HOST` on the server prints the whole line. The name of this machine, the
    address of the server and the token go to the home; nothing is sent of the session logs yet.
    """
    settings = load_settings()
    url = _address(url)
    _check_free(settings.home, url)
    if not json:
        _warn_of_plain_http(url)
    joined = _join(settings, url, code)
    _try_token(settings, joined)
    if json:
        print_json({"url": joined.url, "host": joined.host})
    else:
        _tell(settings, joined)


def leave() -> None:
    """Forget the server that this machine feeds. What it stored there stays.

    The token counts until `recall token revoke HOST` on the server.
    """
    home = find_home()
    try:
        joined = read_joined(home)
    except RecallError:  # a damaged file is forgotten too
        joined = None
    if not forget_joined(home):
        screen.print("this machine feeds no server", markup=False)
        return
    screen.print(f"left {joined.url if joined else 'the server'}", markup=False)
    if joined:
        note(f"`recall token revoke {joined.host}` on the server makes the token worthless")


def _address(url: str) -> str:
    try:
        return base_url(url)
    except ConfigError as error:
        raise UsageError(
            "URL must be the http or https address of a Recall server",
            hint="for example http://server:7717, as `recall token create` prints it",
        ) from error


def _check_free(home: Path, url: str) -> None:
    before = read_joined(home)
    if before is not None and before.url != url:
        raise UsageError(
            f"this machine already feeds `{before.url}` as `{before.host}`",
            hint="`recall leave` ends that; then join again",
        )


def _join(settings: Settings, url: str, code: str) -> Joined:
    """Use the code, and keep what it gave. A refused code was not used."""
    identity = find_identity(settings.home)
    install_id = identity.install_id if identity else next_install_id(settings.home)
    host = identity.host if identity else host_name(settings.host) if settings.host else None
    with RecallClient(replace(settings, url=url, token=None)) as client:
        try:
            answer = client.join(code, install_id, host)
        except RecallError as error:
            raise type(error)(error.message, hint=_hint_for(url, error)) from error
    try:
        joined = Joined(url, str(answer["host"]), str(answer["token"]))
    except KeyError:
        raise AccessError(
            f"what answers at `{url}` gave no token", hint="is it a Recall server of this version?"
        ) from None
    if identity is None:
        write_identity(settings.home, Identity(joined.host, install_id))
    write_joined(settings.home, joined)
    return joined


def _hint_for(url: str, error: RecallError) -> str | None:
    """What to do about a failed attempt to join; the client's hints are about a setting."""
    if isinstance(error, StoreError) and "RECALL_URL" in (error.hint or ""):
        return (
            "is the address right, and does the server run? if the code was used without an answer,"
            " `recall token create` makes another one"
        )
    if error.hint is None and urlsplit(url).path:
        return f"`{urlsplit(url).path}` is asked for below the server; leave it out"
    return error.hint


def _try_token(settings: Settings, joined: Joined) -> None:
    with RecallClient(replace(settings, url=joined.url, token=joined.token)) as client:
        try:
            client.status({})
        except RecallError as error:
            raise type(error)(
                f"this machine has joined as `{joined.host}`, but the server does not answer it:"
                f" {error.message}",
                hint=error.hint,
            ) from error


def _tell(settings: Settings, joined: Joined) -> None:
    screen.print(f"this machine feeds {joined.url} as `{joined.host}`", markup=False)
    note(f"its token is in `{joined_path(settings.home)}`, which only you can read")
    named = os.environ.get("RECALL_URL")
    if named is not None and named.rstrip("/") != joined.url:
        note("RECALL_URL names another server and wins; unset it")
    if (settings.home / "pg").exists():
        note(
            "commands now ask the server; with `RECALL_URL=` (empty) they ask the store from before"
        )
    note(
        "\nnext: `recall ingest` sends the session logs now,"
        " `recall service install` every five minutes"
    )


def _warn_of_plain_http(url: str) -> None:
    """A token that crosses the internet without TLS can be read on its way."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        return
    try:
        found = socket.getaddrinfo(parts.hostname, None, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError):
        return
    addresses = {str(entry[4][0]).partition("%")[0] for entry in found}
    if any(ipaddress.ip_address(address).is_global for address in addresses):
        note(
            f"warning: `{url}` is on the internet and has no TLS; anybody on the way sees the token"
        )
