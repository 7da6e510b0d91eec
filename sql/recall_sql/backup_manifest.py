"""What is known of a backup: the manifest beside its dump, and the folder that holds both.

A dump counts as a backup only with its manifest, which is written last and names its length and
hash. Only files that a manifest of ours names are ever deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from recall.errors import DamagedError, NotFoundError, TargetError

_FORMAT = "recall-backup-1"
_PREFIX = "recall-"
_DUMP, _MANIFEST = ".dump", ".json"
_PIECE_BYTES = 1 << 20

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class TableDigest:
    """How many rows a table has, and a number that changes if any of them does."""

    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class Extension:
    """An extension that the database uses."""

    name: str
    version: str
    schema: str


@dataclass(frozen=True, slots=True)
class Role:
    """A role that rights in the database name. Its password is never known."""

    name: str
    can_login: bool
    inherits: bool
    settings: tuple[str, ...]
    member_of: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that has to be known of a dump before it is opened.

    ``tables`` was taken in the snapshot of the dump. ``left_out`` are tables whose rows are not in
    it, because they can be made again. ``identity`` is the host name and install id of the home.
    """

    file: str
    recall_version: str
    schema_version: int
    postgresql: str
    postgresql_major: int
    pg_dump: str
    started_at: datetime
    finished_at: datetime
    bytes: int
    sha256: str
    database_bytes: int
    vectors: bool
    tables: Mapping[str, TableDigest]
    left_out: tuple[str, ...]
    extensions: tuple[Extension, ...]
    roles: tuple[Role, ...]
    identity: Mapping[str, str] | None = None
    verified_at: datetime | None = None

    @property
    def pgvector(self) -> str | None:
        """The version of pgvector that wrote the vectors."""
        return next((item.version for item in self.extensions if item.name == "vector"), None)

    @property
    def rows(self) -> int:
        """All rows of the dump."""
        return sum(table.rows for table in self.tables.values())

    def as_json(self) -> dict[str, Any]:
        """For the file, and for a program."""
        return {
            "format": _FORMAT,
            **asdict(self),
            "pgvector": self.pgvector,
            "started_at": _text(self.started_at),
            "finished_at": _text(self.finished_at),
            "verified_at": _text(self.verified_at) if self.verified_at else None,
        }


@dataclass(frozen=True, slots=True)
class Backup:
    """A manifest and where it stands."""

    manifest: Manifest
    folder: Path

    @property
    def dump(self) -> Path:
        """The file that `pg_dump` wrote."""
        return self.folder / self.manifest.file

    @property
    def manifest_path(self) -> Path:
        """The manifest beside it."""
        return self.dump.with_suffix(_MANIFEST)

    @property
    def problem(self) -> str | None:
        """What one look at the file shows; ``None`` if it is there with its length."""
        try:
            size = self.dump.stat().st_size
        except OSError:
            return "the dump is missing"
        return None if size == self.manifest.bytes else "the dump has another length"


def new_name(folder: Path, now: datetime) -> str:
    """The name of a dump that is not taken yet."""
    stem = f"{_PREFIX}{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    names = (f"{stem}{suffix}" for suffix in ("", *(f"-{n}" for n in range(1, 1000))))
    taken = {path.stem for path in folder.glob(f"{stem}*")}
    return next(name for name in names if name not in taken) + _DUMP


def partial_path(folder: Path, name: str) -> Path:
    """Where a file is written before it takes its name."""
    return folder / f".{name}.partial"


def remove_partials(folder: Path) -> None:
    """Remove what a backup that was killed left; call it while nobody else writes there."""
    for path in folder.glob(f".{_PREFIX}*.partial"):
        path.unlink(missing_ok=True)


def write_manifest(folder: Path, manifest: Manifest) -> Backup:
    """Write or replace the manifest, whole or not at all."""
    backup = Backup(manifest, folder)
    path = backup.manifest_path
    new = _new_manifest(path)
    text = json.dumps(manifest.as_json(), ensure_ascii=False, indent=2) + "\n"
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_folder(folder)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise TargetError(f"`{path}` cannot be written: {error.strerror}") from error
    return backup


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_backups(folder: Path) -> tuple[list[Backup], dict[str, str]]:
    """The backups of a folder, newest first; and the files that look like one and count as none,
    with the reason."""
    found: list[Backup] = []
    others: dict[str, str] = {}
    for path in sorted(folder.glob(f"{_PREFIX}*{_MANIFEST}")):
        try:
            found.append(_read(path))
        except DamagedError as error:
            others[path.name] = error.message.partition(": ")[2]
    known = {backup.manifest.file for backup in found}
    for path in sorted(folder.glob(f"{_PREFIX}*{_DUMP}")):
        if path.name not in known:
            others.setdefault(path.name, "it has no manifest")
    return sorted(found, key=lambda item: item.manifest.started_at, reverse=True), others


def find_backup(folder: Path, name: str) -> Backup:
    """The backup that ``latest``, the name of a file of the folder, or a path means.

    Raises :class:`NotFoundError` if there is none, or it has no manifest.
    """
    if name == "latest":
        for backup in list_backups(folder)[0]:
            if backup.problem != "the dump is missing":
                return backup
        raise NotFoundError(f"there is no backup in `{folder}`", hint="`recall backup` makes one")
    path = Path(name).expanduser().absolute()
    if not path.exists() and not Path(name).is_absolute():
        path = folder / name
    dump, manifest = path.with_suffix(_DUMP), path.with_suffix(_MANIFEST)
    if not dump.exists() and not manifest.exists():
        raise NotFoundError(f"there is no backup `{name}`", hint="see `recall backup --list`")
    if not manifest.exists():
        raise NotFoundError(
            f"`{dump}` has no manifest, so nothing says whether it is whole",
            hint=f"put `{manifest.name}` beside it; docs/backup.md says what to do without it",
        )
    return _read(manifest)


def check_whole(backup: Backup, progress: Progress | None = None) -> None:
    """Raise :class:`DamagedError` unless the dump is byte for byte what was written."""
    manifest, digest, done = backup.manifest, hashlib.sha256(), 0
    try:
        with backup.dump.open("rb") as file:
            length = os.fstat(file.fileno()).st_size
            while chunk := file.read(_PIECE_BYTES):
                digest.update(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, length)
    except FileNotFoundError:
        raise DamagedError(f"`{backup.dump}` is missing", hint=_OTHERS) from None
    except OSError as error:
        raise DamagedError(f"`{backup.dump}` cannot be read: {error.strerror}") from error
    if done != manifest.bytes:
        raise DamagedError(
            f"`{backup.dump}` is damaged: it has {done:,} bytes and not {manifest.bytes:,}",
            hint=_OTHERS,
        )
    if digest.hexdigest() != manifest.sha256:
        raise DamagedError(
            f"`{backup.dump}` is damaged: its checksum is not that of the manifest", hint=_OTHERS
        )


def mark_verified(backup: Backup, now: datetime) -> Backup:
    """Note in the manifest that the backup was restored and found to be good."""
    return write_manifest(backup.folder, replace(backup.manifest, verified_at=now))


def outdated(
    backups: Iterable[Backup], *, keep: int, keep_days: int, now: datetime
) -> list[Backup]:
    """What retention deletes: beyond the newest ``keep`` and older than ``keep_days``; never the
    newest one that was verified. A backup whose dump is gone counts for none of the kept."""
    ordered = sorted(backups, key=lambda item: item.manifest.started_at, reverse=True)
    whole = [backup for backup in ordered if backup.problem is None]
    kept = whole[:keep]
    kept += [backup for backup in whole if backup.manifest.verified_at is not None][:1]
    limit = now - timedelta(days=keep_days)
    return [item for item in ordered if item not in kept and item.manifest.started_at < limit]


def delete_backup(backup: Backup) -> None:
    """The dump first: a manifest alone is still seen, and deleted the next time."""
    try:
        backup.dump.unlink(missing_ok=True)
        backup.manifest_path.unlink(missing_ok=True)
        _new_manifest(backup.manifest_path).unlink(missing_ok=True)
    except OSError as error:
        raise TargetError(f"`{backup.dump}` cannot be deleted: {error.strerror}") from error


def _new_manifest(path: Path) -> Path:
    """Not a name that :func:`remove_partials` takes: a proof writes while a backup may start."""
    return path.with_name(f".{path.name}.new")


_OTHERS = "`recall backup --list` shows the others"


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _read(path: Path) -> Backup:
    """The backup of a manifest. The dump stands beside it and has its name: a manifest cannot name
    another file."""
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["format"] != _FORMAT:
            raise ValueError
        manifest = _manifest(data)
        if manifest.file != path.stem + _DUMP:
            raise ValueError
    except OSError as error:
        raise DamagedError(f"`{path}`: the manifest cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedError(f"`{path}`: this is not a manifest of a backup", hint=_OTHERS) from None
    return Backup(manifest, path.parent)


def _manifest(data: Mapping[str, Any]) -> Manifest:
    verified, identity = data["verified_at"], data["identity"]
    return Manifest(
        file=str(data["file"]),
        recall_version=str(data["recall_version"]),
        schema_version=int(data["schema_version"]),
        postgresql=str(data["postgresql"]),
        postgresql_major=int(data["postgresql_major"]),
        pg_dump=str(data["pg_dump"]),
        started_at=_moment(data["started_at"]),
        finished_at=_moment(data["finished_at"]),
        bytes=int(data["bytes"]),
        sha256=str(data["sha256"]),
        database_bytes=int(data["database_bytes"]),
        vectors=bool(data["vectors"]),
        tables={
            str(name): TableDigest(int(table["rows"]), str(table["digest"]))
            for name, table in data["tables"].items()
        },
        left_out=tuple(map(str, data["left_out"])),
        extensions=tuple(
            Extension(str(item["name"]), str(item["version"]), str(item["schema"]))
            for item in data["extensions"]
        ),
        roles=tuple(
            Role(
                str(item["name"]),
                bool(item["can_login"]),
                bool(item["inherits"]),
                tuple(map(str, item["settings"])),
                tuple(map(str, item["member_of"])),
            )
            for item in data["roles"]
        ),
        identity={str(k): str(v) for k, v in identity.items()} if identity else None,
        verified_at=_moment(verified) if verified else None,
    )


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError
    return moment
