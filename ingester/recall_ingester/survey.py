"""What each source reads, where it looked on this machine, and what it found there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recall_ingester.sources.base import Source

#: How many problems of one source are listed; all are counted.
_MOST_PROBLEMS = 20


@dataclass(slots=True)
class Survey:
    """One source on this machine. ``found`` counts files by the source's word for what they are."""

    name: str
    title: str
    reads: list[dict[str, str]]
    leaves_out: list[dict[str, str]]
    looked: list[dict[str, Any]] = field(default_factory=list)
    found: dict[str, int] = field(default_factory=dict)
    problem_count: int = 0
    problems: list[dict[str, str]] = field(default_factory=list)

    @property
    def files(self) -> int:
        """How many files there are to read."""
        return sum(self.found.values())


def survey(source: Source, roots: Sequence[Path]) -> Survey:
    """Look for the files of a source, without reading any. Never raises for what it cannot see."""
    result = Survey(
        source.name,
        source.title,
        [{"pattern": r.pattern, "what": r.what, "checkpoint": r.shape} for r in source.reads],
        [{"where": left.where, "why": left.why} for left in source.leaves_out],
    )
    found: Counter[str] = Counter()
    problems: dict[Path, str] = {}
    for root in roots:
        try:
            exists = root.exists()
            files = list(source.discover(root)) if exists else []
        except OSError as error:
            result.looked.append({"path": str(root), "exists": True, "files": 0})
            problems[root] = error.strerror or type(error).__name__
            continue
        found.update(file.label for file in files)
        problems |= source.unreadable if exists else {}
        result.looked.append({"path": str(root), "exists": exists, "files": len(files)})
    result.found = dict(sorted(found.items()))
    result.problem_count = len(problems)
    result.problems = [
        {"path": str(path), "reason": reason}
        for path, reason in sorted(problems.items())[:_MOST_PROBLEMS]
    ]
    return result


def survey_all(selection: Sequence[tuple[Source, Sequence[Path]]]) -> list[Survey]:
    """Every source of a selection, by name."""
    return [survey(source, roots) for source, roots in sorted(selection, key=_name)]


def _name(entry: tuple[Source, Sequence[Path]]) -> str:
    return entry[0].name


def checkpoint_kinds() -> Mapping[str, str]:
    """What the words for the kinds of checkpoint mean."""
    return {
        "lines": "appended records; read on from where the last read ended",
        "whole": "one small record; read again when the file changes",
        "document": "rewritten, or a log of changes; read whole, and only what differs is written",
        "container": "many sessions in one database or folder; those that changed are read again",
        "table": "rows of a table; read on from the highest id",
    }
