"""The sources that this version knows, by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from recall.config import Settings
from recall.errors import ConfigError, UsageError
from recall_ingester.sources.base import Source
from recall_ingester.sources.claude_code import ClaudeCode
from recall_ingester.sources.codex import Codex
from recall_ingester.sources.declared import Declared
from recall_ingester.sources.gemini import GeminiCli
from recall_ingester.sources.ledger import Ledger
from recall_ingester.sources.memory import Memory
from recall_ingester.sources.opencode import OpenCode
from recall_ingester.sources.vscode_copilot import VsCodeCopilot

SAMPLE = "sample"


class Sample(ClaudeCode):
    """Sessions that come with Recall, in the format of Claude Code, at no place of a client's."""

    def __init__(self) -> None:
        super().__init__(name=SAMPLE, title="Sample sessions that come with Recall")

    def roots(self, env: Mapping[str, str], user_home: Path) -> list[Path]:  # noqa: ARG002
        """None: samples are read only from a folder that is named."""
        return []


def all_sources(settings: Settings | None = None) -> dict[str, Source]:
    """Every source that reads real logs, by name; with settings also those that they declare."""
    settings = settings or Settings()
    known: list[Source] = [
        ClaudeCode(),
        Codex(),
        GeminiCli(),
        Ledger(settings.ledger_path, settings.ledger_table, settings.ledger_columns),
        Memory(settings.memory_paths),
        OpenCode(),
        VsCodeCopilot(),
    ]
    found = {source.name: source for source in known}
    for declared in settings.declared_sources:
        if declared.name in found or declared.name == SAMPLE:
            raise ConfigError(
                f"the name of the source `{declared.name}` in config.toml is taken",
                hint="give it another `name`",
            )
        found[declared.name] = Declared(declared)
    return found


def get_source(name: str, settings: Settings | None = None) -> Source:
    """The source of this name, or :class:`UsageError`."""
    if name == SAMPLE:
        return Sample()
    sources = all_sources(settings)
    try:
        return sources[name]
    except KeyError:
        known = ", ".join(sorted(sources))
        raise UsageError(f"unknown source `{name}`", hint=f"known sources: {known}") from None
