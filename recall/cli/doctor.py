"""``recall doctor``: what works here, what does not, and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import typer

from recall import disk
from recall.cli.address import check_free, parse_listen
from recall.cli.extras import has_server
from recall.cli.output import print_json, screen
from recall.cli.programs import embedded_programs
from recall.cli.running import find_running
from recall.config import Settings, load_settings
from recall.errors import BusyError, RecallError, StoreUnavailableError
from recall.identity import load_identity
from recall.joined import joined_path, read_joined

_LEAST_FREE_BYTES = 2_000_000_000
_HEALTH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    hint: str | None = None


def doctor(json: bool = typer.Option(False, "--json", help="Print the checks as JSON.")) -> None:
    """Check this installation. Exit code 1 means that something fails."""
    checks = list(_run_checks())
    if json:
        print_json({"checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            _print(check)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def _print(check: Check) -> None:
    style = {"ok": "green", "warn": "yellow", "fail": "red"}[check.status]
    screen.print(f"{check.status:<5}", style=style, end="")
    screen.print(f"{check.name:<14}{check.detail}", markup=False)
    if check.hint:
        screen.print(f"{'':19}hint: {check.hint}", markup=False)


def _run_checks() -> Iterator[Check]:
    """Every check that makes sense after those before it. A check that raises has failed."""
    yield Check("python", "ok", f"{platform.python_version()} at {sys.executable}")
    try:
        settings = load_settings()
    except RecallError as error:
        yield Check("settings", "fail", error.message, error.hint)
        return
    yield _settings_check(settings)
    from recall_ingester.run import feeds_server

    checks: list[tuple[str, Callable[[Settings], Iterator[Check]]]] = [
        ("home", _home),
        ("identity", _identity),
        ("session logs", _session_logs),
        ("joined", _joined),
        ("running", _running),
        ("server part", _server_part),
    ]
    if feeds_server(settings):
        checks.append(("server", _server))
    elif has_server():
        checks += [("postgresql", _programs), ("model", _model), ("database", _database)]
    for name, check in checks:
        try:
            yield from check(settings)
        except RecallError as error:
            yield Check(name, "fail", error.message, error.hint)
        except OSError as error:
            yield Check(name, "fail", f"{error.strerror}: `{error.filename}`")


def _serves(settings: Settings) -> bool:
    """Whether `recall up` can run here."""
    from recall_ingester.run import feeds_server

    return has_server() and not feeds_server(settings)


def _settings_check(settings: Settings) -> Check:
    file = settings.home / "config.toml"
    return Check("settings", "ok", f"`{file}`" if file.exists() else f"defaults (no `{file}`)")


def _home(settings: Settings) -> Iterator[Check]:
    home = settings.home
    if not home.exists():
        yield Check("home", "warn", f"`{home}` does not exist yet", _maker("it"))
        return
    try:
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        hint = "Recall has to run as the account that owns it"
        yield Check("home", "fail", f"`{home}` cannot be written: {error.strerror}", hint)
        return
    free = shutil.disk_usage(home).free
    if free < _LEAST_FREE_BYTES:
        yield Check("home", "warn", f"`{home}`, {free / 1e9:.1f} GB free", "free some space")
    else:
        yield Check("home", "ok", f"`{home}`, {free / 1e9:.1f} GB free")
    mode = home.stat().st_mode
    if mode & 0o077:
        yield Check(
            "home", "warn", f"`{home}` can be entered by other users", f"chmod 700 '{home}'"
        )


def _identity(settings: Settings) -> Iterator[Check]:
    if not (settings.home / "identity.json").exists():
        yield Check("identity", "warn", "none yet", _maker("one"))
        return
    identity = load_identity(settings.home, host=settings.host)
    yield Check("identity", "ok", f"this machine is `{identity.host}`")


def _maker(what: str) -> str:
    """What makes the things of a home: a store of its own, or a server that it feeds."""
    return f"`recall up` makes {what}" if has_server() else f"`recall join` makes {what}"


def _session_logs(settings: Settings) -> Iterator[Check]:
    from recall_ingester.run import select_sources

    total = 0
    for source, roots in select_sources(settings):
        for root in roots:
            if root.exists():
                count = sum(1 for _ in source.discover(root))
                total += count
                yield Check("session logs", "ok", f"{source.name}: {count:,} files in `{root}`")
                yield from _unreadable(source.name, source.unreadable)
    if not total:
        hint = "read a folder: `recall ingest --source NAME=PATH`"
        if _serves(settings):
            hint = f"`recall up` loads sample sessions; or {hint}"
        yield Check("session logs", "warn", "none was found", hint)


def _unreadable(name: str, unreadable: dict[Path, str]) -> Iterator[Check]:
    if unreadable:
        path, reason = next(iter(unreadable.items()))
        yield Check(
            "session logs",
            "warn",
            f"{name}: {len(unreadable):,} cannot be read, for example `{path}` ({reason})",
            "run Recall as the user who owns them",
        )


def _joined(settings: Settings) -> Iterator[Check]:
    joined, path = read_joined(settings.home), joined_path(settings.home)
    if joined is None:
        return
    yield Check("joined", "ok", f"`{joined.url}` as `{joined.host}`")
    if path.stat().st_mode & 0o077:
        yield Check(
            "joined", "warn", f"other users can read the token in `{path}`", f"chmod 600 '{path}'"
        )


def _running(settings: Settings) -> Iterator[Check]:
    state = find_running(settings.home)
    if state is None:
        if not _serves(settings):
            return  # the port may belong to the server itself, in a container of this machine
        yield _port(settings)
        return
    yield Check("running", "ok", f"`recall up` runs at {state['url']} (pid {state['pid']})")
    for part in state.get("parts", []):
        if part["state"] != "running":
            last = part["last_error"] or f"exit code {part['last_exit']}"
            yield Check(
                "running",
                "fail",
                f"{part['name']} is down ({last}), next try at {part['next_try_at']}",
                f"see the log: `{settings.home / 'log'}`",
            )
        elif part["restarts"]:
            yield Check("running", "warn", f"{part['name']} was restarted {part['restarts']} times")


def _port(settings: Settings) -> Check:
    """The port of the API: free for `recall up`, or held by an API that runs without it, as in the
    appliance. Where the database is the embedded one, that API has another store."""
    listen = settings.listen
    address = parse_listen(listen)
    try:
        check_free(address)
    except BusyError:
        parts = _health(address.url)
        if parts is None:
            raise
    else:
        return Check("running", "ok", f"`recall up` does not run; {listen} is free")
    told = f"the API of Recall answers at {listen}"
    wrong = [name for name, part in parts.items() if not part.get("ok")]
    if wrong:
        hint = f"{address.url}/health has the reasons"
        return Check("running", "warn", f"{told}; not well: {', '.join(wrong)}", hint)
    if settings.database_url is None:
        hint = "`recall up` needs another port here: RECALL_LISTEN=127.0.0.1:<port>"
        return Check("running", "warn", f"{told}, and was not started by `recall up` here", hint)
    return Check("running", "ok", told)


def _health(url: str) -> dict[str, dict[str, Any]] | None:
    """The parts that an API of Recall tells of; ``None`` for what is none."""
    import httpx

    try:
        with httpx.Client(trust_env=False, timeout=_HEALTH_SECONDS) as client:
            parts = client.get(f"{url}/health").json()["components"]
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return None
    if not isinstance(parts, dict) or not isinstance(parts.get("database"), dict):
        return None
    return {name: part for name, part in parts.items() if isinstance(part, dict)}


def _server_part(settings: Settings) -> Iterator[Check]:
    from recall_ingester.run import feeds_server

    if feeds_server(settings):
        yield Check("server part", "ok", "not needed: this machine feeds a server")
    elif has_server():
        yield Check("server part", "ok", "installed")
    else:
        yield Check(
            "server part",
            "warn",
            "not installed; this machine can only feed a server",
            "pip install 'recall[server]'",
        )


def _server(settings: Settings) -> Iterator[Check]:
    """Whether the server that this machine feeds answers, and takes its token."""
    from recall_ingester.outage import Outage
    from recall_ingester.run import rest_of
    from recall_ingester.sinks.postgrest import PostgrestSink

    sink = PostgrestSink(*rest_of(settings), load_identity(settings.home, host=settings.host))
    try:
        sink.register()
    except StoreUnavailableError as error:
        since = Outage(settings.home).since()
        told = f"{error.message}, since {since:%Y-%m-%d %H:%M} UTC" if since else error.message
        yield Check("server", "fail", told, error.hint)
    else:
        yield Check("server", "ok", f"`{settings.url}` takes the token of this machine")
    finally:
        sink.close()


def _programs(settings: Settings) -> Iterator[Check]:
    """Whether the embedded server can run here at all, and for root: under which account."""
    if settings.database_url:
        yield Check("postgresql", "ok", "not used: `database_url` names another database")
        return
    from recall_sql.embedded import EmbeddedServer

    yield Check("postgresql", "ok", f"embedded {EmbeddedServer(settings.home).version()}")
    if os.geteuid() == 0 and settings.home.exists():
        yield _root_account(settings.home)


def _root_account(home: Path) -> Check:
    """PostgreSQL refuses to run as root; raises where there is no way around that."""
    from recall_sql.account import choose_account

    account = choose_account(home, home / "pg", embedded_programs())
    how = "in a user namespace" if account.prefix else f"as the account {account.uid}"
    return Check("postgresql", "ok", f"Recall runs as root, the server {how}")


def _model(settings: Settings) -> Iterator[Check]:
    """Whether texts can get vectors here. Without that, only search by meaning does not work."""
    from recall_embedder.model import BUNDLED, BUNDLED_INT8, is_folder, load_model

    name = settings.embed_model
    if name not in (BUNDLED, BUNDLED_INT8) and not is_folder(name):
        yield Check("model", "ok", f"`{name}` of fastembed; not tried, it may need a download")
        return
    try:
        model = load_model(settings)
    except RecallError as error:
        hint = error.hint or "choose another one with `embed_model`"
        yield Check("model", "warn", f"search by meaning is off: {error.message}", hint)
    else:
        yield Check("model", "ok", f"`{model.name}`, {model.dimension} dimensions")


def _database(settings: Settings) -> Iterator[Check]:
    from recall_sql.store import open_store

    if not settings.database_url and not (settings.home / "pg").exists():
        yield Check("database", "warn", "none yet", "`recall up` makes it")
        return
    with open_store(settings, migrate=False) as database_url:
        yield from _store(database_url)
    if room := disk.look(settings):
        yield _disk(room)
    elif settings.database_volume:
        told = f"`{settings.database_volume}` cannot be read, so its free space is not watched"
        yield Check("disk", "warn", told, "RECALL_DATABASE_VOLUME is a folder on that volume")


def _disk(room: disk.Room) -> Check:
    if room.is_short:
        return Check("disk", "fail", room.told, disk.HINT)
    free, reserve = f"{room.free / 1e9:.1f} GB", f"{room.reserve / 1e9:.1f} GB"
    return Check("disk", "ok", f"{free} free for the database; {reserve} are kept free")


def _store(database_url: str) -> Iterator[Check]:
    from recall_sql.connection import connect, translate_errors
    from recall_sql.loader import load
    from recall_sql.migrate import current_version, latest_version
    from recall_sql.server_check import find_problems

    sql = load("operate")
    with translate_errors(), connect(database_url, application="recall doctor") as connection:
        server, _ = connection.execute(sql["server_versions"]).fetchone() or (None, None)
        yield Check("database", "ok", f"PostgreSQL {server} answers")
        for problem in find_problems(connection):
            if problem.part != "checksums":
                yield Check(problem.part, "fail", problem.message, problem.hint)
        version = current_version(connection)
        enabled, failures = connection.execute(sql["checksums"]).fetchone() or (None, 0)
    if version == latest_version():
        yield Check("schema", "ok", f"version {version}")
    elif version < latest_version():
        known = latest_version()
        yield Check("schema", "warn", f"version {version}, not {known}", "run `recall db migrate`")
    else:
        yield Check(
            "schema", "fail", f"version {version} is newer than this code", "upgrade recall"
        )
    if failures:
        yield Check(
            "checksums",
            "fail",
            f"{failures:,} damaged pages were read",
            "check the disk and restore a backup",
        )
    elif enabled != "on":
        yield Check("checksums", "warn", "off", "enable them with `pg_checksums --enable`")
    else:
        yield Check("checksums", "ok", "on, no failure")
