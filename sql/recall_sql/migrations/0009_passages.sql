-- Passages: what a search by meaning compares. An embedding generation is one model with one way of
-- cutting texts; a new one is filled beside the active one and takes its place in one statement.

do $$
declare
    place text;
begin
    select n.nspname into place
    from pg_extension e join pg_namespace n on n.oid = e.extnamespace
    where e.extname = 'vector';
    if place is null then
        create extension vector schema recall;
    elsif place <> 'recall' then
        -- Types are named with their schema here, because functions have no search path.
        alter extension vector set schema recall;
    end if;
end
$$;

create table recall.embedding_generation (
    number integer primary key,
    model text not null,
    dimension integer not null check (dimension between 1 and 4000),
    pooling text not null,
    max_tokens integer not null,
    overlap_tokens integer not null,
    kinds text[] not null,
    state text not null check (state in ('filling', 'active', 'retired')),
    created_at timestamptz not null default now(),
    activated_at timestamptz
);
create unique index embedding_generation_active on recall.embedding_generation (state)
    where state = 'active';

-- Sessions and notes (`note:<id>`) whose passages are to be made again, from an ordinal on. Written in
-- the transaction that stores the messages. `version` tells whether more came while they were made.
create table recall.embed_dirty (
    generation integer not null,
    key text not null,
    from_ordinal bigint not null,
    entries bigint not null,
    newest timestamptz,
    version bigint not null default 1,
    attempts smallint not null default 0,
    error text,
    changed_at timestamptz not null default now(),
    primary key (generation, key)
);
create index embed_dirty_order on recall.embed_dirty (generation, attempts, newest desc nulls last);

-- Passages that wait for their vector, with their text: whoever embeds them reads nothing else. A row
-- is leased by the clock of the database, and goes when its passage is stored.
create table recall.embed_queue (
    generation integer not null,
    id bigint not null,
    entry_id bigint not null,
    session_key text,
    source text not null,
    host text not null,
    project text,
    role text not null,
    kind text not null,
    ts timestamptz,
    start_char integer not null,
    length integer not null,
    tokens integer not null,
    text_hash bytea not null,
    passage text not null,
    attempts smallint not null default 0,
    lease uuid,
    leased_until timestamptz,
    error text,
    failed_at timestamptz,
    queued_at timestamptz not null default now(),
    primary key (generation, id)
);
create index embed_queue_order on recall.embed_queue (generation, ts desc nulls last, id)
    where failed_at is null;
create index embed_queue_session on recall.embed_queue (session_key);
create index embed_queue_entry on recall.embed_queue (entry_id);

-- The filter columns stand beside the vector, as in message_text. Of passages with the same text one
-- is in the vector index (`is_representative`): thousands of equal vectors would form a pocket that
-- no search escapes. `has_copies` says that a filter may hold for another one of them.
create table recall.passage (
    generation integer not null,
    id bigint not null,
    entry_id bigint not null,
    session_key text,
    source text not null,
    host text not null,
    project text,
    role text not null,
    kind text not null,
    ts timestamptz,
    start_char integer not null,
    length integer not null,
    text_hash bytea not null,
    is_representative boolean not null,
    has_copies boolean not null default false,
    v recall.halfvec not null,
    primary key (generation, id)
) partition by list (generation);
create index passage_ts on recall.passage (ts desc nulls last, id desc);
create index passage_source on recall.passage (source, ts desc nulls last);
create index passage_host on recall.passage (host, ts desc nulls last);
create index passage_project on recall.passage (project, ts desc nulls last);
create index passage_role on recall.passage (role, ts desc nulls last);
create index passage_kind on recall.passage (kind, ts desc nulls last);
create index passage_session on recall.passage (session_key);
create index passage_entry on recall.passage (entry_id);
create index passage_text on recall.passage (text_hash);
-- At most one representative of a text: the second insert of two at once becomes a copy.
create unique index passage_representative on recall.passage (generation, text_hash)
    where is_representative;

-- A new generation with its partition and its vector index; everything that is stored is dirty for it.
-- It becomes active at once if there is no active one.
create function recall.create_embedding_generation(
    model text, dimension integer, pooling text, max_tokens integer, overlap_tokens integer,
    kinds text[]
) returns integer language plpgsql as $$
declare
    new_number integer;
begin
    perform pg_advisory_xact_lock(7883960468427862125);
    select coalesce(max(g.number), 0) + 1 into new_number from recall.embedding_generation g;
    insert into recall.embedding_generation (
        number, model, dimension, pooling, max_tokens, overlap_tokens, kinds, state, activated_at
    )
    select
        new_number, model, dimension, pooling, max_tokens, overlap_tokens, kinds,
        case when a.n = 0 then 'active' else 'filling' end, case when a.n = 0 then now() end
    from (select count(*) as n from recall.embedding_generation g where g.state = 'active') a;
    execute format(
        'create table recall.passage_%1$s partition of recall.passage for values in (%1$s)',
        new_number
    );
    execute format(
        'create index passage_%1$s_vector on recall.passage_%1$s
            using hnsw ((v::recall.halfvec(%2$s)) recall.halfvec_cosine_ops)
            with (m = 24, ef_construction = 128)
            where is_representative',
        new_number, dimension
    );
    insert into recall.embed_dirty (generation, key, from_ordinal, entries, newest)
    select new_number, s.session_key, 0, coalesce(m.n, 0), s.ended_at
    from recall.session s
    left join (
        select session_key, count(*) as n from recall.message group by session_key
    ) m using (session_key)
    union all
    select new_number, 'note:' || n.id, 0, 1, n.ts from recall.note n where n.is_current;
    return new_number;
end
$$;

-- Put a filled generation in the place of the active one. The vectors of the old one stay until
-- they are dropped.
create function recall.activate_embedding_generation(wanted integer) returns void
language plpgsql as $$
begin
    perform pg_advisory_xact_lock(7883960468427862125);
    update recall.embedding_generation set state = 'retired' where state = 'active' and number <> wanted;
    update recall.embedding_generation set state = 'active', activated_at = now()
    where number = wanted and state <> 'active';
    if not found then
        perform 1 from recall.embedding_generation where number = wanted and state = 'active';
        if not found then
            raise exception 'no embedding generation %', wanted;
        end if;
    end if;
end
$$;

-- Delete a generation that is not active, with everything that waits for it.
create function recall.drop_embedding_generation(unwanted integer) returns void
language plpgsql as $$
begin
    perform pg_advisory_xact_lock(7883960468427862125);
    delete from recall.embedding_generation where number = unwanted and state <> 'active';
    if not found then
        raise exception 'embedding generation % is active or not there', unwanted;
    end if;
    execute format('drop table if exists recall.passage_%s', unwanted);
    delete from recall.embed_queue where generation = unwanted;
    delete from recall.embed_dirty where generation = unwanted;
end
$$;

-- What changed in sessions is dirty for every generation that is in use.
create function recall.mark_dirty(
    keys text[], ordinals bigint[], counts bigint[], times timestamptz[]
) returns void language sql as $$
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
        version = d.version + 1, attempts = 0, error = null, changed_at = now()
$$;
