"""The sources that this version knows, by name."""

from __future__ import annotations

from recall.errors import UsageError
from recall_ingester.sources.base import Source
from recall_ingester.sources.claude_code import ClaudeCode
from recall_ingester.sources.codex import Codex

SAMPLE = "sample"


def all_sources() -> dict[str, Source]:
    """Every source that reads real logs, by name."""
    return {source.name: source for source in (ClaudeCode(), Codex())}


def get_source(name: str) -> Source:
    """The source of this name, or :class:`UsageError`."""
    if name == SAMPLE:
        return ClaudeCode(name=SAMPLE, title="Sample sessions that come with Recall")
    try:
        return all_sources()[name]
    except KeyError:
        known = ", ".join(sorted(all_sources()))
        raise UsageError(f"unknown source `{name}`", hint=f"known sources: {known}") from None
