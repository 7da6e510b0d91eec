"""Rebuilding messages from kept bytes, without the client's files, for a parser that learnt."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Protocol

from recall.jsontext import MalformedLine, loads
from recall_ingester.checkpoint import Checkpoint
from recall_ingester.faults import FAULT, attempt, unreadable_reason
from recall_ingester.importing import CONTAINER, import_lines, rows_path
from recall_ingester.pieces import PieceWriter
from recall_ingester.pipeline import RowBuilder
from recall_ingester.read_document import DocumentReader
from recall_ingester.read_file import FileReader
from recall_ingester.read_table import TableReader
from recall_ingester.run_state import Options, Progress
from recall_ingester.sinks import Batch, Sink, Written
from recall_ingester.sinks.overtaken import leave_out
from recall_ingester.sources.base import DocumentParser, Parser, Source, SourceFile
from recall_ingester.starting_point import external_id
from recall_ingester.summary import Summary

_COPY_BYTES = 1 << 18


class DocumentSource(Protocol):
    """What gives documents besides the sources: the exports."""

    def document_parser(self, external_id: str) -> DocumentParser:
        """A parser for the bytes of one conversation."""
        ...


class KeptBytes(Protocol):
    """The store's original bytes, each checked before it is given."""

    def __call__(self, known: Checkpoint) -> AbstractContextManager[IO[bytes]]:
        """The bytes of the newest generation. Raises :class:`recall.errors.DamagedError`."""
        ...

    def forget_faults(
        self, read: Mapping[str, int], failed_again: Collection[tuple[str, int]]
    ) -> None:
        """Take from the quarantine what Recall had failed on, of files that were read again.

        ``read`` gives their generations by path, ``failed_again`` places by path and offset.
        """
        ...


@dataclass(slots=True)
class Reparsed:
    """What became of the files. ``without_bytes`` were read before their bytes were kept."""

    files: int = 0
    without_bytes: int = 0
    without_source: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    rows: Summary = field(default_factory=Summary)


class Reparser:
    """Reads kept bytes as if the files were read for the first time.

    Ids come from the place of a message, so what did not change stays as it is; what a parser reads
    differently now is written over, and the earlier text is kept as taken back.
    """

    def __init__(
        self,
        sink: Sink,
        options: Options,
        sources: Mapping[str, Source],
        exports: Mapping[str, DocumentSource],
        kept: KeptBytes,
    ) -> None:
        self._sink = sink
        self._options = replace(options, keep_raw=False)
        self._sources = sources
        self._exports = exports
        self._kept = kept
        self._batch = Batch()
        self._done: dict[str, int] = {}
        self._failed_again: set[tuple[str, int]] = set()
        self.result = Reparsed()

    def run(self, *, wanted: Callable[[Checkpoint], bool], progress: Progress | None) -> Reparsed:
        """Read every wanted file again. A file whose bytes are damaged costs itself."""
        known = [item for item in self._sink.checkpoints().values() if wanted(item)]
        known.sort(key=lambda item: item.path)
        total = sum(item.raw_bytes for item in known)
        done = 0
        for item in known:
            self._one(item)
            done += item.raw_bytes
            if progress is not None:
                progress(done, total)
            if len(self._batch.pieces) >= 200 or self._batch.content_chars > 2_000_000:
                self._flush(self._batch)
        if self._batch:
            self._flush(self._batch)
        self._kept.forget_faults(self._done, self._failed_again)
        self._sink.finish([], wrote=self.result.rows.messages)
        return self.result

    def _one(self, known: Checkpoint) -> None:
        if known.described is None or known.raw_bytes == 0:
            # What holds no bytes of its own (a database whose sessions do) has nothing to read.
            self.result.without_bytes += known.lines > 0
            return
        is_known = known.source in self._sources or known.source in self._exports
        if not is_known and known.described.get("label") != "import":
            self.result.without_source += 1
            return
        try:
            # On disk and not in memory: the reader of lines wants a descriptor.
            with tempfile.TemporaryFile(buffering=0) as copy:
                with self._kept(known) as stream:
                    while data := stream.read(_COPY_BYTES):
                        copy.write(data)
                copy.seek(0)
                self._read(known, copy)
        except MemoryError:
            raise
        except Exception as error:
            leave_out(self._batch, {known.path})
            self.result.failed[known.path] = unreadable_reason(error)
            return
        self.result.files += 1
        self._done[known.path] = known.generation

    def _read(self, known: Checkpoint, copy: IO[bytes]) -> None:
        again = replace(
            known.restart(known.stat), generation=known.generation, raw_bytes=known.raw_bytes
        )
        writer = self._writer(again, known)
        shape = (known.described or {}).get("shape")
        if known.container == CONTAINER and known.session_key is None:
            if (known.described or {}).get("label") == "import":
                import_lines(writer, known.source, self._options.host, copy)
        elif known.container is not None or shape == "document":
            writer.known = replace(known, rereading=True)
            parser = self._document_parser(known)
            reader = DocumentReader(parser, writer, keep_raw=False, state=known.parser_state)
            reader.read(copy.read(), known.stat)
        elif shape == "table":
            self._table(known, writer, copy)
        else:
            self._lines(known, writer, copy)

    def _lines(self, known: Checkpoint, writer: PieceWriter, copy: IO[bytes]) -> None:
        file = _file(known)
        reader = FileReader(
            file,
            self._sources[known.source].parser(file, external_id(known), None),
            writer,
            max_line_bytes=self._options.max_line_bytes,
            keep_raw=False,
            kept=known,
        )
        if file.shape == "whole":
            reader.read_whole(copy, known.stat)
        else:
            reader.read_lines(copy, known.stat)

    def _table(self, known: Checkpoint, writer: PieceWriter, copy: IO[bytes]) -> None:
        file = _file(known)
        parser = self._sources[known.source].parser(file, "", None)
        state = dict(known.parser_state or {})
        TableReader(parser, writer, keep_raw=False).read(
            _KeptTable(parser, copy.read()), known.stat, state, from_start=True
        )
        end = writer.known
        writer.end(
            replace(
                end,
                generation=known.generation,
                raw_bytes=known.raw_bytes,
                tail_hash=known.tail_hash,
                parser_state=known.parser_state,
            )
        )

    def _document_parser(self, known: Checkpoint) -> DocumentParser:
        if known.source in self._exports:
            return self._exports[known.source].document_parser(external_id(known))
        return self._sources[known.source].document_parser(_file(known), external_id(known))

    def _writer(self, known: Checkpoint, stored: Checkpoint) -> PieceWriter:
        rows = RowBuilder(
            source=known.source,
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
        self._failed_again.update(
            (row.path, row.byte_offset) for row in batch.quarantine if row.reason.startswith(FAULT)
        )
        written = self._sink.write(batch)
        rows = self.result.rows
        for counts in written.counts:
            rows.add(counts)
        rows.messages += written.messages
        rows.retired += written.retired
        batch.clear()
        return written


class _KeptTable:
    """Rows that were kept, with the ids that their entries have."""

    def __init__(self, parser: Parser, data: bytes) -> None:
        self._rows = list(_numbered(parser, data))

    def rows(self, after_id: int, limit: int) -> list[tuple[int, bytes]]:
        """At most so many rows behind an id."""
        return [row for row in self._rows if row[0] > after_id][:limit]


def _numbered(parser: Parser, data: bytes) -> Iterator[tuple[int, bytes]]:
    last = -(1 << 63)
    for line in data.split(b"\n"):
        if not line:
            continue
        try:
            value, _ = loads(line)
            notes = attempt(parser.record, value, 0).notes if isinstance(value, Mapping) else []
        except MalformedLine:
            notes = []
        key = notes[0].key if notes else ""
        number = int(key) if key.removeprefix("-").isdecimal() else last + 1
        last = max(number, last + 1)
        yield last, line + b"\n"


def _file(known: Checkpoint) -> SourceFile:
    described: dict[str, Any] = dict(known.described or {})
    return SourceFile(
        Path(known.path),
        known.source,
        described.get("label", ""),
        described.get("shape", "lines"),
        described.get("relative", ""),
        natural_id=described.get("natural_id"),
        compressed=bool(described.get("compressed")),
        owns_session=bool(described.get("owns_session", True)),
    )
