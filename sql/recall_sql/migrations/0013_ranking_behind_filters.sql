-- Any of the words means any: where the rarer words of a query fill no page, as behind a narrow filter,
-- what holds only common ones comes behind them.

-- The best groups of copies among candidates, as far as `needed`.
create function recall.ranked_groups(
    found recall.candidate_rows, queries tsquery[], weights float8[], excluded tsquery,
    needed integer, out ids bigint[], out copy_keys bigint[], out scores float8[]
) language sql stable as $$
    select array_agg(r.id order by r.place), array_agg(r.copy_key order by r.place),
        array_agg(r.score order by r.place)
    from (
        select g.id, g.copy_key, g.score, row_number() over (
            order by g.level, g.score desc, g.ts desc nulls last, g.id desc
        ) as place
        from (
            select distinct on (c.copy_key is null, coalesce(c.copy_key, c.id)) c.*
            from recall.ranked_candidates(
                found.ids, found.chunks, found.levels, queries, weights, excluded
            ) c
            order by c.copy_key is null, coalesce(c.copy_key, c.id), c.level, c.score desc,
                c.ts desc nulls last, c.id desc
        ) g
    ) r
    where r.place <= needed
$$;

-- The terms that the lists of a query leave out because rarer ones are there: they would fill every page
-- of a search of everything, and no rarer word could be found among them.
create function recall.left_to_the_end(
    terms recall.query_term[], frequencies float8[], total float8,
    out common recall.query_term[], out common_frequencies float8[]
) language sql stable as $$
    select array_agg(t.term order by t.place), array_agg(t.frequency order by t.place)
    from (
        select row(words, quoted, negative, alternative, query)::recall.query_term as term,
            frequency, place, recall.is_common(frequency, total) as is_common,
            bool_or(quoted) over () as any_quoted,
            bool_and(recall.is_common(frequency, total)) over () as only_common
        from unnest(terms, frequencies) with ordinality
            u (words, quoted, negative, alternative, query, frequency, place)
    ) t
    where t.is_common and not t.only_common and not t.any_quoted
$$;

-- As in 0010, and where that gives less than is needed, the candidates of the common words behind it.
create or replace function recall.text_ranking(
    terms recall.query_term[], frequencies float8[], excluded tsquery, condition text,
    needed integer,
    out ids bigint[], out copy_keys bigint[], out scores float8[], out shallow boolean
) language plpgsql stable as $$
declare
    total constant float8 := greatest(recall.estimated_rows('recall.message_text'), 1000);
    lists recall.candidate_list[] := array(
        select l from recall.candidate_lists(terms, frequencies, total) l
    );
    queries constant tsquery[] := array(select t.query from unnest(terms) t);
    -- a score of few words is cheap, and the newest rows need not be those that say most about them
    depths constant integer[] := case
        when queries::text ~ '[<&]' then array[200, 1000, 5000]
        when cardinality(queries) = 1 then array[800, 5000]
        when cardinality(queries) = 2 then array[500, 2000, 5000]
        else array[250, 1000, 5000]
    end;
    weights float8[];
    rarer recall.candidate_rows;
    found recall.candidate_rows;
    groups record;
    rest record;
begin
    for level in 1 .. cardinality(depths) loop
        found := recall.candidates(lists, excluded, condition, depths[:level]);
        weights := coalesce(weights, array(
            select recall.term_weight(frequencies[q.i], coalesce((
                select min(found.listed[l.i]) from generate_subscripts(lists, 1) l (i)
                where (lists[l.i]).query = queries[q.i]
            ), 200), total)
            from generate_subscripts(queries, 1) q (i)
            order by q.i
        ));
        groups := recall.ranked_groups(found, queries, weights, excluded, needed);
        exit when not found.is_full or cardinality(groups.ids) >= needed;
    end loop;
    rest := recall.left_to_the_end(terms, frequencies, total);
    if rest.common is not null and coalesce(cardinality(groups.ids), 0) < needed then
        rarer := found;
        lists := array(
            select l from recall.candidate_lists(rest.common, rest.common_frequencies, total) l
        );
        for level in 1 .. cardinality(depths) loop
            found := recall.candidates(lists, excluded, condition, depths[:level]);
            found.ids := rarer.ids || found.ids;
            found.chunks := rarer.chunks || found.chunks;
            found.levels := rarer.levels || array(
                select l.level + cardinality(depths) from unnest(found.levels) l (level)
            );
            groups := recall.ranked_groups(found, queries, weights, excluded, needed);
            exit when not found.is_full or cardinality(groups.ids) >= needed;
        end loop;
        found.is_full := found.is_full or rarer.is_full;
    end if;
    ids := groups.ids;
    copy_keys := groups.copy_keys;
    scores := groups.scores;
    shallow := found.is_full;
end
$$;

-- A search by words and meaning looks at more hits than it shows. Texts are fetched and snippets made
-- only of those that it shows: `brief` hits have an `id`, a `score`, what they are, and the `copy`
-- that tells which are copies of each other.

create function recall.brief_hits(ids bigint[], scores float8[]) returns jsonb
language sql stable as $$
    select coalesce(jsonb_agg(jsonb_build_object(
        'id', h.id::text,
        'score', round(h.score::numeric, 4),
        'role', e.role,
        'kind', e.kind,
        'copy', e.copy_key::text
    ) order by h.place), '[]'::jsonb)
    from unnest(ids, scores) with ordinality h (id, score, place)
    join recall.entry e on e.id = h.id
$$;

drop function api.search_text(
    text, integer, integer, text[], text[], text[], text[], text[], text[], text[], timestamptz,
    timestamptz, text[], boolean
);

-- Search by words, as in 0010.
create function api.search_text(
    q text, max_hits integer default 20, skip integer default 0, sources text[] default null,
    hosts text[] default null, projects text[] default null, roles text[] default null,
    kinds text[] default null, tools text[] default null, sessions text[] default null,
    since timestamptz default null, until timestamptz default null,
    exclude_sessions text[] default null, include_retracted boolean default false,
    brief boolean default false
) returns jsonb language plpgsql stable
set search_path = pg_catalog
set timezone = 'UTC'
set plan_cache_mode = force_custom_plan
set client_min_messages = warning
as $$
declare
    filter constant recall.search_filter := row(
        sources, hosts, projects, roles, kinds, tools, sessions, since, until, exclude_sessions,
        include_retracted
    );
    most constant integer := least(greatest(max_hits, 1), 200);
    first constant integer := greatest(skip, 0) + 1;
    parsed record;
    ranking record;
    page bigint[];
    scores float8[];
begin
    parsed := recall.ranking_terms(q);
    if parsed.terms is null then
        return jsonb_build_object(
            'hits', '[]'::jsonb, 'more', false, 'complete', true, 'left_out', 0,
            'reason', case when parsed.excluded is null then 'no-words' else 'only-excluded' end
        );
    end if;
    ranking := recall.text_ranking(
        parsed.terms, parsed.frequencies, parsed.excluded, recall.text_condition(filter),
        first + most
    );
    execute format(
        'select array_agg(coalesce(%s, x.id) order by x.place)
        from unnest($1, $2) with ordinality x (id, copy_key, place)',
        recall.representative('x.copy_key', recall.filter_condition(filter, 't'))
    )
    into page
    using ranking.ids[first : first + most - 1], ranking.copy_keys[first : first + most - 1];
    scores := ranking.scores[first : first + most - 1];
    return jsonb_build_object(
        'hits', case
            when brief then recall.brief_hits(page, scores)
            else recall.hits(page, scores, recall.text_snippets(page, parsed.terms))
        end,
        'more', coalesce(cardinality(ranking.ids), 0) >= first + most,
        'complete', coalesce(cardinality(ranking.ids), 0) < first + most and not ranking.shallow,
        'left_out', parsed.left_out,
        'reason', case
            when coalesce(cardinality(ranking.ids), 0) < first + most and ranking.shallow
                then 'depth'
        end
    );
end
$$;

-- The snippets of entries, in the order of their ids.
create function recall.text_snippets(ids bigint[], terms recall.query_term[]) returns text[]
language sql stable as $$
    select array(
        select recall.text_snippet(e.content, terms)
        from unnest(ids) with ordinality p (id, place)
        join recall.entry e on e.id = p.id
        order by p.place
    )
$$;

drop function api.search_semantic(
    real[], text, integer, integer, text[], text[], text[], text[], text[], text[], text[],
    timestamptz, timestamptz, text[], float8
);

-- Search by meaning, as in 0012.
create function api.search_semantic(
    query_vector real[], model text, max_hits integer default 20, skip integer default 0,
    sources text[] default null, hosts text[] default null, projects text[] default null,
    roles text[] default null, kinds text[] default null, tools text[] default null,
    sessions text[] default null, since timestamptz default null,
    until timestamptz default null, exclude_sessions text[] default null,
    least_similarity float8 default null, brief boolean default false
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
    where p.place <= first + most and exists (select from recall.entry e where e.id = p.entry_id);
    return jsonb_build_object(
        'hits', case
            when brief then recall.brief_hits(hits.ids, hits.scores)
            else recall.hits(hits.ids, hits.scores, recall.place_snippets(hits.places))
        end,
        'places', coalesce(hits.places, '[]'::jsonb),
        'more', hits.looked >= first + most and depth < 1000,
        'complete', coalesce(cardinality(near.nearest), 0) < depth,
        'way', near.way,
        'reason', case when hits.looked < first + most and depth >= 1000 then 'depth' end
    );
end
$$;

-- The snippets of the places of passages, in their order.
create function recall.place_snippets(places jsonb) returns text[] language sql stable as $$
    select array(
        select recall.passage_snippet(
            e.content, (p.place ->> 'start_char')::integer, (p.place ->> 'length')::integer
        )
        from jsonb_array_elements(places) with ordinality p (place, number)
        join recall.entry e on e.id = (p.place ->> 'id')::bigint
        order by p.number
    )
$$;

-- What brief hits say in full, in their order: `by_text` are ids of hits by the words of `q`, `places`
-- those of passages.
create function api.full_hits(q text, by_text bigint[], places jsonb) returns jsonb
language plpgsql stable
set search_path = pg_catalog
set timezone = 'UTC'
set client_min_messages = warning
as $$
declare
    terms constant recall.query_term[] := (recall.ranking_terms(q)).terms;
    near constant bigint[] := array(
        select (p ->> 'id')::bigint from jsonb_array_elements(places) with ordinality x (p, n)
        order by n
    );
begin
    return recall.hits(
        by_text || near,
        array_fill(0::float8, array[cardinality(by_text) + cardinality(near)]),
        recall.text_snippets(by_text, terms) || recall.place_snippets(places)
    );
end
$$;
