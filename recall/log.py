"""Logs: one JSON object a line on stderr, an event name and fields, never content or tokens."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_RESERVED = frozenset(vars(logging.makeLogRecord({})))

#: Libraries whose INFO lines name full URLs or statements.
_QUIET = ("httpx", "httpcore", "uvicorn.access", "watchfiles", "psycopg.pool")


class JsonFormatter(logging.Formatter):
    """The message is the event; everything passed as ``extra`` becomes a field."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        entry: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        entry |= {
            key: value
            for key, value in vars(record).items()
            if key not in _RESERVED and not key.startswith("_")
        }
        if record.exc_info and record.exc_info[0]:
            entry["error"] = record.exc_info[0].__name__
        return json.dumps(entry, default=str)


def configure(level: str) -> None:
    """Send JSON lines to stderr from this level up; called once, by a command."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
