"""What a source is: where a client keeps its logs, and how one record becomes messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from recall.records import Parsed, SessionDraft

#: ``lines``: appended records, read from where the last read ended. ``whole``: a small file that is
#: read as one record whenever it changes.
Shape = Literal["lines", "whole"]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file that a source wants to have read.

    ``label`` is the source's own word for what the file is (``transcript``, ``prompts``, ...).
    ``natural_id`` is the session id that the path gives, or ``None`` where only the content does.
    ``relative`` is the path below the root without its suffix; it tells apart two files of equal
    natural id. ``owns_session`` is false for files that only tell something about sessions.
    """

    path: Path
    source: str
    label: str
    shape: Shape
    relative: str
    natural_id: str | None = None
    compressed: bool = False
    owns_session: bool = True


class Parser(Protocol):
    """Turns the records of one file into messages, in file order.

    A parser may remember what it needs (the current turn, the session's title so far), as long as
    ``state()`` gives all of it as small JSON: a parser made from that state and fed the rest of the
    file must give the same as one that read the file from its start.
    """

    @property
    def session(self) -> SessionDraft | None:
        """The session that the file's messages belong to, filled in as records are read.

        ``None`` for files that hold no session of their own (prompt histories).
        """
        ...

    def record(self, value: Mapping[str, Any], ordinal: int) -> Parsed:
        """What one JSON object means. Never raises for a record of unexpected shape."""
        ...

    def text(self, content: str) -> Parsed:
        """What the text of a ``whole`` file that is not JSON means."""
        ...

    def labels(self) -> list[SessionDraft]:
        """What the file said about other sessions since the last call (a title index does)."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything the parser remembers, as JSON."""
        ...


class Source(Protocol):
    """One kind of client."""

    name: str
    title: str
    #: Folders and files that the last ``discover`` could not read, with the reason.
    unreadable: dict[Path, str]

    def roots(self, env: Mapping[str, str], user_home: Path) -> list[Path]:
        """Where the client keeps its logs on this machine, existing or not."""
        ...

    def discover(self, root: Path) -> Iterator[SourceFile]:
        """The files below a root that belong to the client, in a stable order.

        Raises ``OSError`` if the root itself cannot be listed; what cannot be read below it goes
        to ``unreadable``.
        """
        ...

    def first_id(self, value: Mapping[str, Any]) -> str | None:
        """The session id that a file's first record gives, where the path gives none."""
        ...

    def parser(self, file: SourceFile, external_id: str, state: Mapping[str, Any] | None) -> Parser:
        """A parser for one file, fresh or as it was when ``state`` was taken."""
        ...
