"""``recall import``: store a data export of a website, or a file in Recall's own format."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from recall.cli.extras import need_server
from recall.cli.ingest import progress_bar
from recall.cli.output import note, print_json, screen
from recall.config import Settings, load_settings
from recall.errors import SourceError, UsageError

if TYPE_CHECKING:
    from recall_ingester.importing import ImportSummary

_RECALL = "recall-jsonl"
_FORMATS = ("claude-ai", "chatgpt", _RECALL)


def import_files(
    files: list[Path] = typer.Argument(..., metavar="FILE...", help="The files of one export."),
    format_name: str | None = typer.Option(
        None,
        "--format",
        metavar="NAME",
        help=f"{', '.join(_FORMATS)}; found by itself if left out.",
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only check the files."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    """Store the conversations of a data export of Claude.ai or ChatGPT, or of a recall-jsonl file.

    The files are checked first, and a damaged one changes nothing. Importing the same export again
    changes nothing either; a later one brings what is new. Several zips of one export are given
    together. docs/recall-jsonl.md describes the format for everything else.
    """
    if format_name is not None and format_name not in _FORMATS:
        raise UsageError(f"unknown format `{format_name}`", hint=f"known: {', '.join(_FORMATS)}")
    for path in files:
        if not path.is_file():
            raise UsageError(
                f"`{path}` is not a file", hint="recall import FILE..., as it was downloaded"
            )
    settings = load_settings()
    from recall_ingester.run import feeds_server

    if not feeds_server(settings):
        need_server()
    if format_name == _RECALL or (format_name is None and _is_recall(files[0])):
        summary = _import_recall(settings, files, dry_run=dry_run)
    else:
        summary = _import_export(settings, files, format_name, dry_run=dry_run)
    _print(summary, dry_run=dry_run, as_json=as_json)


def _is_recall(path: Path) -> bool:
    with path.open("rb") as file:
        return b'"recall"' in file.read(200).split(b"\n", 1)[0]


def _import_recall(settings: Settings, files: list[Path], *, dry_run: bool) -> ImportSummary:
    from recall_ingester.exports.recall_jsonl import validate
    from recall_ingester.importing import ImportSummary
    from recall_ingester.run import run_import

    if len(files) > 1:
        raise UsageError("a recall-jsonl file is imported by itself", hint="one file at a time")
    with files[0].open("rb") as stream:
        found = validate(stream)
    if not found.is_valid:
        for problem in found.problems[:10]:
            note(f"  {problem}")
        raise SourceError(
            f"{found.total_problems:,} lines of `{files[0]}` are not as the format says;"
            " nothing was imported",
            hint="docs/recall-jsonl.md describes the format",
        )
    if dry_run:
        return ImportSummary(source=found.source or "", notes=found.notes)
    with progress_bar("importing") as advance:
        return run_import(settings, lambda importer: importer.recall_jsonl(files[0]), advance)


def _import_export(
    settings: Settings, files: list[Path], format_name: str | None, *, dry_run: bool
) -> ImportSummary:
    from recall_ingester.exports import open_export
    from recall_ingester.importing import ImportSummary
    from recall_ingester.run import run_import

    export = open_export(files)
    if format_name not in (None, export.source.name):
        raise UsageError(f"this is an export of {export.source.title}, not `{format_name}`")
    for missing in export.missing:
        note(f"the export names `{missing}`, which was not given")
    if dry_run:
        return ImportSummary(
            source=export.source.name, conversations=sum(1 for _ in export.conversations())
        )
    with progress_bar("importing") as advance:
        return run_import(settings, lambda importer: importer.export(export), advance)


def _print(summary: ImportSummary, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(summary), "rows": summary.rows.as_json(), "dry_run": dry_run})
        return

    def say(text: str) -> None:
        screen.print(text, markup=False)

    rows: Any = summary.rows
    if dry_run:
        say(f"the files can be imported as `{summary.source}`; nothing was stored (--dry-run)")
    # A recall-jsonl file has lines and no conversations to count.
    conversations = (
        f"{summary.conversations:,} conversations new or changed, {summary.unchanged:,} unchanged",
        f"{summary.older:,} older than what is stored",
    )
    if summary.conversations or summary.unchanged or summary.older:
        say(f"{summary.source}: {', '.join(conversations[: 1 + bool(summary.older)])}")
    if not dry_run:
        say(f"{summary.source}: {rows.messages:,} messages and notes written")
    if rows.retired:
        note(f"{rows.retired:,} messages that the export does not hold any more are kept")
    if summary.problem_count:
        note(f"{summary.problem_count:,} parts of the export could not be read:")
        for problem in summary.problems:
            place = f"{problem['file']}: {problem['member']}, byte {problem['byte_offset']:,}"
            note(f"  {place}: {problem['reason']}")
