"""How fast passages become vectors: the naive loop, Recall's, and what each lever gives alone.

    python ops/bench/embed.py [--rows 400] [--rounds 3] [--no-table] [--json FILE]

Needs an environment with ``recall[server]``. Every run is a process of its own that embeds the same
passages of real sessions; the systems take turns, and the report on stdout gives medians.
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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmark is no installed package

from ops.bench.embed_run import Row, Variant, run_child  # noqa: E402
from recall_embedder.batching import BATCH_TOKENS  # noqa: E402
from recall_embedder.model import BUNDLED, BUNDLED_INT8  # noqa: E402

_CORES = os.cpu_count() or 1
#: Goals: times the naive loop at equal texts, and the peak memory of the process.
_GOAL = 4.0
_MOST_BYTES = 700_000_000

NAIVE = Variant("naive: fastembed, batches of 32 in arrival order, 1 worker", "fastembed")
OURS = Variant("Recall", BUNDLED_INT8, True, BATCH_TOKENS, 1, _CORES, True)
EXACT = replace(OURS, name="Recall, 32-bit numbers (equal vectors)", engine=BUNDLED)
_BASE = Variant("the same loop on onnxruntime")
LEVERS = (
    NAIVE,
    _BASE,
    replace(_BASE, name="sorted by length", is_sorted=True),
    replace(
        _BASE, name=f"sorted, {BATCH_TOKENS:,} tokens a batch", is_sorted=True, budget=BATCH_TOKENS
    ),
    replace(_BASE, name="1 thread", threads=1),
    replace(_BASE, name=f"{_CORES} workers of 1 thread", threads=1, workers=_CORES),
    replace(_BASE, name="graph written anew", engine=BUNDLED),
    replace(_BASE, name="passages of 128 tokens", max_tokens=128),
    replace(_BASE, name="8-bit numbers (other vectors)", engine=BUNDLED_INT8),
    EXACT,
    OURS,
)
_BUDGETS = (512, 1_024, 2_048, 4_096, 8_192)
#: Workers, threads of each session, and whether the workers share one.
_LAYOUTS = ((1, 1, True), (1, _CORES, True), (_CORES, 1, True), (_CORES, 1, False))


def table() -> list[Variant]:
    """Every layout with every budget, all else as in Recall."""
    return [
        replace(
            OURS,
            name=f"{workers} x {threads}{'' if shared else ' own'} / {budget}",
            budget=budget,
            threads=threads,
            workers=workers,
            shared=shared,
        )
        for workers, threads, shared in _LAYOUTS
        for budget in _BUDGETS
    ]


def measure(variants: Sequence[Variant], rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Every variant in every round; each round in another order, so that none is always first."""
    runs = []
    for number in range(rounds):
        turn = number % len(variants)
        for variant in [*variants[turn:], *variants[:turn]]:
            _say(f"round {number + 1}: {variant.name}")
            done = subprocess.run(
                [sys.executable, __file__, "--child", json.dumps(asdict(variant))],
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | {"BENCH_FOLDER": str(folder)},
            )
            if done.returncode:
                raise SystemExit(f"error: {variant.name}: {done.stderr[-2000:]}")
            result = json.loads(done.stdout) | {"name": variant.name, "load": os.getloadavg()[0]}
            runs.append(result | _compare(variant, folder))
    return runs


def _compare(variant: Variant, folder: Path) -> dict[str, float]:
    """Cosines to the vectors of the naive loop, where the passages are the same."""
    made = folder / "v.npy"
    if variant == NAIVE:
        made.rename(folder / "naive.npy")
        return {}
    if variant.max_tokens != NAIVE.max_tokens or not (folder / "naive.npy").exists():
        return {}
    cosines = np.sum(np.load(made) * np.load(folder / "naive.npy"), axis=1)
    return {"mean_cosine": float(cosines.mean()), "least_cosine": float(cosines.min())}


def report(result: Mapping[str, Any]) -> str:
    """The result as Markdown."""
    lines = [f"Machine: {result['machine']}", f"Load: {result['load']}", "", result["rows"], ""]
    lines += [
        "| variant | rows/min | times naive | processor s per 1,000 rows | peak memory "
        "| cosine to naive, mean / least |",
        "|---|---|---|---|---|---|",
    ]
    naive = _median(result["levers"], NAIVE.name, "per_minute")
    for variant in LEVERS:
        lines.append(_line(result["levers"], variant.name, naive))
    if "table" in result:
        lines += ["", *_report_table(result["table"])]
    peak = _median(result["levers"], OURS.name, "peak_bytes")
    ours, equal = (_times_naive(result["levers"], one.name) for one in (OURS, EXACT))
    lines += ["", f"Goal of {_GOAL:g} times the naive loop at equal texts: {ours}."]
    lines += [f"At equal vectors as well: {equal}."]
    lines += [f"Peak memory of at most {_MOST_BYTES / 1e6:.0f} MB: {peak / 1e6:.0f} MB."]
    return "\n".join(lines)


def _times_naive(runs: Sequence[Mapping[str, Any]], name: str) -> str:
    """How much faster than the naive loop, and with how much less work."""
    time, work = (
        _median(runs, NAIVE.name, what) / _median(runs, name, what)
        for what in ("wall", "cpu_per_thousand")
    )
    return f"{time:.2f} by time, {work:.2f} by processor time"


def _line(runs: Sequence[Mapping[str, Any]], name: str, naive: float) -> str:
    speed = _median(runs, name, "per_minute")
    cosines = [run for run in runs if run["name"] == name and "mean_cosine" in run]
    cosine = ""
    if cosines:
        cosine = f"{cosines[0]['mean_cosine']:.5f} / {cosines[0]['least_cosine']:.5f}"
    return (
        f"| {name} | {speed:,.0f} | {speed / naive:.2f} "
        f"| {_median(runs, name, 'cpu_per_thousand'):.0f} "
        f"| {_median(runs, name, 'peak_bytes') / 1e6:.0f} MB | {cosine} |"
    )


def _report_table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "Rows/min (peak memory in MB) by workers x threads of a session, and tokens a batch:",
        "",
        f"| workers x threads | {' | '.join(f'{budget:,}' for budget in _BUDGETS)} |",
        "|---" * (len(_BUDGETS) + 1) + "|",
    ]
    for workers, threads, shared in _LAYOUTS:
        label = f"{workers} x {threads}{'' if shared else ' own'}"
        cells = [
            f"{_median(runs, f'{label} / {budget}', 'per_minute'):,.0f}"
            f" ({_median(runs, f'{label} / {budget}', 'peak_bytes') / 1e6:.0f})"
            for budget in _BUDGETS
        ]
        told = label.replace(" own", ", a session each") if workers > 1 else label
        lines.append(f"| {told} | {' | '.join(cells)} |")
    return lines


def _median(runs: Sequence[Mapping[str, Any]], name: str, what: str) -> float:
    values = {
        "wall": lambda run: run["wall"],
        "per_minute": lambda run: run["rows"] * 60 / run["wall"],
        "cpu_per_thousand": lambda run: run["cpu"] * 1_000 / run["rows"],
        "peak_bytes": lambda run: run["peak_bytes"],
    }
    return float(statistics.median(values[what](run) for run in runs if run["name"] == name))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _child(variant: Variant) -> None:
    # The embedder alone is in this process: its peak memory is what is measured.
    folder = Path(os.environ["BENCH_FOLDER"])
    rows = json.loads((folder / f"{variant.max_tokens}.json").read_text())
    print(json.dumps(run_child(variant, [Row(*row) for row in rows], folder / "v.npy")))


def _write_rows(folder: Path, most: int) -> str:
    """The passages of both lengths as files, and a line about those of 256 tokens."""
    from ops.bench.embed_corpus import load_tokenizer, read_passages

    about = ""
    for max_tokens in (128, 256):
        passages, copies = read_passages(load_tokenizer(), max_tokens)
        taken = passages[:most]
        rows = [(draft.passage, draft.tokens) for draft in taken]
        (folder / f"{max_tokens}.json").write_text(json.dumps(rows))
        tokens = [draft.tokens for draft in taken]
        about = (
            f"{len(taken):,} passages of real sessions, {statistics.mean(tokens):.0f} tokens on"
            f" average, median {statistics.median(tokens):.0f}. {copies:,} of"
            f" {len(passages) + copies:,} passages are copies of another one: no variant embeds"
            " them, which is the gain of deduplication, counted apart."
        )
    return about


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-table", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(Variant(**json.loads(options.child)))
        return
    result: dict[str, Any] = {
        "machine": f"{platform.system()} {platform.machine()}, {_CORES} processors, Python "
        f"{platform.python_version()}",
    }
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result["rows"] = _write_rows(folder, options.rows)
        result["levers"] = measure(LEVERS, options.rounds, folder)
        if not options.no_table:
            result["table"] = measure(table(), options.rounds, folder)
    result["load"] = _load_range(before, [*result["levers"], *result.get("table", [])])
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))
    print(report(result))


def _load_range(before: float, runs: Sequence[Mapping[str, Any]]) -> str:
    loads = [run["load"] for run in runs]
    return f"{before:.1f} before, {min(loads):.1f} to {max(loads):.1f} during the runs"


if __name__ == "__main__":
    main()
