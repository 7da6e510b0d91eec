"""What a trigram index would cost: built on a part of the messages, and extrapolated."""

from __future__ import annotations

import time
from typing import Any

from ops.bench.search_run import Options, median, timed
from ops.bench.search_store import Connection, Store

_MOST_ROWS = 40_000
_STRINGS = ("E0382", "tachovof", "rror[E0", "no such text")


def measure(store: Store, options: Options) -> dict[str, Any]:
    """Size and build time for a part and for all, and some look-ups inside words."""
    with store.connection() as conn:
        try:
            conn.execute("create extension if not exists pg_trgm schema public")
            return _measure(conn, options)
        finally:
            conn.execute("drop table if exists recall.trigram_part")
            conn.execute("drop extension if exists pg_trgm")


def _measure(conn: Connection, options: Options) -> dict[str, Any]:
    conn.execute("create table recall.trigram_part (content text not null)")
    conn.execute(
        "insert into recall.trigram_part select m.content from recall.message m"
        " order by md5(m.id::text) limit %s",
        (_MOST_ROWS,),
    )
    started = time.monotonic()
    conn.execute("set maintenance_work_mem = '256MB'")
    conn.execute("create index on recall.trigram_part using gin (content public.gin_trgm_ops)")
    seconds = time.monotonic() - started
    row = conn.execute(
        "select sum(octet_length(content)), count(*), pg_indexes_size('recall.trigram_part'),"
        " (select sum(octet_length(content)) from recall.message) from recall.trigram_part"
    ).fetchone()
    assert row is not None, "a sum gives one row"
    part_bytes, rows, index_bytes, all_bytes = map(int, row)
    scale = all_bytes / part_bytes
    return {
        "rows": rows,
        "index_bytes": index_bytes,
        "share_of_text": index_bytes / part_bytes,
        "seconds": seconds,
        "all_index_bytes": index_bytes * scale,
        "all_seconds": seconds * scale,
        "look_ups": [_look_up(conn, text, options.rounds) for text in _STRINGS],
    }


def _look_up(conn: Connection, text: str, rounds: int) -> dict[str, Any]:
    statement = "select count(*) from recall.trigram_part where content like %s"
    runs = [
        timed(conn, lambda: conn.execute(statement, (f"%{text}%",)).fetchall())
        for _ in range(rounds + 1)
    ]
    return {"text": text, "hits": runs[0][1][0][0], "wall": median([r[0] for r in runs[1:]]).wall}
