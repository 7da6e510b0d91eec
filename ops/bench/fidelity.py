"""How much of the text of session logs the store holds, and where the rest went.

    python ops/bench/fidelity.py [--corpus DIR] [--source NAME=PATH ...] [--json FILE] [--show]

Stores the logs in a new database in a temporary folder, walks the originals without knowing their
clients, and looks for each string in what is stored. The result is a Markdown report on stdout.
Ends with 1 if anything is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmark is no installed package

from ops.bench.fidelity_store import Held, Store  # noqa: E402
from ops.bench.fidelity_strings import Text, read_file  # noqa: E402
from recall.config import Settings, load_settings  # noqa: E402
from recall.errors import RecallError  # noqa: E402
from recall.identity import Identity  # noqa: E402
from recall.keys import path_key  # noqa: E402
from recall_ingester.exports import SOURCES, open_export  # noqa: E402
from recall_ingester.importing import Importer  # noqa: E402
from recall_ingester.left_out import LeftOut  # noqa: E402
from recall_ingester.loop import run_pass  # noqa: E402
from recall_ingester.run import pass_options  # noqa: E402
from recall_ingester.sinks.postgres import PostgresSink  # noqa: E402
from recall_ingester.sources import get_source  # noqa: E402
from recall_ingester.sources.base import LeavesOut, Source  # noqa: E402
from recall_sql.connection import connect  # noqa: E402

#: The folders of the sample logs, and the source that reads each.
FOLDERS = {
    "chatgpt": "chatgpt",
    "claude": "claude-code",
    "claude-ai": "claude-ai",
    "codex": "codex",
    "gemini": "gemini-cli",
    "opencode": "opencode",
    "vscode-copilot": "vscode-copilot",
}
UNFINISHED = "an unfinished last line; it is read once it ends"
_EXPORTS = {source.name: source for source in SOURCES}
_EXAMPLES = 10
#: What SQLite keeps beside a database.
_BESIDE_DATABASES = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class Lost:
    """One string that is not in the store."""

    file: str
    path: str
    length: int
    text: str


@dataclass(slots=True)
class Fidelity:
    """One source. ``left_out`` counts strings by reason, ``files_left_out`` files.

    ``lost_paths`` counts what is lost by its path without indexes. ``not_read`` are files that no
    source reads and no line of ``leaves_out`` names, with the number of their strings that are not
    in the store all the same; those count as neither lost nor found.
    """

    source: str
    files: int = 0
    strings: int = 0
    found: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    files_left_out: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    lost_paths: Counter[str] = field(default_factory=Counter)
    examples: list[Lost] = field(default_factory=list)
    not_read: dict[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The share of strings that are stored or left out for a reason that is written down."""
        return 1.0 if not self.strings else 1 - self.lost / self.strings

    @property
    def share_found(self) -> float:
        """The share of strings that are stored."""
        return 1.0 if not self.strings else self.found / self.strings

    def add(self, other: Fidelity) -> None:
        """Add the counts of some more files."""
        self.files += other.files
        self.strings += other.strings
        self.found += other.found
        self.lost += other.lost
        self.left_out += other.left_out
        self.files_left_out += other.files_left_out
        self.lost_paths += other.lost_paths
        self.examples = (self.examples + other.examples)[:_EXAMPLES]
        self.not_read |= other.not_read


class Measure:
    """Compares originals of one source with the store."""

    def __init__(self, store: Store, source: str, leaves_out: Sequence[LeavesOut]) -> None:
        self._store = store
        self._source = source
        self._left_out = LeftOut(leaves_out)

    def folder(self, root: Path, read: Sequence[Path]) -> Fidelity:
        """All files below a root, of which the source reads those in ``read``; a folder among these
        counts as one file."""
        total = Fidelity(self._source)
        base = root.parent if root.is_file() else root
        for path in sorted({*read, *_others(root, read)}):
            relative = path.relative_to(base).as_posix()
            if path in read:
                total.add(self._file(path, relative, self._store.of_file(path_key(path))))
            elif why := self._left_out.file(relative):
                total.files_left_out[why] += 1
            else:
                # A source may look into a file beside those that it reads.
                part = self._file(path, relative, self._store.everything)
                if part.lost:
                    total.not_read[relative] = part.lost
                elif part.strings:
                    total.add(part)
        return total

    def _file(self, path: Path, relative: str, held: Held) -> Fidelity:
        part = Fidelity(self._source, files=1)
        for text in read_file(path):
            if text.member and (why := self._left_out.file(text.member)):
                part.strings += 1
                part.left_out[why] += 1
                continue
            for one, why in self._judged(text, held):
                part.strings += 1
                if why is None:
                    _lose(part, one, relative)
                elif why:
                    part.left_out[why] += 1
                else:
                    part.found += 1
        return part

    def _judged(self, text: Text, held: Held) -> Iterator[tuple[Text, str | None]]:
        """The string, or the strings in the JSON that it is: each with why it is left out, with an
        empty reason if it is stored, or ``None`` if it is neither."""
        if held.holds(text.value, text.path[-1] if text.path else "", text.place):
            yield text, ""
        elif why := self._left_out.value(text.path, text.holders):
            yield text, why
        elif (inside := text.inside()) is not None:
            if not inside:
                yield text, ""
            for one in inside:
                yield from self._judged(one, held)
        else:
            yield text, UNFINISHED if text.is_torn else None


def _others(root: Path, read: Sequence[Path]) -> Iterator[Path]:
    folders = {path for path in read if path.is_dir()}
    for path in root.rglob("*"):
        if path.is_symlink() or not path.is_file() or folders & set(path.parents):
            continue
        if not any(
            path.name.endswith(end) and path.with_name(path.name.removesuffix(end)).is_file()
            for end in _BESIDE_DATABASES
        ):
            yield path


def _lose(part: Fidelity, text: Text, file: str) -> None:
    part.lost += 1
    shape = ".".join("*" if step.isdigit() else step for step in text.path) or "(line)"
    part.lost_paths[shape] += 1
    if part.lost_paths[shape] == 1:
        place = "" if text.place is None else f":{text.place + 1}"
        inner = f"#{text.member}" if text.member else ""
        where = f"{file}{inner}{place}"
        part.examples.append(Lost(where, ".".join(text.path), len(text.value), text.value))


def measure_source(url: str, source: Source, root: Path, settings: Settings) -> Fidelity:
    """Store what a source finds below a root, and compare."""
    identity = _identity()
    run_pass(
        [(source, [root])],
        lambda: PostgresSink(url, identity),
        pass_options(settings, identity),
    )
    read = [file.path for file in source.discover(root)]
    with connect(url, application="fidelity") as connection:
        store = Store(connection, source.name)
        return Measure(store, source.name, source.leaves_out).folder(root, read)


def measure_export(url: str, name: str, root: Path, settings: Settings) -> Fidelity:
    """Import the exports of one kind below a root, and compare.

    The files of a folder are taken for parts of one export; where they are not, each is tried by
    itself.
    """
    read: list[Path] = []
    for folder in sorted({path.parent for path in root.rglob("*") if path.is_file()}):
        files = sorted(path for path in folder.iterdir() if path.is_file())
        if _import(url, name, files, settings):
            read += files
        else:
            read += [path for path in files if _import(url, name, [path], settings)]
    leaves_out = _EXPORTS[name].leaves_out
    read = [path for path in read if not LeftOut(leaves_out).file(path.name)]
    with connect(url, application="fidelity") as connection:
        return Measure(Store(connection, name), name, leaves_out).folder(root, read)


def _import(url: str, name: str, paths: list[Path], settings: Settings) -> bool:
    try:
        export = open_export(paths)
    except RecallError:
        return False
    if export.source.name != name:
        return False
    identity = _identity()
    sink = PostgresSink(url, identity)
    try:
        Importer(sink, pass_options(settings, identity)).export(export)
    finally:
        sink.close()
    return True


def measure(url: str, name: str, root: Path, settings: Settings | None = None) -> Fidelity:
    """Store the logs of one source in a migrated database and compare."""
    settings = settings or Settings()
    if name in _EXPORTS:
        return measure_export(url, name, root, settings)
    return measure_source(url, get_source(name, settings), root, settings)


def _identity() -> Identity:
    return Identity("fidelity", str(uuid.UUID(int=1)))


def report(results: Sequence[Fidelity], *, show: bool = False) -> str:
    """The results as Markdown; with ``show`` also the beginning of the texts that are lost."""
    lines = [
        "| source | files | strings | found | left out | lost | found or left out | found |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {result.source} | {result.files:,} | {result.strings:,} | {result.found:,}"
        f" | {result.left_out.total():,} | {result.lost:,}"
        f" | {result.share:.3%} | {result.share_found:.1%} |"
        for result in results
    ]
    for result in results:
        lines += _details(result, show=show)
    return "\n".join(lines)


def _details(result: Fidelity, *, show: bool) -> Iterator[str]:
    yield from ("", f"## {result.source}", "")
    for why, count in result.left_out.most_common():
        yield f"- left out, {count:,} strings: {why}"
    for why, count in result.files_left_out.most_common():
        yield f"- left out, {count:,} files: {why}"
    for file, count in result.not_read.items():
        yield f"- not read: `{file}` ({count:,} strings that are not in the store)"
    for shape, count in result.lost_paths.most_common():
        yield f"- LOST, {count:,} strings at `{shape}`"
    for lost in result.examples:
        shown = f": {lost.text[:200]!r}" if show else ""
        yield f"  - `{lost.file}` at `{lost.path}`, {lost.length:,} characters{shown}"


def as_json(result: Fidelity) -> dict[str, Any]:
    """A result for machines, without texts."""
    values = {item.name: getattr(result, item.name) for item in fields(result)}
    values["examples"] = [
        {"file": lost.file, "path": lost.path, "length": lost.length} for lost in result.examples
    ]
    return values | {"share": result.share, "share_found": result.share_found}


def _corpus() -> Path:
    return Path(os.environ.get("CORPUS_DIR", ROOT.parent / "shared" / "corpus"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--corpus", type=Path, default=_corpus(), help="folder of sample logs")
    parser.add_argument(
        "--source", action="append", metavar="NAME=PATH", help="logs of your own instead"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw numbers")
    parser.add_argument("--show", action="store_true", help="also show texts that are lost")
    return parser.parse_args()


def _selected(options: argparse.Namespace) -> list[tuple[str, Path]]:
    if options.source:
        pairs = [item.partition("=") for item in options.source]
        return [(name, Path(path).expanduser().absolute()) for name, _, path in pairs]
    corpus = options.corpus.absolute()
    found = [(name, corpus / folder) for folder, name in FOLDERS.items()]
    return sorted((name, path) for name, path in found if path.is_dir())


def main() -> None:
    """Measure what was asked for and print the report."""
    from recall_sql.embedded import EmbeddedServer
    from recall_sql.migrate import migrate

    options = _arguments()
    results = []
    with tempfile.TemporaryDirectory(prefix="recall-bench-") as folder:
        server = EmbeddedServer(Path(folder), extra_settings={"fsync": "off"})
        server.start()
        try:
            migrate(server.url)
            # Logs of one's own may be read as one's own settings say.
            settings = load_settings() if options.source else Settings()
            results = [measure(server.url, *item, settings) for item in _selected(options)]
        finally:
            server.stop("immediate")
    print(report(results, show=options.show))
    if options.json:
        options.json.write_text(json.dumps([as_json(result) for result in results], indent=1))
    sys.exit(any(result.lost for result in results))


if __name__ == "__main__":
    main()
