"""How fast the ingester is, beside a peer on the same files in the same run.

    python ops/bench/ingest.py [--mb 350] [--files 5000] [--rounds 2] [--no-peer] [--memory]

Needs an environment with ``recall[server]``; ``make bench`` makes one. Every number is measured on
the real command in a process of its own, with a new store in a temporary folder. The result is a
Markdown report on stdout; ``--json FILE`` writes the raw numbers as well.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmark is no installed package

from ops.bench import corpus, measure  # noqa: E402

PEER = "agentsview==0.46.1"
_PHASES = ("first ingest", "nothing changed", "one line appended to each file")
_HUGE_BYTES = 200_000_000
_MEMORY_FILE_BYTES = 2_000_000_000
_MEMORY_LINE_BYTES = 100_000_000


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

    name = "recall"

    def __init__(self, logs: Corpus, store: Path) -> None:
        self._env = _bare_env() | {
            "HOME": str(logs.home),
            "CLAUDE_CONFIG_DIR": str(logs.home / ".claude"),
            "CODEX_HOME": str(logs.home / ".codex"),
            "RECALL_HOME": str(store),
        }

    def sync(self) -> Run:
        """One pass, and the summary that it prints."""
        cost = measure.run_recall(["ingest", "--once", "--json"], self._env)
        return Run(cost, json.loads(cost.output))


class Peer:
    """agentsview, without the daemon that it otherwise leaves behind."""

    name = "agentsview"

    def __init__(self, program: Path, logs: Corpus, store: Path) -> None:
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
        systems: list[Recall | Peer] = [Recall(logs, folder / f"recall-{number}")]
        if peer is not None:
            systems.append(Peer(peer, logs, folder / f"peer-{number}"))
        if number % 2:
            systems.reverse()
        for phase in _PHASES:
            if phase == _PHASES[2]:
                result["appended_bytes"] = logs.append(number)
            for system in systems:
                _say(f"round {number + 1}: {phase}: {system.name}")
                run = system.sync()
                result["runs"].append({"phase": phase, "system": system.name} | asdict(run))
    return result


def append_by_size(folder: Path) -> list[dict[str, Any]]:
    """What an appended line costs in a small and in a huge file."""
    sizes = {"small": 20_000, "huge": _HUGE_BYTES}
    rows = []
    for name, size in sizes.items():
        home = folder / name
        path = home / ".claude" / "projects" / "-p" / f"{corpus.new_id(name, 1)}.jsonl"
        corpus.build_large(path, size=size, images=False)
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


def memory(folder: Path) -> list[dict[str, Any]]:
    """Peak memory of the ingester on one huge file and on one huge line."""
    rows = []
    for name, build, size in (
        ("a file of 2 GB", corpus.build_large, _MEMORY_FILE_BYTES),
        ("a line of 100 MB", corpus.build_long_line, _MEMORY_LINE_BYTES),
    ):
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            home = Path(inner) / "home"
            path = home / ".claude" / "projects" / "-p" / f"{corpus.new_id(name, 1)}.jsonl"
            build(path, size=size)
            _say(name)
            run = Recall(Corpus(home, [path]), Path(inner) / "store").sync()
            rows.append({"name": name, "file_bytes": path.stat().st_size} | asdict(run))
    return rows


def install_peer(folder: Path) -> Path:
    """The peer's program, installed into an environment of its own."""
    _say(f"installing {PEER}")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PEER], check=True
    )
    return folder / "bin" / "agentsview"


def report(result: Mapping[str, Any]) -> str:
    """The result as Markdown."""
    lines = [f"Machine: {result['machine']}", ""]
    if "compare" in result:
        lines += _report_compare(result["compare"])
    if "append_by_size" in result:
        lines += _report_appends(result["append_by_size"])
    if "many_small" in result:
        lines += _report_small(result["many_small"])
    if "memory" in result:
        lines += ["", "| input | peak memory of the ingester | time |", "|---|---|---|"]
        lines += [
            f"| {row['name']} | {row['cost']['peak_bytes'] / 1e6:.0f} MB"
            f" | {row['cost']['wall_seconds']:.1f} s |"
            for row in result["memory"]
        ]
    return "\n".join(lines)


def _report_compare(result: Mapping[str, Any]) -> list[str]:
    size, count = result["bytes"], result["lines"]
    lines = [
        f"{result['files']:,} session logs, {size / 1e6:,.0f} MB, {count:,} lines."
        " Medians of whole commands, start and stop of the database included.",
        "",
        "| phase | system | time | range | MB/s | lines/s | processor time | peak memory | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for phase in _PHASES:
        times = {system: _walls(result, phase, system) for system in ("recall", "agentsview")}
        for system, walls in times.items():
            if not walls:
                continue
            wall = statistics.median(walls)
            speed = f"{size / 1e6 / wall:.1f} | {count / wall:,.0f}"
            if phase != _PHASES[0]:
                speed = " | "
            ratio = ""
            if system == "recall" and times["agentsview"]:
                ratio = f"{wall / statistics.median(times['agentsview']):.2f}"
            lines.append(
                f"| {phase} | {system} | {wall:.2f} s | {min(walls):.2f}-{max(walls):.2f}"
                f" | {speed} | {_median(result, phase, system, 'cpu_seconds', ' s')}"
                f" | {_median(result, phase, system, 'peak_bytes', ' MB', 1e6)} | {ratio} |"
            )
    return lines


def _runs(result: Mapping[str, Any], phase: str, system: str) -> list[dict[str, Any]]:
    return [run for run in result["runs"] if (run["phase"], run["system"]) == (phase, system)]


def _walls(result: Mapping[str, Any], phase: str, system: str) -> list[float]:
    return [run["cost"]["wall_seconds"] for run in _runs(result, phase, system)]


def _median(
    result: Mapping[str, Any], phase: str, system: str, name: str, unit: str, scale: float = 1
) -> str:
    values = [run["cost"][name] for run in _runs(result, phase, system)]
    if any(value is None for value in values):
        return ""
    return f"{statistics.median(values) / scale:.1f}{unit}"


def _report_appends(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "",
        "| file before | appended | files opened | bytes read | ingester CPU | pass |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        summary = row["summary"]
        lines.append(
            f"| {row['file_bytes']:,} B | {row['appended_bytes']:,} B | {summary['files_opened']}"
            f" | {summary['bytes_read']:,} B | {row['cost']['own_cpu_seconds']:.2f} s"
            f" | {summary['seconds']:.3f} s |"
        )
    return lines


def _report_small(result: Mapping[str, Any]) -> list[str]:
    lines = [
        "",
        f"| {result['files']:,} small files, {result['bytes'] / 1e6:,.0f} MB | files opened"
        " | bytes read | ingester CPU, start-up included | pass |",
        "|---|---|---|---|---|",
    ]
    named = [("first ingest", result["first"])]
    named += [("nothing changed", run) for run in result["unchanged"]]
    for name, run in named:
        summary = run["summary"]
        lines.append(
            f"| {name} | {summary['files_opened']:,} | {summary['bytes_read']:,} B"
            f" | {run['cost']['own_cpu_seconds']:.2f} s | {summary['seconds']:.3f} s |"
        )
    return lines


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
    parser.add_argument("--rounds", type=int, default=2, help="how often the comparison is run")
    parser.add_argument("--no-peer", action="store_true", help="measure Recall alone")
    parser.add_argument("--peer", type=Path, help="an agentsview program that is installed already")
    parser.add_argument("--memory", action="store_true", help="also a 2 GB file and a 100 MB line")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw numbers")
    return parser.parse_args()


def main() -> None:
    """Run what was asked for and print the report."""
    options = _arguments()
    measure.adopt_orphans()
    result: dict[str, Any] = {"machine": _machine()}
    with tempfile.TemporaryDirectory(prefix="recall-bench-") as name:
        folder = Path(name)
        peer = None if options.no_peer else options.peer or install_peer(folder / "peer")
        for part in ("compare", "sizes", "small", "memory"):
            (folder / part).mkdir()
        result["compare"] = compare(folder / "compare", options.mb, options.rounds, peer)
        result["append_by_size"] = append_by_size(folder / "sizes")
        result["many_small"] = many_small(folder / "small", options.files)
        if options.memory:
            result["memory"] = memory(folder / "memory")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(report(result))


if __name__ == "__main__":
    try:
        main()
    except measure.CommandFailed as error:
        sys.exit(f"error: {error}")
