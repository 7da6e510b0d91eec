"""The result of the ingest benchmark as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ops.bench import memory, original_bytes

PHASES = ("first ingest", "nothing changed", "one line appended to each file")
RECALL, WITHOUT, PEER = "recall", "recall without original bytes", "agentsview"


def report(result: Mapping[str, Any]) -> str:
    """The result as Markdown."""
    lines = [f"Machine: {result['machine']}", f"Load: {' to '.join(result['load'])}", ""]
    if "compare" in result:
        lines += _report_compare(result["compare"])
        lines += _report_original_bytes(result["compare"])
    if "append_by_size" in result:
        lines += _report_appends(result["append_by_size"])
    if "many_small" in result:
        lines += _report_small(result["many_small"])
    if "thirty_appends" in result:
        lines += original_bytes.report_appends(result["thirty_appends"])
    if "memory" in result:
        lines += memory.report(result["memory"])
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
    for phase in PHASES:
        times = {system: _walls(result, phase, system) for system in (RECALL, WITHOUT, PEER)}
        for system, walls in times.items():
            if not walls:
                continue
            wall = statistics.median(walls)
            speed = f"{size / 1e6 / wall:.1f} | {count / wall:,.0f}"
            if phase != PHASES[0]:
                speed = " | "
            ratio = ""
            if system == RECALL and times[PEER]:
                ratio = f"{wall / statistics.median(times[PEER]):.2f}"
            lines.append(
                f"| {phase} | {system} | {wall:.2f} s | {min(walls):.2f}-{max(walls):.2f}"
                f" | {speed} | {_median(result, phase, system, 'cpu_seconds', ' s')}"
                f" | {_median(result, phase, system, 'peak_bytes', ' MB', 1e6)} | {ratio} |"
            )
    return lines


def _report_original_bytes(result: Mapping[str, Any]) -> list[str]:
    """What it costs to keep the original bytes, beside runs that do not."""
    lines = [
        "",
        "| phase | time with / without original bytes | range of the rounds | pass alone"
        " | processor time | goal |",
        "|---|---|---|---|---|---|",
    ]
    for phase in PHASES:
        kept, plain = _runs(result, phase, RECALL), _runs(result, phase, WITHOUT)
        rounds = [
            one["cost"]["wall_seconds"] / other["cost"]["wall_seconds"]
            for one, other in zip(kept, plain, strict=True)
        ]
        lines.append(
            f"| {phase} | {_ratio(kept, plain, 'cost', 'wall_seconds')}"
            f" | {min(rounds):.2f}-{max(rounds):.2f}"
            f" | {_ratio(kept, plain, 'summary', 'seconds')}"
            f" | {_ratio(kept, plain, 'cost', 'cpu_seconds')} | 1.30 |"
        )
    return lines + original_bytes.report_sizes(result["sizes"], result["bytes"])


def _ratio(
    some: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], part: str, name: str
) -> str:
    """The ratio of two medians."""
    numbers = [[run[part][name] for run in runs] for runs in (some, others)]
    if any(value is None for values in numbers for value in values):
        return ""
    return f"{statistics.median(numbers[0]) / statistics.median(numbers[1]):.2f}"


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
