-- name: sources
-- What came from each host and source: files, lines by what became of them, sessions, notes, and how
-- new the newest message is. The age of a message is asked of the index, once per host and source.
-- A database is one file, however many sessions of it there are. Sums end where JSON numbers do: hosts
-- say what they like, and one must not keep the rest from being seen.
with files as (
    select
        f.host, f.source,
        count(distinct coalesce(f.container, f.path))
            filter (where f.size > 0 or f.lines_seen > 0 or f.unreadable is null) as files,
        count(*) filter (where f.source_missing_at is not null) as missing_files,
        count(*) filter (where f.unreadable is not null) as unreadable_files,
        max(f.read_at) as newest_read,
        least(sum(f.byte_offset), 2^53::numeric)::bigint as bytes_read,
        least(sum(f.raw_bytes), 2^53::numeric)::bigint as bytes_kept,
        least(sum(f.lines_seen), 2^53::numeric)::bigint as lines_seen,
        least(sum(f.lines_stored), 2^53::numeric)::bigint as lines_stored,
        least(sum(f.lines_merged), 2^53::numeric)::bigint as lines_merged,
        least(sum(f.lines_quarantined), 2^53::numeric)::bigint as lines_quarantined,
        least(sum(f.lines_skipped), 2^53::numeric)::bigint as lines_skipped
    from recall.ingest_state f
    group by f.host, f.source
), sessions as (
    select s.host, s.source, count(*) as sessions
    from recall.session s
    group by s.host, s.source
), notes as (
    select n.host, n.source, count(*) as notes
    from recall.note n
    where n.is_current
    group by n.host, n.source
), problems as (
    select q.host, q.source, count(*) as quarantined, least(sum(q.byte_length), 2^53::numeric)::bigint as bytes_quarantined
    from recall.quarantine q
    group by q.host, q.source
)
select
    host, source,
    coalesce(f.files, 0) as files,
    coalesce(f.missing_files, 0) as missing_files,
    coalesce(f.unreadable_files, 0) as unreadable_files,
    coalesce(s.sessions, 0) as sessions,
    coalesce(n.notes, 0) as notes,
    newest.ts as newest_message,
    f.newest_read,
    greatest(extract(epoch from clock_timestamp() - f.newest_read), 0)::float8 as read_age_seconds,
    coalesce(f.lines_seen, 0) as lines_seen,
    coalesce(f.lines_stored, 0) as lines_stored,
    coalesce(f.lines_merged, 0) as lines_merged,
    coalesce(f.lines_quarantined, 0) as lines_quarantined,
    coalesce(f.lines_skipped, 0) as lines_skipped,
    coalesce(f.bytes_read, 0) as bytes_read,
    coalesce(f.bytes_kept, 0) as bytes_kept,
    coalesce(q.bytes_quarantined, 0) as bytes_quarantined,
    coalesce(q.quarantined, 0) as quarantined
from files f
full join sessions s using (host, source)
full join notes n using (host, source)
full join problems q using (host, source)
left join lateral (
    select t.ts
    from recall.message_text t
    where t.source = coalesce(f.source, s.source, n.source, q.source)
        and t.host = coalesce(f.host, s.host, n.host, q.host) and t.ts is not null
    order by t.ts desc
    limit 1
) newest on true
order by host, source

-- name: components
-- Every process that reports that it is alive, and how long ago it did.
select
    h.component, h.instance, h.host, h.pid, h.started_at, h.beat_at,
    round(greatest(extract(epoch from clock_timestamp() - h.beat_at), 0), 3)::float8 as age_seconds,
    h.detail
from recall.worker_heartbeat h
order by h.component, h.beat_at desc, h.instance

-- name: hosts
-- Every machine that is known, and what its ingester said last.
select
    known.host, h.first_seen, newest.beat_at, newest.age_seconds, newest.detail
from (
    select host from recall.host
    union
    select host from recall.worker_heartbeat where component = 'ingester'
) known
left join recall.host h on h.host = known.host
left join lateral (
    select
        w.beat_at, w.detail,
        round(greatest(extract(epoch from clock_timestamp() - w.beat_at), 0), 3)::float8
            as age_seconds
    from recall.worker_heartbeat w
    where w.component = 'ingester' and w.host = known.host
    order by w.beat_at desc
    limit 1
) newest on true
order by known.host

-- name: embedding
-- How far each generation is that is in use or being filled; a large number is an estimate. What is
-- not cut yet is told in entries, of which not every one is embedded.
select
    g.number, g.model, g.dimension, g.state,
    case
        when size.estimate >= %(estimate_from)s::bigint then size.estimate
        else (select count(*) from recall.passage p where p.generation = g.number)
    end as embedded,
    coalesce(size.estimate >= %(estimate_from)s::bigint, false) as is_estimated,
    waiting.passages as waiting, waiting.failed, dirty.entries as uncut_entries,
    dirty.failed as failed_sessions
from recall.embedding_generation g
cross join lateral (
    select (
        select c.reltuples::bigint from pg_class c
        where c.oid = to_regclass('recall.passage_' || g.number)
    ) as estimate
) size
cross join lateral (
    select
        count(*) filter (where q.failed_at is null) as passages,
        count(*) filter (where q.failed_at is not null) as failed
    from recall.embed_queue q
    where q.generation = g.number
) waiting
cross join lateral (
    select
        coalesce(sum(d.entries) filter (where d.attempts < 5 or d.lease is not null), 0)::bigint
            as entries,
        count(*) filter (where d.attempts >= 5 and d.lease is null) as failed
    from recall.embed_dirty d
    where d.generation = g.number
) dirty
where g.state <> 'retired'
order by g.state = 'active' desc, g.number

-- name: estimates
-- Rows of each table as the statistics have them; -1 for a table that was never counted.
select c.relname as name, c.reltuples::bigint as estimated_rows
from pg_class c
where c.oid = any(array[
    'recall.session', 'recall.message', 'recall.prompt', 'recall.note', 'recall.message_retracted'
]::regclass[])

-- name: count_session
-- How many sessions there are.
select count(*) as exact_rows from recall.session

-- name: count_message
-- How many messages there are.
select count(*) as exact_rows from recall.message

-- name: count_prompt
-- How many prompts there are.
select count(*) as exact_rows from recall.prompt

-- name: count_note
-- How many ledger entries and memories there are.
select count(*) as exact_rows from recall.note where is_current

-- name: count_message_retracted
-- How many messages were taken back.
select count(*) as exact_rows from recall.message_retracted

-- name: database
-- The size of the database and the version of its server.
select
    pg_database_size(current_database()) as size_bytes,
    current_setting('server_version') as server_version

-- name: quarantined
-- Spans of files that could not be read as a record, newest first.
select
    q.host, q.source, q.path, q.generation, q.byte_offset, q.byte_length, q.ordinal + 1 as line,
    q.session_key, recall.shown(q.reason) as reason, encode(q.sha256, 'hex') as sha256, q.salvaged, q.created_at
from recall.quarantine q
order by q.created_at desc, q.host, q.path, q.generation desc, q.byte_offset
limit %(limit)s::bigint

-- name: unreadable
-- Files and folders that could not be read the last time.
select f.host, f.source, f.path, recall.shown(f.unreadable) as reason, f.read_at
from recall.ingest_state f
where f.unreadable is not null
order by f.host, f.path
limit %(limit)s::bigint

-- name: problem_totals
-- How many problems there are of each kind.
select
    (select count(*) from recall.quarantine) as quarantined,
    (select count(*) from recall.ingest_state where unreadable is not null) as unreadable,
    (select count(*) from recall.ingest_state where source_missing_at is not null) as missing
