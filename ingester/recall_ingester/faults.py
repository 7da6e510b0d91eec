"""A fault of ours in reading costs what it was reading, never the pass and never another file."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import PurePath
from typing import ParamSpec, TypeVar

import zstandard

from recall.errors import RecallError
from recall.jsontext import MalformedLine

_log = logging.getLogger(__name__)

#: How the reason begins for which something is quarantined or unreadable by a fault of ours.
FAULT = "Recall failed on it"

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def attempt(
    read: Callable[_Given, _Result], *values: _Given.args, **named: _Given.kwargs
) -> _Result:
    """What a method of a parser makes of a record or a document.

    A parser does not raise because of an unexpected shape. If one does, this raises
    :class:`MalformedLine`: the record is quarantined with its bytes, and the rest is read.
    """
    try:
        return read(*values, **named)
    except (MalformedLine, RecallError, OSError, MemoryError):
        raise
    except Exception as error:
        raise MalformedLine(fault_reason(error)) from error


def unreadable_reason(error: Exception) -> str:
    """Why a file, or a folder, could not be read."""
    if isinstance(error, (OSError, RecallError, MalformedLine, zstandard.ZstdError)):
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    return fault_reason(error)


def fault_reason(error: Exception) -> str:
    """A short, stable word for an exception that nobody expected.

    Its place in the code goes to the log. Its message does not: it may quote what was read.
    """
    last = traceback.extract_tb(error.__traceback__)[-1]
    name = type(error).__name__
    _log_once(name, f"{PurePath(last.filename).name}:{last.lineno}")
    return f"{FAULT} ({name})"


@lru_cache(maxsize=1_000)
def _log_once(error: str, place: str) -> None:
    """A fault that a million records bring to light is one line of the log."""
    _log.error("a fault in reading", extra={"error": error, "place": place})
