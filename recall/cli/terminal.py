"""Text of session logs on a terminal: nothing in it may move the cursor or rename the window."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from rich.text import Text

#: Escape sequences as a whole: those with a text of their own (titles, links), those with numbers
#: (colours, movements), and the short ones.
_SEQUENCE = re.compile(
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
)
#: What is left of control characters, and marks that reorder the text around them.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def printable(text: str) -> str:
    """The text without escape sequences and control characters; line ends and tabs stay."""
    text = _SEQUENCE.sub("", text.replace("\r\n", "\n"))
    return _CONTROL.sub("", text.replace("\r", "\n"))


def counted(number: int, what: str) -> str:
    """``1 hit``, ``2 hits``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def one_line(text: str | None, most: int = 80) -> str:
    """The text on one line, cut at ``most`` characters."""
    words = " ".join(printable(text or "").split())
    return words if len(words) <= most else words[: most - 1] + "…"


def highlight(snippet: str, *, styled: bool) -> Text:
    """A snippet with its matches in bold, or between « and » where nothing can be bold."""
    text = Text()
    for place, piece in enumerate(re.split("</?mark>", printable(snippet))):
        is_match = place % 2 == 1
        text.append(f"«{piece}»" if is_match and not styled else piece, "bold" if is_match else "")
    return text


def short_time(moment: str | None, now: datetime | None = None) -> str:
    """``12m``, ``3h``, ``5d`` for what is recent, else the date."""
    if moment is None:
        return "no date"
    then = datetime.fromisoformat(moment)
    seconds = ((now or datetime.now(UTC)) - then).total_seconds()
    if not 0 <= seconds < 14 * 86_400:
        return then.date().isoformat()
    return short_age(seconds)


def short_age(seconds: float) -> str:
    """``8s``, ``12m``, ``3h``, ``5d``."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def short_size(size: float) -> str:
    """``512 B``, ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1_000 or unit == "GB":
            break
        size /= 1_000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def project_name(project: str | None) -> str:
    """The last part of a project's folder."""
    return one_line((project or "").rstrip("/\\").replace("\\", "/").rpartition("/")[2], 40)
