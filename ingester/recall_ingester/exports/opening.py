"""What kind of export the given files are, and whether they may be read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recall.errors import SourceError, UsageError
from recall.jsontext import MalformedLine
from recall_ingester.exports.archive import Archive, Limits, check_archive, open_archive
from recall_ingester.exports.chatgpt import ChatGpt
from recall_ingester.exports.claude_ai import ClaudeAi
from recall_ingester.exports.conversation import load_value
from recall_ingester.exports.export import Export, ExportMember, ExportSource
from recall_ingester.exports.json_stream import DEFAULT_MAX_ELEMENT_BYTES, elements
from recall_ingester.exports.members import base_name, conversation_names, is_manifest
from recall_ingester.reader import open_regular
from recall_ingester.sources.toolinput import leaves

SOURCES: tuple[ExportSource, ...] = (ClaudeAi(), ChatGpt())

_CHUNK_BYTES = 1 << 20
#: How many elements of a member are looked at to find what it holds.
_LOOK_AT = 20
_MANIFEST_BYTES = 1 << 24

_KNOWN = (
    "known are the data exports of Claude.ai (`conversations.json` with `chat_messages`) and of "
    "ChatGPT (`conversations.json` or `conversations-000.json`, ... with `mapping`)"
)


@dataclass(frozen=True, slots=True)
class _File:
    """One given file, before it is known what it belongs to.

    ``firsts`` holds the members that may hold conversations, each with its first object.
    ``promised`` are the files that a manifest in it names.
    """

    path: Path
    is_zip: bool
    sizes: Mapping[str, int]
    firsts: Mapping[str, Mapping[str, Any] | None]
    promised: frozenset[str]

    @property
    def names(self) -> list[str]:
        return list(self.sizes)


def open_export(
    paths: Sequence[Path],
    *,
    limits: Limits | None = None,
    max_element_bytes: int = DEFAULT_MAX_ELEMENT_BYTES,
) -> Export:
    """The export that the files make up together, checked.

    Raises :class:`SourceError` if a file is damaged or hostile, belongs to no known export, or if
    the files are of different exports.
    """
    limits = limits or Limits()
    unique = list({path.resolve(): path for path in paths}.values())
    if not unique:
        raise UsageError("an import needs at least one file", hint=_KNOWN)
    files = []
    for path in unique:
        with open_archive(path, limits) as archive:
            files.append(_look(archive, max_element_bytes))
    source = _source_of(files)
    members = [member for file in files for member in _conversations(source, file)]
    notes = [member for file in files for member in _members(file, source.note_names(file.names))]
    missing = _missing(files)
    if not members and not notes:
        hint = f"give these files too: {', '.join(missing)}" if missing else _KNOWN
        raise SourceError(f"{_listed(unique)} hold no conversations", hint=hint)
    _check(files, [*members, *notes], limits)
    read = {(member.file, member.name) for member in (*members, *notes)}
    unread = [name for file in files for name in file.names if (file.path, name) not in read]
    return Export(
        source, members, notes, _import_id(unique), missing, unread, limits, max_element_bytes
    )


def _look(archive: Archive, max_element_bytes: int) -> _File:
    names = archive.names
    candidates = conversation_names(names)
    if not archive.is_zip and not candidates and not _is_other_part(names[0]):
        candidates = names  # somebody's own name for a file with conversations
    return _File(
        path=archive.path,
        is_zip=archive.is_zip,
        sizes={name: archive.size(name) for name in names},
        firsts={name: _first(archive, name, max_element_bytes) for name in candidates},
        promised=frozenset(
            base_name(text.replace("\\", "/"))
            for name in names
            if is_manifest(name)
            for text in _promises(archive, name)
        ),
    )


def _is_other_part(name: str) -> bool:
    """Whether a file is a known part of an export that holds no conversations."""
    return is_manifest(name) or any(
        source.note_names([name]) or source.recognises([name], None) for source in SOURCES
    )


def _first(archive: Archive, name: str, max_element_bytes: int) -> Mapping[str, Any] | None:
    """The first object of a member that a source recognises, else its first object."""
    found: Mapping[str, Any] | None = None
    with archive.open(name) as stream:
        for count, element in enumerate(elements(stream, max_element_bytes=max_element_bytes)):
            if count >= _LOOK_AT:
                break
            try:
                value = load_value(element.data) if element.data else None
            except MalformedLine:
                continue
            if isinstance(value, Mapping):
                if any(source.recognises([name], value) for source in SOURCES):
                    return value
                found = found if found is not None else value
    return found


def _promises(archive: Archive, name: str) -> Iterable[str]:
    """The names of files with conversations or projects that a manifest lists."""
    with archive.open(name) as stream:
        for element in elements(stream, max_element_bytes=_MANIFEST_BYTES):
            try:
                value = load_value(element.data) if element.data else None
            except MalformedLine:
                continue
            yield from (
                text
                for text in leaves(value)
                if text.endswith(".zip") or conversation_names([text.replace("\\", "/")])
            )


def _source_of(files: Sequence[_File]) -> ExportSource:
    found: dict[str, tuple[ExportSource, str]] = {}
    for file in files:
        for name, first in file.firsts.items():
            if first is None:
                continue
            source = _recognised(file.names, first)
            if source is None:
                where = f"`{name}` in `{file.path}`" if file.is_zip else f"`{file.path}`"
                raise SourceError(f"{where} is of no known data export", hint=_KNOWN)
            found.setdefault(source.name, (source, str(file.path)))
    if not found and (source := _recognised([n for f in files for n in f.names], None)):
        return source
    if not found:
        listed = _listed([file.path for file in files])
        promised = sorted({name for file in files for name in file.promised})
        hint = f"give these files too: {', '.join(promised)}" if promised else _KNOWN
        raise SourceError(f"{listed} hold no conversations of a known data export", hint=hint)
    if len(found) > 1:
        (one, one_path), (other, other_path) = list(found.values())[:2]
        raise SourceError(
            f"`{one_path}` is a {one.title} and `{other_path}` is a {other.title}",
            hint="import them one after the other",
        )
    return next(iter(found.values()))[0]


def _recognised(names: Sequence[str], first: Mapping[str, Any] | None) -> ExportSource | None:
    return next((source for source in SOURCES if source.recognises(names, first)), None)


def _conversations(source: ExportSource, file: _File) -> list[ExportMember]:
    chosen = source.member_names(file.names)
    if not file.is_zip:
        chosen = list(file.firsts)
    return _members(file, chosen)


def _members(file: _File, names: Sequence[str]) -> list[ExportMember]:
    return [ExportMember(file.path, name, file.sizes[name]) for name in names]


def _check(files: Sequence[_File], members: Sequence[ExportMember], limits: Limits) -> None:
    total = 0
    for file in files:
        total += check_archive(file.path, _wanted(file.path, members), limits)
    if total > limits.total_bytes:
        raise SourceError(
            f"the files hold {total:,} bytes, more than the {limits.total_bytes:,} of one import",
            hint="import them one after the other",
        )


def _wanted(path: Path, members: Sequence[ExportMember]) -> Callable[[Sequence[str]], list[str]]:
    chosen = [member.name for member in members if member.file == path]
    return lambda names: [name for name in chosen if name in set(names)]


def _missing(files: Sequence[_File]) -> list[str]:
    there = {base_name(name) for file in files for name in (file.path.name, *file.names)}
    return sorted({name for file in files for name in file.promised} - there)


def _import_id(paths: Sequence[Path]) -> str:
    """The SHA-256 of the file, or of the hashes of all files whatever their order."""
    digests = sorted(_sha256(path) for path in paths)
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _listed(paths: Sequence[Path]) -> str:
    shown = ", ".join(f"`{path}`" for path in paths[:3])
    return f"{shown} and {len(paths) - 3} more" if len(paths) > 3 else shown
