"""``recall db``: the database behind the store."""

from __future__ import annotations

import os
import shutil
import subprocess
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from recall.cli.extras import need_server
from recall.cli.output import print_json, screen
from recall.cli.programs import embedded_programs
from recall.cli.terminal import short_size
from recall.config import Settings, load_settings
from recall.errors import ConfigError, MissingExtraError

app = typer.Typer(help="Look at and maintain the database.", no_args_is_help=True)


@app.command("url")
def url() -> None:
    """Print the libpq URL of the database, with the password if it has one."""
    settings = _settings()
    from recall_sql.embedded import EmbeddedServer

    typer.echo(settings.database_url or EmbeddedServer(settings.home).url)


@app.command("migrate")
def migrate(json: bool = typer.Option(False, "--json", help="Print the versions as JSON.")) -> None:
    """Bring the schema to the newest version. `recall up` does this by itself."""
    settings = _settings()
    from recall_sql.migrate import latest_version
    from recall_sql.migrate import migrate as apply
    from recall_sql.store import open_store

    with open_store(settings, migrate=False) as database_url:
        applied = apply(database_url)
    if json:
        print_json({"version": latest_version(), "applied": applied})
    elif applied:
        screen.print(f"schema brought to version {latest_version()}", markup=False)
    else:
        screen.print(f"schema is at version {latest_version()}", markup=False)


@app.command("check")
def check() -> None:
    """Refuse a server to which the store cannot be trusted; the appliance asks before each start.

    Exit code 69, with the reason: its data goes away with its container, pgvector is older than
    0.8.4, or its pages have no checksums.
    """
    settings = _settings()
    from recall_sql.server_check import require_safe
    from recall_sql.store import open_store

    with open_store(settings, migrate=False) as database_url:
        require_safe(database_url)
    screen.print("the server can be trusted with the store", markup=False)


@app.command("authenticator")
def authenticator(
    password_file: Path = typer.Option(
        ..., "--password-file", metavar="FILE", help="File that holds nothing but the password."
    ),
) -> None:
    """Let PostgREST log in: give the role `recall_authenticator` the password of a file.

    The role can do nothing by itself; it becomes what the token of a request says. Call it after
    `recall db migrate`; a PostgREST that runs then reads the schema again.
    """
    settings = _settings()
    from recall_sql.authenticator import let_in
    from recall_sql.store import open_store

    password = _read_password(password_file)
    with open_store(settings, migrate=False) as database_url:
        let_in(database_url, password)
    screen.print("`recall_authenticator` can log in", markup=False)


class Service(StrEnum):
    """What has a role of its own in the database."""

    API = "api"
    EMBEDDER = "embedder"


@app.command("login")
def login(
    service: Service = typer.Argument(help="Which service."),
    password_file: Path = typer.Option(
        ..., "--password-file", metavar="FILE", help="File that holds nothing but the password."
    ),
) -> None:
    """Let a service log in with no more rights than it needs, and the password of a file.

    The roles are `recall_api` and `recall_embedder`. Call it as the owner of the database, after
    `recall db migrate`.
    """
    settings = _settings()
    from recall_sql.authenticator import let_service_in
    from recall_sql.store import open_store

    password = _read_password(password_file)
    with open_store(settings, migrate=False) as database_url:
        name = let_service_in(database_url, service.value, password)
    screen.print(f"`{name}` can log in", markup=False)


def _read_password(file: Path) -> str:
    try:
        password = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"`{file}` cannot be read") from error
    if not password:
        raise ConfigError(f"`{file}` is empty", hint="put the password into it")
    return password


@app.command("psql", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def psql(context: typer.Context) -> None:
    """Open `psql` on the database; further arguments are its own."""
    settings = _settings()
    from recall_sql.store import open_store

    with open_store(settings, migrate=False) as database_url:
        argv = [_psql(), *context.args]
        code = subprocess.call(argv, env={**os.environ, **_libpq_environment(database_url)})
    raise typer.Exit(code if code >= 0 else 128 - code)


def _psql() -> str:
    """That of the embedded PostgreSQL, else the one on the PATH."""
    try:
        return str(embedded_programs() / "psql")
    except MissingExtraError:
        if found := shutil.which("psql"):
            return found
        raise


@app.command("size")
def size(json: bool = typer.Option(False, "--json", help="Print the sizes as JSON.")) -> None:
    """Show how large the tables and indexes are."""
    settings = _settings()
    total, relations = _sizes(settings)
    if json:
        print_json({"database_bytes": total, "relations": relations})
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("name")
    table.add_column("kind")
    table.add_column("size", justify="right")
    table.add_column("rows (estimated)", justify="right")
    for item in relations:
        rows = f"{item['rows_estimated']:,}" if item["rows_estimated"] is not None else ""
        table.add_row(item["name"], item["kind"], short_size(item["bytes"]), rows)
    screen.print(table)
    screen.print(f"\nwhole database: {short_size(total)}", markup=False)


def _settings() -> Settings:
    settings = load_settings()
    need_server()
    return settings


def _sizes(settings: Settings) -> tuple[int, list[dict[str, Any]]]:
    from recall_sql.connection import connect, translate_errors
    from recall_sql.loader import load
    from recall_sql.store import open_store

    sql = load("operate")
    with open_store(settings) as database_url, translate_errors(), connect(database_url) as conn:
        row = conn.execute(sql["database_size"]).fetchone()
        assert row
        relations = [
            {"name": name, "kind": kind, "bytes": size, "rows_estimated": rows}
            for name, kind, size, rows in conn.execute(sql["relation_sizes"])
        ]
    return int(row[0]), relations


def _libpq_environment(database_url: str) -> dict[str, str]:
    """The URL as libpq's variables: arguments are visible to everybody on the machine."""
    from psycopg.pq import Conninfo

    return {
        option.envvar.decode(): option.val.decode()
        for option in Conninfo.parse(database_url.encode())
        if option.envvar and option.val
    }
