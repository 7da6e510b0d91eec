"""Walking a folder of session logs: stable order, no loops, no devices, no surprises."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Walk:
    """One walk of one root. ``unreadable`` fills with the folders and files that gave an error."""

    root: Path
    skip_folder: Callable[[str], bool] = lambda _name: False
    hidden: frozenset[str] = frozenset()
    unreadable: dict[Path, str] = field(default_factory=dict)

    def files(self) -> Iterator[Path]:
        """Regular files below the root, each physical folder once.

        Hidden entries are left out, unless ``hidden`` names them. A symlink is followed if it leads
        to a folder or file inside the root that the walk does not reach by its own name; FIFOs,
        sockets and devices are never opened. Raises ``OSError`` if the root cannot be listed.
        """
        boundary = self.root.resolve()
        folders: set[tuple[int, int]] = set()
        files: set[tuple[int, int]] = set()
        links: list[Path] = []
        yield from self._folder(self.root, folders, files, links, top=True)
        for link in links:  # grows while it is walked: a linked folder may hold links
            yield from self._link(link, boundary, folders, files, links)

    def _folder(
        self,
        folder: Path,
        folders: set[tuple[int, int]],
        files: set[tuple[int, int]],
        links: list[Path],
        *,
        top: bool = False,
    ) -> Iterator[Path]:
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in folders:
                return
            folders.add((status.st_dev, status.st_ino))
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            if top:
                raise
            self._note(folder, error)
            return
        for entry in entries:
            if entry.name.startswith(".") and entry.name not in self.hidden:
                continue
            path = Path(entry.path)
            try:
                if entry.is_symlink():
                    links.append(path)
                elif entry.is_dir():
                    if not self.skip_folder(entry.name):
                        yield from self._folder(path, folders, files, links)
                elif entry.is_file():
                    status = entry.stat()
                    files.add((status.st_dev, status.st_ino))
                    yield path
            except RecursionError:
                self.unreadable[path] = "too many folders in folders"
            except OSError as error:
                self._note(path, error)

    def _link(
        self,
        link: Path,
        boundary: Path,
        folders: set[tuple[int, int]],
        files: set[tuple[int, int]],
        links: list[Path],
    ) -> Iterator[Path]:
        try:
            if not link.resolve().is_relative_to(boundary):
                return
            status = link.stat()
        except (OSError, RuntimeError):  # dangling, or a loop of links: leads to no file
            return
        if stat.S_ISDIR(status.st_mode) and not self.skip_folder(link.name):
            yield from self._folder(link, folders, files, links)
        elif stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in files:
            files.add((status.st_dev, status.st_ino))
            yield link

    def _note(self, path: Path, error: OSError) -> None:
        self.unreadable[path] = error.strerror or type(error).__name__
