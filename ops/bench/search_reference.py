"""What a search should have found: every match ranked, and every text read.

The scores of a text search are compared and not its ids, because hundreds of messages may have
equal scores. Both the hits and the best possible hits are scored by the exact frequency of words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ops.bench.search_store import Connection

_FILTER = (
    "row(%(sources)s::text[], null, %(projects)s::text[], %(roles)s::text[], null, null,"
    " %(sessions)s::text[], %(since)s::timestamptz, %(until)s::timestamptz, null, false)"
    "::recall.search_filter"
)

_CANDIDATES = """
with term as (
    select
        x.place, x.query, x.alternative, x.quoted,
        ln(1 + 1 / least(1, greatest(
            (select count(*) from recall.message_text t where t.tsv @@ x.query)::float8, 1
        ) / greatest((select count(*) from recall.message_text)::float8, 1))) as weight
    from recall.ranking_terms($q$%(q)s$q$) r
    cross join lateral unnest(r.terms) with ordinality
        x (words, quoted, negative, alternative, query, place)
), required as (
    select row_number() over () as place, recall.any_of(array_agg(query)) as query
    from term group by alternative having bool_or(quoted)
), candidate as materialized (
    select t.id, t.tsv
    from recall.message_text t
    where t.tsv @@ (select recall.any_of(array_agg(query)) from term) and %(condition)s
        and t.id not in (
            select o.id from recall.message_text o
            where o.tsv @@ (select r.excluded from recall.ranking_terms($q$%(q)s$q$) r)
        )
), scored as (
    select c.id, max((
        select sum(w.weight * r.rank / (r.rank + 0.06))
        from term w
        cross join lateral (
            select case when c.tsv @@ w.query then ts_rank(c.tsv, w.query) else 0 end as rank
        ) r
    )) as score
    from candidate c
    where not exists (
        select from required r
        where not exists (
            select from recall.message_text o where o.id = c.id and o.tsv @@ r.query
        )
    )
    group by c.id
)
"""


def best_scores(
    conn: Connection, query: str, options: Mapping[str, Any], hits: Sequence[int]
) -> tuple[list[float], list[float]]:
    """The scores of the best hits that there are, and of those that were found, best first."""
    condition = conn.execute(
        f"select recall.text_condition({_FILTER})", _filter_values(options)
    ).fetchone()
    assert condition is not None
    common = _CANDIDATES.replace("%(q)s", query).replace("%(condition)s", condition[0])
    row = conn.execute(
        (
            common + "select (select array_agg(score order by score desc) from ("
            " select max(s.score) as score from scored s join recall.message m on m.id = s.id"
            f" group by coalesce(m.copy_key, s.id) order by score desc limit {max(len(hits), 20)}"
            ") b), (select array_agg(score order by score desc) from scored"
            f" where id = any('{{{','.join(map(str, hits))}}}'::bigint[]))"
        ).encode()
    ).fetchone()
    assert row is not None
    return list(row[0] or []), list(row[1] or [])


def newest_with(
    conn: Connection, mode: str, query: str, options: Mapping[str, Any], most: int
) -> list[int]:
    """The newest messages whose text matches, by reading all of them."""
    condition = conn.execute(
        f"select recall.filter_condition({_FILTER}, 't')", _filter_values(options)
    ).fetchone()
    assert condition is not None
    match = "regexp_like(m.content, %s, 'n')" if mode == "regex" else "strpos(m.content, %s) > 0"
    rows = conn.execute(
        (
            "select id from (select distinct on (coalesce(m.copy_key, m.id)) m.id, m.ts"
            " from recall.message m join recall.message_text t on t.id = m.id and t.chunk = 0"
            " join recall.session s on s.session_key = m.session_key"
            f" where {match} and {condition[0].replace('%', '%%')}"
            " order by coalesce(m.copy_key, m.id), s.relation is not null, m.ts, m.session_key,"
            "  m.ordinal, m.part) h"
            " order by h.ts desc, h.id desc limit %s"
        ).encode(),
        (query, most),
    ).fetchall()
    return [row[0] for row in rows]


def _filter_values(options: Mapping[str, Any]) -> dict[str, Any]:
    names = ("sources", "projects", "roles", "sessions", "since", "until")
    return {name: options.get(name) for name in names}
