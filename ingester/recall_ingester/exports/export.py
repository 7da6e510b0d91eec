"""A checked export: its conversations, its notes, and what in it is neither."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from recall.jsontext import MalformedLine
from recall.records import Note
from recall_ingester.exports.archive import Limits, open_archive
from recall_ingester.exports.conversation import load_object, load_value
from recall_ingester.exports.json_stream import Element, elements
from recall_ingester.sources.base import DocumentParser, LeavesOut, Reads


class ExportSource(Protocol):
    """One kind of export."""

    name: str
    title: str
    reads: tuple[Reads, ...]
    leaves_out: tuple[LeavesOut, ...]

    def recognises(self, names: Sequence[str], first: Mapping[str, Any] | None) -> bool:
        """Whether these member names and this first conversation are of this kind. ``first`` is
        ``None`` where the export holds no conversation."""
        ...

    def member_names(self, names: Sequence[str]) -> list[str]:
        """The members that hold conversations, in the order to read them."""
        ...

    def note_names(self, names: Sequence[str]) -> list[str]:
        """The members that hold notes, in the order to read them."""
        ...

    def is_conversation(self, value: Mapping[str, Any]) -> bool:
        """Whether an element of a member with conversations is one."""
        ...

    def external_id(self, value: Mapping[str, Any]) -> str | None:
        """The client's own id of a conversation."""
        ...

    def watermark(self, value: Mapping[str, Any]) -> datetime | None:
        """When the conversation was last changed."""
        ...

    def document_parser(self, external_id: str) -> DocumentParser:
        """A parser for the bytes of one conversation."""
        ...

    def notes(self, name: str, value: object, projects: dict[str, str]) -> Iterator[Note]:
        """The notes of one element of a member; ``projects`` keeps names by id between calls."""
        ...


@dataclass(frozen=True, slots=True)
class ExportMember:
    """One JSON file of an export: in a zip, or given by itself under its own name."""

    file: Path
    name: str
    byte_length: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation: the exact bytes of its element, and where they stand."""

    external_id: str
    updated_at: datetime | None
    data: bytes
    offset: int
    member: str
    file: Path


@dataclass(frozen=True, slots=True)
class Problem:
    """An element that is not a conversation or a note; ``data`` is ``None`` if it was too long."""

    file: Path
    member: str
    byte_offset: int
    byte_length: int
    data: bytes | None
    sha256: bytes
    reason: str


@dataclass
class Export:
    """A checked export. No file stays open between calls; each call reads from the beginning.

    ``sha256`` names the import. ``total_bytes`` is how many bytes the members with conversations
    hold. ``missing`` holds files that the export's own manifest names and that are not there,
    ``unread`` the members that hold no text or are left out (see ``source.leaves_out``).
    """

    source: ExportSource
    members: list[ExportMember]
    note_members: list[ExportMember]
    sha256: str
    missing: list[str]
    unread: list[str]
    limits: Limits
    max_element_bytes: int

    def __post_init__(self) -> None:
        self._problems: dict[str, list[Problem]] = {}

    @property
    def names(self) -> list[str]:
        """The members that hold conversations, in the order in which they are read."""
        return [member.name for member in self.members]

    @property
    def total_bytes(self) -> int:
        """The bytes of the members that hold conversations."""
        return sum(member.byte_length for member in self.members)

    @property
    def problems(self) -> list[Problem]:
        """What the last run of each reading could not use; complete when the reading has ended."""
        return [problem for found in self._problems.values() for problem in found]

    def conversations(self) -> Iterator[Conversation]:
        """Every conversation, in the order of the members; one that stands in two comes twice.

        Raises :class:`recall.errors.SourceError` where the JSON of a member ends too early.
        """
        problems = self._problems["conversations"] = []
        for member, element in self._elements(self.members):
            outcome = self._conversation(member, element)
            if isinstance(outcome, Problem):
                problems.append(outcome)
            else:
                yield outcome
            del outcome, element  # a long one must not live on while the next is read

    def notes(self) -> Iterator[Note]:
        """What the export tells beside its conversations: memories, projects, instructions."""
        problems = self._problems["notes"] = []
        projects: dict[str, str] = {}
        for member, element in self._elements(self.note_members):
            if element.data is None:
                problems.append(_problem(member, element, self._too_long))
                continue
            try:
                value = load_value(element.data)
            except MalformedLine as error:
                problems.append(_problem(member, element, error.reason))
                continue
            yield from self.source.notes(member.name, value, projects)

    def _elements(self, members: Sequence[ExportMember]) -> Iterator[tuple[ExportMember, Element]]:
        for member in members:
            with (
                open_archive(member.file, self.limits) as archive,
                archive.open(member.name) as stream,
            ):
                for element in elements(stream, max_element_bytes=self.max_element_bytes):
                    yield member, element
                    del element

    def _conversation(self, member: ExportMember, element: Element) -> Conversation | Problem:
        if element.data is None:
            return _problem(member, element, self._too_long)
        try:
            value = load_object(element.data)
        except MalformedLine as error:
            return _problem(member, element, error.reason)
        external_id = self.source.external_id(value)
        if not self.source.is_conversation(value):
            return _problem(member, element, "not a conversation")
        if external_id is None:
            return _problem(member, element, "a conversation without an id")
        return Conversation(
            external_id, self.source.watermark(value), element.data,
            element.byte_offset, member.name, member.file,
        )  # fmt: skip

    @property
    def _too_long(self) -> str:
        return f"larger than max_element_bytes ({self.max_element_bytes})"


def _problem(member: ExportMember, element: Element, reason: str) -> Problem:
    digest = element.sha256 or hashlib.sha256(element.data or b"").digest()
    return Problem(
        member.file, member.name, element.byte_offset, element.byte_length,
        element.data, digest, reason,
    )  # fmt: skip
