-- The embedder: leases on what is being cut, the place of a passage in its session, the functions that
-- store what was cut and what was embedded, and signs of life of several processes of one kind.

alter table recall.embed_dirty add column lease uuid, add column leased_until timestamptz;

-- `ordinal` is that of the entry, so that the passages of a part of a session are found without it;
-- -1 is the title of the session, which no message holds.
alter table recall.embed_queue add column ordinal bigint not null default 0;
alter table recall.passage add column ordinal bigint not null default 0;
drop index recall.embed_queue_session;
create index embed_queue_session on recall.embed_queue (session_key, ordinal);
drop index recall.passage_session;
create index passage_session on recall.passage (session_key, ordinal);

-- Rows that were never tried are claimed in bulk, newest first; the others one by one.
drop index recall.embed_queue_order;
create index embed_queue_order on recall.embed_queue (generation, ts desc nulls last, id)
    where attempts = 0;
create index embed_queue_again on recall.embed_queue (generation, leased_until)
    where attempts > 0 and failed_at is null;
create index embed_queue_text on recall.embed_queue (generation, text_hash);
-- Of a text that waits ten thousand times, whether one is being embedded is one look.
create index embed_queue_leased on recall.embed_queue (generation, text_hash)
    where lease is not null;
-- Each row is written three times in its life: dead rows go before they slow the claims down.
alter table recall.embed_queue set (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000
);
alter table recall.embed_dirty set (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000
);

-- Several processes of one component, told apart by `instance`.
alter table recall.worker_heartbeat add column instance text not null default '';
alter table recall.worker_heartbeat drop constraint worker_heartbeat_pkey;
alter table recall.worker_heartbeat add primary key (component, instance);

-- What changed in sessions is dirty for every generation that is in use; whoever cuts passages is told.
-- A generation that is just being made is waited for, and whoever makes one waits for the transactions
-- that came here before: what they store is seen by one of both.
create or replace function recall.mark_dirty(
    keys text[], ordinals bigint[], counts bigint[], times timestamptz[]
) returns void language sql as $$
    select pg_advisory_xact_lock_shared(7883960468427862125);
    insert into recall.embed_dirty as d (generation, key, from_ordinal, entries, newest)
    select g.number, c.key, min(c.ordinal), sum(c.entries), max(c.ts)
    from unnest(keys, ordinals, counts, times) c (key, ordinal, entries, ts)
    cross join recall.embedding_generation g
    where g.state <> 'retired'
    group by g.number, c.key
    order by g.number, c.key
    on conflict (generation, key) do update set
        from_ordinal = least(d.from_ordinal, excluded.from_ordinal),
        entries = d.entries + excluded.entries, newest = greatest(d.newest, excluded.newest),
        version = d.version + 1, attempts = 0, error = null, changed_at = now();
    select pg_notify('recall_embed', '')
    where exists (select from recall.embedding_generation g where g.state <> 'retired');
$$;

-- A title that stands in no message is a passage of its own.
create function recall.mark_title() returns trigger language plpgsql as $$
begin
    perform recall.mark_dirty(
        array[new.session_key], array[9223372036854775807], array[1::bigint], array[new.ended_at]
    );
    return null;
end
$$;
create trigger mark_title after update of title on recall.session
    for each row when (old.title is distinct from new.title)
    execute function recall.mark_title();

-- The generation of a fresh store; null where there is an active one, made perhaps a moment ago.
create function recall.create_first_generation(
    model text, dimension integer, pooling text, max_tokens integer, overlap_tokens integer,
    kinds text[]
) returns integer language plpgsql as $$
begin
    perform pg_advisory_xact_lock(7883960468427862125);
    if exists (select from recall.embedding_generation g where g.state = 'active') then
        return null;
    end if;
    return recall.create_embedding_generation(
        model, dimension, pooling, max_tokens, overlap_tokens, kinds
    );
end
$$;

-- Delete a generation that is not active, with everything that waits for it. What waits goes first:
-- whoever is storing passages holds a row of it, and is waited for.
create or replace function recall.drop_embedding_generation(unwanted integer) returns void
language plpgsql as $$
begin
    perform pg_advisory_xact_lock(7883960468427862125);
    delete from recall.embedding_generation where number = unwanted and state <> 'active';
    if not found then
        raise exception 'embedding generation % is active or not there', unwanted;
    end if;
    delete from recall.embed_dirty where generation = unwanted;
    delete from recall.embed_queue where generation = unwanted;
    execute format('drop table if exists recall.passage_%s', unwanted);
end
$$;

-- Of the passages with these texts, one of each text is to be the representative, and it is to say
-- whether there are others. The representatives stay locked until the transaction ends, so that no
-- copy is added behind the back of whoever deletes the last one.
create function recall.settle_representatives(which integer, hashes bytea[]) returns void
language plpgsql as $$
begin
    loop
        perform 1 from recall.passage r
        where r.generation = which and r.is_representative and r.text_hash = any(hashes)
        order by r.text_hash
        for no key update;
        -- One that another transaction deletes at the same time cannot be promoted; then the next.
        update recall.passage p set is_representative = true
        from (
            select distinct on (c.text_hash) c.id
            from recall.passage c
            where c.generation = which and c.text_hash = any(hashes)
                and not exists (
                    select from recall.passage r
                    where r.generation = which and r.is_representative
                        and r.text_hash = c.text_hash
                )
            order by c.text_hash, c.ts desc nulls last, c.id
        ) next
        where p.generation = which and p.id = next.id;
        exit when not found;
    end loop;
    update recall.passage r set has_copies = not r.has_copies
    where r.generation = which and r.is_representative and r.text_hash = any(hashes)
        and r.has_copies <> exists (
            select from recall.passage c
            where c.generation = which and c.text_hash = r.text_hash and not c.is_representative
        );
end
$$;

-- Store passages whose text is stored already, with the vector of that text; which were stored.
-- The caller asks again for those that were not: their representative has just been deleted.
create function recall.copy_passages(which integer, waiting recall.embed_queue[])
returns bigint[] language plpgsql as $$
declare
    hashes bytea[] := (select array_agg(distinct w.text_hash) from unnest(waiting) w);
    stored bigint[];
begin
    perform 1 from recall.passage r
    where r.generation = which and r.is_representative and r.text_hash = any(hashes)
    order by r.text_hash
    for no key update;
    with copied as (
        insert into recall.passage (
            generation, id, entry_id, session_key, ordinal, source, host, project, role, kind, ts,
            start_char, length, text_hash, is_representative, v
        )
        select
            which, w.id, w.entry_id, w.session_key, w.ordinal, w.source, w.host, w.project, w.role,
            w.kind, w.ts, w.start_char, w.length, w.text_hash, false, r.v
        from unnest(waiting) w
        join recall.passage r
            on r.generation = which and r.is_representative and r.text_hash = w.text_hash
        order by w.text_hash, w.id
        on conflict do nothing
        returning id, text_hash
    ), told as (
        update recall.passage r set has_copies = true
        from (select distinct c.text_hash from copied c) c
        where r.generation = which and r.is_representative and r.text_hash = c.text_hash
            and not r.has_copies
    )
    select array_agg(c.id) into stored from copied c;
    return coalesce(stored, '{}');
end
$$;

-- Store the vectors of texts for those rows of the queue that are still leased to the caller, and for
-- what else waits with the same texts; how many passages were stored.
create function recall.store_passages(
    which integer, held uuid, ids bigint[], hashes bytea[], vectors text[]
) returns bigint language plpgsql as $$
declare
    taken recall.embed_queue[];
    twins recall.embed_queue[];
    waiting recall.embed_queue[];
    stored bigint[];
begin
    perform 1 from recall.embed_queue q
    where q.generation = which and q.id = any(ids) and q.lease = held
    order by q.id
    for update;
    with mine as (
        delete from recall.embed_queue q
        where q.generation = which and q.id = any(ids) and q.lease = held
            and q.text_hash = any(hashes)
        returning q as row
    )
    select array_agg(m.row) into taken from mine m;
    if taken is null then
        return 0;
    end if;
    with free as (
        select q.id from recall.embed_queue q
        where q.generation = which
            and q.text_hash = any(select t.text_hash from unnest(taken) t)
            and (q.lease is null or q.leased_until < clock_timestamp())
        order by q.id
        limit 1000
        for update skip locked
    ), gone as (
        delete from recall.embed_queue q using free f
        where q.generation = which and q.id = f.id
        returning q as row
    )
    select array_agg(g.row) into twins from gone g;
    taken := taken || coalesce(twins, '{}');
    waiting := taken;
    while waiting is not null loop
        insert into recall.passage (
            generation, id, entry_id, session_key, ordinal, source, host, project, role, kind, ts,
            start_char, length, text_hash, is_representative, v
        )
        select
            which, w.id, w.entry_id, w.session_key, w.ordinal, w.source, w.host, w.project, w.role,
            w.kind, w.ts, w.start_char, w.length, w.text_hash, true, g.vector::recall.halfvec
        from unnest(waiting) w
        join unnest(hashes, vectors) g (text_hash, vector) on g.text_hash = w.text_hash
        order by w.text_hash, w.ts desc nulls last, w.id
        on conflict do nothing;
        select array_agg(w) into waiting from unnest(waiting) w
        where not exists (
            select from recall.passage p where p.generation = which and p.id = w.id
        );
        exit when waiting is null;
        stored := recall.copy_passages(which, waiting);
        select array_agg(w) into waiting from unnest(waiting) w where w.id <> all(stored);
    end loop;
    return cardinality(taken);
end
$$;

-- Put the wanted passages of a stretch of a session (or of a note) in the place of those that are
-- there: from an ordinal to before another one, or to the end. Nothing happens and the answer is
-- false if the key is not leased to the caller any more or changed since. `then_from` is where the
-- caller goes on; null says that the key is done.
create function recall.replace_passages(
    which integer, dirty_key text, held uuid, seen_version bigint, first_ordinal bigint,
    before_ordinal bigint, then_from bigint, entries_read bigint, wanted jsonb
) returns boolean language plpgsql as $$
declare
    is_note boolean := dirty_key ~ '^note:[0-9]+$';
    note_id bigint := case when dirty_key ~ '^note:[0-9]+$' then substr(dirty_key, 6)::bigint end;
    given recall.embed_queue[];
    stored_ids bigint[];
    queued_ids bigint[];
    given_ids bigint[];
    fresh recall.embed_queue[];
    copied bigint[];
    touched bytea[];
begin
    perform 1 from recall.embed_dirty d
    where d.generation = which and d.key = dirty_key and d.lease = held
        and d.version = seen_version
    for update;
    if not found then
        return false;
    end if;
    select array_agg(w), coalesce(array_agg(w.id), '{}') into given, given_ids
    from jsonb_populate_recordset(null::recall.embed_queue, wanted) w;
    -- First the rows that wait, and locked: whoever is just storing some of them is waited for, and then
    -- seen among those that are stored.
    with locked as (
        select q.id from recall.embed_queue q
        where q.generation = which and (
            is_note and q.entry_id = note_id and q.session_key is null
            or not is_note and q.session_key = dirty_key and q.ordinal >= first_ordinal
                and (before_ordinal is null or q.ordinal < before_ordinal)
        )
        order by q.id
        for update
    )
    select coalesce(array_agg(l.id), '{}') into queued_ids from locked l;
    select coalesce(array_agg(p.id), '{}') into stored_ids from recall.passage p
    where p.generation = which and (
        is_note and p.entry_id = note_id and p.session_key is null
        or not is_note and p.session_key = dirty_key and p.ordinal >= first_ordinal
            and (before_ordinal is null or p.ordinal < before_ordinal)
    );
    -- Before anything is deleted: a text that only moved keeps its vector.
    select array_agg(w) into fresh from unnest(given) w
    where w.id <> all(stored_ids) and w.id <> all(queued_ids);
    if fresh is not null then
        copied := recall.copy_passages(which, fresh);
        insert into recall.embed_queue (
            generation, id, entry_id, session_key, ordinal, source, host, project, role, kind, ts,
            start_char, length, tokens, text_hash, passage
        )
        select
            which, f.id, f.entry_id, f.session_key, f.ordinal, f.source, f.host, f.project, f.role,
            f.kind, f.ts, f.start_char, f.length, f.tokens, f.text_hash, f.passage
        from unnest(fresh) f
        where f.id <> all(copied)
        on conflict do nothing;
        if found then
            perform pg_notify('recall_embed', '');
        end if;
    end if;
    update recall.passage p
    set ts = w.ts, source = w.source, host = w.host, project = w.project, role = w.role,
        kind = w.kind, start_char = w.start_char, length = w.length
    from unnest(given) w
    where p.generation = which and p.id = w.id and w.id = any(stored_ids)
        and (p.ts, p.source, p.host, p.project, p.role, p.kind, p.start_char, p.length)
            is distinct from
            (w.ts, w.source, w.host, w.project, w.role, w.kind, w.start_char, w.length);
    update recall.embed_queue q
    set ts = w.ts, source = w.source, host = w.host, project = w.project, role = w.role,
        kind = w.kind, start_char = w.start_char, length = w.length
    from unnest(given) w
    where q.generation = which and q.id = w.id and w.id = any(queued_ids)
        and (q.ts, q.source, q.host, q.project, q.role, q.kind, q.start_char, q.length)
            is distinct from
            (w.ts, w.source, w.host, w.project, w.role, w.kind, w.start_char, w.length);
    delete from recall.embed_queue q
    where q.generation = which and q.id = any(queued_ids) and q.id <> all(given_ids);
    with gone as (
        delete from recall.passage p
        where p.generation = which and p.id = any(stored_ids) and p.id <> all(given_ids)
        returning p.text_hash
    )
    select array_agg(distinct g.text_hash) into touched from gone g;
    if touched is not null then
        perform recall.settle_representatives(which, touched);
    end if;
    if then_from is null then
        delete from recall.embed_dirty d where d.generation = which and d.key = dirty_key;
    else
        update recall.embed_dirty d
        set from_ordinal = then_from, entries = greatest(d.entries - entries_read, 0),
            attempts = case when then_from > d.from_ordinal then 1 else d.attempts end,
            leased_until = clock_timestamp() + interval '2 minutes'
        where d.generation = which and d.key = dirty_key;
    end if;
    return true;
end
$$;

-- Delete some passages of a source (of one host, or of all); how many.
create function recall.purge_passages(purged_source text, purged_host text, most integer)
returns bigint language plpgsql as $$
declare
    touched record;
    deleted bigint := 0;
begin
    for touched in
        with picked as (
            select p.generation, p.id from recall.passage p
            where p.source = purged_source and (purged_host is null or p.host = purged_host)
            limit most
        ), gone as (
            delete from recall.passage p using picked s
            where p.generation = s.generation and p.id = s.id
            returning p.generation, p.text_hash
        )
        select g.generation, count(*) as rows, array_agg(distinct g.text_hash) as hashes
        from gone g
        group by g.generation
    loop
        perform recall.settle_representatives(touched.generation, touched.hashes);
        deleted := deleted + touched.rows;
    end loop;
    return deleted;
end
$$;
