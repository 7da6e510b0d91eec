"""Sources that a person declares in ``config.toml``: JSON Lines of a client of one's own."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recall.declared import DeclaredSource
from recall_ingester.sources.base import LeavesOut, Parser, Reads, SourceBase, SourceFile
from recall_ingester.sources.declared_parser import DeclaredParser, Fields

_MAGIC = frozenset("*?[")
_COMPRESSED = ".zst"


class Declared(SourceBase):
    """One ``[[source]]`` table."""

    leaves_out = (
        LeavesOut("**", "a declared source stores the fields that its table names; the original "
                  "bytes are kept whole"),
    )  # fmt: skip

    def __init__(self, spec: DeclaredSource) -> None:
        super().__init__()
        self.name = spec.name
        self.title = f"{spec.name}, declared in config.toml"
        self.reads = tuple(
            Reads(pattern, "a session, by the fields of the table", "lines")
            for pattern in spec.paths
        )
        self._patterns = tuple(map(_split, spec.paths))
        self._fields = Fields.of(spec)
        #: The tails of the patterns below each root, as the last ``roots`` resolved them.
        self._below: dict[Path, list[tuple[str, ...]]] = {}

    def roots(self, env: Mapping[str, str], user_home: Path) -> list[Path]:  # noqa: ARG002
        """The part of each pattern before its first wildcard."""
        self._below = {}
        for root, tail in self._patterns:
            path = user_home / root[1:].lstrip("/") if root.startswith("~") else Path(root)
            self._below.setdefault(path, []).append(tail)
        return list(self._below)

    def discover(self, root: Path) -> Iterator[SourceFile]:
        """The files that the patterns match below a root, each physical file once.

        Another folder than those of the patterns is searched by what comes behind their first
        wildcard; a root that is a file is that file.
        """
        self.unreadable = {}
        tails = self._below.get(root) or [tail for _, tail in self._patterns if tail]
        if root.is_file():
            yield self._describe(root, root.parent)
            return
        os.scandir(root).close()  # raises for a root that cannot be listed
        seen: set[tuple[int, int]] = set()
        for tail in tails:
            for path in self._expand(root, tail):
                try:
                    status = path.stat()
                except FileNotFoundError:  # gone since its folder was listed
                    continue
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    yield self._describe(path, root)

    def first_id(self, value: Mapping[str, Any]) -> str | None:
        """The session id that a record gives, if the table says where."""
        return self._fields.session_of(value)

    def parser(self, file: SourceFile, external_id: str, state: Mapping[str, Any] | None) -> Parser:  # noqa: ARG002
        """A parser of one session."""
        return DeclaredParser(self._fields, external_id, state)

    def _describe(self, path: Path, root: Path) -> SourceFile:
        compressed = path.suffix == _COMPRESSED
        name = Path(path.stem if compressed else path.name)
        stem = name.stem
        relative = (path.relative_to(root).parent / stem).as_posix()
        natural = None if self._fields.gives_session else stem
        return SourceFile(
            path, self.name, "declared", "lines", relative, natural, compressed=compressed
        )

    def _expand(self, folder: Path, tail: tuple[str, ...]) -> Iterator[Path]:
        """Regular files below a folder that a pattern matches. As in a shell, ``*`` matches no
        hidden name. ``**`` stands for any number of folders and follows no symbolic link."""
        if not tail:
            return
        head, rest = tail[0], tail[1:]
        try:
            if head == "**":
                yield from self._expand(folder, rest)
                for entry in _entries(folder, "*"):
                    if entry.is_dir(follow_symlinks=False):
                        yield from self._expand(Path(entry.path), tail)
                return
            for entry in _entries(folder, head):
                try:
                    is_wanted = entry.is_dir() if rest else entry.is_file()
                except OSError as error:  # a loop of links costs itself
                    self.unreadable[Path(entry.path)] = error.strerror or type(error).__name__
                    continue
                if rest and is_wanted:
                    yield from self._expand(Path(entry.path), rest)
                elif is_wanted:
                    yield Path(entry.path)
        except OSError as error:
            self.unreadable[folder] = error.strerror or type(error).__name__


def _entries(folder: Path, pattern: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return sorted(
            (
                entry
                for entry in found
                if fnmatch.fnmatchcase(entry.name, pattern)
                and (pattern.startswith(".") or not entry.name.startswith("."))
            ),
            key=lambda entry: entry.name,
        )


def _split(pattern: str) -> tuple[str, tuple[str, ...]]:
    """A pattern as what comes before its first wildcard, and the segments behind that."""
    segments = [part for part in pattern.split("/") if part]
    magic = [index for index, part in enumerate(segments) if _MAGIC & set(part)]
    at = magic[0] if magic else len(segments)
    root = "/".join(segments[:at])
    tail: list[str] = []
    for part in segments[at:]:
        if part != "**" or tail[-1:] != ["**"]:
            tail.append(part)
    if tail[-1:] == ["**"]:
        tail.append("*")
    if not pattern.startswith("~"):
        root = f"/{root}"
    return root, tuple(tail)
