"""How fast search by meaning is behind any filter, and how near to the right answer.

    python ops/bench/vectors.py [--rows 640000] [--keep FOLDER] [--hybrid] [--json FILE]

Builds a database of its own in a temporary folder, or in the folder that ``--keep`` names, where
the next run finds it. In a folder of ``search.py`` it adds the vectors of the messages there, which
``--hybrid`` needs. The result is a Markdown report on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmark is no installed package

from ops.bench import search_store, vectors_hybrid, vectors_search, vectors_store  # noqa: E402
from ops.bench.vectors_report import report  # noqa: E402
from ops.bench.vectors_space import Space  # noqa: E402

ROWS = 640_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what is missing, measure, and print the report."""
    given = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="recall-bench-") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if given.hybrid:
            search_store.open_store(folder, given.rows, given.jobs).server.stop()
        store, space = vectors_store.open_store(folder, given.rows, given.index)
        try:
            result = _measure(store, space, given)
        finally:
            store.server.stop()
    print(report(result))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1))
    return 0


def _measure(store: search_store.Store, space: Space, given: argparse.Namespace) -> dict[str, Any]:
    queries = space.queries(given.queries, given.set)
    result: dict[str, Any] = {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "built": vectors_store.about(store),
        "load_before": os.getloadavg(),
    }
    with store.connection() as conn:
        result["sizes"] = vectors_store.sizes(conn)
    if not given.only_hybrid:
        result["search"] = vectors_search.measure(store, queries, given.rounds)
    if given.hybrid:
        result["hybrid"] = vectors_hybrid.measure(
            store, queries, given.rounds, given.hybrid_queries
        )
    result["load_after"] = os.getloadavg()
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS, help="passages in the database")
    parser.add_argument("--jobs", type=int, default=2, help="processes that write the texts")
    parser.add_argument("--index", help="such as `m = 24, ef_construction = 128`")
    parser.add_argument("--keep", type=Path, help="keep the database in this folder, or reuse it")
    parser.add_argument("--queries", type=int, default=100, help="query vectors")
    parser.add_argument("--rounds", type=int, default=3, help="warm runs of each query")
    parser.add_argument(
        "--set", choices=("tune", "report"), default="report", help="which query vectors"
    )
    parser.add_argument(
        "--hybrid", action="store_true", help="also hybrid search; builds the texts, which is slow"
    )
    parser.add_argument("--only-hybrid", action="store_true", help="nothing but hybrid search")
    parser.add_argument("--hybrid-queries", type=int, default=10, help="queries of each class")
    parser.add_argument("--json", type=Path, help="write the measurements to this file")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
