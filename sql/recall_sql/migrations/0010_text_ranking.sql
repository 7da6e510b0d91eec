-- Bounded work for common words and common strings, measured by ops/bench/search.py.

-- Rows that the planner expects of a statement. Volatile, because EXPLAIN is not allowed elsewhere; it
-- changes nothing.
create function recall.expected_rows(statement text) returns float8 language plpgsql as $$
declare
    plan json;
begin
    execute 'explain (format json) ' || statement into plan;
    return (plan -> 0 -> 'Plan' ->> 'Plan Rows')::float8;
end
$$;

-- Ranking by words. What an answer needs from it is the one function recall.text_ranking.

-- A list of candidates. A list of a higher tier is only looked at while none of a lower tier is full,
-- and one that includes the list before it only while that is not full.
alter type recall.candidate_list add attribute tier integer, add attribute includes_last boolean;

drop function recall.candidate_lists(recall.query_term[], float8[], float8);
drop function recall.newest_matches(recall.candidate_list, text, integer);
drop function recall.ranked_candidates(bigint[], smallint[], bigint[], tsquery[], float8[]);
drop function recall.text_ranking(recall.query_term[], float8[], text, integer);
drop function recall.text_condition(recall.search_filter, tsquery);

-- Which newest matches of a query are ranked. Where enough messages hold all words, nothing else can be
-- among the best. Otherwise newest-first of "any of the words" would drown the rare word in the common
-- one, so the rarest words have a list each, alone and together with one of the next, and the others
-- alone; common ones only if there are no others. Quoted terms are required by every list. `terms` are
-- in the order of recall.ranking_terms, rarest first.
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
        return next (recall.all_of(required || wanted), few, null::text, 0, false);
    end if;
    if must is not null then
        return next (must, few, null::text, least(cardinality(wanted), 1), false);
    end if;
    for place in 2 .. least(cardinality(wanted) - 2, 3) loop
        exit when recall.is_common(rows_of[place] / total, total);
        lists := lists || row(
            recall.all_of(required || wanted[place:]), rows_of[place] <= 5 * recall.few_rows(),
            null, 1, false
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
                rows_of[place] <= 5 * recall.few_rows(), null, 1, false
            )::recall.candidate_list;
        end if;
        lists := lists || row(
            recall.all_of(required || wanted[place]),
            least(rows_of[place], case when must is not null then least_rows end)
                <= recall.few_rows(),
            null, case when together or rank <= 2 and cardinality(wanted) <= 4 then 1 else 2 end, together
        )::recall.candidate_list;
    end loop;
    return query
        select l.query, l.forced, l.condition, l.tier, l.includes_last
        from unnest(lists) with ordinality
            l (query, forced, condition, tier, includes_last, place)
        order by l.tier, l.place;
    if cardinality(required) > 1 then
        return next (recall.any_of(required), true, recall.across_chunks(required), 2, false);
    end if;
end
$$;

-- A long message has several index rows, and what is required may stand in different ones.
create or replace function recall.across_chunks(required tsquery[]) returns text
language sql immutable as $$
    select 't.chunk > 0 and ' || string_agg(
        format(
            't.id in (select o.id from recall.message_text o where o.tsv @@ %L::tsquery)', query
        ),
        ' and '
    )
    from unnest(required) query
$$;

-- Whether collecting all rows that match and sorting them is cheaper than walking from the newest end
-- until there are enough. The planner tells for words; it takes a phrase for an AND of its words, so
-- for one of common words the newest rows tell how many of them there are.
create function recall.is_better_collected(
    list recall.candidate_list, condition text, most integer
) returns boolean language plpgsql stable as $$
declare
    sample constant integer := 2000;
    found float8;
begin
    if list.forced or list.query::text not like '%<%' then
        return list.forced;
    end if;
    execute format(
        'select count(*) from (
            select t.tsv from recall.message_text t where %s
            order by t.ts desc nulls last, t.id desc limit %s
        ) w where w.tsv @@ %L::tsquery',
        condition, sample, list.query
    ) into found;
    return found < most and most * sample / greatest(found, 0.5) > 1.5 * recall.expected_rows(
        format(
            'select from recall.message_text t where t.tsv @@ %L::tsquery and %s',
            list.query, condition
        )
    );
end
$$;

-- The newest rows of a list. `condition` is on the alias `t`.
create function recall.newest_matches(
    list recall.candidate_list, excluded tsquery, condition text, most integer
) returns table (id bigint, chunk smallint, place bigint) language plpgsql stable as $$
declare
    conditions constant text := concat_ws(' and ', list.condition, condition);
    matching constant text := format(
        'select t.id, t.chunk, t.ts from recall.message_text t where t.tsv @@ %L::tsquery and %s',
        case when excluded is null then list.query else list.query && !!excluded end, conditions
    );
begin
    return query execute format(
        case when recall.is_better_collected(list, conditions, most) then
            'with m as materialized (%s), n as (
                select m.id, m.chunk from m
                order by m.ts desc nulls last, m.id desc, m.chunk limit %s
            )
            select n.id, n.chunk, row_number() over () from n'
        else
            'select n.id, n.chunk, row_number() over ()
            from (%s order by t.ts desc nulls last, t.id desc, t.chunk limit %s) n'
        end,
        matching, most
    );
end
$$;

-- The candidates with their score: for each term how rare it is, times how well the row holds it,
-- saturated; a long message counts by its best row. What is among the newest matches of a list goes
-- before what only a deeper look into the lists brings (`level`), so that a later page never reorders
-- an earlier one. What is excluded may stand in any of the rows of a long message.
create function recall.ranked_candidates(
    ids bigint[], chunks smallint[], levels integer[], queries tsquery[], weights float8[],
    excluded tsquery
) returns table (id bigint, copy_key bigint, level integer, score float8, ts timestamptz)
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
                select case when w.is_any or t.tsv @@ w.query then ts_rank(t.tsv, w.query) else 0
                end as rank
                offset 0
            ) r
        ) as score
        from best b
        join recall.message_text t on t.id = b.id and t.chunk = b.chunk
        where excluded is null or not exists (
            select from recall.message_text o where o.id = b.id and o.tsv @@ excluded
        )
    )
    select s.id, m.copy_key, s.level, max(s.score), s.ts
    from scored s
    left join recall.message m on m.id = s.id
    group by s.id, m.copy_key, s.level, s.ts
$$;

-- The filter conditions of a text query on the alias `t`.
create function recall.text_condition(f recall.search_filter) returns text language sql stable as $$
    select concat_ws(
        ' and ',
        recall.filter_condition(f, 't'),
        recall.own_prompt('t', recall.filter_condition(f, 'o'))
    )
$$;

create type recall.candidate_rows as (
    ids bigint[], chunks smallint[], levels integer[], listed bigint[], is_full boolean
);

-- The candidates of all lists to the last of some depths, and how many each list gave (null: it was
-- not looked at). The level is the place of the first depth that includes a candidate; what is looked at
-- only because another list ended between two depths counts as behind the first of them.
create function recall.candidates(
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
        select array_agg(m.id) as ids, array_agg(m.chunk) as chunks,
            array_agg(width_bucket(m.place + behind - 1, depths)) as levels,
            count(*) as rows
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

-- The ranked groups of copies for a query, best first, as far as `needed`; `shallow` says that
-- there may be matches that were not looked at. Another index for ranking would stand behind this.
create function recall.text_ranking(
    terms recall.query_term[], frequencies float8[], excluded tsquery, condition text,
    needed integer,
    out ids bigint[], out copy_keys bigint[], out scores float8[], out shallow boolean
) language plpgsql stable as $$
declare
    total constant float8 := greatest(recall.estimated_rows('recall.message_text'), 1000);
    lists constant recall.candidate_list[] := array(
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
    found recall.candidate_rows;
begin
    for level in 1 .. cardinality(depths) loop
        found := recall.candidates(lists, excluded, condition, depths[:level]);
        shallow := found.is_full;
        weights := coalesce(weights, array(
            select recall.term_weight(frequencies[q.i], coalesce((
                select min(found.listed[l.i]) from generate_subscripts(lists, 1) l (i)
                where (lists[l.i]).query = queries[q.i]
            ), 200), total)
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
                    found.ids, found.chunks, found.levels, queries, weights, excluded
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
create or replace function api.search_text(
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

-- Notes by words, ranked as messages are; `condition` is a further one on the alias `n`.
create or replace function recall.found_notes(
    q text, f recall.search_filter, condition text, most integer, first integer,
    max_chars integer, with_versions boolean
) returns jsonb language plpgsql stable as $$
declare
    parsed record;
    ranking record;
    page bigint[];
    found integer;
begin
    parsed := recall.ranking_terms(q);
    if parsed.terms is null then
        return jsonb_build_object(
            'entries', '[]'::jsonb, 'more', false, 'left_out', 0,
            'reason', case when parsed.excluded is null then 'no-words' else 'only-excluded' end
        );
    end if;
    ranking := recall.text_ranking(
        parsed.terms, parsed.frequencies, parsed.excluded,
        concat_ws(
            ' and ', recall.text_condition(f),
            format('exists (select from recall.note n where n.id = t.id and %s)', condition)
        ),
        first + most
    );
    found := coalesce(cardinality(ranking.ids), 0);
    page := ranking.ids[first : first + most - 1];
    return jsonb_build_object(
        'entries', recall.note_lines(
            page, ranking.scores[first : first + most - 1],
            array(
                select recall.text_snippet(recall.note_text(n.title, n.content), parsed.terms)
                from unnest(page) with ordinality p (id, place)
                join recall.note n on n.id = p.id
                order by p.place
            ),
            max_chars, with_versions
        ),
        'more', found >= first + most,
        'left_out', parsed.left_out,
        'reason', case when found < first + most and ranking.shallow then 'depth' end
    );
end
$$;

-- Snippets: a place is looked for by a regular expression only where a plain look-up found the word.

drop function recall.find_term(text, text[], boolean);

-- What every place of a term begins with, in lower case.
create function recall.term_start(words text[], quoted boolean) returns text
language plpgsql immutable as $$
declare
    word constant text := lower(words[1]);
    stem text;
begin
    if cardinality(words) > 1 or quoted then
        return word;
    end if;
    stem := coalesce((ts_lexize('pg_catalog.english_stem', word))[1], word);
    while not starts_with(word, stem) loop
        stem := left(stem, -1);
    end loop;
    return stem;
end
$$;

-- Where a text holds a term, as a word or else as a part of one; 0 if nowhere. `lowered` is the text in
-- lower case, character by character. Where the beginning of the term stands is looked up first, and
-- the expression only tried there: on a long text it costs a hundred times as much.
create function recall.term_place(content text, lowered text, words text[], quoted boolean)
returns integer language plpgsql immutable as $$
declare
    pattern constant text := recall.term_pattern(words, quoted);
    first text := recall.term_start(words, quoted);
    place integer := strpos(lowered, first);
    piece text;
    found integer;
begin
    if octet_length(first) <> length(first) then  -- letters of which case makes others
        place := regexp_instr(content, pattern, 1, 1, 0, 'i');
    end if;
    for attempt in 1 .. 20 loop
        exit when place = 0;
        piece := substr(content, greatest(place - 1, 1), 300);
        found := regexp_instr(piece, pattern, least(place, 2), 1, 0, 'i');
        if found > 0 and (cardinality(words) > 1 or quoted or recall.is_form_of(
            regexp_substr(piece, pattern, found, 1, 'i'), words[1]
        )) then
            return greatest(place - 1, 1) + found - 1;
        end if;
        place := place + greatest(length(first), 1);
        found := strpos(substr(lowered, place), first);
        place := case when found > 0 then place + found - 1 else 0 end;
    end loop;
    first := lower(split_part(recall.word_parts(words[1]), ' ', 1));
    place := case when octet_length(first) = length(first) then strpos(lowered, first) else 1 end;
    return case
        when place = 0 then 0
        else regexp_instr(content, recall.loose_pattern(words), place, 1, 0, 'i')
    end;
end
$$;

-- As in 0003: about 240 characters of a text, where all terms stand in a row, or else around the first
-- place of one of the first terms that has most of the others near it.
create or replace function recall.text_snippet(content text, terms recall.query_term[]) returns text
language plpgsql immutable as $$
declare
    body constant text := content || '';  -- decompressed once
    lowered constant text := lower(body collate pg_catalog.pg_c_utf8);
    together constant text[] := array(
        select w.word
        from unnest(terms) t
        cross join lateral unnest(t.words) with ordinality w (word, place)
        order by t.alternative, w.place
    );
    places constant integer[] := array(
        select recall.term_place(body, lowered, t.words, t.quoted) from unnest(terms[:6]) t
    );
    start integer := 0;
begin
    if cardinality(terms) > 1 and 0 <> all(places) then
        start := regexp_instr(
            body, recall.term_pattern(together, true),
            (select min(p.place) from unnest(places) p (place)), 1, 0, 'i'
        );
    end if;
    if start = 0 then
        select coalesce(min(p.place) filter (where p.near), 1) into start
        from (
            select a.place, count(*) = max(count(*)) over () as near
            from unnest(places) a (place)
            join unnest(places) b (place) on b.place between a.place and a.place + 160
            where a.place > 0
            group by a.place
        ) p;
    end if;
    start := greatest(1, start - 60);
    return concat(
        case when start > 1 then '…' end,
        recall.mark_terms(recall.plain_line(substr(body, start, 240)), terms),
        case when start + 240 <= length(body) then '…' end
    );
end
$$;

-- Exact strings and regular expressions.

drop function recall.are_common(recall.whole_words);
drop function recall.walked_rows(text, text, integer);
drop function recall.indexed_rows(tsquery, text, text, boolean);

create type recall.word_lookup as (query tsquery, rows float8);

-- What the text index is asked for, and the rows that it will give: the words, and the beginning of
-- one only if they alone are common, because a beginning collects the rows of many words.
create function recall.word_lookup(
    whole recall.whole_words, condition text
) returns recall.word_lookup language plpgsql stable as $$
declare
    found recall.word_lookup;
begin
    if whole.query is null then
        return null;
    end if;
    found.query := plainto_tsquery('pg_catalog.simple', array_to_string(whole.words, ' '));
    for attempt in 1 .. 2 loop
        if numnode(found.query) > 0 then
            found.rows := recall.expected_rows(format(
                'select from recall.message_text t where t.tsv @@ %L::tsquery and %s',
                found.query, condition
            ));
            exit when found.rows <= recall.few_rows()
                or whole.prefix is null or length(whole.prefix) < 3;
        end if;
        found.query := whole.query;
    end loop;
    return found;
end
$$;

-- The rows behind a place, newest first. With a query, those that hold its words and, whatever it
-- holds, the last one of the page, which has the number `page`.
create function recall.walked_rows(
    query tsquery, condition text, place text, page bigint
) returns text language sql immutable as $$
    select format(
        case when query is null then
            'select t.id, t.ts, t.kind, 0::bigint as n from recall.message_text t
            where t.chunk = 0 and %2$s and %3$s
            order by t.ts desc nulls last, t.id desc limit %4$s'
        else
            'select w.id, w.ts, w.kind, w.n
            from (
                select t.*, row_number() over () as n
                from (
                    select t.id, t.ts, t.kind, t.tsv from recall.message_text t
                    where %2$s and %3$s
                    order by t.ts desc nulls last, t.id desc limit %4$s
                ) t
            ) w
            where w.tsv @@ %1$L::tsquery or w.n = %4$s'
        end,
        query, condition, place, page
    )
$$;

-- Rows that hold the words and are behind a place, newest first; down to `start` where it is given.
create function recall.indexed_rows(
    query tsquery, condition text, place text, undated boolean, start timestamptz
) returns text language sql immutable as $$
    select format(
        'with m as materialized (
            select distinct t.id, t.ts, t.kind from recall.message_text t
            where t.tsv @@ %L::tsquery and %s and %s
        )
        select m.id, m.ts, m.kind, 0::bigint as n from m
        order by m.ts desc nulls last, m.id desc offset 0',
        query, condition,
        case
            when start is not null then format('%s and t.ts >= %L::timestamptz', place, start)
            when undated then place
            else format('(%s or t.ts is null)', place)
        end
    )
$$;

-- Of these rows, those that are behind a place, newest first.
create function recall.known_rows(ids bigint[], condition text, place text, undated boolean)
returns text language sql immutable as $$
    select format(
        'select t.id, t.ts, t.kind, 0::bigint as n
        from unnest(%L::bigint[]) k (id)
        join recall.message_text t on t.id = k.id and t.chunk = 0
        where %s and %s
        order by t.ts desc nulls last, t.id desc offset 0',
        ids, condition, case when undated then place else format('(%s or t.ts is null)', place) end
    )
$$;

-- As in 0008, with the number of the row.
create or replace function recall.read_rows(
    rows text, matches text, f recall.search_filter
) returns text language sql stable as $$
    select format(
        'select p.id, p.ts, p.n, case when %s and %s then coalesce(%s, p.id) end as hit
        from (%s) p
        cross join lateral (
            select coalesce(
                (select m.content from recall.message m where m.id = p.id),
                (select h.content from recall.prompt h where h.id = p.id),
                (select r.content from recall.message_retracted r where r.id = p.id),
                (select recall.note_text(n.title, n.content) from recall.note n where n.id = p.id)
            ) as content
            offset 0
        ) c',
        matches,
        recall.own_prompt('p', recall.filter_condition(f, 'o')),
        recall.representative(
            '(select k.copy_key from recall.message k where k.id = p.id)',
            recall.filter_condition(f, 't')
        ),
        rows
    )
$$;

-- How many rows of the text index are read next, where some were read and hold some hits.
create function recall.next_page(walked bigint, hits integer, most integer) returns bigint
language sql immutable return ceil(
    walked * least(64, greatest(2, 1.5 * (most + 1 - hits) / greatest(hits, 0.3)))
);

-- The ids of all texts that match, in no order and behind no filter. Reading the tables from end to end,
-- by several processes where there are, costs a third of walking them by their time or less.
create function recall.matching_ids(matches text) returns bigint[] language plpgsql stable as $$
declare
    ids bigint[];
begin
    execute format('select array_agg(c.id) from recall.entry c where %s', matches) into ids;
    return coalesce(ids, '{}');
end
$$;

-- Whether what is left is better read from end to end. A walk tells how long a row takes at most; all
-- of it must fit into the time, because nothing can be told of a statement that was cancelled.
create function recall.is_better_read(
    walked bigint, took interval, budget interval, condition text
) returns boolean language plpgsql stable as $$
declare
    total constant float8 := recall.estimated_rows('recall.message_text');
begin
    return walked >= 20000 and total * took / walked < 0.8 * budget and total < 3 * (
        recall.expected_rows(
            format('select from recall.message_text t where t.chunk = 0 and %s', condition)
        ) - walked
    );
end
$$;

-- Read rows newest first until one hit more than `most` is found, the end is reached or the time is
-- over. With `whole` the text index gives the rows. Where they are many, the newest rows are walked
-- first, without the index; how many hits they hold tells how far back the rest of the page will be,
-- and whether walking on or the text index of that span of time is cheaper. Where the index cannot tell
-- or most rows hold the words, what the walk leaves is read from end to end if there is time for it.
create or replace function recall.scan(
    matches text, whole recall.whole_words, f recall.search_filter, most integer,
    before_ts timestamptz, before_id bigint, budget interval,
    out ids bigint[], out more boolean, out cut boolean, out ts timestamptz, out id bigint,
    out scanned_to timestamptz
) language plpgsql stable as $$
declare
    started constant timestamptz := clock_timestamp();
    deadline constant timestamptz := started + budget;
    condition constant text := recall.filter_condition(f, 't');
    undated boolean := before_ts is null and before_id is not null;
    lookup constant recall.word_lookup := recall.word_lookup(whole, condition);
    walk boolean := lookup.query is null or lookup.rows > recall.few_rows();
    page bigint := case
        when lookup.query is null then 5000 else least(20000, greatest(1000, lookup.rows / 10))
    end;
    walked bigint := 0;
    newest timestamptz := before_ts;
    start timestamptz;
    matching bigint[];
    read bigint;
    found record;
begin
    ids := '{}';
    more := false;
    cut := false;
    scanned_to := before_ts;
    loop
        read := 0;
        for found in execute recall.read_rows(
            case when matching is not null then recall.known_rows(
                matching, condition, recall.behind(undated, before_ts, before_id), undated
            ) when walk then recall.walked_rows(
                lookup.query, condition, recall.behind(undated, before_ts, before_id), page
            ) else recall.indexed_rows(
                lookup.query, condition, recall.behind(undated, before_ts, before_id), undated, start
            ) end,
            matches, f
        ) loop
            read := case when lookup.query is null then read + 1 else found.n end;
            -- of a long message, several rows may hold the words
            continue when found.id = before_id;
            if found.hit = found.id and cardinality(ids) = most then
                more := true;
                return;
            end if;
            before_ts := found.ts;
            before_id := found.id;
            newest := coalesce(newest, found.ts);
            scanned_to := coalesce(found.ts, scanned_to);
            if found.hit = found.id then
                ids := ids || found.id;
                ts := found.ts;
                id := found.id;
            end if;
            if clock_timestamp() > deadline then
                cut := true;
                ts := found.ts;
                id := found.id;
                return;
            end if;
        end loop;
        if matching is not null then
            return;
        elsif walk and read = page then
            walked := walked + page;
            if lookup.query is null or lookup.rows > 0.3 * recall.estimated_rows(
                'recall.message_text'
            ) then
                if recall.is_better_read(
                    walked, clock_timestamp() - started, deadline - clock_timestamp(), condition
                ) then
                    matching := recall.matching_ids(matches);
                end if;
                continue;
            end if;
            page := recall.next_page(walked, cardinality(ids), most);
            walk := undated or page < 0.15 * lookup.rows;
            start := before_ts - (newest - before_ts) * (page::float8 / walked);
        elsif walk and not undated then
            undated := true;
            before_id := null;
        elsif not walk and start is not null then
            before_ts := start;
            before_id := -1;  -- below every id
            start := null;
        else
            return;
        end if;
    end loop;
end
$$;
