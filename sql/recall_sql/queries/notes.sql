-- name: ledger
-- Entries of work ledgers; the answer is one JSON object.
select api.search_ledger(
    q => %(q)s::text, max_hits => %(limit)s::integer, skip => %(skip)s::integer,
    sources => %(sources)s::text[], hosts => %(hosts)s::text[], projects => %(projects)s::text[],
    session_ids => %(session_ids)s::text[], since => %(since)s::timestamptz,
    until => %(until)s::timestamptz, max_chars => %(max_chars)s::integer,
    before_ts => %(before_ts)s::timestamptz, before_id => %(before_id)s::bigint
)

-- name: memory
-- Memories; the answer is one JSON object.
select api.memories(
    q => %(q)s::text, paths => %(paths)s::text[], projects => %(projects)s::text[],
    include_replaced => %(include_replaced)s::boolean, max_hits => %(limit)s::integer,
    skip => %(skip)s::integer, sources => %(sources)s::text[], hosts => %(hosts)s::text[],
    since => %(since)s::timestamptz, until => %(until)s::timestamptz,
    max_chars => %(max_chars)s::integer
)

-- name: get_note
-- One version of a note in full, the version that stands there now, and the session that it means.
select
    n.id::text as id, n.shelf, n.source, n.host, n.path, n.entry_key, n.ordinal, n.session_id,
    n.project, recall.shown(n.title) as title, n.ts, n.fields, n.is_current, n.stored_at, n.replaced_at,
    (select c.id::text from recall.note c
        where c.host = n.host and c.path = n.path and c.entry_key = n.entry_key
            and c.shelf = n.shelf and c.is_current
        order by c.id = n.id desc, c.stored_at desc
        limit 1) as current_id,
    recall.note_session(n.session_id, n.source, n.host) as session_key,
    char_length(n.content) as length, n.content
from recall.note n
where n.id = %(id)s::bigint

-- name: note_versions
-- Earlier texts of a note, newest first, counted from the first one.
select v.id::text as id, v.retracted_at, v.generation, v.length
from (
    select
        o.id, coalesce(o.replaced_at, o.stored_at) as retracted_at,
        row_number() over (order by o.stored_at, o.replaced_at nulls last, o.id) as generation,
        char_length(o.content) as length, o.is_current
    from recall.note n
    join recall.note o on o.host = n.host and o.path = n.path and o.entry_key = n.entry_key
        and o.shelf = n.shelf
    where n.id = %(id)s::bigint
) v
where not v.is_current and v.id <> %(id)s::bigint
order by v.generation desc
limit %(limit)s::bigint
