"""Reading files that are given once: data exports of websites, and Recall's own import format."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from recall.keys import session_key
from recall.records import Parsed, SessionDraft
from recall.timestamps import parse_timestamp
from recall_ingester.checkpoint import Checkpoint, Stat
from recall_ingester.exports import Conversation, Export
from recall_ingester.exports.recall_jsonl import Header, Record, records
from recall_ingester.original import SPAN_BYTES, Spans
from recall_ingester.pieces import PieceWriter, Place
from recall_ingester.pipeline import RowBuilder, safe_id
from recall_ingester.read_document import DocumentReader
from recall_ingester.reader import open_regular
from recall_ingester.run_state import Options, Progress
from recall_ingester.sinks import Batch, Sink, Written
from recall_ingester.summary import Summary

#: What stands in the place of a container's path for what was imported.
CONTAINER = "import"
_PROBLEMS = 20


@dataclass(slots=True)
class ImportSummary:
    """What an import did. ``unchanged`` conversations were stored as they are, ``older`` ones are
    stored in a later version already; neither was read again."""

    source: str = ""
    conversations: int = 0
    unchanged: int = 0
    older: int = 0
    notes: int = 0
    problem_count: int = 0
    problems: list[dict[str, Any]] = field(default_factory=list)
    rows: Summary = field(default_factory=Summary)

    def problem(self, **values: Any) -> None:
        """Count a problem, and list it if it is among the first."""
        self.problem_count += 1
        if len(self.problems) < _PROBLEMS:
            self.problems.append(values)


class Importer:
    """Stores what files hold, in bounded batches. Importing the same again changes nothing."""

    def __init__(self, sink: Sink, options: Options, progress: Progress | None = None) -> None:
        self._sink = sink
        self._options = options
        self._progress = progress
        self._known = sink.checkpoints()
        self._batch = Batch()
        self._seen: dict[str, Checkpoint] = {}
        self.summary = ImportSummary()

    def export(self, export: Export) -> None:
        """A checked export of a website. Raises :class:`SourceError` where its JSON ends too early;
        what stood before that is stored."""
        self.summary.source = export.source.name
        self._sink.begin(export.total_bytes)
        done = 0
        with ExitStack() as stack:
            stack.callback(self._end)
            for conversation in export.conversations():
                self._conversation(export, conversation)
                done += len(conversation.data)
                self._advance(done, export.total_bytes)
            self._notes(export)
            self._problems(export)

    def recall_jsonl(self, path: Path) -> None:
        """A file in the import format, which was validated."""
        with open_regular(path) as opened:
            size = path.stat().st_size
            digest = hashlib.sha256()
            while data := opened.read(1 << 20):
                digest.update(data)
            opened.seek(0)
            source = self.summary.source = source_of(opened)
            # The path holds the hash, so what is kept under it is this file.
            writer = self._writer(source, f"{source}#import-{digest.hexdigest()[:32]}")
            is_kept = writer.known.raw_bytes == size
            import_lines(
                writer, source, self._options.host, opened, lambda done: self._advance(done, size)
            )
            if self._options.keep_raw and not is_kept:
                self._keep_file(writer, opened, digest.digest())
        self._end()

    def _conversation(self, export: Export, conversation: Conversation) -> None:
        source = export.source.name
        external_id = safe_id(conversation.external_id)
        path = f"{source}#{external_id}"
        writer = self._writer(source, path, external_id=external_id)
        known = writer.known
        before = parse_timestamp((known.parser_state or {}).get("updated_at"))
        updated = conversation.updated_at
        if before and updated and updated < before:
            self.summary.older += 1
            return
        digest = hashlib.sha256(conversation.data).digest()
        changed = digest != known.head_hash or known.lines == 0
        self.summary.conversations += changed
        self.summary.unchanged += not changed
        reader = DocumentReader(
            export.source.document_parser(external_id),
            writer,
            keep_raw=self._options.keep_raw,
            state={
                "updated_at": updated.isoformat() if updated else None,
                "import": export.sha256,
                "member": conversation.member,
            },
        )
        reader.read(conversation.data, Stat(len(conversation.data), 0, 0, 0))
        self._seen[path] = writer.known
        if writer.is_full or len(self._batch.pieces) >= 200:
            self._flush(self._batch)

    def _notes(self, export: Export) -> None:
        source = export.source.name
        writer = self._writer(source, f"{source}#notes")
        writer.restart(replace(writer.known, byte_offset=0, lines=0))
        writer.start()
        number = 0
        for number, note in enumerate(export.notes(), 1):
            writer.parsed(Parsed(notes=[note], ts=note.ts), number - 1, damaged=False)
            if writer.is_full:
                writer.hand_over()
                writer.start()
        self.summary.notes = number
        if number:
            writer.end(replace(writer.known, lines=number))

    def _problems(self, export: Export) -> None:
        """Elements that are no conversation: each import has its own list of them."""
        problems = export.problems
        if not problems:
            return
        source = export.source.name
        writer = self._writer(source, f"{source}#import-{export.sha256[:32]}")
        writer.restart(replace(writer.known, byte_offset=0, lines=0))
        writer.start()
        for number, problem in enumerate(problems):
            place = Place(
                number, problem.byte_offset, problem.byte_length, problem.data, problem.sha256
            )
            writer.quarantine(place, f"{problem.member}: {problem.reason}")
            self.summary.problem(
                file=problem.file.name,
                member=problem.member,
                byte_offset=problem.byte_offset,
                reason=problem.reason,
            )
        writer.end(replace(writer.known, lines=len(problems)))

    def _keep_file(self, writer: PieceWriter, opened: Any, digest: bytes) -> None:
        spans = Spans(writer.known.path, writer.known.generation)
        opened.seek(0)
        writer.start()
        writer.raw_from(0)
        at = 0
        while data := opened.read(SPAN_BYTES):
            writer.raw(spans.cut(at, data))
            at += len(data)
            if writer.is_full:
                writer.raw_ahead(())
        writer.end(replace(writer.known, byte_offset=at, raw_bytes=at, head_hash=digest))

    def _writer(self, source: str, path: str, *, external_id: str | None = None) -> PieceWriter:
        known = stored = self._seen.get(path) or self._known.get(path)
        if known is None:
            key = session_key(source, self._options.host, external_id) if external_id else None
            described = {"label": "conversation" if key else "import", "shape": "document"}
            known = Checkpoint(
                path, source, key, Stat(0, 0, 0, 0), described=described, container=CONTAINER
            )
        rows = RowBuilder(
            source=source,
            host=self._options.host,
            path=rows_path(known),
            redact_secrets=self._options.redact,
        )
        return PieceWriter(
            known,
            rows,
            host=self._options.host,
            batch=self._batch,
            flush=self._flush,
            stored=stored,
        )

    def _flush(self, batch: Batch) -> Written:
        written = self._sink.write(batch)
        rows = self.summary.rows
        for counts in written.counts:
            rows.add(counts)
        rows.messages += written.messages
        rows.retired += written.retired
        rows.raw_bytes += written.raw_bytes
        batch.clear()
        return written

    def _end(self) -> None:
        if self._batch:
            self._flush(self._batch)
        self._sink.finish([], wrote=self.summary.rows.messages)

    def _advance(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)


def rows_path(known: Checkpoint) -> str:
    """What the rows of a file name as their place. Notes of imports stand under their source, so
    that a later import of the same note is a new version of it."""
    if known.container == CONTAINER and known.session_key is None:
        return f"{known.source}#notes"
    return known.path


def source_of(opened: IO[bytes]) -> str:
    """The source that a file in the import format names; the file is left at its start."""
    header = next(records(opened)).value
    opened.seek(0)
    assert isinstance(header, Header)
    return header.source


def import_lines(
    writer: PieceWriter,
    source: str,
    host: str,
    opened: IO[bytes],
    advance: Callable[[int], None] = lambda _done: None,
) -> None:
    """Store what a valid file in the import format holds."""
    stream = records(opened)
    next(stream)
    _Lines(writer, source, host, advance).read(stream)


class _Lines:
    """The lines of the import format: many sessions in one file, which add to what is stored."""

    def __init__(
        self,
        writer: PieceWriter,
        source: str,
        host: str,
        advance: Callable[[int], None],
    ) -> None:
        self._writer = writer
        self._source = source
        self._host = host
        self._advance = advance
        self._drafts: dict[str, SessionDraft] = {}

    def read(self, stream: Iterator[Record]) -> None:
        """Everything behind the header, which counts as a line."""
        writer = self._writer
        file = replace(writer.known, session_key=None, parser_state=_imported())
        writer.restart(replace(file, byte_offset=0, lines=0))
        writer.start()
        writer.merge()
        current: str | None = None
        lines = 1
        for record in stream:
            if record.session != current or writer.is_full:
                self._pause(current, hand_over=writer.is_full)
                current = record.session
                key = None if current is None else self._key(current)
                writer.known = replace(writer.known, session_key=key)
                writer.start()
            self._record(record)
            lines += 1
            self._advance(record.byte_offset + record.byte_length)
        self._pause(current, hand_over=True)
        writer.known = replace(file, lines=lines)
        writer.start()
        writer.end(writer.known)

    def _key(self, session: str) -> str:
        return session_key(self._source, self._host, safe_id(session))

    def _record(self, record: Record) -> None:
        if isinstance(record.value, SessionDraft):
            self._drafts[record.value.external_id] = record.value
            self._writer.merge()
        elif isinstance(record.value, Parsed):
            self._writer.parsed(record.value, record.ordinal, damaged=False)

    def _pause(self, current: str | None, *, hand_over: bool) -> None:
        draft = self._drafts.pop(current, None) if current is not None else None
        if draft is not None:
            self._writer.sessions(draft)
        if hand_over:
            self._writer.hand_over()


def _imported() -> Mapping[str, Any]:
    return {"imported_at": datetime.now(UTC).isoformat()}
