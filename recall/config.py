"""Settings: one table of options, read once, from the environment and ``config.toml``.

The environment wins over the file, the file over the default. An unknown name is an error, in the
file as in the environment, so that a typing mistake never silently does nothing. A secret can also
come from a file named by ``<NAME>_FILE``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import platformdirs

from recall import readers
from recall.declared import DeclaredSource, read_declared
from recall.errors import ConfigError
from recall.joined import read_joined

#: Variables that belong to clients or to tests and are not settings.
_NOT_SETTINGS = frozenset({"RECALL_TEST_POINT"})


def _default_home() -> Path:
    return Path(platformdirs.user_data_dir("recall", appauthor=False))


def _option(
    read: Callable[[object], Any], default: Any, about: str, *, secret: bool = False
) -> Any:
    how = {"default_factory": default} if callable(default) else {"default": default}
    return field(metadata={"read": read, "about": about, "secret": secret}, **how)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting. ``RECALL_<NAME>`` in the environment, ``name`` in ``config.toml``."""

    home: Path = _option(
        readers.path, _default_home, "Where Recall keeps its database, its identity and its locks."
    )
    url: str | None = _option(
        readers.optional_text,
        None,
        "Address of a Recall server; the command asks it instead of a local database.",
    )
    token: str | None = _option(
        readers.optional_text, None, "Token for the server at `url`.", secret=True
    )
    database_url: str | None = _option(
        readers.optional_text,
        None,
        "PostgreSQL 18 with pgvector to use instead of the embedded one (a libpq URL).",
        secret=True,
    )
    host: str | None = _option(
        readers.optional_text, None, "Name of this machine in the store; used on first start only."
    )
    listen: str = _option(readers.text, "127.0.0.1:7717", "Address and port of the HTTP API.")
    allowed_hosts: tuple[str, ...] = _option(
        readers.names,
        (),
        "Names under which the API may be addressed, besides localhost and private addresses.",
    )
    ingest_every_seconds: int = _option(
        readers.whole(1, 86_400), 300, "How often `recall up` reads the session logs again."
    )
    sources: tuple[str, ...] = _option(
        readers.names, (), "Names of the sources to read; empty means all that are known."
    )
    max_line_bytes: int = _option(
        readers.whole(65_536, 1_073_741_824),
        33_554_432,
        "A longer line is not parsed: it is listed as a problem with its place, length and hash.",
    )
    redact: bool = _option(
        readers.flag, True, "Replace known shapes of secrets in text before it is stored."
    )
    search_timeout_seconds: int = _option(
        readers.whole(1, 600),
        10,
        "How long one search may take before it answers with what it has.",
    )
    log_level: str = _option(readers.text, "warning", "debug, info, warning or error.")
    ledger_path: Path | None = _option(
        readers.optional_path,
        None,
        "SQLite database of a work ledger: one summary row for each session.",
    )
    ledger_table: str = _option(readers.text, "ledger", "Table of the ledger in `ledger_path`.")
    ledger_columns: tuple[str, ...] = _option(
        readers.columns,
        (),
        "Columns of the ledger as `role=column`, where they differ from id=id, session=session_id, "
        "time=created_at, project=project, title=title, summary=summary; `title=` says that there "
        "is none. Every other column is kept in the fields of the entry.",
    )
    memory_paths: tuple[Path, ...] = _option(
        readers.paths,
        (),
        "Files and folders of agents' memories, besides those of the known clients.",
    )
    keep_raw: bool = _option(
        readers.flag,
        True,
        "Keep the original bytes of every session log, compressed, so that they can be restored "
        "and read again by a later version.",
    )
    max_document_bytes: int = _option(
        readers.whole(1_048_576, 4_294_967_296),
        134_217_728,
        "A larger file of the kinds that are read as a whole is not parsed: it is listed as a "
        "problem, and its bytes are kept.",
    )
    reconcile_every_hours: int = _option(
        readers.whole(1, 8_760),
        24,
        "How often the sessions of a database that changed are all compared, to see edits that "
        "move no watermark.",
    )
    embed_model: str = _option(
        readers.text,
        "all-MiniLM-L6-v2-dynamic-int8",
        "Embedding model for search by meaning: the bundled one, a name that fastembed knows, or "
        "the path of a folder with `model.onnx` and `tokenizer.json`. A change takes effect with "
        "`recall reembed`.",
    )
    embed_kinds: tuple[str, ...] = _option(
        readers.names,
        ("text", "summary", "ledger", "memory"),
        "Kinds of entries that can be found by meaning; `tool_result`, `tool_call` and `thinking` "
        "can be added.",
    )
    embed_tokens: int = _option(
        readers.whole(32, 8_192), 256, "Length of a passage, in tokens of the model."
    )
    embed_overlap_tokens: int = _option(
        readers.whole(0, 256),
        32,
        "How much of a passage the next one of a long text repeats, in tokens.",
    )
    embed_threads: int = _option(
        readers.whole(0, 256), 0, "Worker threads of the embedder; 0 means one a processor."
    )
    embed_listen: str | None = _option(
        readers.optional_text,
        "127.0.0.1:7718",
        "Address and port of the embedder's own `/health` and `/metrics`; empty for none.",
    )
    public_url: str | None = _option(
        readers.server_url,
        None,
        "Address under which other machines reach this server; `recall token create` prints it.",
    )
    jwt_secret: str | None = _option(
        readers.signing_secret,
        None,
        "Secret of at least 32 bytes that signs the tokens of hosts; shared with PostgREST.",
        secret=True,
    )
    rest_url: str | None = _option(
        readers.server_url,
        None,
        "Address of PostgREST, to which the API forwards what hosts write.",
    )
    trusted_proxies: tuple[str, ...] = _option(
        readers.proxies,
        (),
        "Addresses or networks of reverse proxies whose `X-Forwarded-For` counts; never `*`.",
    )
    cors_origins: tuple[str, ...] = _option(
        readers.origins,
        (),
        "Origins of web pages that may read the answers of the API; empty for none, never `*`.",
    )
    database_volume: Path | None = _option(
        readers.optional_path,
        None,
        "Folder on the volume of the database, whose free space is watched; empty means that of "
        "the embedded database.",
    )
    disk_reserve_mb: int = _option(
        readers.whole(0, 1_000_000_000),
        2_000,
        "Free space on the volume of the database, in MB, below which nothing more is stored "
        "while searches go on; of a small volume at most a tenth is kept free. 0 means no limit.",
    )
    backup_dir: Path | None = _option(
        readers.optional_path, None, "Folder of the backups; empty means `backups` in the home."
    )
    backup_keep: int = _option(
        readers.whole(1, 10_000), 7, "How many of the newest backups are kept in any case."
    )
    backup_keep_days: int = _option(
        readers.whole(1, 36_500), 30, "Days after which a backup beyond `backup_keep` is deleted."
    )
    #: The ``[[source]]`` tables; no setting of the environment, and no row of the reference.
    declared_sources: tuple[DeclaredSource, ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the settings reference."""

    name: str
    env: str
    default: object
    about: str
    secret: bool


def options() -> list[Option]:
    """The settings table, for the reference page and for ``recall doctor``."""
    return [
        Option(
            name=item.name,
            env=f"RECALL_{item.name.upper()}",
            default=None if item.name == "home" else item.default,
            about=item.metadata["about"],
            secret=item.metadata["secret"],
        )
        for item in fields(Settings)
        if "read" in item.metadata
    ]


def find_home(env: Mapping[str, str] | None = None) -> Path:
    """The home alone, for what has to work when a file in it is damaged."""
    value = (os.environ if env is None else env).get("RECALL_HOME")
    return _default_home() if value is None else readers.path(value)


def load_settings(env: Mapping[str, str] | None = None) -> Settings:
    """Read the settings. :class:`ConfigError` for an unknown name or a value out of range.

    A server that this home joined fills ``url`` and ``token`` where nothing else names a server; an
    empty ``url`` stands for none. Its token is given to no other server.
    """
    env = os.environ if env is None else env
    known = {option.name: option for option in options()}
    given: dict[str, tuple[object, str]] = {}
    from_env = _environment(env, known)
    home = find_home(env)
    file = home / "config.toml"
    tables = _read_file(file)
    declared = read_declared(tables.pop("source", []), file)
    for name, value in tables.items():
        if name not in known or name == "home":
            raise ConfigError(
                f"unknown setting `{name}` in `{file}`", hint="see docs/reference/settings.md"
            )
        given[name] = (value, f"`{name}` in `{file}`")
    given.update(from_env)
    values = {name: _convert(name, value, at) for name, (value, at) in given.items()}
    joined = read_joined(home)
    if joined and (values.get("url", joined.url) or "").rstrip("/") == joined.url:
        values["url"] = joined.url
        values["token"] = values.get("token") or joined.token
    return Settings(**values, declared_sources=declared)


def _environment(
    env: Mapping[str, str], known: Mapping[str, Option]
) -> dict[str, tuple[object, str]]:
    found: dict[str, tuple[object, str]] = {}
    for variable, value in env.items():
        if not variable.startswith("RECALL_") or variable in _NOT_SETTINGS:
            continue
        name = variable.removeprefix("RECALL_").lower()
        if name in known:
            found[name] = (value, f"`{variable}`")
        elif name.endswith("_file") and (twin := name.removesuffix("_file")) in known:
            if known[twin].secret:
                found.setdefault(twin, (_read_secret(variable, value), f"`{variable}`"))
        else:
            raise ConfigError(
                f"unknown setting `{variable}` in the environment",
                hint="see docs/reference/settings.md",
            )
    return found


def _read_secret(variable: str, path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the file that `{variable}` names cannot be read",
            hint="does it exist, and may this user read it?",
        ) from error


def _read_file(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"`{path}` cannot be read: {error}") from error


def _convert(name: str, value: object, where: str) -> Any:
    read = next(item.metadata["read"] for item in fields(Settings) if item.name == name)
    try:
        return read(value)
    except ValueError as error:
        raise ConfigError(f"{where} {error}") from error
