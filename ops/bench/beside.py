"""What a search costs while an embedder works at full speed beside it.

    python ops/bench/beside.py [--rows 20000] [--rounds 3] [--queries 40] [--json FILE]

Builds a store of its own in a temporary folder, and lets `recall embedder` fill a part of it. Then
the same queries are asked in turns: with the embedder stopped, and with it at work on what is left.
Each query is embedded anew each time. The result is a Markdown report on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmark is no installed package

from ops.bench import search_queries, search_store  # noqa: E402
from ops.bench.search_run import quantile, timed  # noqa: E402
from ops.bench.search_store import Connection, Store  # noqa: E402
from recall.config import Settings  # noqa: E402
from recall_api.query_vectors import QueryVectors  # noqa: E402
from recall_api.search import Mode, SearchRequest, search  # noqa: E402

_GOAL = 2.0
_MODES: tuple[Mode, ...] = ("text", "semantic", "hybrid")
_BUDGET_SECONDS = 10.0
#: Passages that have vectors before anything is measured.
_BEFORE = 1_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, measure in turns, and print the report."""
    given = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="recall-bench-") as temporary:
        store = search_store.open_store(Path(temporary), given.rows, jobs=2)
        try:
            result = _measure(store, given.rounds, given.queries)
        finally:
            store.server.stop()
    print(report(result))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1))
    return 0


def _measure(store: Store, rounds: int, count: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    with store.connection() as conn:
        queries = [
            one.queries["report"][number]
            for one in search_queries.classes(conn, count)
            if one.mode == "text"
            for number in range(min(count, len(one.queries["report"])))
        ][:count]
        with _embedder(store):
            _wait_for(conn, _BEFORE)
        vectors = QueryVectors(Settings())
        _ask_all(conn, queries, vectors)  # loads the model and warms the caches
        for number in range(rounds):
            rows += _turn(conn, queries, number, "idle")
            with _embedder(store):
                done = _wait_for(conn, _passages(conn) + 100)
                started = time.monotonic()
                rows += _turn(conn, queries, number, "beside")
                seconds = time.monotonic() - started
                rate = 60 * (_passages(conn) - done) / seconds
            if not _waiting(conn):
                raise SystemExit("error: the embedder was done before the queries; use more --rows")
            print(f"round {number + 1}: {rate:,.0f} passages/min beside", file=sys.stderr)
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "load": os.getloadavg(),
        "rows": rows,
    }


def _turn(conn: Connection, queries: Sequence[str], number: int, what: str) -> list[dict[str, Any]]:
    vectors = QueryVectors(Settings())
    vectors.of("warm", _model(conn))
    return [
        {"round": number, "what": what, "mode": mode, "query": query, "wall": wall}
        for mode in _MODES
        for query, wall in zip(queries, _ask_all(conn, queries, vectors, mode), strict=True)
    ]


def _ask_all(
    conn: Connection, queries: Sequence[str], vectors: QueryVectors, mode: Mode = "hybrid"
) -> list[float]:
    """Milliseconds of each query; no vector of a query is kept from another mode."""
    walls = []
    for query in queries:
        request = SearchRequest(f"{query} {mode}" if mode == "semantic" else query, mode=mode)
        timing, answer = timed(
            conn,
            lambda request=request: search(  # type: ignore[misc]
                conn, request, budget_seconds=_BUDGET_SECONDS, vectors=vectors
            ),
        )
        if answer["mode_used"] != mode:
            raise SystemExit(f"error: {mode} search was answered by {answer['mode_used']}")
        walls.append(timing.wall)
    return walls


@contextmanager
def _embedder(store: Store) -> Iterator[None]:
    """`recall embedder` on the store, as a process of its own."""
    environment = {
        **os.environ,
        "RECALL_HOME": str(store.folder / "home"),
        "RECALL_DATABASE_URL": store.url,
        "RECALL_EMBED_LISTEN": "",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    running = subprocess.Popen(
        [sys.executable, "-m", "recall", "embedder"], env=environment, stderr=subprocess.PIPE
    )
    try:
        yield
        if running.poll() is not None:
            raise SystemExit(f"error: the embedder ended by itself ({running.returncode})")
    finally:
        running.terminate()
        running.wait(30)


def _wait_for(conn: Connection, passages: int) -> int:
    deadline = time.monotonic() + 300
    while (done := _passages(conn)) < passages:
        if time.monotonic() > deadline:
            raise SystemExit(f"error: only {done} passages have vectors after 300 s")
        time.sleep(0.2)
    return done


def _passages(conn: Connection) -> int:
    return _number(conn, "select count(*) from recall.passage")


def _waiting(conn: Connection) -> int:
    return _number(conn, "select count(*) from recall.embed_queue")


def _number(conn: Connection, statement: str) -> int:
    row = conn.execute(statement.encode()).fetchone()
    assert row is not None
    return int(row[0])


def _model(conn: Connection) -> str:
    row = conn.execute(
        "select model from recall.embedding_generation where state = 'active'"
    ).fetchone()
    assert row is not None
    return str(row[0])


def report(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = [f"Machine: {result['machine']}; load at the end {result['load'][0]:.1f}", ""]
    lines += [
        "| mode | idle p50 / p95 ms | beside p50 / p95 ms | ratio of p95 |",
        "|---|---|---|---|",
    ]
    for mode in _MODES:
        idle, beside = (
            [row["wall"] for row in result["rows"] if (row["mode"], row["what"]) == (mode, what)]
            for what in ("idle", "beside")
        )
        ratio = quantile(beside, 0.95) / quantile(idle, 0.95)
        lines.append(
            f"| {mode} | {quantile(idle, 0.5):.1f} / {quantile(idle, 0.95):.1f}"
            f" | {quantile(beside, 0.5):.1f} / {quantile(beside, 0.95):.1f} | {ratio:.2f} |"
        )
    lines += ["", f"Goal: p95 beside an embedder under {_GOAL:g} times that of an idle machine."]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000, help="messages in the store")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--json", type=Path, help="write the measurements to this file")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
