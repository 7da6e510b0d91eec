-- Reading the original bytes back: `recall restore`, `recall verify`, and reading them again.

-- name: files_of_sessions
-- The files that sessions were read from, a parent's before its children's.
select
    f.host, f.path, f.source, f.session_key, f.generation, f.container, f.size, f.mtime_ns,
    f.byte_offset, f.raw_bytes, f.unfinished_length, f.described ->> 'shape',
    f.described ->> 'path'
from recall.ingest_state f
where f.session_key = any(%(keys)s::text[])
order by array_position(%(keys)s::text[], f.session_key), f.host, f.path

-- name: files_of_path
-- The files whose path is the given one or ends with it, and the sessions of databases of that path.
-- A database whose sessions are kept one by one has no bytes of its own.
select
    f.host, f.path, f.source, f.session_key, f.generation, f.container, f.size, f.mtime_ns,
    f.byte_offset, f.raw_bytes, f.unfinished_length, f.described ->> 'shape',
    f.described ->> 'path'
from recall.ingest_state f
cross join lateral (values (f.path), (f.container), (f.described ->> 'path')) named (name)
where (%(host)s::text is null or f.host = %(host)s::text)
    and (
        named.name = %(path)s::text
        or right(named.name, length(%(path)s::text) + 1) = '/' || %(path)s::text
    )
    and named.name is distinct from 'import'
    and not (f.container is null and f.described ->> 'shape' is not distinct from 'container')
    and not (f.unreadable is not null and f.size = 0 and f.lines_seen = 0
        and f.session_key is null)
order by f.host, f.path

-- name: find_file
-- What is known of one file.
select
    f.host, f.path, f.source, f.session_key, f.generation, f.container, f.size, f.mtime_ns,
    f.byte_offset, f.raw_bytes, f.unfinished_length, f.described ->> 'shape',
    f.described ->> 'path'
from recall.ingest_state f
where f.host = %(host)s::text and f.path = %(path)s::text

-- name: places_after
-- One page of files in the order of their keys. Rows of folders that cannot be listed are no files,
-- and of a database whose sessions are kept one by one, these sessions are what there is to check.
select f.host, f.path
from recall.ingest_state f
where (f.host, f.path) > (%(after_host)s::text, %(after_path)s::text)
    and (%(source)s::text is null or f.source = %(source)s::text)
    and (%(session_key)s::text is null or f.session_key = %(session_key)s::text)
    and not (f.unreadable is not null and f.size = 0 and f.lines_seen = 0
        and f.session_key is null)
    and not (f.container is null and f.described ->> 'shape' is not distinct from 'container')
order by f.host, f.path
limit %(limit)s::bigint

-- name: places_without_checkpoint
-- Files of which segments are kept and nothing else is known, as after a purge that was interrupted.
select distinct s.host, s.path
from recall.raw_segment s
where not exists (select from recall.ingest_state f where f.host = s.host and f.path = s.path)
order by s.host, s.path

-- name: kept_bytes
-- The length of all segments, to say how much there is to read; nulls mean everything.
select coalesce(sum(s.byte_length), 0)::bigint
from recall.raw_segment s
where %(source)s::text is null and %(session_key)s::text is null
    or exists (
        select from recall.ingest_state f
        where f.host = s.host and f.path = s.path
            and (%(source)s::text is null or f.source = %(source)s::text)
            and (%(session_key)s::text is null or f.session_key = %(session_key)s::text)
    )

-- name: generations
-- What is kept of a file, by generation.
select s.generation, sum(s.byte_length)::bigint, max(s.stored_at)
from recall.raw_segment s
where s.host = %(host)s::text and s.path = %(path)s::text
group by s.generation
order by s.generation

-- name: segments
-- One generation of a file in order, each segment with the blob that it points to. A blob that is
-- too large to be one stays where it is.
select
    s.byte_offset, s.byte_length, s.hash, s.unfinished, b.byte_length, b.codec,
    octet_length(b.data), case when octet_length(b.data) <= %(most)s::integer then b.data end
from recall.raw_segment s
-- lateral with limit: in the order of the key and one probe a row, so that the first comes at once
left join lateral (
    select r.byte_length, r.codec, r.data from recall.raw_blob r where r.hash = s.hash limit 1
) b on true
where s.host = %(host)s::text and s.path = %(path)s::text
    and s.generation = %(generation)s::integer
order by s.byte_offset

-- name: blobs_of_file
-- The blobs that the segments of a file point to, in any generation, each once.
select
    s.hash, s.byte_length, b.byte_length, b.codec, octet_length(b.data),
    case when octet_length(b.data) <= %(most)s::integer then b.data end
from (
    select distinct on (o.hash) o.hash, o.byte_length
    from recall.raw_segment o
    where o.host = %(host)s::text and o.path = %(path)s::text
    order by o.hash
) s
left join recall.raw_blob b on b.hash = s.hash

-- name: places_of_blob
-- Where the bytes of a blob stood in the files of a host, those that were read last first.
select s.path, s.byte_offset, s.byte_length
from recall.raw_segment s
where s.hash = %(hash)s::bytea and s.host = %(host)s::text
order by s.stored_at desc, s.path, s.byte_offset
limit %(limit)s::bigint

-- name: replace_blob
-- Put a blob in the place of one that is damaged or missing.
insert into recall.raw_blob (hash, byte_length, codec, data)
values (%(hash)s::bytea, %(byte_length)s::integer, %(codec)s::text, %(data)s::bytea)
on conflict (hash) do update
set byte_length = excluded.byte_length, codec = excluded.codec, data = excluded.data

-- name: session_tree
-- A session and everything below it, parents first.
with recursive tree (session_key, depth) as (
    select %(key)s::text, 0
    union
    select c.session_key, t.depth + 1
    from tree t
    join recall.session c on c.parent_key = t.session_key
    where t.depth < 100
)
select t.session_key
from tree t
group by t.session_key
order by min(t.depth), t.session_key

-- name: unused_blobs
-- Blobs that no segment points to, and their size in the store.
select count(*), coalesce(sum(octet_length(b.data)), 0)::bigint
from recall.raw_blob b
where not exists (select from recall.raw_segment s where s.hash = b.hash)

-- name: drop_unused_blobs
-- Delete them; how many that were.
select recall.drop_unused_blobs(null)

-- name: reread
-- Let the next pass open these files and find that they do not begin as they did.
update recall.ingest_state set size = -1, head_hash = '', tail_hash = ''
where host = %(host)s::text and path = any(%(paths)s::text[]) and container is null

-- name: forget_faults
-- Quarantined records that are messages now: those on which Recall had failed, in files that were read
-- again, but for those on which it failed again.
delete from recall.quarantine q
using unnest(%(paths)s::text[], %(generations)s::integer[]) f (path, generation)
where q.host = %(host)s and q.path = f.path and q.generation = f.generation
    and starts_with(q.reason, %(reason)s)
    and (q.path, q.byte_offset) not in (
        select a.path, a.byte_offset
        from unnest(%(failed_paths)s::text[], %(failed_offsets)s::bigint[]) a (path, byte_offset)
    )
