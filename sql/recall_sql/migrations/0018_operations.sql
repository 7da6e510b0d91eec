-- What whoever runs the server wants to see: backups, and the state of the database itself.

-- One row for each backup; `verified_at` is set once it was restored and found to be whole.
create table recall.backup (
    id bigint generated always as identity primary key,
    started_at timestamptz not null,
    finished_at timestamptz not null default now(),
    bytes bigint not null,
    file text not null,
    schema_version integer not null,
    verified_at timestamptz
);

-- Tells how long the pending list of the text index is. Not every server has it, and not every role
-- may install it; without it that one number is missing.
do $$
begin
    create extension if not exists pgstattuple schema public;
exception
    when insufficient_privilege or feature_not_supported or undefined_file
        or invalid_schema_name then
        raise notice 'pgstattuple is not installed: %', sqlerrm;
end
$$;

-- The functions below run as their owner, because what other sessions do and what an index holds is
-- not for everybody to see; they give numbers and names of the schema only. Besides the owner, roles
-- with pg_monitor may call them.

-- Connections by what they do, and how long the oldest transactions of this database are open. A
-- prepared transaction holds back what vacuum may remove as an open one does.
create function recall.database_activity() returns table (
    active bigint, idle bigint, idle_in_transaction bigint, other bigint, connection_limit integer,
    oldest_transaction_seconds double precision, idle_in_transaction_seconds double precision
) language sql stable security definer set search_path = pg_catalog as $$
    with client as (
        select a.state, a.state_change, a.xact_start, a.datname = current_database() as is_here
        from pg_stat_activity a
        where a.backend_type = 'client backend'
    ), started as (
        select c.xact_start as at from client c where c.is_here
        union all
        select p.prepared from pg_prepared_xacts p where p.database = current_database()
    )
    select
        count(*) filter (where c.state = 'active'),
        count(*) filter (where c.state = 'idle'),
        count(*) filter (where c.state like 'idle in transaction%'),
        count(*) filter (
            where c.state is null
                or (c.state not in ('active', 'idle') and c.state not like 'idle in transaction%')
        ),
        current_setting('max_connections')::integer,
        coalesce((
            select greatest(extract(epoch from clock_timestamp() - min(s.at)), 0) from started s
        ), 0)::double precision,
        coalesce(max(greatest(extract(epoch from clock_timestamp() - c.state_change), 0)) filter (
            where c.is_here and c.state like 'idle in transaction%'
        ), 0)::double precision
    from client c
$$;

-- Rows of each table that are there and rows that vacuum has to remove yet, by the statistics; and
-- how long ago it was vacuumed.
create function recall.table_activity() returns table (
    name text, live_rows bigint, dead_rows bigint, vacuum_age_seconds double precision
) language sql stable security definer set search_path = pg_catalog as $$
    select t.relname::text, t.n_live_tup, t.n_dead_tup,
        extract(epoch from clock_timestamp() - greatest(t.last_vacuum, t.last_autovacuum))
            ::double precision
    from pg_stat_user_tables t
    where t.schemaname = 'recall'
    order by t.relname
$$;

-- What btree indexes take, and about what their entries would take in a new index: an entry has a
-- header, its columns at their mean width, and a pointer; a new leaf is filled to its fill factor.
-- Equal keys share entries and nulls take nothing, so that the estimate is rather too large and the
-- bloat rather too small. Other kinds of indexes cannot be estimated from statistics.
create function recall.index_bloat(least_bytes bigint default 10485760) returns table (
    name text, size_bytes bigint, expected_bytes bigint
) language sql stable security definer set search_path = pg_catalog as $$
    with large as (
        select c.oid, c.relname, c.reltuples, t.relname as table_name, i.indkey,
            pg_relation_size(c.oid) as size_bytes,
            coalesce((
                select o.option_value::numeric / 100
                from pg_options_to_table(c.reloptions) o where o.option_name = 'fillfactor'
            ), 0.9) as fill
        from pg_index i
        join pg_class c on c.oid = i.indexrelid
        join pg_class t on t.oid = i.indrelid
        join pg_namespace n on n.oid = c.relnamespace
        join pg_am m on m.oid = c.relam
        where n.nspname = 'recall' and m.amname = 'btree' and c.relkind = 'i' and c.reltuples > 0
    ), width as (
        select l.oid, sum(s.avg_width * (1 - s.null_frac)) as bytes, count(s.avg_width) as known,
            count(*) as columns
        from large l
        join pg_attribute a on a.attrelid = l.oid
        left join pg_attribute b
            on b.attrelid = (select i.indrelid from pg_index i where i.indexrelid = l.oid)
            and b.attnum = l.indkey[a.attnum - 1] and b.attnum <> 0
        left join pg_stats s
            on s.schemaname = 'recall' and not s.inherited
            and s.tablename = case when b.attname is null then l.relname else l.table_name end
            and s.attname = coalesce(b.attname, a.attname)
        where l.size_bytes >= least_bytes
        group by l.oid
    )
    select l.relname::text, l.size_bytes,
        least(
            l.size_bytes,
            8192 * (1 + ceil(
                l.reltuples * (12 + 8 * ceil(w.bytes / 8)) / ((8192 - 40) * l.fill)
            ))
        )::bigint
    from large l
    join width w using (oid)
    -- Without statistics of every column nothing can be said.
    where w.known = w.columns
    order by l.relname
$$;

-- Pages of the pending list of the text index, which every search reads one by one; null where the
-- extension or the index is missing.
create function recall.text_index_pending_pages() returns bigint
language plpgsql stable security definer set search_path = pg_catalog as $$
declare
    place text;
    pages bigint;
begin
    select n.nspname into place
    from pg_extension e join pg_namespace n on n.oid = e.extnamespace
    where e.extname = 'pgstattuple';
    if place is null or to_regclass('recall.message_text_tsv') is null then
        return null;
    end if;
    execute format(
        'select p.pending_pages from %I.pgstatginindex(''recall.message_text_tsv''::regclass) p', place
    ) into pages;
    return pages;
end
$$;

-- How old a restore of the newest backup would be, and how long ago a backup was last proven by a
-- restore. Where there is none, both count from the day on which the store was made.
create function recall.backup_state() returns table (
    backups bigint, age_seconds double precision, verified_age_seconds double precision, bytes bigint
) language sql stable security definer set search_path = pg_catalog as $$
    select count(b.id),
        greatest(extract(epoch from clock_timestamp() - coalesce(max(b.started_at), made.at)), 0)
            ::double precision,
        greatest(extract(epoch from clock_timestamp() - coalesce(max(b.verified_at), made.at)), 0)
            ::double precision,
        (select n.bytes from recall.backup n order by n.started_at desc, n.id desc limit 1)
    from (select min(v.applied_at) as at from recall.schema_version v) made
    left join recall.backup b on true
    group by made.at
$$;

do $$
declare
    one text;
begin
    foreach one in array array[
        'recall.database_activity()', 'recall.table_activity()', 'recall.index_bloat(bigint)',
        'recall.text_index_pending_pages()', 'recall.backup_state()'
    ] loop
        execute format('revoke all on function %s from public', one);
        execute format('grant execute on function %s to pg_monitor', one);
    end loop;
end
$$;
