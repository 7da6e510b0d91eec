"""The settings of PostgREST that the double knows, under the names that PostgREST gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

#: Attributes whose name in ``postgrest.conf`` is not their own with dashes.
_NAMES = {
    "schemas": "db-schemas",
    "anon_role": "db-anon-role",
    "pre_request": "db-pre-request",
    "max_rows": "db-max-rows",
    "pool_size": "db-pool",
    "pool_acquisition_timeout": "db-pool-acquisition-timeout",
    "tx_end": "db-tx-end",
    "aggregates_enabled": "db-aggregates-enabled",
    "extra_search_path": "db-extra-search-path",
    "host": "server-host",
    "port": "server-port",
    "admin_host": "admin-server-host",
    "admin_port": "admin-server-port",
}
_LINE = re.compile(r'^\s*([a-z][a-z.-]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^#\s]+))\s*(?:#.*)?$')
#: What only the double has.
_OWN = frozenset({"keep_alive_seconds"})


@dataclass(frozen=True)
class Config:
    """How one server is started; the defaults are those of PostgREST, but for the ports.

    Port 0 takes a free one. ``keep_alive_seconds`` is fixed to 30 in the real server.
    """

    db_uri: str
    schemas: tuple[str, ...] = ("api",)
    anon_role: str | None = None
    jwt_secret: str | None = None
    jwt_aud: str | None = None
    pre_request: str | None = None
    max_rows: int | None = None
    pool_size: int = 10
    pool_acquisition_timeout: float = 10
    tx_end: str = "commit"
    aggregates_enabled: bool = False
    extra_search_path: str = "public"
    openapi_mode: str = "follow-privileges"
    client_error_verbosity: str = "verbose"
    host: str = "127.0.0.1"
    port: int = 0
    admin_host: str = "127.0.0.1"
    admin_port: int = 0
    keep_alive_seconds: float = 30

    def text(self) -> str:
        """The settings as a ``postgrest.conf``."""
        lines = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name not in _OWN:
                lines.append(f"{option_name(field.name)} = {_written(value)}\n")
        return "".join(lines)


def option_name(attribute: str) -> str:
    """What ``postgrest.conf`` calls a setting."""
    return _NAMES.get(attribute, attribute.replace("_", "-"))


def read_config(file: Path | None, environment: Mapping[str, str]) -> Config:
    """Settings of a ``postgrest.conf`` below those of ``PGRST_*`` variables.

    A value ``@path`` stands for the content of a file, without its last line ends where it is the
    database URL, as PostgREST reads it. Settings that the double does not know are passed over.
    """
    given: dict[str, str] = {}
    if file is not None:
        for line in file.read_text(encoding="utf-8").splitlines():
            if found := _LINE.match(line):
                name, quoted, bare = found.groups()
                given[name] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else bare
    for name, value in environment.items():
        if name.startswith("PGRST_"):
            given[name.removeprefix("PGRST_").lower().replace("_", "-")] = value
    read: dict[str, Any] = {"db_uri": "", "port": 3000, "host": "0.0.0.0"}
    for field in fields(Config):
        text = given.get(option_name(field.name))
        if text is not None:
            read[field.name] = _read(field.name, _content(text))
    return Config(**read)


def _content(text: str) -> str:
    if text.startswith("@"):
        return Path(text[1:]).read_text(encoding="utf-8").rstrip("\r\n")
    return text


def _read(attribute: str, text: str) -> object:
    if attribute == "schemas":
        return tuple(part.strip() for part in text.split(","))
    default = getattr(Config(db_uri=""), attribute)
    if isinstance(default, bool):
        return text.lower() in {"true", "1", "yes", "on"}
    if attribute == "max_rows" or isinstance(default, int):
        return int(text)
    # the real server understands `!4` as `*4` and resolves the address of the container itself
    if attribute in {"host", "admin_host"} and text.startswith(("!", "*")):
        return "0.0.0.0"
    return text or None


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(int(value))
    text = ",".join(value) if isinstance(value, tuple) else str(value)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
