"""Where restored files go: their original paths, or names below a folder that never leave it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import compress
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from recall.cli.originals import local_path, shown_path
from recall.errors import UsageError

if TYPE_CHECKING:
    from recall_sql.raw import StoredFile

_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")


def original_paths(files: Sequence[StoredFile], host: str | None) -> list[Path]:
    """Where files were read from. :class:`UsageError` unless all are files of this host."""
    for file in files:
        if file.is_rows:
            raise UsageError(
                f"`{shown_path(file.path)}` stands for rows of a database or an export;"
                " those are never written to",
                hint="add --to DIR to get its rows as JSON Lines",
            )
        if file.host != host:
            raise UsageError(
                f"`{shown_path(file.path)}` is a file of the host `{file.host}`",
                hint="add --to DIR to write it below a folder of this machine",
            )
    return [local_path(file.original) for file in files]


def paths_below(folder: Path, files: Sequence[StoredFile]) -> list[Path]:
    """A path for each file, named from the common parent of all of them; no two are the same.

    A session of a container is named after its id, the rows of a table after their database.
    """
    parts = [_parts(file) for file in files]
    on_disk = [not file.is_rows for file in files]
    common = _common_parents(list(compress(parts, on_disk)))
    taken: set[PurePath] = set()
    result = []
    for names, has_folders in zip(parts, on_disk, strict=True):
        below = names[common:] if has_folders else names
        path = _free_path(folder.joinpath(*map(_harmless, below)), taken)
        taken.add(path)
        result.append(path)
    return result


def _parts(file: StoredFile) -> Sequence[str]:
    if file.container is None and file.is_rows:
        return [f"{PurePosixPath(file.path).stem or 'rows'}.jsonl"]
    if file.container is None:
        pure = PureWindowsPath if _WINDOWS.match(file.original) else PurePosixPath
        return pure(file.original).parts
    prefix = f"{file.container}#"
    if file.path.startswith(prefix):
        session_id = file.path.removeprefix(prefix)
    else:  # an import: `claude-ai#<conversation>`
        session_id = file.path.partition("#")[2]
    return [f"{session_id or 'session'}.jsonl"]


def _common_parents(paths: Sequence[Sequence[str]]) -> int:
    """How many leading folders all paths have in common."""
    columns = zip(*(path[:-1] for path in paths), strict=False)
    count = 0
    for names in columns:
        if len(set(names)) > 1:
            break
        count += 1
    return count


def _harmless(name: str) -> str:
    """One name of a file or folder, whatever a client or another machine called it."""
    name = re.sub(r"[/\\\x00]", "_", name)
    return "_" if name in {"", ".", ".."} else name


def _free_path(path: Path, taken: set[PurePath]) -> Path:
    free, number = path, 1
    while free in taken:
        number += 1
        free = path.with_name(f"{number}-{path.name}")
    return free
