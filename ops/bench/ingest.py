"""How fast the ingester is, beside a peer on the same files in the same run.

    python ops/bench/ingest.py [--mb 350] [--files 5000] [--rounds 3] [--no-peer] [--memory]

Needs an environment with ``recall[server]``; ``make bench`` makes one. Every number is measured on
the real command in a process of its own, with a new store in a temporary folder. The result is a
Markdown report on stdout; ``--json FILE`` writes the raw numbers as well.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmark is no installed package

from ops.bench import corpus, measure, memory, original_bytes, report  # noqa: E402

PEER = "agentsview==0.46.1"
_HUGE_BYTES = 200_000_000
_PARTS = ("compare", "sizes", "small", "appends", "memory")


@dataclass(slots=True)
class Corpus:
    """The session logs of one user."""

    home: Path
    files: list[Path]

    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.files)

    def lines(self) -> int:
        """Lines of all files."""
        return sum(path.read_bytes().count(b"\n") for path in self.files)

    def append(self, number: int) -> int:
        """Append one line to each file; the bytes that were added."""
        return sum(corpus.append_line(path, number) for path in self.files)


@dataclass(slots=True)
class Run:
    """One phase of one system."""

    cost: measure.Cost
    summary: dict[str, Any] = field(default_factory=dict)


class Recall:
    """The ingester of this tree, with the embedded database."""

    def __init__(self, logs: Corpus, store: Path, *, keep_raw: bool = True) -> None:
        self.name = report.RECALL if keep_raw else report.WITHOUT
        self.store = store
        self._env = _bare_env() | {
            "HOME": str(logs.home),
            "CLAUDE_CONFIG_DIR": str(logs.home / ".claude"),
            "CODEX_HOME": str(logs.home / ".codex"),
            "RECALL_HOME": str(store),
            "RECALL_KEEP_RAW": str(keep_raw).lower(),
        }

    def sync(self) -> Run:
        """One pass, and the summary that it prints."""
        cost = measure.run_recall(["ingest", "--once", "--json"], self._env)
        return Run(cost, json.loads(cost.output))


class Peer:
    """agentsview, without the daemon that it otherwise leaves behind."""

    name = report.PEER

    def __init__(self, program: Path, logs: Corpus, store: Path) -> None:
        self.store = store
        self._program = program
        self._env = _bare_env() | {
            "HOME": str(logs.home),
            "CLAUDE_PROJECTS_DIR": str(logs.home / ".claude" / "projects"),
            "CODEX_SESSIONS_DIR": str(logs.home / ".codex" / "sessions"),
            "AGENTSVIEW_DATA_DIR": str(store),
            "AGENTSVIEW_NO_DAEMON": "1",
            "AGENTSVIEW_TELEMETRY_ENABLED": "0",
            "DO_NOT_TRACK": "1",
        }

    def sync(self) -> Run:
        """One sync, and the line that it prints about itself."""
        cost = measure.run([str(self._program), "sync"], self._env)
        said = [line for line in cost.output.split("\n") if line.startswith("Sync complete")]
        return Run(cost, {"said": said[-1] if said else ""})


def _bare_env() -> dict[str, str]:
    keep = ("PATH", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in keep if name in os.environ}


def compare(folder: Path, megabytes: int, rounds: int, peer: Path | None) -> dict[str, Any]:
    """First ingest, no change and appended lines, the systems taking turns in going first."""
    logs = Corpus(folder / "home", [])
    logs.files = corpus.build(logs.home, least_bytes=megabytes * 1_000_000)
    result: dict[str, Any] = {
        "files": len(logs.files),
        "bytes": logs.size(),
        "lines": logs.lines(),
        "runs": [],
    }
    for number in range(rounds):
        kept = Recall(logs, folder / "recall")
        systems: list[Recall | Peer] = [kept, Recall(logs, folder / "without", keep_raw=False)]
        if peer is not None:
            systems.append(Peer(peer, logs, folder / "peer"))
        first = number % len(systems)
        systems = systems[first:] + systems[:first]
        for phase in report.PHASES:
            if phase == report.PHASES[2]:
                result["appended_bytes"] = logs.append(number)
            for system in systems:
                _say(f"round {number + 1}: {phase}: {system.name}")
                run = system.sync()
                result["runs"].append({"phase": phase, "system": system.name} | asdict(run))
        result["sizes"] = asdict(original_bytes.sizes(kept.store))
        result["bytes"] = logs.size()
        for system in systems:
            shutil.rmtree(system.store)
    return result


def append_by_size(folder: Path) -> list[dict[str, Any]]:
    """What an appended line costs in a small and in a huge file."""
    sizes = {"small": 20_000, "huge": _HUGE_BYTES}
    rows = []
    for name, size in sizes.items():
        home = folder / name
        path = home / ".claude" / "projects" / "-p" / f"{corpus.new_id(name, 1)}.jsonl"
        corpus.build_large(path, size=size)
        system = Recall(Corpus(home, [path]), folder / f"store-{name}")
        _say(f"one line appended to a {name} file")
        system.sync()
        before = path.stat().st_size
        added = corpus.append_line(path, 1)
        run = system.sync()
        rows.append({"file_bytes": before, "appended_bytes": added} | asdict(run))
    return rows


def many_small(folder: Path, count: int) -> dict[str, Any]:
    """First ingest of many small files, then a pass over them in which nothing changed."""
    logs = Corpus(folder / "home", [])
    logs.files = corpus.build_small(logs.home, count=count)
    system = Recall(logs, folder / "store")
    _say(f"{count:,} small files")
    runs = [asdict(system.sync()) for _ in range(3)]
    return {"files": count, "bytes": logs.size(), "first": runs[0], "unchanged": runs[1:]}


def install_peer(folder: Path) -> Path:
    """The peer's program, installed into an environment of its own."""
    _say(f"installing {PEER}")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PEER], check=True
    )
    return folder / "bin" / "agentsview"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _machine() -> str:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores,"
        f" {memory_bytes / 2**30:.0f} GiB, Python {platform.python_version()}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--mb", type=int, default=350, help="size of the main corpus")
    parser.add_argument("--files", type=int, default=5000, help="number of small files")
    parser.add_argument("--rounds", type=int, default=3, help="how often the comparison is run")
    parser.add_argument("--no-peer", action="store_true", help="measure Recall alone")
    parser.add_argument("--peer", type=Path, help="an agentsview program that is installed already")
    parser.add_argument("--memory", action="store_true", help="also the peak memory of big inputs")
    parser.add_argument("--only", choices=_PARTS, help="one part of the benchmark")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw numbers")
    return parser.parse_args()


def main() -> None:
    """Run what was asked for and print the report."""
    options = _arguments()
    measure.adopt_orphans()
    result: dict[str, Any] = {"machine": _machine(), "load": [_load()]}
    parts = (options.only,) if options.only else _PARTS[: None if options.memory else -1]
    with tempfile.TemporaryDirectory(prefix="recall-bench-") as name:
        folder = Path(name)
        for part in parts:
            (folder / part).mkdir()
            _measure(part, folder, options, result)
    result["load"].append(_load())
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(report.report(result))


def _measure(part: str, folder: Path, options: argparse.Namespace, result: dict[str, Any]) -> None:
    inner = folder / part
    if part == "compare":
        peer = None if options.no_peer else options.peer or install_peer(folder / "peer")
        result["compare"] = compare(inner, options.mb, options.rounds, peer)
    elif part == "sizes":
        result["append_by_size"] = append_by_size(inner)
    elif part == "small":
        result["many_small"] = many_small(inner, options.files)
    elif part == "appends":
        _say("thirty appends to one file")
        result["thirty_appends"] = original_bytes.thirty_appends(inner, _bare_env())
    elif part == "memory":
        result["memory"] = memory.peaks(inner, _bare_env(), _say)


def _load() -> str:
    return f"{os.getloadavg()[0]:.2f}"


if __name__ == "__main__":
    try:
        main()
    except measure.CommandFailed as error:
        sys.exit(f"error: {error}")
