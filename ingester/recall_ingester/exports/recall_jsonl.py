"""The import format of Recall: JSON Lines that a script writes (docs/recall-jsonl.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from recall.errors import SourceError
from recall.jsontext import MalformedLine, loads
from recall.records import Parsed, SessionDraft
from recall_ingester.exports.recall_jsonl_lines import Invalid, LineReader
from recall_ingester.reader import ByteStream, Line, read_lines, trim

FORMAT_VERSION = 1
MAX_LINE_BYTES = 100_000_000
#: How many problems are told; all are counted.
MAX_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Header:
    """The first line: whose sessions these are."""

    source: str


@dataclass(frozen=True, slots=True)
class Record:
    """One line that holds something.

    ``session`` is the client's id of the session that the line is about. A :class:`Header` comes
    first, a :class:`SessionDraft` before the messages of its session. A :class:`Parsed` holds one
    message (and the extra part of its own fields), one prompt or one note. ``ordinal`` is the place
    of a message in its session, and the number of the line from 0 for a prompt or note.
    """

    line: int
    byte_offset: int
    byte_length: int
    session: str | None
    value: Header | SessionDraft | Parsed
    ordinal: int


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a line; lines count from 1."""

    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


@dataclass(slots=True)
class Validation:
    """The first problems of a file, how many there are, and what there is to import."""

    problems: list[Problem] = field(default_factory=list)
    total_problems: int = 0
    source: str | None = None
    sessions: int = 0
    messages: int = 0
    prompts: int = 0
    notes: int = 0

    @property
    def is_valid(self) -> bool:
        """Whether every line is as the format says."""
        return self.total_problems == 0

    def add(self, problem: Problem) -> None:
        """Count a problem, and keep it if it is among the first."""
        self.total_problems += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def count(self, record: Record) -> None:
        """Count what a line holds."""
        value = record.value
        if isinstance(value, Header):
            self.source = value.source
        elif isinstance(value, SessionDraft):
            self.sessions += 1
        else:
            self.messages += bool(value.messages)
            self.prompts += len(value.prompts)
            self.notes += len(value.notes)


def validate(stream: ByteStream) -> Validation:
    """Check every line of a stream that stands at its start, in bounded memory."""
    found = Validation()
    for item in _read(stream):
        if isinstance(item, Problem):
            found.add(item)
        else:
            found.count(item)
    return found


def records(stream: ByteStream) -> Iterator[Record]:
    """What each line of a stream that stands at its start holds, in bounded memory.

    Raises :class:`SourceError` at the first line that :func:`validate` would report.
    """
    for item in _read(stream):
        if isinstance(item, Problem):
            raise SourceError(str(item), hint="see docs/recall-jsonl.md for the format")
        yield item


def _read(stream: ByteStream) -> Iterator[Record | Problem]:
    reader = LineReader()
    begun = False
    lines = read_lines(stream, byte_offset=0, ordinal=0, max_line_bytes=MAX_LINE_BYTES)
    for line in lines:
        try:
            value = _value(line)
            if value is None:
                continue
            if not begun:
                begun = True
                source = reader.header(value, FORMAT_VERSION)
                yield _record(line, None, Header(source), 0)
            else:
                session, parsed, ordinal = reader.record(value, line.ordinal)
                yield _record(line, session, parsed, ordinal)
        except Invalid as error:
            begun = True
            yield from (Problem(line.ordinal + 1, message) for message in error.messages)
    if not begun:
        yield Problem(1, f'must be {{"recall": {FORMAT_VERSION}, "source": NAME}}')


def _record(
    line: Line, session: str | None, value: Header | SessionDraft | Parsed, ordinal: int
) -> Record:
    return Record(
        line.ordinal + 1, line.byte_offset, line.byte_length, session, value, ordinal
    )  # fmt: skip


def _value(line: Line) -> dict[str, object] | None:
    """The object of a line, ``None`` for an empty one."""
    if line.data is None:
        raise Invalid([f"is longer than {MAX_LINE_BYTES:,} bytes"])
    data = trim(line.data, line.ordinal)
    if not data:
        return None
    try:
        value, damaged = loads(data)
    except MalformedLine as error:
        raise Invalid([f"is not JSON: {error.reason}"]) from error
    if damaged:
        raise Invalid(["is not UTF-8"])
    if not isinstance(value, dict):
        raise Invalid(["must be an object"])
    return value
