"""How fast search is, and how much of the best possible answer it gives, at 640,000 messages.

    python ops/bench/search.py [--rows 640000] [--keep FOLDER] [--set report] [--json FILE]

Builds a database of its own in a temporary folder, or in the folder that ``--keep`` names, where
the next run finds it. Every query goes through the function that the API and the command call. The
result is a Markdown report on stdout; ``--json FILE`` writes every single measurement as well.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmark is no installed package

from ops.bench import search_store, search_trigram, search_words  # noqa: E402
from ops.bench.search_report import report  # noqa: E402
from ops.bench.search_run import Options  # noqa: E402

ROWS = 640_000

#: What is measured. A part gets the store and the options, builds what it needs beside the messages
#: unless it finds that there, and gives what the report shows under its name.
Part = Callable[[search_store.Store, Options], dict[str, Any]]
PARTS: dict[str, Part] = {
    "words": search_words.measure,
    "trigrams": search_trigram.measure,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what is missing, measure, and print the report."""
    given = _parser().parse_args(arguments)
    options = Options(
        queries=given.queries, rounds=given.rounds, query_set=given.set, cold=not given.no_cold,
        reference=given.reference,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="recall-bench-") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        store = search_store.open_store(folder, given.rows, given.jobs)
        try:
            result = _measure(store, options, given.parts)
        finally:
            store.server.stop()
    print(report(result))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1))
    return 0


def _measure(store: search_store.Store, options: Options, parts: Sequence[str]) -> dict[str, Any]:
    load = os.getloadavg()
    result: dict[str, Any] = {"machine": _machine(), "built": store.about(), "load_before": load}
    with store.connection() as conn:
        result["sizes"] = search_store.sizes(conn)
    for name in parts:
        result[name] = PARTS[name](store, options)
    result["load_after"] = os.getloadavg()
    return result


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS, help="messages in the database")
    parser.add_argument("--jobs", type=int, default=2, help="processes that build it")
    parser.add_argument("--keep", type=Path, help="keep the database in this folder, or reuse it")
    parser.add_argument("--queries", type=int, default=20, help="queries of each class and set")
    parser.add_argument("--rounds", type=int, default=3, help="warm runs of each query")
    parser.add_argument("--set", choices=("tune", "report"), default="report")
    parser.add_argument("--no-cold", action="store_true", help="leave out the restarts")
    parser.add_argument(
        "--reference", type=int, default=6, help="queries of each class compared with all matches"
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--json", type=Path, help="write the measurements to this file")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
