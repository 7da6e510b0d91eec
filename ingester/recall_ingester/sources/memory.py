"""Where agents keep their memory: folders of Markdown notes, and JSON files of entries."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from recall_ingester.sources.base import DocumentParser, LeavesOut, Reads, SourceBase, SourceFile
from recall_ingester.sources.memory_entries import EntriesParser, MarkdownParser
from recall_ingester.walk import Walk

_MARKDOWN = frozenset({".md", ".markdown"})
_LINES = frozenset({".jsonl", ".ndjson"})
_JSON = frozenset({".json"}) | _LINES
#: Folders of the known clients, which hold more than a memory. There, only Markdown is one.
_CLAUDE_ROOT, _CODEX_ROOT = "projects", "memories"
_CLAUDE_FOLDER = "memory"
_MARKDOWN_LABEL, _CLAUDE_LABEL, _ENTRIES_LABEL = "notes", "project-notes", "entries"


class Memory(SourceBase):
    """Memories of Claude Code and Codex, and the files and folders of the setting."""

    name = "memory"
    title = "Agents' memory"
    reads = (
        Reads("~/.claude/projects/*/memory/**/*.md", "one entry for each file", "document"),
        Reads("~/.codex/memories/**/*.md", "one entry for each file", "document"),
        Reads("memory_paths: *.md, *.markdown", "one entry for each file", "document"),
        Reads("memory_paths: *.json, *.jsonl, *.ndjson", "the entries of the file", "document"),
    )
    leaves_out = (
        LeavesOut("**/.*", "hidden files and folders of a memory folder hold no entries"),
    )  # fmt: skip

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        super().__init__()
        self._paths = tuple(paths)

    def roots(self, env: Mapping[str, str], user_home: Path) -> list[Path]:
        """The memories of the known clients, wherever those live, and the paths of the setting."""
        configured = env.get("CLAUDE_CONFIG_DIR", "")
        claude = [Path(part.strip()).expanduser() for part in configured.split(",") if part.strip()]
        claude = claude or [user_home / ".claude", user_home / ".config" / "claude"]
        codex = env.get("CODEX_HOME")
        home = Path(codex).expanduser() if codex else user_home / ".codex"
        roots = [*(folder / _CLAUDE_ROOT for folder in claude), home / _CODEX_ROOT, *self._paths]
        return list(dict.fromkeys(roots))

    def discover(self, root: Path) -> Iterator[SourceFile]:
        """The notes and entry files below a root, or the one file that it is."""
        self.unreadable = {}
        if root.is_file():
            suffix = root.suffix.lower()
            label = _ENTRIES_LABEL if suffix in _JSON else _MARKDOWN_LABEL
            yield self._describe(root, root.parent, label)
        elif root.name == _CLAUDE_ROOT and root not in self._paths:
            yield from self._of_projects(root)
        else:
            only_notes = root.name == _CODEX_ROOT and root not in self._paths
            for path in self._walk(root, top=True):
                suffix = path.suffix.lower()
                if suffix in _MARKDOWN:
                    yield self._describe(path, root, _MARKDOWN_LABEL)
                elif suffix in _JSON and not only_notes:
                    yield self._describe(path, root, _ENTRIES_LABEL)

    def _of_projects(self, root: Path) -> Iterator[SourceFile]:
        boundary = root.resolve()
        for entry in sorted(os.scandir(root), key=lambda item: item.name):
            folder = root / entry.name / _CLAUDE_FOLDER
            try:
                if not folder.is_dir() or not folder.resolve().is_relative_to(boundary):
                    continue
            except (OSError, RuntimeError) as error:  # a loop of links
                self.unreadable[folder] = getattr(error, "strerror", None) or type(error).__name__
                continue
            for path in self._walk(folder):
                if path.suffix.lower() in _MARKDOWN:
                    yield self._describe(path, root, _CLAUDE_LABEL)

    def _walk(self, folder: Path, *, top: bool = False) -> Iterable[Path]:
        walk = Walk(folder)
        try:
            paths = list(walk.files())
        except OSError as error:
            if top:
                raise
            self.unreadable[folder] = error.strerror or type(error).__name__
            return []
        self.unreadable.update(walk.unreadable)
        return paths

    def _describe(self, path: Path, root: Path, label: str) -> SourceFile:
        relative = path.relative_to(root).with_suffix("").as_posix()
        return SourceFile(path, self.name, label, "document", relative, owns_session=False)

    def document_parser(self, file: SourceFile, external_id: str) -> DocumentParser:  # noqa: ARG002
        """A parser of one note, or of a file of entries."""
        if file.label == _ENTRIES_LABEL:
            return EntriesParser(lines=file.path.suffix.lower() in _LINES)
        fields = {}
        if file.label == _CLAUDE_LABEL:
            # The client made the folder's name from the project's path; that cannot be reversed.
            fields["folder"] = file.relative.partition("/")[0]
        return MarkdownParser(file.relative + file.path.suffix, fields)
