"""What the command prints: data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import typer
from rich.console import Console

from recall.errors import RecallError

#: C1 controls and marks that turn the writing direction; JSON escapes only C0 controls by itself.
_STEERING = re.compile("[\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

#: For progress, notes and errors. Rich leaves colours out when the stream is no terminal or
#: ``NO_COLOR`` is set.
notes = Console(stderr=True, highlight=False, soft_wrap=True)
#: For data that a person reads. A pipe has no width, so nothing is cut there.
screen = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 500)


def print_json(value: Any) -> None:
    """One JSON document on stdout; characters that steer a terminal are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    typer.echo(_STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def note(text: str) -> None:
    """A line for the person at the terminal, on stderr."""
    notes.print(text, markup=False)


def print_error(error: RecallError) -> None:
    """``error: ...`` and, after a blank line, ``hint: ...`` on stderr."""
    notes.print(f"[bold red]error[/]: {_plain(error.message)}")
    if error.hint:
        notes.print(f"\n[bold]hint[/]: {_plain(error.hint)}")


def _plain(text: str) -> str:
    return text.replace("[", "\\[")
