-- Search by meaning: the passages nearest to a vector, behind any filter.

-- The conditions of a filter on the alias of a passage, as literals of the statement. Passages of what
-- was taken back are not kept, so `include_retracted` adds nothing here.
create function recall.passage_condition(f recall.search_filter, alias text) returns text
language sql stable as $$
    select concat_ws(
        ' and ',
        'true',
        case when cardinality(f.sources) > 0
            then format('%I.source = any(%L::text[])', alias, f.sources) end,
        case when cardinality(f.hosts) > 0
            then format('%I.host = any(%L::text[])', alias, f.hosts) end,
        case when cardinality(f.projects) > 0
            then format(
                '%I.project = any(%L::text[])', alias, recall.project_paths(f.projects)
            ) end,
        case when cardinality(f.roles) > 0
            then format('%I.role = any(%L::text[])', alias, f.roles) end,
        case when cardinality(f.kinds) > 0
            then format('%I.kind = any(%L::text[])', alias, f.kinds) end,
        case when cardinality(f.tools) > 0
            then format(
                'exists (select from recall.message m
                    where m.id = %I.entry_id and m.tool = any(%L::text[]))',
                alias, f.tools
            ) end,
        case when cardinality(f.sessions) > 0
            then format('%I.session_key = any(%L::text[])', alias, f.sessions) end,
        case when f.since is not null
            then format('%I.ts >= %L::timestamptz', alias, f.since) end,
        case when f.until is not null
            then format('%I.ts < %L::timestamptz', alias, f.until) end,
        case when cardinality(f.exclude_sessions) > 0
            then format(
                '(%1$I.session_key is null or %1$I.session_key <> all(%2$L::text[]))',
                alias, recall.lineage(f.exclude_sessions)
            ) end
    )
$$;

create type recall.near_passage as (
    id bigint, entry_id bigint, start_char integer, length integer, text_hash bytea, distance float8
);

-- The nearest of all passages behind a condition, read one by one: the best passage of each text.
create function recall.nearest_by_scan(
    generation integer, dimension integer, wanted recall.halfvec, condition text, most integer
) returns setof recall.near_passage language plpgsql stable as $$
declare
    depth bigint := most * 4 + 100;
    texts bigint;
    looked bigint;
    nearest recall.near_passage[];
begin
    loop
        -- Adding zero keeps the vector index out: this reads the rows of the filter, all of them.
        execute format(
            'select array_agg(n), count(*), count(distinct (n).text_hash)
            from (
                select row(p.id, p.entry_id, p.start_char, p.length, p.text_hash,
                    (p.v::recall.halfvec(%2$s) operator(recall.<=>) $1))::recall.near_passage as n
                from recall.passage_%1$s p
                where %3$s
                order by (p.v::recall.halfvec(%2$s) operator(recall.<=>) $1) + 0.0, p.id
                limit $2
            ) near',
            generation, dimension, condition
        )
        into nearest, looked, texts
        using wanted, depth;
        exit when texts >= most or looked < depth;
        depth := depth * 20;
    end loop;
    return query
        select n.id, n.entry_id, n.start_char, n.length, n.text_hash, n.distance
        from (
            select distinct on (u.text_hash) u.* from unnest(nearest) u
            order by u.text_hash, u.distance, u.id
        ) n
        order by n.distance, n.id
        limit most;
end
$$;

-- The nearest by the vector index, which holds one passage of each text. One that the condition leaves
-- out counts if it holds for a copy of it. The index is asked again and again until there are enough,
-- or it has looked at as many as the settings of the caller allow. Copies are looked for by a scalar
-- subquery: `exists` would become a hash table of everything that the condition holds for.
create function recall.nearest_by_index(
    generation integer, dimension integer, wanted recall.halfvec, own text, of_copy text, most integer
) returns setof recall.near_passage language plpgsql stable as $$
begin
    return query execute format(
        'select coalesce(c.id, r.id), coalesce(c.entry_id, r.entry_id),
            coalesce(c.start_char, r.start_char), coalesce(c.length, r.length), r.text_hash,
            r.distance
        from (
            select p.id, p.entry_id, p.start_char, p.length, p.text_hash, %3$s as fits,
                p.v::recall.halfvec(%2$s) operator(recall.<=>) $1 as distance
            from recall.passage_%1$s p
            where p.is_representative and (
                %3$s or p.has_copies and (
                    select true from recall.passage_%1$s o
                    where o.text_hash = p.text_hash and %4$s
                    limit 1
                )
            )
            order by p.v::recall.halfvec(%2$s) operator(recall.<=>) $1
            limit $2
        ) r
        left join lateral (
            select o.id, o.entry_id, o.start_char, o.length
            from recall.passage_%1$s o
            where not r.fits and o.text_hash = r.text_hash and %4$s
            order by o.ts desc nulls last, o.id
            limit 1
        ) c on true
        order by r.distance, r.id',
        generation, dimension, own, of_copy
    )
    using wanted, most;
end
$$;

-- Volatile, as everything that calls recall.expected_rows.
-- The nearest passages, one for each text, whatever the filter lets through: few rows are read one by
-- one, many are looked for in the index, and an answer of the index that is short is completed by
-- reading. `way` says which it was.
create function recall.nearest_passages(
    generation integer, dimension integer, wanted recall.halfvec, f recall.search_filter,
    most integer, out nearest recall.near_passage[], out way text, out expected float8
) language plpgsql
set hnsw.ef_search = 1000
set hnsw.iterative_scan = 'relaxed_order'
set hnsw.max_scan_tuples = 40000
set jit = off
as $$
declare
    own constant text := recall.passage_condition(f, 'p');
begin
    expected := recall.expected_rows(
        format('select from recall.passage_%s p where %s', generation, own)
    );
    -- Measured (ops/bench/vectors.py): reading 40,000 rows takes 20 to 25 ms and is always right. A
    -- narrower beam than 1,000 misses the answers to questions, which are near to no text.
    if expected <= coalesce(nullif(current_setting('recall.scan_rows', true), '')::float8, 40000) then
        way := 'scan';
    else
        way := 'index';
        nearest := array(
            select n from recall.nearest_by_index(
                generation, dimension, wanted, own, recall.passage_condition(f, 'o'), most
            ) n
        );
        if cardinality(nearest) >= most then
            return;
        end if;
        way := 'index, completed by a scan';
    end if;
    nearest := array(
        select n from recall.nearest_by_scan(generation, dimension, wanted, own, most) n
    );
end
$$;

-- The generation that searches use, and how much of what it should hold it holds.
create function recall.vector_coverage() returns jsonb language sql stable as $$
    select jsonb_build_object(
        'generation', g.number,
        'model', g.model,
        'dimension', g.dimension,
        'passages', p.passages,
        'waiting', q.waiting,
        'failed', q.failed,
        'sessions_waiting', d.keys,
        'share', case
            when p.passages + q.waiting + q.failed + d.entries = 0 then 1
            else round(
                (p.passages / (p.passages + q.waiting + q.failed + d.entries))::numeric, 4
            )
        end
    )
    from recall.embedding_generation g
    cross join lateral (
        select greatest(recall.estimated_rows(format('recall.passage_%s', g.number)::regclass), 0)
            as passages
    ) e
    cross join lateral (
        select case
            when pg_relation_size(format('recall.passage_%s', g.number)::regclass) < 16777216
                then (select count(*) from recall.passage p where p.generation = g.number)
            else e.passages
        end::float8 as passages
    ) p
    cross join lateral (
        select count(*) filter (where w.failed_at is null) as waiting,
            count(*) filter (where w.failed_at is not null) as failed
        from recall.embed_queue w
        where w.generation = g.number
    ) q
    cross join lateral (
        select count(*) as keys, coalesce(sum(w.entries), 0)::float8 as entries
        from recall.embed_dirty w
        where w.generation = g.number
    ) d
    where g.state = 'active'
$$;

-- The beginning of a passage as one line.
create function recall.passage_snippet(content text, start_char integer, span integer)
returns text language sql immutable parallel safe as $$
    select concat(
        case when start_char > 0 then '…' end,
        recall.plain_line(substr(content, start_char + 1, least(span, 240))),
        case when start_char + least(span, 240) < length(content) then '…' end
    )
$$;

-- Search by meaning. `model` must be that of the active generation: vectors of different models are
-- never compared. The answer has `hits` (one for each message, its best passage first), `places` (of
-- each hit: where its passage stands), `more`, `complete`, `way` and `reason`: `no-vectors`, `model`,
-- `depth` or null.
create function api.search_semantic(
    query_vector real[], model text, max_hits integer default 20, skip integer default 0,
    sources text[] default null, hosts text[] default null, projects text[] default null,
    roles text[] default null, kinds text[] default null, tools text[] default null,
    sessions text[] default null, since timestamptz default null,
    until timestamptz default null, exclude_sessions text[] default null,
    least_similarity float8 default null
) returns jsonb language plpgsql
set search_path = pg_catalog
set timezone = 'UTC'
set plan_cache_mode = force_custom_plan
as $$
declare
    filter constant recall.search_filter := row(
        sources, hosts, projects, roles, kinds, tools, sessions, since, until, exclude_sessions,
        false
    );
    most constant integer := least(greatest(max_hits, 1), 200);
    first constant integer := greatest(skip, 0);
    -- A long message has several passages, and one of them is the hit.
    depth constant integer := least((first + most) * 2 + 20, 1000);
    active record;
    near record;
    hits record;
begin
    select g.number, g.dimension, g.model into active
    from recall.embedding_generation g where g.state = 'active';
    if active.number is null or active.model <> search_semantic.model then
        return jsonb_build_object(
            'hits', '[]'::jsonb, 'places', '[]'::jsonb, 'more', false, 'complete', false,
            'reason', case when active.number is null then 'no-vectors' else 'model' end
        );
    end if;
    near := recall.nearest_passages(
        active.number, active.dimension, query_vector::recall.halfvec, filter, depth
    );
    select
        array_agg(p.entry_id order by p.place) filter (where p.place > first) as ids,
        array_agg(1 - p.distance order by p.place) filter (where p.place > first) as scores,
        array_agg(recall.passage_snippet(e.content, p.start_char, p.length) order by p.place)
            filter (where p.place > first) as snippets,
        jsonb_agg(jsonb_build_object(
            'id', p.entry_id::text, 'start_char', p.start_char, 'length', p.length
        ) order by p.place) filter (where p.place > first) as places,
        count(*) as looked
    into hits
    from (
        select b.*, row_number() over (order by b.distance, b.id) as place
        from (
            select distinct on (n.entry_id) n.*
            from unnest(near.nearest) n
            where least_similarity is null or 1 - n.distance >= least_similarity
            order by n.entry_id, n.distance, n.id
        ) b
    ) p
    join recall.entry e on e.id = p.entry_id
    where p.place <= first + most;
    return jsonb_build_object(
        'hits', recall.hits(hits.ids, hits.scores, hits.snippets),
        'places', coalesce(hits.places, '[]'::jsonb),
        'more', hits.looked >= first + most and depth < 1000,
        'complete', coalesce(cardinality(near.nearest), 0) < depth,
        'way', near.way,
        'reason', case when hits.looked < first + most and depth >= 1000 then 'depth' end
    );
end
$$;
