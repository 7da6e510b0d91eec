"""What a setting may be: from the text of a variable or the value of a file to the value to use.

Each function raises :class:`ValueError` with the rest of a sentence whose subject is the setting.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path

#: What a column of the ledger can be; `id` and `summary` cannot be left out.
LEDGER_ROLES = ("id", "session", "time", "project", "title", "summary")
#: What RFC 7518 asks of a key for HS256.
_LEAST_SECRET_BYTES = 32
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:.]+\](:[0-9]{1,5})?")
_SERVER_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?", re.IGNORECASE)


def text(value: object) -> str:
    """Any text."""
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def optional_text(value: object) -> str | None:
    """A text; an empty one stands for none."""
    return text(value) or None


def path(value: object) -> Path:
    """A path, absolute from here on."""
    return Path(text(value)).expanduser().absolute()


def optional_path(value: object) -> Path | None:
    """A path; an empty text stands for none."""
    return path(value) if text(value) else None


def paths(value: object) -> tuple[Path, ...]:
    """A list of paths."""
    return tuple(path(item) for item in names(value))


def whole(least: int, most: int) -> Callable[[object], int]:
    """A whole number in a range."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError("must be a whole number")
        number = int(value)
        if not least <= number <= most:
            raise ValueError(f"must be between {least} and {most}")
        return number

    return read


def flag(value: object) -> bool:
    """A truth value in one of the usual words."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"1", "true", "yes", "on"}:
        return True
    if isinstance(value, str) and value.lower() in {"0", "false", "no", "off"}:
        return False
    raise ValueError("must be true or false")


def names(value: object) -> tuple[str, ...]:
    """A list, or a text with commas between its items."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ValueError("must be a list of texts")
    return tuple(item.strip() for item in items if item.strip())


def columns(value: object) -> tuple[str, ...]:
    """Columns of a ledger by their roles, as ``role=column``."""
    pairs = [item.partition("=") for item in names(value)]
    roles = [role.strip() for role, _, _ in pairs]
    for role, (_, equals, column) in zip(roles, pairs, strict=True):
        if not equals or role not in LEDGER_ROLES:
            raise ValueError(f"must be a list of `role=column`; roles: {', '.join(LEDGER_ROLES)}")
        if not column.strip() and role in ("id", "summary"):
            raise ValueError(f"must name a column for `{role}`")
    if len(set(roles)) < len(roles):
        raise ValueError("must name each role once")
    stripped = (column.strip() for _, _, column in pairs)
    return tuple(f"{role}={column}" for role, column in zip(roles, stripped, strict=True))


def proxies(value: object) -> tuple[str, ...]:
    """Addresses and networks, but never all of them."""
    given = names(value)
    for name in given:
        try:
            is_everybody = name == "*" or ipaddress.ip_network(name).prefixlen == 0
        except ValueError:
            raise ValueError("must be IP addresses or networks such as 172.18.0.0/16") from None
        if is_everybody:
            raise ValueError(
                f"must not be `{name}`: then everybody could claim to come from any address;"
                " name the address of the proxy"
            )
    return given


def origins(value: object) -> tuple[str, ...]:
    """Origins of web pages as browsers write them, but never all of them."""
    given = tuple(name.lower().rstrip("/") for name in names(value))
    for name in given:
        if name == "*":
            raise ValueError(
                "must not be `*`: then every web page that you open could read the store"
            )
        if not _ORIGIN.fullmatch(name):
            raise ValueError("must be origins such as https://notes.example:8443")
    return given


def server_url(value: object) -> str | None:
    """An http or https address without a slash at the end."""
    url = text(value).rstrip("/")
    if url and not _SERVER_URL.fullmatch(url):
        raise ValueError("must be an http or https address such as https://recall.example")
    return url or None


def signing_secret(value: object) -> str | None:
    """A secret that is long enough to sign with."""
    secret = text(value)
    if secret and len(secret.encode()) < _LEAST_SECRET_BYTES:
        raise ValueError(f"must be at least {_LEAST_SECRET_BYTES} bytes long")
    return secret or None
