-- Whether an answer is close to its query: how much of the query the best hit by words holds.

-- The weight of the terms that stand in one index row of a text, as a share of the weight of all; the best
-- row counts. Weights are those of the ranking, where a term that the statistics do not know is a rarest
-- one. Of alternatives (`a OR b`) one is enough.
create function recall.share_held(terms recall.query_term[], frequencies float8[], entry_id bigint)
returns float8 language sql stable as $$
    with term as materialized (
        select t.alternative, t.query, recall.term_weight(t.frequency, 0, e.total) as weight
        from (
            select greatest(recall.estimated_rows('recall.message_text'), 1000) as total offset 0
        ) e
        cross join unnest(terms, frequencies)
            t (words, quoted, negative, alternative, query, frequency)
    ), chunk as materialized (
        -- in an array, or every term would decompress it again
        select m.chunk, array[m.tsv] as tsv from recall.message_text m where m.id = entry_id
    )
    select max(r.share)
    from (
        select sum(a.weight) filter (where a.is_held) / sum(a.weight) as share
        from (
            select c.chunk, max(t.weight) as weight, bool_or(c.tsv[1] @@ t.query) as is_held
            from chunk c
            cross join term t
            group by c.chunk, t.alternative
        ) a
        group by a.chunk
    ) r
$$;

-- Search by words, as in 0013. The first page also has `held`: the share of the query that the best hit
-- holds, 0 where there is none.
create or replace function api.search_text(
    q text, max_hits integer default 20, skip integer default 0, sources text[] default null,
    hosts text[] default null, projects text[] default null, roles text[] default null,
    kinds text[] default null, tools text[] default null, sessions text[] default null,
    since timestamptz default null, until timestamptz default null,
    exclude_sessions text[] default null, include_retracted boolean default false,
    brief boolean default false
) returns jsonb language plpgsql stable
set search_path = pg_catalog, pg_temp
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
        'held', case when first = 1 then coalesce(
            recall.share_held(parsed.terms, parsed.frequencies, ranking.ids[1]), 0
        ) end,
        'reason', case
            when coalesce(cardinality(ranking.ids), 0) < first + most and ranking.shallow
                then 'depth'
        end
    );
end
$$;
