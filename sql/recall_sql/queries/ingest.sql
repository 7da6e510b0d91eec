-- name: stage
-- Keys and hashes of a batch's messages, and which of them are new or differ. A long pending list and
-- the memory to merge it at once make a large pass a third cheaper for the text index.
set gin_pending_list_limit = '64MB';
set work_mem = '64MB';
create temp table if not exists stage_key (
    piece integer not null,
    session_key text not null,
    ordinal bigint not null,
    part integer not null,
    id bigint not null,
    role text not null,
    kind text not null,
    ts timestamptz,
    content_hash bytea not null,
    copy_key bigint,
    project text,
    tool text,
    is_error boolean not null,
    on_active_branch boolean not null
) on commit delete rows;
create temp table if not exists stage_changed (
    id bigint primary key,
    piece integer not null,
    ordinal bigint not null,
    old_id bigint,
    rewritten boolean not null
) on commit delete rows

-- name: copy_keys
-- Receive what identifies messages; their text follows only where it is needed.
copy pg_temp.stage_key (
    piece, session_key, ordinal, part, id, role, kind, ts, content_hash, copy_key, project, tool,
    is_error, on_active_branch
) from stdin

-- name: copy_messages
-- Store messages whose keys are not in the store, or not any more.
copy recall.message (
    session_key, ordinal, part, id, role, kind, ts, ts_origin, content, content_hash, copy_key,
    project, branch, tool, call_id, native_id, model, is_error, is_damaged, redactions,
    on_active_branch
) from stdin

-- name: stage_prompts
-- Prompts on their way: two files may bring the same one at the same time.
create temp table if not exists stage_prompt (like recall.prompt including defaults)
    on commit delete rows

-- name: copy_prompts
-- Receive prompts that are not in the store.
copy pg_temp.stage_prompt (
    id, source, host, ordinal, session_key, project, ts, content, content_hash
) from stdin

-- name: insert_prompts
-- Store them; one that somebody else has just stored is the same.
insert into recall.prompt (
    id, source, host, ordinal, session_key, project, ts, content, content_hash
)
select id, source, host, ordinal, session_key, project, ts, content, content_hash
from pg_temp.stage_prompt
order by id
on conflict (id) do nothing

-- name: upsert_session
-- One session; the trigger recall.merge_session keeps what the store knew.
insert into recall.session (
    session_key, source, host, external_id, parent_key, relation, title, title_rank, project,
    branch, model, client_version, started_at, ended_at, path
) values (
    %(session_key)s, %(source)s, %(host)s, %(external_id)s, %(parent_key)s, %(relation)s,
    %(title)s, %(title_rank)s, %(project)s, %(branch)s, %(model)s, %(client_version)s,
    %(started_at)s, %(ended_at)s, %(path)s
)
on conflict (session_key) do update set
    parent_key = excluded.parent_key, relation = excluded.relation, title = excluded.title,
    title_rank = excluded.title_rank, project = excluded.project, branch = excluded.branch,
    model = excluded.model, client_version = excluded.client_version,
    started_at = excluded.started_at, ended_at = excluded.ended_at, path = excluded.path

-- name: find_changed
-- Which staged messages are new or differ. Hashes are compared before any text is sent and any
-- search vector is made: making it first costs four times as much on a pass over known rows.
insert into pg_temp.stage_changed (id, piece, ordinal, old_id, rewritten)
select distinct on (s.id)
    s.id, s.piece, s.ordinal, known.id, coalesce(known.content_hash <> s.content_hash, false)
from pg_temp.stage_key s
-- lateral with limit: one index probe a row, whatever the planner believes about temporary tables
left join lateral (
    select m.id, m.content_hash, m.role, m.kind, m.ts, m.tool, m.copy_key, m.project, m.is_error,
        m.on_active_branch
    from recall.message m
    where m.session_key = s.session_key and m.ordinal = s.ordinal and m.part = s.part
    limit 1
) known on true
where known.id is null
    or (known.content_hash, known.role, known.kind, known.ts, known.tool, known.copy_key,
        known.project, known.is_error, known.on_active_branch)
    is distinct from (s.content_hash, s.role, s.kind, s.ts, s.tool, s.copy_key, s.project, s.is_error,
        s.on_active_branch)

-- name: find_new_prompts
-- Which prompts are new; a prompt's id comes from its content, so a known one is the same.
insert into pg_temp.stage_changed (id, piece, ordinal, old_id, rewritten)
select distinct on (s.id) s.id, s.piece, s.ordinal, null, false
from unnest(%(ids)s::bigint[], %(pieces)s::integer[], %(ordinals)s::bigint[])
    s (id, piece, ordinal)
where not exists (select from recall.prompt p where p.id = s.id)

-- name: changed
-- What is to be written, and whether it takes the place of something.
select id, old_id is not null from pg_temp.stage_changed

-- name: retract_rewritten
-- Keep the old text of messages that are about to be written over.
with old as (
    select m.*, (%(generations)s::integer[])[c.piece + 1] as generation
    from recall.message m
    join pg_temp.stage_changed c on c.old_id = m.id
    where c.rewritten
)
insert into recall.message_retracted (
    session_key, ordinal, part, id, message_id, generation, role, kind, ts, ts_origin, content,
    content_hash, copy_key, project, branch, tool, call_id, native_id, model, is_error, is_damaged,
    redactions, on_active_branch, stored_at
)
select
    session_key, ordinal, part, recall.retracted_id(id, content_hash), id, generation, role,
    kind, ts, ts_origin, content, content_hash, copy_key, project, branch, tool, call_id,
    native_id, model, is_error, is_damaged, redactions, on_active_branch, stored_at
from old
on conflict (id) do nothing

-- name: retract_index
-- Move the index rows of retracted messages along with them.
insert into recall.message_text (
    id, chunk, ts, source, host, project, role, kind, tool, session_key, retracted, tsv
)
select
    recall.retracted_id(t.id, m.content_hash), t.chunk, t.ts, t.source, t.host, t.project, t.role,
    t.kind, t.tool, t.session_key, true, t.tsv
from pg_temp.stage_changed c
join recall.message m on m.id = c.old_id
join recall.message_text t on t.id = c.old_id
where c.rewritten
on conflict (id, chunk) do nothing

-- name: drop_replaced
-- Make room for messages that are about to be written again.
with text as (
    delete from recall.message_text t using pg_temp.stage_changed c where t.id = c.old_id
)
delete from recall.message m using pg_temp.stage_changed c where m.id = c.old_id

-- name: index_messages
-- Make the search vectors of documents of stored messages.
insert into recall.message_text (
    id, chunk, ts, source, host, project, role, kind, tool, session_key, tsv
)
select
    s.id, d.chunk, s.ts, split_part(s.session_key, ':', 1), split_part(s.session_key, ':', 2),
    s.project, s.role, s.kind, s.tool, s.session_key, recall.index_document(d.document)
from unnest(%(ids)b::bigint[], %(chunks)b::smallint[], %(documents)b::text[])
    d (id, chunk, document)
join (select distinct on (id) * from pg_temp.stage_key) s on s.id = d.id

-- name: index_prompts
-- Make the search vectors of documents of stored prompts.
insert into recall.message_text (
    id, chunk, ts, source, host, project, role, kind, tool, session_key, tsv
)
select
    p.id, d.chunk, p.ts, p.source, p.host, p.project, 'user', 'prompt', null, p.session_key,
    recall.index_document(d.document)
from unnest(%(ids)b::bigint[], %(chunks)b::smallint[], %(documents)b::text[])
    d (id, chunk, document)
join recall.prompt p on p.id = d.id
on conflict (id, chunk) do nothing

-- name: retire
-- Messages in a range that was read again and that did not come again: the client took them back.
with gone as (
    delete from recall.message m
    where m.session_key = %(session_key)s
        and m.ordinal >= %(first)s and (%(last)s::bigint is null or m.ordinal < %(last)s::bigint)
        and not exists (
            select from pg_temp.stage_key s
            where s.session_key = m.session_key and s.ordinal = m.ordinal and s.part = m.part
        )
    returning m.*
), kept as (
    insert into recall.message_retracted (
        session_key, ordinal, part, id, message_id, generation, role, kind, ts, ts_origin, content,
        content_hash, copy_key, project, branch, tool, call_id, native_id, model, is_error,
        is_damaged, redactions, on_active_branch, stored_at
    )
    select
        session_key, ordinal, part, recall.retracted_id(id, content_hash), id, %(generation)s, role,
        kind, ts, ts_origin, content, content_hash, copy_key, project, branch, tool, call_id,
        native_id, model, is_error, is_damaged, redactions, on_active_branch, stored_at
    from gone
    on conflict (id) do nothing
)
select recall.move_index(id, recall.retracted_id(id, content_hash)) from gone

-- name: drop_outgrown
-- A text that only grew was not taken back: what was kept of it stands at the start of the new one.
with outgrown as (
    delete from recall.message_retracted r
    using recall.message m, unnest(%(ids)s::bigint[]) written (id)
    where m.id = written.id and r.session_key = m.session_key and r.ordinal = m.ordinal
        and r.part = m.part and r.role = m.role and r.kind = m.kind
        and starts_with(m.content, r.content)
    returning r.id
)
delete from recall.message_text t using outgrown o where t.id = o.id

-- name: drop_moved
-- A message that stands in its session under another number now was not taken back.
with moved as (
    delete from recall.message_retracted r
    using recall.message m
    where r.session_key = any(%(session_keys)s) and m.session_key = r.session_key
        and m.content_hash = r.content_hash and m.role = r.role and m.kind = r.kind
        and m.native_id = r.native_id and m.ts is not distinct from r.ts
    returning r.id
)
delete from recall.message_text t using moved d where t.id = d.id

-- name: stage_taken_back
-- Messages that a file itself says were taken back.
create temp table if not exists stage_taken_back (
    like recall.message including defaults
) on commit delete rows

-- name: copy_taken_back
-- Receive them.
copy pg_temp.stage_taken_back (
    session_key, ordinal, part, id, role, kind, ts, ts_origin, content, content_hash, copy_key,
    project, branch, tool, call_id, native_id, model, is_error, is_damaged, redactions,
    on_active_branch
) from stdin

-- name: keep_taken_back
-- Keep those of them that are not live and not kept yet; which are new.
insert into recall.message_retracted (
    session_key, ordinal, part, id, message_id, generation, role, kind, ts, ts_origin, content,
    content_hash, copy_key, project, branch, tool, call_id, native_id, model, is_error,
    is_damaged, redactions, on_active_branch
)
select distinct on (recall.retracted_id(s.id, s.content_hash))
    s.session_key, s.ordinal, s.part, recall.retracted_id(s.id, s.content_hash), s.id,
    %(generation)s, s.role, s.kind, s.ts, s.ts_origin, s.content, s.content_hash, s.copy_key,
    s.project, s.branch, s.tool, s.call_id, s.native_id, s.model, s.is_error, s.is_damaged,
    s.redactions, s.on_active_branch
from pg_temp.stage_taken_back s
where not exists (
    select from recall.message m
    where m.session_key = s.session_key and m.content_hash = s.content_hash
        and m.role = s.role and m.kind = s.kind
        and (m.ordinal = s.ordinal and m.part = s.part
            or m.native_id = s.native_id and m.ts is not distinct from s.ts)
)
on conflict (id) do nothing
returning id, message_id, content_hash

-- name: index_taken_back
-- Make the search vectors of what was taken back.
insert into recall.message_text (
    id, chunk, ts, source, host, project, role, kind, tool, session_key, retracted, tsv
)
select
    r.id, d.chunk, r.ts, split_part(r.session_key, ':', 1), split_part(r.session_key, ':', 2),
    r.project, r.role, r.kind, r.tool, r.session_key, true, recall.index_document(d.document)
from unnest(%(ids)b::bigint[], %(chunks)b::smallint[], %(documents)b::text[])
    d (id, chunk, document)
join recall.message_retracted r on r.id = d.id
on conflict (id, chunk) do nothing

-- name: mark_dirty_messages
-- Sessions of which messages were written: their passages are to be made again from there on.
select recall.mark_dirty(
    array_agg(c.session_key), array_agg(c.ordinal), array_agg(c.entries), array_agg(c.ts)
)
from (
    select s.session_key, min(s.ordinal) as ordinal, count(*) as entries, max(s.ts) as ts
    from pg_temp.stage_changed w
    join pg_temp.stage_key s on s.id = w.id
    group by s.session_key
) c
having count(*) > 0

-- name: mark_dirty
-- Sessions or notes that changed in another way.
select recall.mark_dirty(
    %(keys)s::text[], %(ordinals)s::bigint[], %(counts)s::bigint[], %(times)s::timestamptz[]
)

-- name: find_new_notes
-- Which versions of notes are new, or are current again.
insert into pg_temp.stage_changed (id, piece, ordinal, old_id, rewritten)
select distinct on (s.id) s.id, s.piece, s.ordinal, null, false
from unnest(%(ids)s::bigint[], %(pieces)s::integer[], %(ordinals)s::bigint[])
    s (id, piece, ordinal)
where not exists (select from recall.note n where n.id = s.id and n.is_current)
on conflict (id) do nothing

-- name: upsert_note
-- One version of a note, which is the current one.
insert into recall.note (
    id, shelf, source, host, path, entry_key, ordinal, session_id, project, title, ts, content,
    content_hash, fields
) values (
    %(id)s, %(shelf)s, %(source)s, %(host)s, %(path)s, %(entry_key)s, %(ordinal)s, %(session_id)s,
    %(project)s, %(title)s, %(ts)s, %(content)s, %(content_hash)s, %(fields)s
)
on conflict (id) do update set
    ordinal = excluded.ordinal, session_id = excluded.session_id, project = excluded.project,
    title = excluded.title, ts = excluded.ts, fields = excluded.fields, is_current = true,
    replaced_at = null

-- name: replace_notes
-- Earlier versions of the entries that came, and entries in a range that was read again whole and did
-- not come: they are kept, and current no more.
with replaced as (
    update recall.note n set is_current = false, replaced_at = now()
    where n.host = %(host)s and n.path = %(path)s and n.is_current
        and n.id <> all(%(ids)s::bigint[])
        and (
            n.entry_key = any(%(entry_keys)s::text[])
            or %(first)s::bigint is not null and n.ordinal >= %(first)s::bigint
                and (%(last)s::bigint is null or n.ordinal < %(last)s::bigint)
        )
    returning n.id
)
update recall.message_text t set retracted = true from replaced r where t.id = r.id
returning t.id

-- name: index_notes
-- Make the search vectors of documents of notes.
insert into recall.message_text (
    id, chunk, ts, source, host, project, role, kind, tool, session_key, retracted, tsv
)
select
    n.id, d.chunk, n.ts, n.source, n.host, n.project, 'assistant', n.shelf, null, null, false,
    recall.index_document(d.document)
from unnest(%(ids)b::bigint[], %(chunks)b::smallint[], %(documents)b::text[])
    d (id, chunk, document)
join recall.note n on n.id = d.id
on conflict (id, chunk) do update set
    retracted = false, ts = excluded.ts, project = excluded.project, tsv = excluded.tsv

-- name: drop_raw_segments
-- Original bytes that come again, from an offset on.
delete from recall.raw_segment
where host = %(host)s and path = %(path)s and generation = %(generation)s
    and byte_offset >= %(byte_offset)s
returning hash

-- name: known_blobs
-- Which original bytes are in the store.
select hash from recall.raw_blob where hash = any(%(hashes)b::bytea[])

-- name: insert_blobs
-- Keep original bytes that are not in the store.
insert into recall.raw_blob (hash, byte_length, codec, data)
select hash, byte_length, codec, data
from unnest(
    %(hashes)b::bytea[], %(lengths)b::integer[], %(codecs)s::text[], %(data)b::bytea[]
) b (hash, byte_length, codec, data)
on conflict (hash) do nothing

-- name: upsert_raw_segments
-- Where original bytes stand.
insert into recall.raw_segment (
    host, path, source, generation, byte_offset, byte_length, hash, unfinished
)
select %(host)s, path, source, generation, byte_offset, byte_length, hash, unfinished
from unnest(
    %(paths)s::text[], %(sources)s::text[], %(generations)s::integer[], %(offsets)s::bigint[],
    %(lengths)s::integer[], %(hashes)b::bytea[], %(unfinished)s::boolean[]
) s (path, source, generation, byte_offset, byte_length, hash, unfinished)
on conflict (host, path, generation, byte_offset) do update set
    byte_length = excluded.byte_length, hash = excluded.hash, unfinished = excluded.unfinished,
    stored_at = now()

-- name: supersede_raw
-- The bytes of the generation before, if all that stood in them stands in the new one.
delete from recall.raw_segment s
where s.host = %(host)s and s.path = %(path)s and s.generation = %(generation)s - 1
    and not exists (
        select from recall.message_retracted r
        where r.session_key = %(session_key)s and r.generation = %(generation)s
    )
    and not exists (
        select from recall.quarantine q
        where q.host = s.host and q.path = s.path and q.generation = s.generation
    )
returning hash

-- name: raw_spans
-- What is kept of the original bytes of a path.
select byte_offset, byte_length, hash
from recall.raw_segment
where host = %(host)s and path = %(path)s and generation = %(generation)s
order by byte_offset

-- name: drop_blobs
-- Those of some original bytes that nothing points to any more.
select recall.drop_unused_blobs(%(hashes)s::bytea[])

-- name: stored_lines
-- Lines of each piece that brought something new.
select piece, count(distinct ordinal), count(*) from pg_temp.stage_changed group by piece

-- name: upsert_quarantine
-- A span that could not be read; the same span of the same generation is one entry.
insert into recall.quarantine (
    host, path, generation, byte_offset, byte_length, ordinal, source, session_key, reason,
    sha256, raw, salvaged
) values (
    %(host)s, %(path)s, %(generation)s, %(byte_offset)s, %(byte_length)s, %(ordinal)s,
    %(source)s, %(session_key)s, %(reason)s, %(sha256)s, %(raw)s, %(salvaged)s
)
on conflict (host, path, generation, byte_offset) do update set
    byte_length = excluded.byte_length, reason = excluded.reason, sha256 = excluded.sha256,
    raw = excluded.raw, salvaged = excluded.salvaged

-- name: upsert_checkpoint
-- How far a file was read; written last, in the transaction that stored its rows.
insert into recall.ingest_state (
    host, path, source, session_key, size, mtime_ns, ctime_ns, inode, byte_offset, lines,
    head_hash, tail_hash, generation, rereading, parser_state, lines_seen, lines_stored,
    lines_merged, lines_quarantined, lines_skipped, skip_reasons, source_missing_at, unreadable,
    described, container, raw_bytes, unfinished_length, unfinished_hash
) values (
    %(host)s, %(path)s, %(source)s, %(session_key)s, %(size)s, %(mtime_ns)s, %(ctime_ns)s,
    %(inode)s, %(byte_offset)s, %(lines)s, %(head_hash)s, %(tail_hash)s, %(generation)s,
    %(rereading)s, %(parser_state)s, %(lines_seen)s, %(lines_stored)s, %(lines_merged)s,
    %(lines_quarantined)s, %(lines_skipped)s, %(skip_reasons)s, null, %(unreadable)s,
    %(described)s, %(container)s, %(raw_bytes)s, %(unfinished_length)s, %(unfinished_hash)s
)
on conflict (host, path) do update set
    source = excluded.source, session_key = excluded.session_key, size = excluded.size,
    mtime_ns = excluded.mtime_ns, ctime_ns = excluded.ctime_ns, inode = excluded.inode,
    byte_offset = excluded.byte_offset, lines = excluded.lines, head_hash = excluded.head_hash,
    tail_hash = excluded.tail_hash, generation = excluded.generation,
    rereading = excluded.rereading, parser_state = excluded.parser_state,
    lines_seen = excluded.lines_seen, lines_stored = excluded.lines_stored,
    lines_merged = excluded.lines_merged, lines_quarantined = excluded.lines_quarantined,
    lines_skipped = excluded.lines_skipped, skip_reasons = excluded.skip_reasons,
    source_missing_at = null, unreadable = excluded.unreadable,
    described = excluded.described, container = excluded.container, raw_bytes = excluded.raw_bytes,
    unfinished_length = excluded.unfinished_length, unfinished_hash = excluded.unfinished_hash,
    read_at = now()

-- name: checkpoints
-- Every file of a host.
select
    path, source, session_key, size, mtime_ns, ctime_ns, inode, byte_offset, lines, head_hash,
    tail_hash, generation, rereading, parser_state, lines_seen, lines_stored, lines_merged,
    lines_quarantined, lines_skipped, skip_reasons, source_missing_at is not null, unreadable,
    described, container, raw_bytes, unfinished_length, unfinished_hash
from recall.ingest_state
where host = %(host)s

-- name: mark_missing
-- The file is gone; what was read from it stays.
update recall.ingest_state set source_missing_at = now()
where host = %(host)s and path = any(%(paths)s) and source_missing_at is null

-- name: mark_present
-- A file that was gone is there again, unchanged.
update recall.ingest_state set source_missing_at = null
where host = %(host)s and path = any(%(paths)s) and source_missing_at is not null

-- name: mark_unreadable
-- A file or folder that could not be read this time; everything known about it stays.
insert into recall.ingest_state (
    host, path, source, size, mtime_ns, ctime_ns, inode, byte_offset, lines, head_hash, tail_hash,
    generation, rereading, lines_seen, lines_stored, lines_merged, lines_quarantined,
    lines_skipped, skip_reasons, unreadable
) values (
    %(host)s, %(path)s, %(source)s, 0, 0, 0, 0, 0, 0, %(empty)s, %(empty)s, 1, false,
    0, 0, 0, 0, 0, '{}', %(reason)s
)
on conflict (host, path) do update set unreadable = excluded.unreadable, read_at = now()

-- name: clear_folder
-- A folder that can be read again has no row of its own.
delete from recall.ingest_state
where host = %(host)s and path = any(%(paths)s) and size = 0 and lines_seen = 0
    and session_key is null

-- name: link_copies
-- Sessions that begin with another session's messages and name no parent.
select recall.link_copies(%(session_keys)s)

-- name: is_empty
-- Whether nothing is stored yet.
select not exists (select from recall.message_text)

-- name: has_text_index
-- Asked first, because `create index if not exists` takes the lock of a build in any case, and a
-- vacuum of the table would have to give way to each pass.
select to_regclass('recall.message_text_tsv') is not null

-- name: drop_text_index
-- Before a first large pass: building the index once is a third of the work of keeping it.
drop index if exists recall.message_text_tsv

-- name: build_text_index
-- The text index, where it is not there: after such a pass, or after one that did not reach its end.
create index if not exists message_text_tsv on recall.message_text using gin (tsv)
    with (fastupdate = on)

-- name: clean_pending
-- Merge the pending list of the text index, so that searches do not read it.
select gin_clean_pending_list('recall.message_text_tsv')

-- name: register_host
-- This machine, once; another installation under the same name is refused by the caller.
insert into recall.host (host, install_id) values (%(host)s, %(install_id)s)
on conflict (host) do update set host = excluded.host
returning install_id::text

-- name: beat
-- The ingester is alive, and what its last pass did.
insert into recall.worker_heartbeat (component, host, pid, detail)
values ('ingester', %(host)s, %(pid)s, %(detail)s)
on conflict (component, instance) do update set
    host = excluded.host, beat_at = now(), detail = excluded.detail,
    started_at = case when recall.worker_heartbeat.pid = excluded.pid
        then recall.worker_heartbeat.started_at else now() end,
    pid = excluded.pid
