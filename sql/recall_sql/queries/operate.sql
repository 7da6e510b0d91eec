-- Statements of the operating commands: `recall up`, `recall purge`, `recall db`, `recall doctor`.

-- name: found_by_source
-- What one host has stored, by source.
with files as (
    select source, count(distinct coalesce(container, path)) as files
    from recall.ingest_state
    where host = %(host)s and source_missing_at is null
    group by source
), problems as (
    select source, count(*) as problems
    from recall.quarantine
    where host = %(host)s
    group by source
), sessions as (
    select source, count(*) as sessions
    from recall.session
    where host = %(host)s
    group by source
), messages as (
    select s.source, count(*) as messages
    from recall.message m
    join recall.session s using (session_key)
    where s.host = %(host)s
    group by s.source
), notes as (
    select source, count(*) as notes
    from recall.note
    where host = %(host)s and is_current
    group by source
)
select source,
    coalesce(files, 0) as files,
    coalesce(sessions, 0) as sessions,
    coalesce(messages, 0) as messages,
    coalesce(notes, 0) as notes,
    coalesce(problems, 0) as problems
from files
full join sessions using (source)
full join messages using (source)
full join notes using (source)
full join problems using (source)
order by source

-- name: has_real_sessions
-- Whether anything but the samples is stored, by whatever host.
select exists (select from recall.session where source <> 'sample')

-- name: recent_user_texts
-- What people wrote lately, newest first.
select m.content
from (
    select id, ts
    from recall.message_text
    where role = 'user' and kind = 'text' and chunk = 0 and not retracted
    order by ts desc nulls last, id desc
    limit 100
) newest
join recall.message m using (id)
order by newest.ts desc nulls last, newest.id desc

-- name: purge_counts
-- What a purge would delete; a null host means every host.
select
    (select count(*) from recall.session
        where source = %(source)s and (%(host)s::text is null or host = %(host)s)),
    (select count(*) from recall.message m join recall.session s using (session_key)
        where s.source = %(source)s and (%(host)s::text is null or s.host = %(host)s)),
    (select count(*) from recall.message_retracted m join recall.session s using (session_key)
        where s.source = %(source)s and (%(host)s::text is null or s.host = %(host)s)),
    (select count(*) from recall.prompt
        where source = %(source)s and (%(host)s::text is null or host = %(host)s)),
    (select count(*) from recall.note
        where source = %(source)s and (%(host)s::text is null or host = %(host)s)),
    (select count(*) from recall.message_text
        where source = %(source)s and (%(host)s::text is null or host = %(host)s)),
    (select count(*) from recall.passage
        where source = %(source)s and (%(host)s::text is null or host = %(host)s))
    + (select count(*) from recall.embed_queue
        where source = %(source)s and (%(host)s::text is null or host = %(host)s)),
    (select count(*) from recall.raw_segment
        where source = %(source)s and (%(host)s::text is null or host = %(host)s)),
    (select count(*) from recall.ingest_state
        where source = %(source)s and (%(host)s::text is null or host = %(host)s)),
    (select count(*) from recall.quarantine
        where source = %(source)s and (%(host)s::text is null or host = %(host)s))

-- name: stored_sources
-- The names of all sources that have anything stored.
select source from recall.session
union select source from recall.prompt
union select source from recall.note
union select source from recall.ingest_state
union select source from recall.raw_segment
order by source

-- name: purge_ingest_state
-- A batch of checkpoints. They go first: a purge that is killed then leads to reading again, never
-- to a checkpoint that claims what is not stored.
delete from recall.ingest_state where ctid = any(array(
    select ctid from recall.ingest_state
    where source = %(source)s and (%(host)s::text is null or host = %(host)s)
    limit %(rows)s
))

-- name: purge_quarantine
-- A batch of quarantined spans.
delete from recall.quarantine where ctid = any(array(
    select ctid from recall.quarantine
    where source = %(source)s and (%(host)s::text is null or host = %(host)s)
    limit %(rows)s
))

-- name: purge_message_text
-- A batch of rows of the text index, of messages, prompts and notes.
delete from recall.message_text where ctid = any(array(
    select ctid from recall.message_text
    where source = %(source)s and (%(host)s::text is null or host = %(host)s)
    limit %(rows)s
))

-- name: purge_embed_dirty
-- What is to be embedded again. It goes before the passages: whoever still cuts or embeds texts of the
-- source finds that its work is not wanted any more.
delete from recall.embed_dirty where ctid = any(array(
    select d.ctid from recall.embed_dirty d
    where exists (
        select from recall.session s
        where s.session_key = d.key and s.source = %(source)s
            and (%(host)s::text is null or s.host = %(host)s)
    ) or exists (
        select from recall.note n
        where n.id = case when d.key ~ '^note:[0-9]+$' then substr(d.key, 6)::bigint end
            and n.source = %(source)s and (%(host)s::text is null or n.host = %(host)s)
    )
    limit %(rows)s
))

-- name: purge_embed_queue
-- A batch of passages that wait for their vector.
delete from recall.embed_queue where ctid = any(array(
    select ctid from recall.embed_queue
    where source = %(source)s and (%(host)s::text is null or host = %(host)s)
    limit %(rows)s
))

-- name: purge_passage
-- A batch of passages; where a copy with the same text is left, it takes the place in the index.
select recall.purge_passages(%(source)s::text, %(host)s::text, %(rows)s::integer)

-- name: purge_prompt
-- A batch of prompts.
delete from recall.prompt where ctid = any(array(
    select ctid from recall.prompt
    where source = %(source)s and (%(host)s::text is null or host = %(host)s)
    limit %(rows)s
))

-- name: purge_note
-- A batch of notes, with their earlier texts.
delete from recall.note where ctid = any(array(
    select ctid from recall.note
    where source = %(source)s and (%(host)s::text is null or host = %(host)s)
    limit %(rows)s
))

-- name: purge_raw_segment
-- A batch of places of original bytes; the bytes that nothing points to any more follow at the end.
delete from recall.raw_segment where ctid = any(array(
    select ctid from recall.raw_segment
    where source = %(source)s and (%(host)s::text is null or host = %(host)s)
    limit %(rows)s
))

-- name: purge_blobs
-- The original bytes that nothing points to.
select recall.drop_unused_blobs(null)

-- name: purge_some_sessions
-- Some sessions whose messages go next.
select session_key from recall.session
where source = %(source)s and (%(host)s::text is null or host = %(host)s)
limit 100

-- name: purge_message
-- A batch of messages of some sessions.
delete from recall.message where ctid = any(array(
    select ctid from recall.message where session_key = any(%(keys)s) limit %(rows)s
))

-- name: purge_message_retracted
-- A batch of retracted messages of some sessions.
delete from recall.message_retracted where ctid = any(array(
    select ctid from recall.message_retracted where session_key = any(%(keys)s) limit %(rows)s
))

-- name: purge_session
-- Some sessions, after everything that belongs to them.
delete from recall.session where session_key = any(%(keys)s)

-- name: relation_sizes
-- Tables and indexes of the store, largest first.
select c.relname,
    case c.relkind when 'i' then 'index' else 'table' end,
    pg_relation_size(c.oid) + case
        when c.relkind = 'r' and c.reltoastrelid <> 0 then pg_total_relation_size(c.reltoastrelid)
        else 0
    end as bytes,
    case when c.relkind = 'r' then nullif(c.reltuples, -1)::bigint end
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'recall' and c.relkind in ('r', 'i', 'm')
order by bytes desc, c.relname

-- name: database_size
-- Everything, with what the system keeps for itself.
select pg_database_size(current_database())

-- name: checksums
-- Whether pages carry checksums, and how many of them did not match.
select current_setting('data_checksums'),
    coalesce((select sum(checksum_failures) from pg_stat_database), 0)::bigint

-- name: server_versions
-- PostgreSQL, and pgvector if it can be created here.
select current_setting('server_version'),
    (select default_version from pg_available_extensions where name = 'vector')

-- name: may_see_mounts
-- Whether this role may look where the data of the server is.
select current_setting('is_superuser')::boolean
    or pg_has_role('pg_read_server_files', 'usage')
    and pg_has_role('pg_read_all_settings', 'usage')
    and has_function_privilege('pg_read_file(text, boolean)', 'execute')

-- name: server_mounts
-- The data folder, and what the server process sees mounted; null where there is no such list.
select current_setting('data_directory'), pg_read_file('/proc/self/mountinfo', true)

-- name: has_role
-- Whether the server has a role.
select exists (select from pg_roles where rolname = %(name)s)

-- name: is_almighty
-- Whether a role may do what no service needs, also as a member of another one.
select coalesce(bool_or(
    r.rolsuper or r.rolcreaterole or r.rolcreatedb or r.rolreplication or r.rolbypassrls
    or exists (select from pg_auth_members m where m.member = r.oid)
), false)
from pg_roles r where r.rolname = %(name)s

-- name: allow_services
-- Give the roles of the services what they need.
call recall.allow_services()

-- name: forbid_temporary
-- Leave temporary objects to the owner.
call recall.forbid_temporary()
