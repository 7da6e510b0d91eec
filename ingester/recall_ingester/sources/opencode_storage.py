"""The sessions of opencode's storage folder: one JSON file for each session, message and part.

Three layouts exist: ``session/<project>/<session>.json`` with ``message/<session>/`` and
``part/<message>/``; the same with all parts directly in ``part/``; and, before both, everything
below ``session/`` (``info``, ``message/<session>``, ``part/<session>/<message>``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from recall.errors import SourceError
from recall.jsontext import MalformedLine, compact, loads
from recall_ingester.sources.base import Member
from recall_ingester.sources.opencode_parts import mapping, word
from recall_ingester.sqlite_reader import json_value

#: Folders below ``session`` that are no projects.
_KINDS = frozenset({"message", "part", "share"})


class Storage:
    """The sessions of one storage folder, without those that a newer store holds."""

    def __init__(self, folder: Path, elsewhere: Set[str]) -> None:
        self._folder = folder
        self._elsewhere = elsewhere
        self._infos = _session_files(folder)
        self._loose: dict[str, list[Path]] | None = None

    def members(self) -> Iterator[Member]:
        """One for each session; one whose own file is gone counts by its messages."""
        for session in sorted(self.ids()):
            if session in self._elsewhere:
                continue
            count, newest, size = 0, 0, 0
            for path in self._files(session):
                try:
                    status = path.stat()
                except OSError:  # removed since it was listed; the next pass sees that
                    continue
                count += 1
                newest = max(newest, status.st_mtime_ns)
                size += status.st_size
            yield Member(session, f"{count}:{newest}:{size}")

    def slots(self, external_id: str) -> Iterator[bytes]:
        """The session, then each message with its parts, by the names of the files."""
        info = self._infos.get(external_id)
        row: dict[str, Any] = {"id": external_id}
        project = None
        if info is not None:
            data = _read(info)
            row["data"] = _text(data)
            name = word(_parsed(data).get("projectID")) or info.parent.name
            project = self._project(name)
        yield _line({"session": row, "project": project})
        for path in self._messages(external_id):
            data = _read(path)
            id = word(_parsed(data).get("id")) or path.stem
            message = {"id": id, "session_id": external_id, "data": _text(data)}
            parts = [_part(part, id) for part in self._parts(external_id, {id, path.stem})]
            yield _line({"message": message, "parts": parts})

    def ids(self) -> frozenset[str]:
        """The ids of all sessions in the folder."""
        ids = set(self._infos)
        for folder in (self._folder / "message", self._folder / "session" / "message"):
            ids.update(path.name for path in _entries(folder) if path.is_dir())
        return frozenset(ids)

    def _files(self, session: str) -> Iterator[Path]:
        if session in self._infos:
            yield self._infos[session]
        for message in self._messages(session):
            yield message
            names = {message.stem}
            if not self._has_parts(session, message.stem):
                names.add(word(_peek(message).get("id")) or message.stem)
            yield from self._parts(session, names)

    def _messages(self, session: str) -> list[Path]:
        folders = (self._folder / "message", self._folder / "session" / "message")
        return _by_name(folder / session for folder in folders)

    def _has_parts(self, session: str, message: str) -> bool:
        return any(folder.is_dir() for folder in self._part_folders(session, message))

    def _part_folders(self, session: str, message: str) -> tuple[Path, Path]:
        return (
            self._folder / "part" / message,
            self._folder / "session" / "part" / session / message,
        )

    def _parts(self, session: str, messages: Set[str]) -> list[Path]:
        names = sorted(name for name in messages if _is_plain(name))
        found = _by_name(folder for name in names for folder in self._part_folders(session, name))
        loose = self._loose_parts()
        found += [path for name in names for path in loose.get(name, ())]
        return found

    def _loose_parts(self) -> dict[str, list[Path]]:
        """Parts that lie directly in ``part/``, by the message that they name."""
        if self._loose is None:
            self._loose = {}
            for path in _json_files(self._folder / "part"):
                message = word(_peek(path).get("messageID"))
                if message is not None:
                    self._loose.setdefault(message, []).append(path)
        return self._loose

    def _project(self, name: str) -> dict[str, Any] | None:
        path = self._folder / "project" / f"{name}.json"
        if not _is_plain(name) or not path.is_file():
            return None
        return {"id": name, "data": _text(_read(path))}


def session_info_folder(path: Path) -> Path | None:
    """The storage folder that a file is a session of, if it is one by its place."""
    kind = path.parent.parent
    if path.suffix != ".json" or kind.name != "session" or path.parent.name in _KINDS:
        return None
    folder = kind.parent
    known = path.name.startswith("ses_") or (folder / "message").is_dir()
    return folder if known or (kind / "message").is_dir() else None


def _session_files(folder: Path) -> dict[str, Path]:
    """Session files by id. A session that moved to another project counts as its newest file."""
    found: dict[str, Path] = {}
    for project in _entries(folder / "session"):
        if project.name in _KINDS or not project.is_dir():
            continue
        for path in _json_files(project):
            id = _session_id(folder, path)
            if id not in found or _age(path) >= _age(found[id]):
                found[id] = path
    return found


def _session_id(folder: Path, path: Path) -> str:
    """The file's name, unless its messages lie under the id that only its content gives."""
    kinds = (folder / "message", folder / "session" / "message")
    if any((kind / path.stem).is_dir() for kind in kinds):
        return path.stem
    id = word(_peek(path).get("id"))
    return id if id is not None and _is_plain(id) else path.stem


def _part(path: Path, message: str) -> dict[str, Any]:
    data = _read(path)
    id = word(_parsed(data).get("id")) or path.stem
    return {"id": id, "message_id": message, "data": _text(data)}


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder) if entry.name[0] != ".")
    except (FileNotFoundError, NotADirectoryError):
        return []


def _json_files(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.suffix == ".json" and path.is_file()]


def _by_name(folders: Iterator[Path]) -> list[Path]:
    """The JSON files of folders in the order of their names, which is the order of their ids."""
    paths = [path for folder in folders for path in _json_files(folder)]
    return sorted(paths, key=lambda path: path.name)


def _read(path: Path) -> bytes:
    """A file's bytes; an unreadable file is an error, for without it a message were taken back."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"`{path}` cannot be read: {error.strerror}") from error


def _peek(path: Path) -> Mapping[str, Any]:
    """What a file holds, nothing if it cannot be read."""
    try:
        return _parsed(path.read_bytes())
    except OSError:
        return {}


def _parsed(data: bytes) -> Mapping[str, Any]:
    try:
        return mapping(loads(data)[0])
    except MalformedLine:
        return {}


def _text(data: bytes) -> Any:
    return json_value(data.decode("utf-8", "surrogateescape"))


def _is_plain(name: str) -> bool:
    """Whether a name from inside a file is safe as the name of a file."""
    return name not in ("", ".", "..") and "/" not in name and "\x00" not in name


def _age(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _line(value: dict[str, Any]) -> bytes:
    return compact(value).encode() + b"\n"
