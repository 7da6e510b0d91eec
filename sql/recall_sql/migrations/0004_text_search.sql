-- Text search: candidates by the text index, and their order.

-- Rows of a table: as the planner estimates them, from the pages that it has now.
create function recall.estimated_rows(relation regclass) returns float8 language sql stable as $$
    select case
        when c.reltuples > 0 and c.relpages > 0
            then c.reltuples / c.relpages * (pg_relation_size(c.oid) / 8192)
        else pg_relation_size(c.oid) / 8192 * 8.0
    end
    from pg_catalog.pg_class c
    where c.oid = relation
$$;

-- The share of index rows that hold a term, at most: the rarest of its words decides. It is null
-- for a word that the statistics do not list as common, or where there are none yet.
create function recall.term_frequencies(terms recall.query_term[]) returns float8[]
language sql stable as $$
    with common as materialized (
        select
            s.most_common_elems::text::text[] as lexemes, s.most_common_elem_freqs as frequencies
        from pg_catalog.pg_stats s
        where s.schemaname = 'recall' and s.tablename = 'message_text' and s.attname = 'tsv'
    ), term as (
        select
            x.place, array_to_string(x.words, ' ') as plain,
            x.quoted or cardinality(x.words) > 1 as as_written
        from unnest(terms) with ordinality
            x (words, quoted, negative, alternative, query, place)
    ), form as (
        select t.place, to_tsvector('pg_catalog.simple', t.plain) as lexemes from term t
        union all
        select t.place, to_tsvector('pg_catalog.english', t.plain) from term t
        where not t.as_written
    ), known as (
        select
            f.place,
            case when bool_and(p.frequency is not null) then min(p.frequency) end as frequency
        from form f
        cross join lateral unnest(tsvector_to_array(f.lexemes)) l (lexeme)
        left join common c on true
        cross join lateral (
            select c.frequencies[array_position(c.lexemes, l.lexeme)]::float8 as frequency
        ) p
        group by f.place, f.lexemes
    )
    select array_agg(k.frequency order by t.place)
    from term t
    left join (select place, max(frequency) as frequency from known group by place) k using (place)
$$;

create type recall.candidate_list as (query tsquery, forced boolean, condition text);

-- Up to this many matching rows are cheap to collect, and fetching them by the index is safe from
-- the planner's guess that walking the table from its newest end will meet enough of them soon.
create function recall.few_rows() returns float8 language sql immutable return 6400;

-- Which newest matches of a query are ranked. Newest-first of "any of the words" would drown the
-- rare word in the common one, so there is a list for each word that is not common, one for it
-- together with any other word, and one for all words. Quoted terms are required by every list.
create function recall.candidate_lists(
    terms recall.query_term[], frequencies float8[], total float8
) returns setof recall.candidate_list language plpgsql stable as $$
declare
    required constant tsquery[] := array(
        select recall.any_of(array_agg(t.query)) from unnest(terms) t
        group by t.alternative having bool_or(t.quoted)
    );
    must constant tsquery := recall.all_of(nullif(required, '{}'));
    wanted tsquery[] := '{}';
    rows_of float8[] := '{}';
    least_rows float8 := 'infinity';
    only_common boolean := true;
    place integer;
begin
    for place in 1 .. cardinality(terms) loop
        least_rows := least(least_rows, coalesce(frequencies[place], 0) * total);
        continue when terms[place].query = any(wanted) or exists (
            select from unnest(terms) t where t.alternative = terms[place].alternative and t.quoted
        );
        wanted := wanted || terms[place].query;
        rows_of := rows_of || coalesce(frequencies[place], 0) * total;
        only_common := only_common and recall.is_common(frequencies[place], total);
    end loop;
    if must is not null then
        return next (must, least_rows <= 5 * recall.few_rows(), null::text);
    end if;
    for place in 1 .. cardinality(wanted) loop
        continue when must is null and not only_common
            and recall.is_common(rows_of[place] / total, total);
        return next (
            coalesce(must && wanted[place], wanted[place]),
            least(rows_of[place], case when must is not null then least_rows end)
                <= recall.few_rows(),
            null::text
        );
        continue when cardinality(wanted) = 1 or must is null and only_common;
        return next (
            coalesce(must && wanted[place], wanted[place])
                && recall.any_of(array_remove(wanted, wanted[place])),
            rows_of[place] <= 5 * recall.few_rows(), null::text
        );
    end loop;
    if cardinality(wanted) > 1 then
        return next (
            coalesce(must && recall.all_of(wanted), recall.all_of(wanted)),
            least_rows <= 5 * recall.few_rows(), null::text
        );
    end if;
    if cardinality(required) > 1 then
        return next (recall.any_of(required), false, recall.across_chunks(required));
    end if;
end
$$;

create function recall.is_common(frequency float8, total float8) returns boolean
language sql immutable return coalesce(frequency > 0.05 and frequency * total > 2000, false);

-- A long message has several index rows, and what is required may stand in different ones.
create function recall.across_chunks(required tsquery[]) returns text language sql immutable as $$
    select 't.chunk > 0 and ' || string_agg(
        format(
            'exists (select from recall.message_text o where o.id = t.id and o.tsv @@ %L::tsquery)',
            query
        ),
        ' and '
    )
    from unnest(required) query
$$;

-- The newest rows of a list. `condition` is on the alias `t`.
create function recall.newest_matches(
    list recall.candidate_list, condition text, most integer
) returns table (id bigint, chunk smallint, place bigint) language plpgsql stable as $$
declare
    matching constant text := format(
        'select t.id, t.chunk, t.ts from recall.message_text t where t.tsv @@ %L::tsquery and %s',
        list.query, concat_ws(' and ', list.condition, condition)
    );
begin
    if list.forced then
        return query execute format(
            'with m as materialized (%s), n as (
                select m.id, m.chunk from m
                order by m.ts desc nulls last, m.id desc, m.chunk limit %s
            )
            select n.id, n.chunk, row_number() over () from n',
            matching, most
        );
    else
        return query execute format(
            'select n.id, n.chunk, row_number() over ()
            from (%s order by t.ts desc nulls last, t.id desc, t.chunk limit %s) n',
            matching, most
        );
    end if;
end
$$;

-- The candidates with their score: for each term how rare it is, times how well the message holds
-- it, saturated. What is among the newest matches of a list goes before what only a deeper look
-- into the lists brings (`level`), so that a later page never reorders an earlier one.
create function recall.ranked_candidates(
    ids bigint[], chunks smallint[], places bigint[], queries tsquery[], weights float8[]
) returns table (id bigint, copy_key bigint, level integer, score float8, ts timestamptz)
language sql stable as $$
    with candidate as (
        select
            c.id, c.chunk,
            min(case when c.place <= 200 then 0 when c.place <= 1000 then 1 else 2 end) as level
        from unnest(ids, chunks, places) c (id, chunk, place)
        group by c.id, c.chunk
    ), best as (
        select c.id, c.chunk, c.level
        from (select *, min(level) over (partition by id) as least_level from candidate) c
        where c.level = c.least_level
    ), held as (
        select
            b.id, b.level, t.ts, w.weight,
            max(case when t.tsv @@ w.query then ts_rank(t.tsv, w.query) else 0 end) as rank
        from best b
        join recall.message_text t on t.id = b.id and t.chunk = b.chunk
        cross join unnest(queries, weights) with ordinality w (query, weight, place)
        group by b.id, b.level, t.ts, w.place, w.weight
    ), scored as (
        select h.id, h.level, h.ts, sum(h.weight * h.rank / (h.rank + 0.06)) as score
        from held h
        group by h.id, h.level, h.ts
    )
    select s.id, m.copy_key, s.level, s.score, s.ts
    from scored s
    left join recall.message m on m.id = s.id
$$;

-- How much a term counts. Where the statistics do not know it, its own list of candidates tells
-- how rare it is, unless that list is full.
create function recall.term_weight(frequency float8, listed bigint, total float8) returns float8
language sql immutable as $$
    select ln(1 + 1 / least(1, greatest(coalesce(
        frequency,
        case when listed < 200 then listed / total else greatest(200 / total, 0.001) end
    ), 1 / total)))
$$;

-- The terms that a text query ranks by, rarest first; at most 16, of which quoted ones go first.
create function recall.ranking_terms(
    q text, out terms recall.query_term[], out frequencies float8[], out excluded tsquery,
    out left_out integer
) language plpgsql stable as $$
declare
    given recall.query_term[];
    known float8[];
begin
    select
        array_agg(row(x.words, x.quoted, x.negative, x.alternative, x.query)::recall.query_term
            order by x.place) filter (where not x.negative),
        recall.any_of(array_agg(x.query) filter (where x.negative))
    into given, excluded
    from (
        select distinct on (t.negative, t.query) t.*
        from recall.query_terms(q) with ordinality
            t (words, quoted, negative, alternative, query, place)
        order by t.negative, t.query, t.quoted desc, t.place
    ) x;
    if given is null then
        return;
    end if;
    known := recall.term_frequencies(given);
    select array_agg(given[r.i] order by r.place), array_agg(known[r.i] order by r.place)
    into terms, frequencies
    from (
        select g.i, row_number() over (
            order by (given[g.i]).quoted desc, known[g.i] nulls first,
                length(array_to_string((given[g.i]).words, ' ')) desc, g.i
        ) as place
        from generate_subscripts(given, 1) g (i)
    ) r
    where r.place <= 16;
    left_out := cardinality(given) - cardinality(terms);
end
$$;

-- The filter conditions of a text query on the alias `t`. What is excluded may stand in any of the
-- index rows of a long message.
create function recall.text_condition(f recall.search_filter, excluded tsquery) returns text
language sql stable as $$
    select concat_ws(
        ' and ',
        recall.filter_condition(f, 't'),
        recall.own_prompt('t', recall.filter_condition(f, 'o')),
        case when excluded is not null then format(
            '(not t.tsv @@ %1$L::tsquery) and not exists (
                select from recall.message_text o
                where o.id = t.id and o.chunk <> t.chunk and o.tsv @@ %1$L::tsquery
            )',
            excluded
        ) end
    )
$$;

-- The ranked groups of copies for a query, best first, as far as `needed`; `shallow` says that
-- there may be matches that were not looked at.
create function recall.text_ranking(
    terms recall.query_term[], frequencies float8[], condition text, needed integer,
    out ids bigint[], out copy_keys bigint[], out scores float8[], out shallow boolean
) language plpgsql stable as $$
declare
    total constant float8 := greatest(recall.estimated_rows('recall.message_text'), 1000);
    lists constant recall.candidate_list[] := array(
        select l from recall.candidate_lists(terms, frequencies, total) l
    );
    queries constant tsquery[] := array(select t.query from unnest(terms) t);
    weights float8[];
    depth integer;
    found record;
begin
    foreach depth in array array[200, 1000, 5000] loop
        select
            array_agg(m.id) as ids, array_agg(m.chunk) as chunks, array_agg(m.place) as places,
            array_agg(l.i) as lists, coalesce(max(m.place), 0) >= depth as full_list
        into found
        from generate_subscripts(lists, 1) l (i)
        cross join lateral recall.newest_matches(lists[l.i], condition, depth) m;
        shallow := found.full_list;
        weights := coalesce(weights, array(
            select recall.term_weight(frequencies[q.i], (
                select count(x.i) from unnest(found.lists) x (i)
                where (lists[x.i]).query = queries[q.i]
            ), total)
            from generate_subscripts(queries, 1) q (i)
            order by q.i
        ));
        select array_agg(r.id order by r.place), array_agg(r.copy_key order by r.place),
            array_agg(r.score order by r.place)
        into ids, copy_keys, scores
        from (
            select g.id, g.copy_key, g.score, row_number() over (
                order by g.level, g.score desc, g.ts desc nulls last, g.id desc
            ) as place
            from (
                select distinct on (c.copy_key is null, coalesce(c.copy_key, c.id)) c.*
                from recall.ranked_candidates(
                    found.ids, found.chunks, found.places, queries, weights
                ) c
                order by c.copy_key is null, coalesce(c.copy_key, c.id), c.level, c.score desc,
                    c.ts desc nulls last, c.id desc
            ) g
        ) r
        where r.place <= needed;
        exit when not shallow or cardinality(ids) >= needed;
    end loop;
end
$$;

-- Search by words. The answer has `hits`, `more` (there is another page), `complete` (nothing that
-- matches was left out) and `reason`: `no-words`, `only-excluded`, `depth` or null.
create function api.search_text(
    q text, max_hits integer default 20, skip integer default 0, sources text[] default null,
    hosts text[] default null, projects text[] default null, roles text[] default null,
    kinds text[] default null, tools text[] default null, sessions text[] default null,
    since timestamptz default null, until timestamptz default null,
    exclude_sessions text[] default null, include_retracted boolean default false
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
    snippets text[];
begin
    parsed := recall.ranking_terms(q);
    if parsed.terms is null then
        return jsonb_build_object(
            'hits', '[]'::jsonb, 'more', false, 'complete', true, 'left_out', 0,
            'reason', case when parsed.excluded is null then 'no-words' else 'only-excluded' end
        );
    end if;
    ranking := recall.text_ranking(
        parsed.terms, parsed.frequencies, recall.text_condition(filter, parsed.excluded),
        first + most
    );
    execute format(
        'select array_agg(coalesce(%s, x.id) order by x.place)
        from unnest($1, $2) with ordinality x (id, copy_key, place)',
        recall.representative('x.copy_key', recall.filter_condition(filter, 't'))
    )
    into page
    using ranking.ids[first : first + most - 1], ranking.copy_keys[first : first + most - 1];
    snippets := array(
        select recall.text_snippet(e.content, parsed.terms)
        from unnest(page) with ordinality p (id, place)
        join recall.entry e on e.id = p.id
        order by p.place
    );
    return jsonb_build_object(
        'hits', recall.hits(page, ranking.scores[first : first + most - 1], snippets),
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
