"""The files of an export, read in place: a zip, or a bare JSON file as an archive of one member.

Nothing is ever extracted. A zip is refused as a whole if anything in it is not what an honest
export contains, so that nothing of a damaged or hostile file reaches the store.
"""

from __future__ import annotations

import copy
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from recall.errors import SourceError
from recall_ingester.reader import ByteStream, open_regular

_CHUNK_BYTES = 1 << 18
_ZIP_MAGIC = b"PK"
_BOM = b"\xef\xbb\xbf"
_JSON_SUFFIXES = (".json", ".jsonl")
_DRIVE = re.compile(r"[A-Za-z]:")
_ENCRYPTED = 0x1 | 0x40  # the flags of plain and of strong encryption
_ANY_SIZE = 1 << 62
#: A header of a zip, and behind it the name of a member that holds conversations.
_NESTED_MEMBER = re.compile(
    rb"PK(?:\x03\x04.{26}|\x01\x02.{42})[^\x00]{0,200}?conversations[\w.-]{0,40}\.json", re.DOTALL
)
_NESTED_OVERLAP = 512
#: How clients name the files that people uploaded, whatever is in them.
_UPLOAD_NAME = re.compile(r"(?:.*/)?file[-_][^/]*")

_DAMAGED = "download the export again; if it fails again, request a new one"
_HOSTILE = "no client writes such a file; unpack it yourself and give its `conversations.json`"

#: Which of the members an importer would read.
Wanted = Callable[[Sequence[str]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a zip may expand. Deflate reaches 1032:1 on bytes that carry no text at all."""

    ratio: int = 1000
    ratio_from_bytes: int = 10 << 20
    total_bytes: int = 64 << 30


class Archive(Protocol):
    """An open file of an export; its member names are safe, with ``/`` between their parts."""

    path: Path
    limits: Limits
    is_zip: bool

    @property
    def names(self) -> list[str]:
        """Every member that is a file, in the order of the archive."""
        ...

    def size(self, name: str) -> int:
        """How many bytes a member declares to have."""
        ...

    def open(self, name: str) -> AbstractContextManager[ByteStream]:
        """A member's bytes. Reading raises :class:`SourceError` where they are not as declared."""
        ...


class _BareFile:
    is_zip = False

    def __init__(self, path: Path, limits: Limits, file: IO[bytes]) -> None:
        self.path = path
        self.limits = limits
        self._file = file

    @property
    def names(self) -> list[str]:
        return [self.path.name]

    def size(self, name: str) -> int:  # noqa: ARG002
        return os.fstat(self._file.fileno()).st_size

    @contextmanager
    def open(self, name: str) -> Iterator[ByteStream]:  # noqa: ARG002
        self._file.seek(0)
        yield self._file


class _Zip:
    is_zip = True

    def __init__(self, path: Path, limits: Limits, archive: zipfile.ZipFile) -> None:
        self.path = path
        self.limits = limits
        self._zip = archive
        self._file_bytes = path.stat().st_size
        self._members: dict[str, list[zipfile.ZipInfo]] = {}
        for info in archive.infolist():
            name = _safe_name(path, info)
            if not name or info.is_dir() or info.filename.endswith("\\"):
                continue
            self._members.setdefault(name, []).append(info)
        packed = sum(info.compress_size for infos in self._members.values() for info in infos)
        if packed > self._file_bytes:
            raise _refuse(path, "its members lie over each other", _HOSTILE)

    @property
    def names(self) -> list[str]:
        return list(self._members)

    def size(self, name: str) -> int:
        return self._members[name][0].file_size

    @contextmanager
    def open(self, name: str) -> Iterator[ByteStream]:
        infos = self._members[name]
        if len(infos) > 1:
            raise _refuse(self.path, f"it has {len(infos)} members named `{name}`", _HOSTILE)
        info = infos[0]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            problem = f"`{name}` is compressed by a method that is not supported"
            raise _refuse(self.path, problem, "pack it again as an ordinary zip")
        # zipfile stops silently at the declared size; with a larger one it reads to the real end.
        unbounded = copy.copy(info)
        unbounded.file_size = _ANY_SIZE
        with _translated(self.path, name):
            raw = self._zip.open(unbounded)
        with closing(raw):
            yield _MemberStream(self, name, info, raw, min(info.compress_size, self._file_bytes))


class _MemberStream:
    """The bytes of one member, checked while they are read."""

    def __init__(
        self, archive: _Zip, name: str, info: zipfile.ZipInfo, raw: IO[bytes], packed: int
    ) -> None:
        self._path = archive.path
        self._limits = archive.limits
        self._name = name
        self._info = info
        self._raw = raw
        self._packed = packed
        self._read = 0

    def read(self, size: int, /) -> bytes:
        with _translated(self._path, self._name):
            data = self._raw.read(size)
        self._read += len(data)
        limits = self._limits
        if self._read > self._info.file_size or (not data and self._read < self._info.file_size):
            problem = f"`{self._name}` does not have the {self._info.file_size:,} bytes it declares"
            raise _refuse(self._path, problem, _DAMAGED)
        if self._read > limits.ratio_from_bytes and self._read > self._packed * limits.ratio:
            problem = f"`{self._name}` expands more than {limits.ratio:,} times"
            raise _refuse(self._path, problem, _HOSTILE)
        if self._read > limits.total_bytes:
            raise _too_large(self._path, limits)
        return data


@contextmanager
def open_archive(path: Path, limits: Limits | None = None) -> Iterator[Archive]:
    """Open one file of an export and check its structure, but not yet the bytes of its members.

    Raises :class:`SourceError` for what is neither a zip nor JSON, and for a zip with encrypted,
    linked or escaping members, wherever in it they are.
    """
    limits = limits or Limits()
    if path.is_dir():
        hint = "give the zip as it was downloaded, or the `conversations.json` in the folder"
        raise _refuse(path, "it is a folder", hint)
    try:
        file = open_regular(path)
    except OSError as error:
        raise SourceError(f"`{path}` cannot be read: {error.strerror or error}") from error
    with file:
        head = file.read(4096)
        file.seek(0)
        if head.startswith(_ZIP_MAGIC) or path.suffix.lower() == ".zip":
            with _translated(path, None):
                opened = zipfile.ZipFile(file)
            with opened:
                yield _Zip(path, limits, opened)
        elif head.removeprefix(_BOM).lstrip()[:1] in (b"{", b"["):
            yield _BareFile(path, limits, file)
        else:
            hint = "give the zip as it was downloaded, or the `conversations.json` in it"
            raise _refuse(path, "it is neither a zip nor JSON", hint)


def check_archive(path: Path, wanted: Wanted | None = None, limits: Limits | None = None) -> int:
    """Refuse a file of an export before anything of it is used; the bytes that will be read.

    Each member that ``wanted`` names (every JSON file, where it is not given) is read to its end
    once: sizes, ratio and CRC are what the archive says. :class:`SourceError` otherwise, also if an
    export lies inside as a zip of its own.
    """
    with open_archive(path, limits) as archive:
        names = archive.names
        chosen = list(wanted(names)) if wanted else [n for n in names if is_json(n)]
        total = sum(archive.size(name) for name in chosen)
        if total > archive.limits.total_bytes:
            raise _too_large(path, archive.limits)
        if isinstance(archive, _Zip):
            _refuse_nested(archive)
            for name in chosen:
                with archive.open(name) as stream:
                    while stream.read(_CHUNK_BYTES):
                        pass
    return total


def is_json(name: str) -> bool:
    """Whether a member's name says that it holds JSON."""
    return name.lower().endswith(_JSON_SUFFIXES)


def _safe_name(path: Path, info: zipfile.ZipInfo) -> str:
    """The member's name with ``/`` between its parts; :class:`SourceError` if it is not safe."""
    given = info.orig_filename
    parts = given.replace("\\", "/").split("/")
    shown = given.encode("ascii", "backslashreplace").decode()[:200]
    if "\x00" in given or not parts[0] or _DRIVE.match(given) or ".." in parts:
        raise _refuse(path, f"its member `{shown}` leads out of the archive", _HOSTILE)
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _refuse(path, f"its member `{shown}` is a link or a special file", _HOSTILE)
    if info.flag_bits & _ENCRYPTED:
        hint = "unpack it with its password and give the files in it"
        raise _refuse(path, f"its member `{shown}` is encrypted", hint)
    return "/".join(part for part in parts if part not in ("", "."))


def _refuse_nested(archive: _Zip) -> None:
    """Raise for a zip in the zip that holds conversations; others are somebody's attachments."""
    for name in archive.names:
        if not name.lower().endswith(".zip") or _UPLOAD_NAME.fullmatch(name):
            continue
        if _holds_conversations(archive, name):
            hint = f"unpack `{archive.path.name}` and give the zips that are in it"
            raise _refuse(archive.path, f"`{name}` in it is an export of its own", hint)


def _holds_conversations(archive: _Zip, name: str) -> bool:
    tail = b""
    try:
        with archive.open(name) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                if _NESTED_MEMBER.search(window := tail + chunk):
                    return True
                tail = window[-_NESTED_OVERLAP:]
    except SourceError:  # a damaged attachment costs nothing: it is not read
        return False
    return False


@contextmanager
def _translated(path: Path, name: str | None) -> Iterator[None]:
    """What zipfile and zlib raise for damaged bytes, as :class:`SourceError`."""
    what = f"`{name}` in `{path}`" if name else f"`{path}`"
    try:
        yield
    except zipfile.BadZipFile as error:
        problem = "does not match its checksum" if "CRC" in str(error) else f"is damaged: {error}"
        problem = problem if name else "is not a zip, or was cut off"
        raise SourceError(f"{what} {problem}", hint=_DAMAGED) from error
    except (EOFError, zlib.error) as error:
        raise SourceError(f"{what} is damaged or was cut off", hint=_DAMAGED) from error
    except (NotImplementedError, RuntimeError, OSError, ValueError, struct.error) as error:
        raise SourceError(f"{what} cannot be read: {error}", hint=_DAMAGED) from error


def _refuse(path: Path, problem: str, hint: str) -> SourceError:
    return SourceError(f"`{path}` is not read: {problem}", hint=hint)


def _too_large(path: Path, limits: Limits) -> SourceError:
    size = f"{limits.total_bytes / (1 << 30):,.0f} GiB"
    return _refuse(path, f"it holds more than {size} of conversations", "import it in pieces")
