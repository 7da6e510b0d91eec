"""What a source is: where a client keeps its logs, and how one record becomes messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from recall.records import Parsed, SessionDraft

#: How a file grows, and therefore how it is read and what its checkpoint holds.
#:
#: ``lines``: appended records, read on from where the last read ended (offset, anchor hashes).
#: ``whole``: one small record, read again when the file changes.
#: ``document``: a file of many messages that the client rewrites, or a log of changes to one; it is
#: read again whole, replaces what was stored, and what does not come again was taken back.
#: ``container``: many sessions in one place (an SQLite database, a folder of small files); each
#: session is a document of its own, read again when its watermark moves.
#: ``table``: rows of one SQLite table, read on from the highest id.
Shape = Literal["lines", "whole", "document", "container", "table"]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file that a source wants to have read.

    ``label`` is the source's own word for what the file is (``transcript``, ``prompts``, ...).
    ``natural_id`` is the session id that the path gives, or ``None`` where only the content does.
    ``relative`` is the path below the root without its suffix; it tells apart two files of equal
    natural id. ``owns_session`` is false for files that only tell something about sessions.
    ``companions`` are files whose change makes this one worth a look too (the ``-wal`` of a
    database). ``supersedes`` is a file or folder whose sessions go on in this one, although it is
    still there (the ``.json`` of before a client wrote ``.jsonl``). ``always`` is for a container
    that shows no change by its own size and time (a folder).
    """

    path: Path
    source: str
    label: str
    shape: Shape
    relative: str
    natural_id: str | None = None
    compressed: bool = False
    owns_session: bool = True
    companions: tuple[Path, ...] = ()
    supersedes: Path | None = None
    always: bool = False


@dataclass(slots=True)
class Unit:
    """What stands at one place of a document. ``ordinal`` is that place: the index of the message
    in the conversation as the client would show it."""

    ordinal: int
    parsed: Parsed
    #: Whether bytes of it were not valid text and had to be replaced.
    is_damaged: bool = False


@dataclass(slots=True)
class BadSpan:
    """Bytes of a document that could not be read, by their place in it."""

    byte_offset: int
    data: bytes
    ordinal: int
    reason: str


@dataclass(slots=True)
class Document:
    """What a document became.

    ``units`` come in rising order of ``ordinal``. ``taken_back`` holds messages that the document
    itself says are gone (rewound, edited away, replaced by another text), under the ordinal that
    they had; they are kept out of search. ``merged`` counts records that only told something about
    the session or repeated another one, ``skipped`` those without anything to store, by reason.
    """

    units: list[Unit] = field(default_factory=list)
    taken_back: list[Unit] = field(default_factory=list)
    bad: list[BadSpan] = field(default_factory=list)
    merged: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        """Count one record that holds nothing to store."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


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


class DocumentParser(Protocol):
    """Turns the bytes of one document, or the slots of one container member, into messages."""

    @property
    def session(self) -> SessionDraft | None:
        """The session of the document, filled in by :meth:`document`; ``None`` if it has none."""
        ...

    def document(self, data: bytes) -> Document:
        """Everything in the document.

        Raises :class:`recall.jsontext.MalformedLine` if nothing can be made of it (half written,
        not JSON); what was stored then stays. A torn last line of a log is no error: it is left
        out. Never raises for values of unexpected type or shape.
        """
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """One session in a container. ``watermark`` is a text that differs when its rows may have
    changed; it is made from cheap columns and counts, so it need not see every edit."""

    external_id: str
    watermark: str


class Container(Protocol):
    """Many sessions in one place, open for reading."""

    def members(self) -> Iterator[Member]:
        """Every session, in a stable order."""
        ...

    def slots(self, external_id: str) -> Iterator[bytes]:
        """The rows of one session, each as one line of JSON with its newline, in an order that a
        new message does not change. Equal rows give equal bytes. They are what is kept as the
        session's original bytes, and joined they are what the parser's ``document`` gets.
        """
        ...


class Table(Protocol):
    """One table of an SQLite database, open for reading."""

    def rows(self, after_id: int, limit: int) -> list[tuple[int, bytes]]:
        """At most so many rows behind an id, in rising order of id: the id, and the row as one line
        of JSON with its newline. Equal rows give equal bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Reads:
    """One line of the description of a source: files by pattern, and what they are read as."""

    pattern: str
    what: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class LeavesOut:
    """Something of the client's that is not stored as text, and why.

    ``where`` is one pattern or several with ``, `` between; each names files or values.

    A pattern without ``=`` that has a ``/`` in it or ends in a file's suffix (``auth.json``,
    ``*.sqlite``; see :data:`recall_ingester.left_out.FILE_SUFFIXES`), names files by the end of
    their path: ``memory/*.md`` holds in every folder. ``*`` stands for anything inside one name,
    ``**`` for any number of folders. What lies in a folder that a pattern names is covered too.
    The members of a zip are files.

    Any other pattern is a path of JSON keys into a record: a line, an element of a list that is the
    whole file, or the whole file; of a database the path begins with the table and the column
    (``part.data.text``). JSON inside a string is gone into. Parts are separated by dots; a list's
    index is a part like a key; ``*`` stands for anything inside one part, ``**`` for any number of
    parts. A part ``key=value`` takes no key: it holds only where the object that is reached has
    that text there (``type=event_msg.payload.type=token_count.info``). Everything below the value
    that a path names is covered. A key or value with a dot in it can only be named with ``*``.

    The fidelity benchmark takes every string of the original that is neither in the store nor
    covered by such a line for lost.
    """

    where: str
    why: str


class Source(Protocol):
    """One kind of client."""

    name: str
    title: str

    @property
    def reads(self) -> tuple[Reads, ...]:
        """What it reads; `recall sources` and the docs print it."""
        ...

    @property
    def leaves_out(self) -> tuple[LeavesOut, ...]:
        """What it does not read or store as text."""
        ...

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
        """The session id that a record gives, where the path gives none. Asked of the first few
        lines of a file, or of the whole of a document that is one JSON object."""
        ...

    def parser(self, file: SourceFile, external_id: str, state: Mapping[str, Any] | None) -> Parser:
        """A parser for one file of lines or rows, fresh or as it was when ``state`` was taken."""
        ...

    def document_parser(self, file: SourceFile, external_id: str) -> DocumentParser:
        """A parser for a document, or for a member of a container."""
        ...

    def container(self, file: SourceFile) -> AbstractContextManager[Container]:
        """Open a container. Raises ``OSError`` or :class:`recall.errors.SourceError`."""
        ...

    def open_table(self, file: SourceFile) -> AbstractContextManager[Table]:
        """Open a table. Raises ``OSError`` or :class:`recall.errors.SourceError`."""
        ...


class SourceBase:
    """What most sources have in common."""

    name = ""
    title = ""
    reads: tuple[Reads, ...] = ()
    leaves_out: tuple[LeavesOut, ...] = ()

    def __init__(self) -> None:
        self.unreadable: dict[Path, str] = {}

    def first_id(self, value: Mapping[str, Any]) -> str | None:  # noqa: ARG002
        """None: the path gives the id, or the files have none."""
        return None

    def parser(self, file: SourceFile, external_id: str, state: Mapping[str, Any] | None) -> Parser:
        """Not for this source: it has no file of that shape."""
        raise NotImplementedError(file.shape)

    def document_parser(self, file: SourceFile, external_id: str) -> DocumentParser:
        """Not for this source: it has no file of that shape."""
        raise NotImplementedError(file.shape)

    def container(self, file: SourceFile) -> AbstractContextManager[Container]:
        """Not for this source: it has no file of that shape."""
        raise NotImplementedError(file.shape)

    def open_table(self, file: SourceFile) -> AbstractContextManager[Table]:
        """Not for this source: it has no file of that shape."""
        raise NotImplementedError(file.shape)
