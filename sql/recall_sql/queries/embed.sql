-- Statements of the embedder. Each is a transaction of its own: nothing is held while texts are cut
-- or the model runs.

-- name: generations
-- What is to be filled: the active generation first.
select g.number, g.model, g.dimension, g.pooling, g.max_tokens, g.overlap_tokens, g.kinds, g.state
from recall.embedding_generation g
where g.state <> 'retired'
order by g.state = 'active' desc, g.number

-- name: create_generation
-- A new one; it is active at once where there is none.
select recall.create_embedding_generation(
    %(model)s::text, %(dimension)s::integer, %(pooling)s::text, %(max_tokens)s::integer,
    %(overlap_tokens)s::integer, %(kinds)s::text[]
)

-- name: create_first_generation
-- The generation of a fresh store; null where another process was faster.
select recall.create_first_generation(
    %(model)s::text, %(dimension)s::integer, %(pooling)s::text, %(max_tokens)s::integer,
    %(overlap_tokens)s::integer, %(kinds)s::text[]
)

-- name: activate_generation
-- A filled generation takes the place of the active one.
select recall.activate_embedding_generation(%(number)s::integer)

-- name: drop_generation
-- Delete a generation that is not active.
select recall.drop_embedding_generation(%(number)s::integer)

-- name: refresh_signs
-- The second vector index of a generation that outgrew it, made again; null where there is none.
select recall.refresh_signs()

-- name: retired_generations
-- Generations whose vectors nobody compares with any more.
select g.number from recall.embedding_generation g where g.state = 'retired' order by g.number

-- name: is_filled
-- Whether nothing waits for a generation but what failed for good.
select not exists (
    select from recall.embed_dirty d
    where d.generation = %(number)s and d.attempts < %(most_cuts)s
) and not exists (
    select from recall.embed_queue q where q.generation = %(number)s and q.failed_at is null
)

-- name: tell_workers
-- Wake the embedders.
select pg_notify('recall_embed', '')

-- name: listen
-- Be woken.
listen recall_embed

-- name: waiting
-- How many passages wait in each generation.
select g.number, (
    select count(*) from recall.embed_queue q
    where q.generation = g.number and q.failed_at is null
)
from recall.embedding_generation g
where g.state <> 'retired'

-- name: queue_is_full
-- Whether so many passages wait that no more need to be cut now.
select count(*) >= %(rows)s::bigint from (
    select from recall.embed_queue q
    where q.generation = %(generation)s and q.failed_at is null
    limit %(rows)s
) waiting

-- name: claim_dirty
-- The newest session or note that is to be cut, for a while.
with picked as (
    select d.generation, d.key
    from recall.embed_dirty d
    where d.generation = %(generation)s and d.attempts < %(most)s
        and (d.leased_until is null or d.leased_until < clock_timestamp())
    order by d.attempts, d.newest desc nulls last
    limit 1
    for update skip locked
)
update recall.embed_dirty d
set lease = %(lease)s, attempts = d.attempts + 1,
    leased_until = clock_timestamp() + make_interval(secs => %(seconds)s)
from picked p
where d.generation = p.generation and d.key = p.key
returning d.key, d.from_ordinal, d.version

-- name: release_dirty
-- Give a session back that changed while it was cut, or that there was no time for.
update recall.embed_dirty d
set lease = null, leased_until = null, attempts = greatest(d.attempts - 1, 0)
where d.generation = %(generation)s and d.key = %(key)s and d.lease = %(lease)s

-- name: fail_dirty
-- A session that cannot be cut costs itself only; it is tried again after a while.
update recall.embed_dirty d
set lease = null, error = %(error)s,
    leased_until = clock_timestamp() + make_interval(secs => %(pause)s)
where d.generation = %(generation)s and d.key = %(key)s and d.lease = %(lease)s

-- name: cut_from
-- The first entry of the document in which an ordinal stands: the user's text before it, or the floor.
select coalesce((
    select m.ordinal
    from recall.message m
    where m.session_key = %(key)s and m.ordinal >= %(floor)s and m.ordinal < %(from_ordinal)s
        and m.role = 'user' and m.kind = 'text' and m.kind = any(%(kinds)s::text[])
        and not exists (
            select from recall.message o
            where o.session_key = m.session_key and o.ordinal = m.ordinal and o.part < m.part
                and o.kind = any(%(kinds)s::text[])
        )
    order by m.ordinal desc
    limit 1
), %(floor)s)

-- name: read_entries
-- Entries of a session that are embedded, from a place on: some rows, and not too many characters.
select e.id, e.ordinal, e.part, e.project, e.role, e.kind, e.ts, e.content
from (
    select
        m.id, m.ordinal, m.part, m.project, m.role, m.kind, m.ts, m.content,
        sum(length(m.content)) over (order by m.ordinal, m.part) - length(m.content) as before
    from (
        select
            m.id, m.ordinal, m.part, m.project, m.role, m.kind, m.ts,
            left(m.content, %(entry_chars)s) as content
        from recall.message m
        where m.session_key = %(key)s and m.kind = any(%(kinds)s::text[])
            and (m.ordinal, m.part) > (%(ordinal)s::bigint, %(part)s::integer)
        order by m.ordinal, m.part
        limit %(rows)s
    ) m
) e
where e.before < %(chars)s
order by e.ordinal, e.part

-- name: read_title
-- A title that was given to a session and that no entry of it holds.
select first.id, s.project, first.ts, s.title
from recall.session s
cross join lateral (
    select m.id, m.ts from recall.message m
    where m.session_key = s.session_key
    order by m.ordinal, m.part
    limit 1
) first
where s.session_key = %(key)s and s.title <> '' and s.title_rank > %(prompt_rank)s
    and not exists (
        select from recall.message m
        where m.session_key = s.session_key and m.kind = 'summary' and m.content = s.title
    )

-- name: read_note
-- A note, as an entry; none where another version stands in its place.
select
    n.id, n.source, n.host, n.project, n.shelf, n.ts,
    left(recall.note_text(n.title, n.content), %(entry_chars)s)
from recall.note n
where n.id = %(id)s and n.is_current and n.shelf = any(%(kinds)s::text[])

-- name: replace_passages
-- Store what was cut, if the session is still as it was; whether it is.
select recall.replace_passages(
    %(generation)s::integer, %(key)s::text, %(lease)s::uuid, %(version)s::bigint,
    %(first_ordinal)s::bigint, %(before_ordinal)s::bigint, %(then_from)s::bigint,
    %(entries_read)s::bigint, %(wanted)s::jsonb
)

-- name: claim_passages
-- The newest passages that were never tried and whose text nobody else is embedding just now, with the
-- vector of their text if it is stored already.
with picked as (
    select q.generation, q.id
    from recall.embed_queue q
    where q.generation = %(generation)s and q.attempts = 0
        and not exists (
            select from recall.embed_queue t
            where t.generation = q.generation and t.text_hash = q.text_hash and t.id <> q.id
                and t.lease is not null and t.leased_until >= clock_timestamp()
        )
    order by q.ts desc nulls last, q.id
    limit %(rows)s
    for update skip locked
)
update recall.embed_queue q
set lease = %(lease)s, attempts = 1,
    leased_until = clock_timestamp() + make_interval(secs => %(seconds)s)
from picked p
where q.generation = p.generation and q.id = p.id
returning q.id, q.text_hash, q.tokens, q.passage, q.attempts, (
    select r.v::text from recall.passage r
    where r.generation = q.generation and r.is_representative and r.text_hash = q.text_hash
)

-- name: claim_again
-- One passage that was tried before: whoever worked on it failed or was not heard of again. After too
-- many tries it has failed for good.
with due as (
    select q.generation, q.id, q.attempts
    from recall.embed_queue q
    where q.generation = %(generation)s and q.attempts > 0 and q.failed_at is null
        and (q.leased_until is null or q.leased_until < clock_timestamp())
    order by q.leased_until nulls first, q.id
    limit 1
    for update skip locked
)
update recall.embed_queue q
set attempts = case when d.attempts < %(most)s then q.attempts + 1 else q.attempts end,
    lease = case when d.attempts < %(most)s then %(lease)s::uuid end,
    leased_until = case when d.attempts < %(most)s
        then clock_timestamp() + make_interval(secs => %(seconds)s) end,
    failed_at = case when d.attempts >= %(most)s then clock_timestamp() end,
    error = case when d.attempts >= %(most)s
        then coalesce(q.error, 'the embedder ended each time it worked on this passage')
        else q.error end
from due d
where q.generation = d.generation and q.id = d.id
returning q.id, q.text_hash, q.tokens, q.passage, q.attempts, (
    select r.v::text from recall.passage r
    where r.generation = q.generation and r.is_representative and r.text_hash = q.text_hash
), q.failed_at is not null

-- name: store_passages
-- Store vectors; rows that are not leased to the caller any more are left alone.
select recall.store_passages(
    %(generation)s::integer, %(lease)s::uuid, %(ids)s::bigint[], %(hashes)s::bytea[],
    %(vectors)s::text[]
)

-- name: release_passages
-- Give passages back that were not tried.
update recall.embed_queue q
set lease = null, leased_until = null, attempts = q.attempts - 1
where q.generation = %(generation)s and q.id = any(%(ids)s::bigint[]) and q.lease = %(lease)s

-- name: extend
-- Hold on to passages that are not embedded yet.
update recall.embed_queue q
set leased_until = clock_timestamp() + make_interval(secs => %(seconds)s)
where q.generation = %(generation)s and q.id = any(%(ids)s::bigint[]) and q.lease = %(lease)s

-- name: fail_passage
-- A passage that failed alone: later again, or never. The reason has no content.
update recall.embed_queue q
set lease = null, error = %(error)s,
    leased_until = clock_timestamp() + make_interval(secs => %(pause)s),
    failed_at = case when q.attempts >= %(most)s then clock_timestamp() end
where q.generation = %(generation)s and q.id = %(id)s and q.lease = %(lease)s
returning q.failed_at is not null

-- name: beat
-- This embedder is alive, and what it did.
insert into recall.worker_heartbeat (component, instance, host, pid, detail)
values ('embedder', %(instance)s, %(host)s, %(pid)s, %(detail)s)
on conflict (component, instance) do update set
    host = excluded.host, pid = excluded.pid, beat_at = now(), detail = excluded.detail

-- name: stop_beating
-- An embedder that ended in order is not missed.
delete from recall.worker_heartbeat where component = 'embedder' and instance = %(instance)s

-- name: forget_instances
-- Embedders that were not heard of for long: they were killed, and others took their place.
delete from recall.worker_heartbeat
where component = 'embedder' and beat_at < clock_timestamp() - make_interval(
    secs => case when host = %(host)s then %(here_seconds)s else %(seconds)s end
)

-- name: forget_host
-- No embedder is to run on this machine.
delete from recall.worker_heartbeat where component = 'embedder' and host = %(host)s

-- name: running_embedders
-- How many embedders were heard of lately that have the model of a generation.
select count(*) from recall.worker_heartbeat h
where h.component = 'embedder'
    and h.beat_at >= clock_timestamp() - make_interval(secs => %(seconds)s)
    and not coalesce(h.detail -> 'unfilled' @> to_jsonb(%(number)s::integer), false)

-- name: problems
-- Why embedders that are heard of give no vectors.
select distinct h.detail ->> 'problem', h.detail ->> 'hint'
from recall.worker_heartbeat h
where h.component = 'embedder' and h.detail ->> 'problem' is not null
    and h.beat_at > clock_timestamp() - interval '3 minutes'
