"""The sources that this version knows, by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from recall.errors import UsageError
from recall_ingester.sources.base import Source
from recall_ingester.sources.claude_code import ClaudeCode
from recall_ingester.sources.codex import Codex

SAMPLE = "sample"


class Sample(ClaudeCode):
    """Sessions that come with Recall, in the format of Claude Code, at no place of a client's."""

    def __init__(self) -> None:
        super().__init__(name=SAMPLE, title="Sample sessions that come with Recall")

    def roots(self, env: Mapping[str, str], user_home: Path) -> list[Path]:  # noqa: ARG002
        """None: samples are read only from a folder that is named."""
        return []


def all_sources() -> dict[str, Source]:
    """Every source that reads real logs, by name."""
    return {source.name: source for source in (ClaudeCode(), Codex())}


def get_source(name: str) -> Source:
    """The source of this name, or :class:`UsageError`."""
    if name == SAMPLE:
        return Sample()
    try:
        return all_sources()[name]
    except KeyError:
        known = ", ".join(sorted(all_sources()))
        raise UsageError(f"unknown source `{name}`", hint=f"known sources: {known}") from None
