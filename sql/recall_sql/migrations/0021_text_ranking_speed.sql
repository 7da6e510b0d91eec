-- The same ranking by words in less time, measured by ops/bench/search.py.

-- As in 0004: the share of index rows that hold a term, at most. The statistics list ten thousand words,
-- so they are read once, and each word of the terms is looked for once.
create or replace function recall.term_frequencies(terms recall.query_term[]) returns float8[]
language plpgsql stable as $$
declare
    common text[];
    shares real[];
begin
    select s.most_common_elems::text::text[], s.most_common_elem_freqs into common, shares
    from pg_catalog.pg_stats s
    where s.schemaname = 'recall' and s.tablename = 'message_text' and s.attname = 'tsv';
    return array(
        with term as materialized (
            select
                x.place, array_to_string(x.words, ' ') as plain,
                x.quoted or cardinality(x.words) > 1 as as_written
            from unnest(terms) with ordinality
                x (words, quoted, negative, alternative, query, place)
        ), form as materialized (
            select
                t.place, tsvector_to_array(to_tsvector('pg_catalog.simple', t.plain)) as lexemes
            from term t
            union
            select t.place, tsvector_to_array(to_tsvector('pg_catalog.english', t.plain))
            from term t
            where not t.as_written
        ), known as materialized (
            select w.lexeme, shares[array_position(common, w.lexeme)]::float8 as frequency
            from (select distinct unnest(f.lexemes) as lexeme from form f) w
        )
        select max(h.frequency)
        from term t
        left join lateral (
            select
                case when bool_and(k.frequency is not null) then min(k.frequency) end as frequency
            from form f
            cross join lateral unnest(f.lexemes) l (lexeme)
            join known k on k.lexeme = l.lexeme
            where f.place = t.place
            group by f.lexemes
        ) h on true
        group by t.place
        order by t.place
    );
end
$$;

-- Ranking: a text row is decompressed once for all terms, and copies are looked for among the best only.

drop function recall.ranked_candidates(
    bigint[], smallint[], integer[], tsquery[], float8[], tsquery
);

-- As in 0010, without what is a copy of what. For several terms the row's vector is put into an array,
-- because every function that gets it from the row would decompress it again.
create function recall.ranked_candidates(
    ids bigint[], chunks smallint[], levels integer[], queries tsquery[], weights float8[],
    excluded tsquery
) returns table (id bigint, level integer, score float8, ts timestamptz)
language sql stable as $$
    with term as materialized (
        -- ts_rank does not look whether the words of a phrase are neighbours
        select w.query, w.weight, w.query::text !~ '[<&!]' as is_any
        from unnest(queries, weights) w (query, weight)
    ), candidate as (
        select c.id, c.chunk, min(c.level) as level
        from unnest(ids, chunks, levels) c (id, chunk, level)
        group by c.id, c.chunk
    ), best as (
        select c.id, c.chunk, c.level
        from (select *, min(level) over (partition by id) as least_level from candidate) c
        where c.level = c.least_level
    ), scored as (
        select b.id, b.level, t.ts, (
            select sum(w.weight * r.rank / (r.rank + 0.06))
            from term w
            cross join lateral (
                select case when w.is_any or d.tsv[1] @@ w.query then ts_rank(d.tsv[1], w.query)
                    else 0 end as rank
                offset 0
            ) r
        ) as score
        from best b
        join recall.message_text t on t.id = b.id and t.chunk = b.chunk
        cross join lateral (select array[t.tsv] as tsv offset 0) d
        where excluded is null or not exists (
            select from recall.message_text o
            where o.id = b.id and o.chunk <> b.chunk and o.tsv @@ excluded
        )
    )
    select s.id, s.level, max(s.score), s.ts
    from scored s
    group by s.id, s.level, s.ts
$$;

-- As in 0013. Whether a candidate is a copy of a better one is looked up for as many of the best as it
-- takes to have what is needed.
create or replace function recall.ranked_groups(
    found recall.candidate_rows, queries tsquery[], weights float8[], excluded tsquery,
    needed integer, out ids bigint[], out copy_keys bigint[], out scores float8[]
) language plpgsql stable as $$
declare
    ranked bigint[];
    ranked_scores float8[];
    looked integer := needed + 20;
begin
    select array_agg(r.id order by r.place), array_agg(r.score order by r.place)
    into ranked, ranked_scores
    from (
        select c.id, c.score, row_number() over (
            order by c.level, c.score desc, c.ts desc nulls last, c.id desc
        ) as place
        from recall.ranked_candidates(
            found.ids, found.chunks, found.levels, queries, weights, excluded
        ) c
    ) r;
    loop
        select array_agg(g.id order by g.place), array_agg(g.copy_key order by g.place),
            array_agg(g.score order by g.place)
        into ids, copy_keys, scores
        from (
            select f.*, row_number() over (order by f.place) as number
            from (
                select distinct on (m.copy_key is null, coalesce(m.copy_key, c.id))
                    c.id, m.copy_key, c.score, c.place
                from unnest(ranked[:looked], ranked_scores[:looked]) with ordinality
                    c (id, score, place)
                left join recall.message m on m.id = c.id
                order by m.copy_key is null, coalesce(m.copy_key, c.id), c.place
            ) f
        ) g
        where g.number <= needed;
        exit when looked >= coalesce(cardinality(ranked), 0) or cardinality(ids) >= needed;
        looked := looked * 4;
    end loop;
end
$$;

-- Candidates: what is known of how common the words are decides how the newest matches are read.

-- How many rows hold all words of a list at least nearly, where the words are common: the planner takes
-- them for independent, and in messages they are not.
alter type recall.candidate_list add attribute rows float8;

-- The share of rows that hold all terms of these shares: of the rarest all, of each next one the root of
-- what the last one was taken by, because what is about one is likely to be about the other.
create function recall.share_together(shares float8[]) returns float8 language sql immutable as $$
    select exp(sum(ln(s.share) / 2 ^ (s.place - 1)))
    from (
        select u.share, row_number() over (order by u.share) as place from unnest(shares) u (share)
    ) s
$$;

-- As in 0010, with the rows of the lists of all terms.
create or replace function recall.candidate_lists(
    terms recall.query_term[], frequencies float8[], total float8
) returns setof recall.candidate_list language plpgsql stable as $$
declare
    required constant tsquery[] := array(
        select recall.any_of(array_agg(t.query)) from unnest(terms) t
        group by t.alternative having bool_or(t.quoted)
    );
    must constant tsquery := recall.all_of(nullif(required, '{}'));
    shares constant float8[] := array(
        select greatest(f, 1 / total) from unnest(frequencies) f
    );
    quoted constant float8[] := array(
        select min(s) from unnest(terms, shares) t (words, quoted, negative, alternative, query, s)
        group by t.alternative having bool_or(t.quoted)
    );
    wanted tsquery[] := '{}';
    rows_of float8[] := '{}';
    least_rows float8 := 'infinity';
    only_common boolean := true;
    lists recall.candidate_list[] := '{}';
    few boolean := false;
    together boolean;
    place integer;
    rank integer := 0;
begin
    for place in 1 .. cardinality(terms) loop
        least_rows := least(least_rows, coalesce(frequencies[place], 0) * total);
        few := few or not recall.is_common(frequencies[place], total);
        continue when terms[place].query = any(wanted) or exists (
            select from unnest(terms) t where t.alternative = terms[place].alternative and t.quoted
        );
        wanted := wanted || terms[place].query;
        rows_of := rows_of || coalesce(frequencies[place], 0) * total;
        only_common := only_common and recall.is_common(frequencies[place], total);
    end loop;
    few := least_rows <= recall.few_rows() * case
        when few and cardinality(terms) > 1 then 5 else 1
    end;
    if cardinality(wanted) > 0 then
        return next (
            recall.all_of(required || wanted), few, null::text, 0, false,
            case when cardinality(terms) > 1 then total * recall.share_together(shares) end
        );
    end if;
    if must is not null then
        return next (
            must, few, null::text, least(cardinality(wanted), 1), false,
            case when cardinality(quoted) > 1 then total * recall.share_together(quoted) end
        );
    end if;
    for place in 2 .. least(cardinality(wanted) - 2, 3) loop
        exit when recall.is_common(rows_of[place] / total, total);
        lists := lists || row(
            recall.all_of(required || wanted[place:place + 3]),
            rows_of[place] <= 5 * recall.few_rows(),
            null, 1, false, null
        )::recall.candidate_list;
    end loop;
    for place in 1 .. case when cardinality(wanted) > 1 then cardinality(wanted) else 0 end loop
        continue when must is null and not only_common
            and recall.is_common(rows_of[place] / total, total);
        rank := rank + 1;
        together := rank <= case when cardinality(wanted) > 4 then 1 else 2 end
            and not only_common and cardinality(wanted) > 2;
        if together then
            lists := lists || row(
                recall.all_of(required || wanted[place])
                    && recall.any_of((array_remove(wanted, wanted[place]))[:5]),
                rows_of[place] <= 5 * recall.few_rows(), null, 1, false, null
            )::recall.candidate_list;
        end if;
        lists := lists || row(
            recall.all_of(required || wanted[place]),
            least(rows_of[place], case when must is not null then least_rows end)
                <= recall.few_rows(),
            null, case when together or rank <= 2 and cardinality(wanted) <= 4 then 1 else 2 end,
            together, null
        )::recall.candidate_list;
    end loop;
    return query
        select l.query, l.forced, l.condition, l.tier, l.includes_last, l.rows
        from unnest(lists) with ordinality
            l (query, forced, condition, tier, includes_last, rows, place)
        order by l.tier, l.place;
    if cardinality(required) > 1 then
        return next (
            recall.any_of(required), true, recall.across_chunks(required), 2, false, null::float8
        );
    end if;
end
$$;

drop function recall.is_better_collected(recall.candidate_list, text, integer);

-- The words of a query without their order.
create function recall.in_any_order(query tsquery) returns tsquery language sql immutable as $$
    select regexp_replace(query::text, '<(-|[0-9]+)>', '&', 'g')::tsquery
$$;

-- The newest rows that hold several common words, found by walking from the newest end; null where it is
-- cheaper to collect all and sort them. The first part of the walk tells how many there are. The costs
-- are in microseconds, by ops/bench/search.py: a row that is walked is decompressed, one that is
-- collected is fetched, and the index reads a list for each word.
create function recall.walked_matches(
    list recall.candidate_list, query tsquery, condition text, most integer,
    out ids bigint[], out chunks smallint[]
) language plpgsql stable as $$
declare
    total constant float8 := greatest(recall.estimated_rows('recall.message_text'), 1000);
    behind constant float8 := recall.rows_behind(condition);
    rows float8 := list.rows;
    walked bigint := 0;
    page bigint;
    place text := 'true';
    piece record;
begin
    for attempt in 1 .. 3 loop
        page := ceil((most - coalesce(cardinality(ids), 0)) * total / rows);
        exit when 2.2 * least(page, behind - walked) > 1000 * numnode(query) + 1.25 * rows;
        page := ceil(page * case attempt when 1 then 0.4 else 1.5 end);
        execute format(
            'select array_agg(m.id order by m.n) filter (where m.holds) as ids,
                array_agg(m.chunk order by m.n) filter (where m.holds) as chunks,
                max(m.n) as read, (array_agg(m.id order by m.n desc))[1] as last_id,
                (array_agg(m.chunk order by m.n desc))[1] as last_chunk,
                (array_agg(m.ts order by m.n desc))[1] as last_ts
            from (
                select w.id, w.chunk, w.ts, w.n, w.tsv @@ %1$L::tsquery as holds
                from (
                    select t.*, row_number() over () as n
                    from (
                        select t.id, t.chunk, t.ts, t.tsv from recall.message_text t
                        where %2$s and %3$s
                        order by t.ts desc nulls last, t.id desc, t.chunk limit %4$s
                    ) t
                ) w
                where w.tsv @@ %1$L::tsquery or w.n = %4$s
                limit %5$s
            ) m',
            query, condition, place, page, most - coalesce(cardinality(ids), 0) + 1
        ) into piece;
        ids := (ids || piece.ids)[:most];
        chunks := (chunks || piece.chunks)[:most];
        if cardinality(ids) = most or walked = 0 and coalesce(piece.read, 0) < page then
            return;
        end if;
        exit when coalesce(piece.read, 0) < page or piece.last_ts is null;
        walked := walked + page;
        rows := greatest(cardinality(ids), 0.5) / walked * total;
        place := format(
            '(t.ts, t.id) <= (%1$L::timestamptz, %2$L::bigint) and (t.id <> %2$L or t.chunk > %3$L)',
            piece.last_ts, piece.last_id, piece.last_chunk
        );
    end loop;
    ids := null;
end
$$;

-- The newest rows that hold a phrase. The index knows its words and not their order, so of the rows with
-- all words the newest are looked at until there are enough: twenty for each that is wanted; all where
-- they are not more than twice as many, where hardly one of these holds it, and for the last depth.
-- Where many rows hold the words, the newest rows are walked first, and then a span of time is looked
-- up. What is found late has a late place, whatever the depth and the way. A row without an id says
-- that there is more to look at.
create function recall.newest_phrases(
    query tsquery, words tsquery, condition text, most integer
) returns table (id bigint, chunk smallint, place bigint) language plpgsql stable as $$
declare
    total constant float8 := greatest(recall.estimated_rows('recall.message_text'), 1000);
    looked constant bigint := case when most < 5000 then 20 * most end;
    expected constant float8 := recall.expected_rows(format(
        'select from recall.message_text t where t.tsv @@ %L::tsquery and %s', words, condition
    ));
    matching constant text := format('t.tsv @@ %L::tsquery', words);
    enough bigint;
    is_cut boolean := false;
    start timestamptz;
    source text;
    found record;
begin
    for way in 1 .. 4 loop
        enough := null;
        if way = 1 then
            continue when not recall.is_common(expected / total, total);
            source := format(
                'select t.* from (
                    select t.id, t.chunk, t.ts, t.ctid as row, t.tsv from recall.message_text t
                    where %s order by t.ts desc nulls last, t.id desc, t.chunk limit %s
                ) t where %s',
                condition, 10 * most, matching
            );
        elsif way = 2 then
            continue when looked is null or expected <= 4 * looked;
            execute format(
                'select t.ts from recall.message_text t where t.ts is not null
                order by t.ts desc nulls last, t.id desc offset %s limit 1',
                ceil(1.5 * looked * total / expected)
            ) into start;
            continue when start is null;
            enough := looked;
            source := format(
                'select t.id, t.chunk, t.ts, t.ctid as row from recall.message_text t
                where %s and %s and t.ts >= %L::timestamptz',
                matching, condition, start
            );
        else
            continue when way = 3 and is_cut;
            enough := case when way = 3 then 2 * looked end;
            source := format(
                'select t.id, t.chunk, t.ts, t.ctid as row from recall.message_text t
                where %s and %s',
                matching, condition
            );
        end if;
        execute format(
            'with t as materialized (%1$s), n as (
                select t.*, row_number() over (
                    order by t.ts desc nulls last, t.id desc, t.chunk
                ) as place
                from t
                order by t.ts desc nulls last, t.id desc, t.chunk
                limit (select %2$L::bigint where (select count(*) from t) > %3$L::bigint)
            ), p as (
                select n.id, n.chunk, n.place
                from n
                cross join lateral (
                    select from recall.message_text o
                    where o.ctid = n.row and o.tsv @@ %4$L::tsquery offset 0
                ) o
                order by n.ts desc nulls last, n.id desc, n.chunk limit %5$s
            )
            select array_agg(p.id order by p.place) as ids,
                array_agg(p.chunk order by p.place) as chunks,
                array_agg(p.place order by p.place) as places,
                (select count(*) from t) as held
            from p',
            source, looked, enough, query, most
        ) into found;
        is_cut := coalesce(found.held > enough, false);
        exit when cardinality(found.ids) = most or way = 3 and not is_cut
            or is_cut and 10 * cardinality(found.ids) >= most;
    end loop;
    return query
        select u.id, u.chunk, greatest(u.number, (u.place + 19) / 20)
        from unnest(found.ids, found.chunks, found.places) with ordinality
            u (id, chunk, place, number);
    if is_cut and cardinality(found.ids) < most then
        return query select null::bigint, null::smallint, most::bigint;
    end if;
end
$$;

-- Behind a filter that leaves no more rows than these, they are read without the index of words: it has
-- no filters, and the lists of common words take longer.
create function recall.few_behind() returns float8 language sql immutable return 3000;

create function recall.rows_behind(condition text) returns float8 language sql stable as $$
    select recall.expected_rows('select from recall.message_text t where ' || condition)
$$;

-- The newest rows of a list. `condition` is on the alias `t`. Of one word, and behind other filters, the
-- planner knows whether to walk or to collect.
create or replace function recall.newest_matches(
    list recall.candidate_list, excluded tsquery, condition text, most integer
) returns table (id bigint, chunk smallint, place bigint) language plpgsql stable as $$
declare
    conditions constant text := concat_ws(' and ', list.condition, condition);
    query constant tsquery := case
        when excluded is null then list.query else list.query && !!excluded
    end;
    behind constant float8 := case
        when not list.forced and list.rows is not null then recall.rows_behind(conditions)
    end;
    collect boolean := list.forced;
    walked record;
begin
    if behind <= recall.few_behind() then
        return query execute format(
            'select n.id, n.chunk, row_number() over ()
            from (
                select t.id, t.chunk
                from (
                    select t.id, t.chunk, t.ts, t.tsv from recall.message_text t
                    where %2$s offset 0
                ) t
                where t.tsv @@ %1$L::tsquery
                order by t.ts desc nulls last, t.id desc, t.chunk limit %3$s
            ) n',
            query, conditions, most
        );
        return;
    elsif list.query::text like '%<%' then
        return query select p.* from recall.newest_phrases(
            query, recall.in_any_order(list.query), conditions, most
        ) p;
        return;
    elsif behind > 0.5 * recall.estimated_rows('recall.message_text') then
        walked := recall.walked_matches(list, query, conditions, most);
        if walked.ids is not null then
            return query select n.id, n.chunk, n.place
                from unnest(walked.ids, walked.chunks) with ordinality n (id, chunk, place);
            return;
        end if;
        collect := true;
    end if;
    return query execute format(
        case when collect then
            'with t as materialized (
                select t.id, t.chunk, t.ts
                from recall.message_text t where t.tsv @@ %1$L::tsquery and %2$s
            )
            select n.id, n.chunk, row_number() over ()
            from (
                select t.id, t.chunk from t
                order by t.ts desc nulls last, t.id desc, t.chunk limit %3$s
            ) n'
        else
            'select n.id, n.chunk, row_number() over ()
            from (
                select t.id, t.chunk from recall.message_text t
                where t.tsv @@ %1$L::tsquery and %2$s
                order by t.ts desc nulls last, t.id desc, t.chunk limit %3$s
            ) n'
        end,
        query, conditions, most
    );
end
$$;

-- As in 0010, with a list that has more to look at than it gave.
create or replace function recall.candidates(
    lists recall.candidate_list[], excluded tsquery, condition text, depths integer[]
) returns recall.candidate_rows language plpgsql stable as $$
declare
    depth constant integer := depths[cardinality(depths)];
    found recall.candidate_rows;
    tier integer := 0;
    lower_rows bigint := 0;
    tier_rows bigint := 0;
    last_rows bigint := 0;
    behind bigint;
    list recall.candidate_list;
    piece record;
begin
    found.is_full := false;
    foreach list in array lists loop
        if list.tier > tier then
            tier := list.tier;
            lower_rows := greatest(lower_rows, tier_rows);
        end if;
        behind := greatest(lower_rows, case when list.includes_last then last_rows end);
        if behind >= depth then
            found.listed := found.listed || null::bigint;
            continue;
        end if;
        behind := coalesce((select max(d) from unnest(depths) d where d <= behind), 0);
        select array_agg(m.id) filter (where m.id is not null) as ids,
            array_agg(m.chunk) filter (where m.id is not null) as chunks,
            array_agg(width_bucket(m.place + behind - 1, depths)) filter (where m.id is not null)
                as levels,
            greatest(count(m.id), max(m.place) filter (where m.id is null)) as rows
        into piece
        from recall.newest_matches(list, excluded, condition, depth) m;
        last_rows := piece.rows;
        tier_rows := greatest(tier_rows, piece.rows);
        found.ids := found.ids || piece.ids;
        found.chunks := found.chunks || piece.chunks;
        found.levels := found.levels || piece.levels;
        found.listed := found.listed || piece.rows;
        found.is_full := found.is_full or piece.rows >= depth;
    end loop;
    return found;
end
$$;

-- As in 0013. Where a filter leaves few rows, all that hold any of the words are ranked: that is less
-- work than a look-up of common words in the whole index.
create or replace function recall.text_ranking(
    terms recall.query_term[], frequencies float8[], excluded tsquery, condition text,
    needed integer,
    out ids bigint[], out copy_keys bigint[], out scores float8[], out shallow boolean
) language plpgsql stable as $$
declare
    total constant float8 := greatest(recall.estimated_rows('recall.message_text'), 1000);
    queries constant tsquery[] := array(select t.query from unnest(terms) t);
    is_narrow constant boolean := cardinality(terms) > 1
        and not exists (select from unnest(terms) t where t.quoted)
        and recall.rows_behind(condition) <= least(recall.few_behind(), total / 20);
    lists recall.candidate_list[] := case
        when is_narrow then array[
            row(recall.any_of(queries), false, null, 0, false, total)::recall.candidate_list
        ]
        else array(select l from recall.candidate_lists(terms, frequencies, total) l)
    end;
    -- a score of few words is cheap, and the newest rows need not be those that say most about them
    depths constant integer[] := case
        when is_narrow then array[5000]
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
    if rest.common is not null and coalesce(cardinality(groups.ids), 0) < needed
        and not is_narrow
    then
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

-- Snippets. What a text is looked through for is worked out once for a query, not for each hit.

-- The terms of a query as snippets need them. `patterns`, `starts` and `looser` are those of the first
-- terms, which a place is chosen by; `phrases` those of several words, `written` the others in lower
-- case and `stems` their stems; `together` all terms in a row, `parts` any of them as a part of a word.
create type recall.shown_terms as (
    terms recall.query_term[], patterns text[], starts text[], looser text[], together text,
    phrases text[], written text[], stems text[], parts text
);

create function recall.shown_terms(terms recall.query_term[]) returns recall.shown_terms
language sql immutable as $$
    select
        terms,
        array(select recall.term_pattern(t.words, t.quoted) from unnest(terms[:6]) t),
        array(select recall.term_start(t.words, t.quoted) from unnest(terms[:6]) t),
        array(select recall.loose_pattern(t.words) from unnest(terms[:6]) t),
        recall.term_pattern(array(
            select w.word
            from unnest(terms) t
            cross join lateral unnest(t.words) with ordinality w (word, place)
            order by t.alternative, w.place
        ), true),
        array(
            select recall.term_pattern(t.words, true) from unnest(terms) t
            where cardinality(t.words) > 1
        ),
        array(select lower(t.words[1]) from unnest(terms) t where cardinality(t.words) = 1),
        array(
            select (ts_lexize('pg_catalog.english_stem', lower(t.words[1])))[1]
            from unnest(terms) t
            where cardinality(t.words) = 1 and not t.quoted
        ),
        (select string_agg(recall.loose_pattern(t.words), '|') from unnest(terms) t)
$$;

drop function recall.term_place(text, text, text[], boolean);

-- Where a text holds the term of a number, as a word or else as a part of one; 0 if nowhere. `lowered`
-- is the text in lower case, character by character. What the term begins with is looked up first,
-- and mostly it stands there: the expression is tried on the whole text only where it does not.
create function recall.term_place(
    content text, lowered text, shown recall.shown_terms, number integer
) returns integer language plpgsql immutable as $$
declare
    pattern constant text := shown.patterns[number];
    words constant text[] := (shown.terms[number]).words;
    is_written constant boolean := cardinality(words) > 1 or (shown.terms[number]).quoted;
    first text := shown.starts[number];
    place integer := strpos(lowered, first);
    start integer;
    found integer;
begin
    if place > 0 and octet_length(first) = length(first) then
        start := greatest(place - 1, 1);
        found := regexp_instr(
            substr(content, start, 300), pattern, least(place, 2), 1, 0, 'i'
        );
        place := case when found > 0 then start + found - 1 else place + 1 end;
    elsif octet_length(first) <> length(first) then  -- letters of which case makes others
        place := 1;
        found := 0;
    end if;
    for attempt in 1 .. 20 loop
        exit when place = 0;
        if found = 0 then
            place := regexp_instr(content, pattern, place, 1, 0, 'i');
            exit when place = 0;
        end if;
        if is_written or recall.is_form_of(
            substring(substr(content, place, 300) from '^[[:alnum:]]+'), words[1]
        ) then
            return place;
        end if;
        place := place + greatest(length(first), 1);
        found := 0;
    end loop;
    first := lower(split_part(recall.word_parts(words[1]), ' ', 1));
    place := case when octet_length(first) = length(first) then strpos(lowered, first) else 1 end;
    return case
        when place = 0 then 0
        else regexp_instr(content, shown.looser[number], place, 1, 0, 'i')
    end;
end
$$;

drop function recall.mark_terms(text, recall.query_term[]);

-- One line with the terms marked: phrases and word forms, or else the parts of words.
create function recall.mark_terms(line text, shown recall.shown_terms) returns text
language plpgsql immutable as $$
declare
    marked text;
begin
    if shown.phrases = '{}' then
        marked := (
            select string_agg(
                case
                    when lower(m.piece[1]) = any(shown.written)
                        or (ts_lexize('pg_catalog.english_stem', lower(m.piece[1])))[1]
                            = any(shown.stems)
                        then '<mark>' || m.piece[1] || '</mark>'
                    else m.piece[1]
                end,
                '' order by m.place
            )
            from regexp_matches(line, '[[:alnum:]]+|[^[:alnum:]]+', 'g') with ordinality
                m (piece, place)
        );
    else
        marked := regexp_replace(line, '(' || array_to_string(shown.phrases || array(
            select distinct recall.term_pattern(array[w], true)
            from regexp_split_to_table(line, '[^[:alnum:]]+') w
            where w <> '' and (
                lower(w) = any(shown.written)
                or (ts_lexize('pg_catalog.english_stem', lower(w)))[1] = any(shown.stems)
            )
        ), '|') || ')', '<mark>\1</mark>', 'gi');
    end if;
    if marked <> line then
        return marked;
    end if;
    return regexp_replace(line, '(' || shown.parts || ')', '<mark>\1</mark>', 'gi');
end
$$;

-- As in 0003: about 240 characters of a text, where all terms stand in a row, or else around the first
-- place of one of the first terms that has most of the others near it.
create function recall.text_snippet(content text, shown recall.shown_terms) returns text
language plpgsql immutable as $$
declare
    body constant text := content || '';  -- decompressed once
    lowered constant text := lower(body collate pg_catalog.pg_c_utf8);
    places integer[] := '{}';
    start integer := 0;
begin
    for number in 1 .. cardinality(shown.patterns) loop
        places := places || recall.term_place(body, lowered, shown, number);
    end loop;
    if cardinality(shown.terms) > 1 and 0 <> all(places) then
        start := regexp_instr(
            body, shown.together, (select min(p.place) from unnest(places) p (place)), 1, 0, 'i'
        );
    end if;
    if start = 0 then
        start := case
            when cardinality(places) = 1 then greatest(places[1], 1)
            else (
                select coalesce(min(p.place) filter (where p.near), 1)
                from (
                    select a.place, count(*) = max(count(*)) over () as near
                    from unnest(places) a (place)
                    join unnest(places) b (place) on b.place between a.place and a.place + 160
                    where a.place > 0
                    group by a.place
                ) p
            )
        end;
    end if;
    start := greatest(1, start - 60);
    return concat(
        case when start > 1 then '…' end,
        recall.mark_terms(recall.plain_line(substr(body, start, 240)), shown),
        case when start + 240 <= length(body) then '…' end
    );
end
$$;

create or replace function recall.text_snippet(content text, terms recall.query_term[]) returns text
language sql immutable as $$
    select recall.text_snippet(content, recall.shown_terms(terms))
$$;

-- As in 0013.
create or replace function recall.text_snippets(ids bigint[], terms recall.query_term[])
returns text[] language plpgsql stable as $$
declare
    shown constant recall.shown_terms := recall.shown_terms(terms);
begin
    return array(
        select recall.text_snippet(e.content, shown)
        from unnest(ids) with ordinality p (id, place)
        join recall.entry e on e.id = p.id
        order by p.place
    );
end
$$;
