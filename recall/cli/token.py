"""``recall token``: which machines may write to this server. Needs its database."""

from __future__ import annotations

import ipaddress
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from recall.cli.address import Address, parse_listen
from recall.cli.extras import need_server
from recall.cli.output import note, print_json, screen
from recall.cli.terminal import counted, short_time
from recall.config import Settings, load_settings
from recall.errors import NotFoundError, UsageError
from recall.identity import host_name

if TYPE_CHECKING:
    from recall_api.reading import Connection

app = typer.Typer(help="Let machines write to this server, or stop them.", no_args_is_help=True)

#: Asking for a route sends nothing; this address of the documentation range has the default one.
_ANYWHERE = ("192.0.2.1", 9)


@app.command("create")
def create(
    host: str = typer.Argument(..., metavar="HOST", help="Name of the machine in the store."),
    replace: bool = typer.Option(
        False, "--replace", help="Move the name to a new machine; the old one can write no more."
    ),
    minutes: int = typer.Option(15, "--minutes", min=1, max=1_440, help="How long the code lives."),
    json: bool = typer.Option(False, "--json", help="Print the code and its address as JSON."),
) -> None:
    """Print the line with which a machine joins this server.

    The code in it is used once. The machine gets a token of its own, which lasts until it is
    revoked.
    """
    settings = _settings()
    if host != host_name(host):
        raise UsageError(
            f"`{host}` cannot be the name of a host",
            hint=f"small letters, digits, `.`, `_` and `-`: for example `{host_name(host)}`",
        )
    from recall_api.join import create_code

    with _store(settings) as connection:
        known = _installation(connection, host)
        code, expires_at = create_code(connection, host, replaces=replace, minutes=minutes)
    url, about = _server_url(settings)
    if json:
        print_json({"host": host, "url": url, "code": code, "expires_at": expires_at.isoformat()})
        return
    for line in (about, _about_host(host, known, replace), _about_secret(settings)):
        if line:
            note(line)
    note(f"run this on `{host}` within {minutes} minutes:")
    typer.echo(f"recall join {url} {code}")


@app.command("list")
def list_tokens(json: bool = typer.Option(False, "--json", help="Print them as JSON.")) -> None:
    """Show the tokens of this server, and the codes that can still be used."""
    with _store(_settings()) as connection:
        tokens = _rows(connection, "list_tokens")
        codes = _rows(connection, "list_codes")
    if json:
        print_json({"tokens": tokens, "codes": codes})
        return
    table = Table(box=None, pad_edge=False)
    for name in ("host", "state", "issued", "last used", "token"):
        table.add_column(name)
    for row in tokens:
        state = "valid" if row["counts"] else "revoked" if row["revoked_at"] else "replaced"
        used = short_time(row["last_seen_at"]) if row["last_seen_at"] else "never"
        table.add_row(row["host"], state, short_time(row["issued_at"]), used, row["jti"])
    for row in codes:
        until = datetime.fromisoformat(row["expires_at"]).astimezone()
        table.add_row(row["host"], f"code until {until:%H:%M}", "", "", "")
    screen.print(table)


@app.command("revoke")
def revoke(
    what: str = typer.Argument(
        ..., metavar="HOST|TOKEN", help="A host, or the id of a token as `recall token list` shows."
    ),
    json: bool = typer.Option(False, "--json", help="Print what was revoked as JSON."),
) -> None:
    """Make a token worthless from the next request on. What the machine stored stays.

    For a host, codes that were not used yet go too. Exit code 4 means that there was nothing.
    """
    with _store(_settings()) as connection:
        revoked, codes = _revoke(connection, what)
    if not revoked and not codes:
        raise NotFoundError(
            f"no token or code of `{what}` counts", hint="`recall token list` shows all of them"
        )
    if json:
        print_json({"tokens": revoked, "codes": codes})
        return
    for row in revoked:
        screen.print(f"revoked {row['jti']} of `{row['host']}`", markup=False)
    if codes:
        screen.print(f"withdrew {counted(codes, 'unused code')} of `{what}`", markup=False)


def _settings() -> Settings:
    settings = load_settings()
    need_server()
    return settings


@contextmanager
def _store(settings: Settings) -> Iterator[Connection]:
    """The database in one transaction, with the schema of this code."""
    from recall_sql.connection import connect, translate_errors
    from recall_sql.migrate import require_current
    from recall_sql.store import open_store

    with (
        open_store(settings, migrate=settings.database_url is None) as url,
        translate_errors(),
        connect(url, application="recall token", lock_timeout_seconds=90) as connection,
    ):
        require_current(connection)
        yield connection


def _rows(connection: Connection, name: str, **values: Any) -> list[dict[str, Any]]:
    from recall_api.reading import fetch
    from recall_sql.loader import load

    return fetch(connection, load("access")[name], values)


def _installation(connection: Connection, host: str) -> str | None:
    rows = _rows(connection, "installation_of_host", host=host)
    return rows[0]["install_id"] if rows else None


def _revoke(connection: Connection, what: str) -> tuple[list[dict[str, Any]], int]:
    from recall_sql.loader import load

    try:
        jti = str(uuid.UUID(what))
    except ValueError:
        revoked = _rows(connection, "revoke_tokens_of_host", host=what)
        withdrawn = connection.execute(load("access")["withdraw_codes"], {"host": what})
        return revoked, withdrawn.rowcount
    return _rows(connection, "revoke_token", jti=jti), 0


def _about_host(host: str, known: str | None, replace: bool) -> str | None:
    if known is None:
        return f"no machine has joined as `{host}` before" if replace else None
    if replace:
        return f"the machine that is `{host}` now can write no more as soon as the code is used"
    return (
        f"`{host}` is known: only that installation can use this code;"
        " --replace moves the name to a new machine"
    )


def _about_secret(settings: Settings) -> str | None:
    if settings.jwt_secret:
        return None
    return (
        "`jwt_secret` is not set here; without it in the settings of the API, no machine can join"
        " (RECALL_JWT_SECRET_FILE names a file with at least 32 random bytes)"
    )


def _server_url(settings: Settings) -> tuple[str, str | None]:
    """Where other machines reach the API, and what is to be said about it."""
    if settings.public_url:
        return settings.public_url, None
    listen = parse_listen(settings.listen)
    try:
        address = ipaddress.ip_address(listen.host)
    except ValueError:
        return listen.url, None
    if not address.is_unspecified and not address.is_loopback:
        return listen.url, None
    url = Address(_own_address(), listen.port).url
    if address.is_loopback:
        return url, (
            f"the API listens on {settings.listen}, which no other machine reaches:"
            f" set RECALL_LISTEN=0.0.0.0:{listen.port}, or RECALL_PUBLIC_URL to its proxy"
        )
    return url, "the address is a guess; RECALL_PUBLIC_URL sets the right one"


def _own_address() -> str:
    """The address that this machine has towards others, or its name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANYWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
