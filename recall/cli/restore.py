"""``recall restore``: write the original files of a session, or one file, back byte for byte."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from rich.text import Text

from recall.cli.originals import find_stored, open_originals, shown_path, this_host
from recall.cli.output import note, print_json, screen
from recall.cli.targets import original_paths, paths_below
from recall.cli.terminal import short_size
from recall.config import Settings, load_settings
from recall.errors import NotFoundError, SourceError, TargetError, UsageError
from recall.keys import path_key

if TYPE_CHECKING:
    from recall.cli.originals import Connection
    from recall_sql.raw import Generation, StoredFile

#: ``same``: these bytes are there already. ``other``: something else is.
State = Literal["new", "same", "other"]
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Copy:
    """One generation of one file, and where it goes."""

    file: StoredFile
    generation: int
    kept: tuple[Generation, ...]
    target: Path | None = None
    state: State = "new"

    @property
    def byte_length(self) -> int:
        """The length of this generation."""
        return next((item.byte_length for item in self.kept if item.number == self.generation), 0)

    @property
    def place(self) -> Path:
        """The target of a copy that is going to be written."""
        assert self.target is not None
        return self.target

    @property
    def shown(self) -> str:
        """The target as text that a terminal can take."""
        return shown_path(path_key(self.place))


def restore(
    ref: str = typer.Argument(
        ...,
        metavar="REF",
        help="Key of a session, its id or the beginning of that; or the path of a file, or the end "
        "of that.",
    ),
    to: Path | None = typer.Option(
        None, "--to", metavar="DIR", help="Write below this folder and not to the original paths."
    ),
    generation: int | None = typer.Option(
        None, "--generation", metavar="N", help="An earlier state of a file that was rewritten."
    ),
    with_children: bool = typer.Option(
        False, "--with-children", help="Also its subagents, forks and resumed copies."
    ),
    host: str | None = typer.Option(
        None, "--host", metavar="NAME", help="The machine whose file a path means."
    ),
    stdout: bool = typer.Option(False, "--stdout", help="Print the bytes of its only file."),
    partial: bool = typer.Option(
        False, "--partial", help="Also files of which only the beginning is kept."
    ),
    force: bool = typer.Option(False, "--force", help="Write over a file that differs."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be written."),
    as_json: bool = typer.Option(False, "--json", help="Print what was written as JSON."),
) -> None:
    """Write the original files of a session, or one file, back byte for byte.

    Exit code 4: the session or file, or its bytes, are not in the store. 65: the stored bytes are
    damaged. 73: another file is in the place of one, and nothing was written.
    """
    settings = load_settings()
    if stdout and (to or as_json or dry_run):
        raise UsageError("--stdout cannot be combined with --to, --json or --dry-run")
    with open_originals(settings, "recall restore") as connection:
        here = this_host(settings)
        key, files = _find(connection, ref, here, host, with_children=with_children)
        copies = _with_generation(connection, files, generation)
        _require_kept(copies, partial=partial)
        if stdout:
            _print_bytes(connection, settings, copies)
            return
        copies = _place(copies, to, here)
        copies = [replace(copy, state=_state(connection, copy)) for copy in copies]
        if not dry_run:
            _refuse_others(copies, force=force)
            _write(connection, [copy for copy in copies if copy.state != "same"])
    _report(key, copies, dry_run=dry_run, as_json=as_json)


def _find(
    connection: Connection, ref: str, here: str | None, host: str | None, *, with_children: bool
) -> tuple[str | None, list[StoredFile]]:
    """The files to restore, and the key of the session if it was named."""
    from recall_api.sessions import resolve_session

    key = None
    if host is None and not ref.startswith(("/", "./")):
        try:
            key = resolve_session(connection, ref)
        except NotFoundError:
            key = None  # perhaps the end of a path
    if key is not None:
        return key, _files_of(connection, key, with_children=with_children)
    files = find_stored(connection, ref, this_host=here, host=host)
    if with_children:
        raise UsageError("--with-children goes with a session, not with a file")
    return None, files


def _files_of(connection: Connection, key: str, *, with_children: bool) -> list[StoredFile]:
    from recall_sql.loader import load
    from recall_sql.raw import files_of_sessions

    keys = [key]
    if with_children:
        rows = connection.execute(load("raw")["session_tree"], {"key": key}).fetchall()
        keys = [row[0] for row in rows]
    files = files_of_sessions(connection, keys)
    if not files:
        raise NotFoundError(
            f"no file of `{key}` is known",
            hint="it is only mentioned by other sessions or an index",
        )
    return files


def _with_generation(
    connection: Connection, files: Sequence[StoredFile], generation: int | None
) -> list[Copy]:
    from recall_sql.raw import generations

    copies = [
        Copy(
            file,
            file.generation if generation is None else generation,
            tuple(generations(connection, file.host, file.path)),
        )
        for file in files
    ]
    if generation is None:
        return copies
    found = [copy for copy in copies if generation in [item.number for item in copy.kept]]
    if not found:
        kept = "; ".join(
            f"`{shown_path(copy.file.path)}`: {_describe(copy.kept)}" for copy in copies[:5]
        )
        raise NotFoundError(f"generation {generation} is not kept", hint=f"kept are {kept}")
    return found


def _describe(kept: Sequence[Generation]) -> str:
    items = [
        f"{item.number} ({short_size(item.byte_length)}, {item.stored_at:%Y-%m-%d %H:%M} UTC)"
        for item in kept
    ]
    return ", ".join(items) or "none"


def _require_kept(copies: Sequence[Copy], *, partial: bool) -> None:
    for copy in copies:
        file = copy.file
        reason = file.why_not_kept if copy.generation == file.generation else None
        if reason is None or (partial and file.kept_bytes):
            continue
        if file.kept_bytes:
            hint = "--partial restores what there is"
        else:
            hint = "if the file is still there, the next ingest keeps its bytes (`keep_raw`)"
        if earlier := [item for item in copy.kept if item.number != file.generation]:
            hint += f"; with --generation: {_describe(earlier)}"
        raise NotFoundError(
            f"the bytes of `{shown_path(file.path)}` are not kept: {reason}", hint=hint
        )


def _print_bytes(connection: Connection, settings: Settings, copies: Sequence[Copy]) -> None:
    """All of it is read and checked before the first byte is printed."""
    if len(copies) != 1:
        raise UsageError(f"these are {len(copies)} files", hint="write them with --to DIR")
    if sys.stdout.isatty():
        raise UsageError(
            "the bytes of a log can steer a terminal", hint="send them to a file or a program"
        )
    folder = settings.home if settings.home.is_dir() else None
    with tempfile.TemporaryFile(dir=folder) as spooled:
        for chunk in _chunks(connection, copies[0]):
            spooled.write(chunk)
        spooled.seek(0)
        shutil.copyfileobj(spooled, sys.stdout.buffer, _PIECE_BYTES)
        sys.stdout.buffer.flush()


def _chunks(connection: Connection, copy: Copy) -> Iterator[bytes]:
    """The checked bytes of a copy; its checkpoint is read again in the same snapshot."""
    from recall_sql.raw import find_file, read_chunks, snapshot

    host, path = copy.file.host, copy.file.path
    with snapshot(connection):
        file = find_file(connection, host, path)
        with closing(read_chunks(connection, host, path, copy.generation, file=file)) as chunks:
            yield from chunks


def _place(copies: Sequence[Copy], to: Path | None, host: str | None) -> list[Copy]:
    files = [copy.file for copy in copies]
    if to is None:
        paths = original_paths(files, host)
    else:
        paths = paths_below(to.expanduser().absolute(), files)
    return [replace(copy, target=path) for copy, path in zip(copies, paths, strict=True)]


def _state(connection: Connection, copy: Copy) -> State:
    from recall_ingester.reader import open_regular
    from recall_sql.raw import Comparison

    try:
        opened = open_regular(copy.place)
    except FileNotFoundError:
        return "other" if copy.place.is_symlink() else "new"
    except SourceError as error:
        raise TargetError(f"`{copy.shown}` is in the way: {error.message}") from error
    except OSError as error:
        raise TargetError(f"`{copy.shown}` cannot be read: {error.strerror}") from error
    with opened:
        comparison = Comparison(opened)
        for chunk in _chunks(connection, copy):
            comparison.add(chunk)
        same = comparison.first_difference is None and not comparison.has_more()
    return "same" if same else "other"


def _refuse_others(copies: Sequence[Copy], *, force: bool) -> None:
    others = [copy.shown for copy in copies if copy.state == "other"]
    if others and not force:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise TargetError(
            f"`{others[0]}`{more} differs from what is stored; nothing was written",
            hint="write elsewhere with --to DIR, or write over it with --force",
        )


def _write(connection: Connection, copies: Sequence[Copy]) -> None:
    """Write everything beside its place first, so that a failure changes no file."""
    with ExitStack() as clean:
        written: list[tuple[Path, Path]] = []
        try:
            for copy in copies:
                _make_folder(copy.place.parent)
                descriptor, name = tempfile.mkstemp(dir=copy.place.parent, prefix=".recall-")
                temporary = Path(name)
                clean.callback(temporary.unlink, missing_ok=True)
                _fill(connection, copy, temporary, descriptor)
                written.append((temporary, copy.place))
            for temporary, place in written:
                temporary.replace(place)
                _sync_folder(place.parent)
        except OSError as error:
            where = shown_path(path_key(Path(error.filename or copies[0].place)))
            raise TargetError(f"`{where}` cannot be written: {error.strerror}") from error


def _make_folder(folder: Path) -> None:
    """Also what is missing above it, all of it for its owner alone."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def _fill(connection: Connection, copy: Copy, temporary: Path, descriptor: int) -> None:
    """Write the bytes, force them to the disk and read them back. ``mkstemp`` made mode 0600."""
    digest, length = hashlib.blake2b(), 0
    with os.fdopen(descriptor, "wb") as file:
        for chunk in _chunks(connection, copy):
            file.write(chunk)
            digest.update(chunk)
            length += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    with temporary.open("rb") as file:
        found = hashlib.file_digest(file, hashlib.blake2b)
        if file.tell() != length or found.digest() != digest.digest():
            raise TargetError(f"`{copy.shown}`: what was written does not read back as it was")
    if copy.generation == copy.file.generation and copy.file.mtime_ns > 0:
        os.utime(temporary, ns=(copy.file.mtime_ns, copy.file.mtime_ns))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_DONE = {"new": "restored", "same": "already there", "other": "replaced"}
_WOULD = {"new": "would restore", "same": "already there", "other": "differs, needs --force"}


def _report(key: str | None, copies: Sequence[Copy], *, dry_run: bool, as_json: bool) -> None:
    words = _WOULD if dry_run else _DONE
    if as_json:
        files = [
            {
                "host": copy.file.host,
                "source_path": copy.file.path,
                "path": path_key(copy.place),
                "generation": copy.generation,
                "generations": [item.number for item in copy.kept],
                "bytes": copy.byte_length,
                "state": words[copy.state],
            }
            for copy in copies
        ]
        print_json({"session_key": key, "dry_run": dry_run, "files": files})
        return
    for copy in copies:
        line = f"{words[copy.state]}  {copy.shown}"
        screen.print(Text(f"{line}  {short_size(copy.byte_length)}"))
        if earlier := [item for item in copy.kept if item.number != copy.generation]:
            note(f"  also kept, with --generation: {_describe(earlier)}")
    if dry_run:
        note("nothing was written (--dry-run)")
