-- Text search: terms of a query, candidates by the text index, and their order.

create type recall.query_term as (
    words text[],
    quoted boolean,
    negative boolean,
    alternative integer,
    query tsquery
);

-- The parts of camelCase and letter-digit words, which stand behind the words in an index row.
create function recall.word_parts(word text) returns text language sql immutable as $$
    select regexp_replace(
        word,
        '(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])'
            '|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])',
        ' ', 'g'
    )
$$;

-- What a term finds: several words as a phrase; one word as written or by its stem, one of several
-- parts (camelCase, E0382) also as its parts, and what may be the beginning of a commit hash also
-- as a beginning; a version also with or without its v. Quoted text is found as written only.
create function recall.term_query(body text, words text[], quoted boolean) returns tsquery
language plpgsql immutable as $$
declare
    plain constant text := array_to_string(words, ' ');
    written constant tsquery := phraseto_tsquery('pg_catalog.simple', plain);
    stem constant tsquery := phraseto_tsquery('pg_catalog.english', plain);
    found tsquery := written;
begin
    if numnode(written) = 0 then
        return null;
    end if;
    if quoted then
        return written;
    end if;
    if cardinality(words) = 1 and numnode(stem) = 1 and stem <> written then
        found := found || stem;
    end if;
    if cardinality(words) > 1 then
        if body ~ '^[vV]?[0-9]+(\.[0-9]+)+' then
            found := found || phraseto_tsquery(
                'pg_catalog.simple',
                case when plain ~ '^[vV]' then substr(plain, 2) else 'v' || plain end
            );
        end if;
    elsif plain ~* '^[0-9a-f]{7,39}$' and plain ~ '[0-9]' then
        found := found || to_tsquery('pg_catalog.simple', plain || ':*');
    elsif length(plain) > 2 and plain ~ '^[0-9A-Za-z]+$'
        and plain ~ '[a-z][A-Z]|[A-Z][A-Z][a-z]|[A-Za-z][0-9]|[0-9][A-Za-z]'
    then
        found := found || phraseto_tsquery('pg_catalog.simple', recall.word_parts(plain));
    end if;
    return found;
end
$$;

-- The terms of what a user typed; any text is a query. `"` opens a phrase if it is closed again.
-- `-` before a letter or a quote excludes; `--flag` and `-1` are words. `OR` behind a term makes it
-- and the next one alternatives, which matters where one of them is quoted and so required.
create function recall.query_terms(q text) returns setof recall.query_term
language plpgsql immutable as $$
declare
    piece text[];
    body text;
    term recall.query_term;
    place integer := 0;
    joined boolean := false;
begin
    for piece in
        select m from regexp_matches(
            translate(q, '“”„', '"""'), '(-?)"([^"]*)"|([^\s"]+)|"', 'g'
        ) m
    loop
        if piece[3] = 'OR' and place > 0 then
            joined := true;
            continue;
        end if;
        term.quoted := piece[2] is not null;
        term.negative := piece[1] = '-' or piece[3] ~ '^-[^-0-9]'
            and recall.words(substr(piece[3], 2, 1)) <> '';
        term.negative := coalesce(term.negative, false);
        body := coalesce(piece[2], piece[3], '');
        if term.negative and not term.quoted then
            body := substr(body, 2);
        end if;
        term.words := string_to_array(recall.words(body), ' ');
        term.query := recall.term_query(body, term.words, term.quoted);
        continue when term.query is null;
        if not term.negative then
            place := place + (not joined)::integer;
            joined := false;
        end if;
        term.alternative := place;
        return next term;
    end loop;
end
$$;

create function recall.any_of(queries tsquery[]) returns tsquery
language plpgsql immutable strict as $$
declare
    query tsquery;
    united tsquery;
begin
    foreach query in array queries loop
        united := case when united is null then query else united || query end;
    end loop;
    return united;
end
$$;

create function recall.all_of(queries tsquery[]) returns tsquery
language plpgsql immutable strict as $$
declare
    query tsquery;
    united tsquery;
begin
    foreach query in array queries loop
        united := case when united is null then query else united && query end;
    end loop;
    return united;
end
$$;

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

-- A regular expression for the places of a term. One for a word finds every word with the same
-- beginning as its stem, which is to be checked.
create function recall.term_pattern(words text[], quoted boolean) returns text
language plpgsql immutable as $$
declare
    pattern text := '';
    word text;
    stem text;
begin
    if cardinality(words) = 1 and not quoted then
        word := lower(words[1]);
        stem := coalesce((ts_lexize('pg_catalog.english_stem', word))[1], word);
        while not starts_with(word, stem) loop
            stem := left(stem, -1);
        end loop;
        return '(?<![[:alnum:]])' || stem || '[[:alnum:]]{0,12}(?![[:alnum:]])';
    end if;
    foreach word in array words loop
        pattern := pattern
            || case
                when pattern = '' then ''
                when ascii(word) <@ recall.unspaced_characters() then '[^[:alnum:]]*'
                else '[^[:alnum:]]+'
            end
            || word;
    end loop;
    return '(?<![[:alnum:]])' || pattern || '(?![[:alnum:]])';
end
$$;

-- The same for words that stand inside longer ones, or with other separators.
create function recall.loose_pattern(words text[]) returns text language sql immutable as $$
    select replace(recall.word_parts(array_to_string(words, ' ')), ' ', '[^[:alnum:]]*')
$$;

create function recall.is_form_of(word text, term text) returns boolean
language sql immutable as $$
    select lower(word) = lower(term)
        or ts_lexize('pg_catalog.english_stem', lower(word))
            = ts_lexize('pg_catalog.english_stem', lower(term))
            and ts_lexize('pg_catalog.english_stem', lower(term)) <> '{}'
$$;

-- Where a text holds a term, as a word or else as a part of one; 0 if nowhere.
create function recall.find_term(content text, words text[], quoted boolean) returns integer
language plpgsql immutable as $$
declare
    pattern constant text := recall.term_pattern(words, quoted);
    place integer := 1;
    word text;
begin
    for attempt in 1 .. 20 loop
        place := regexp_instr(content, pattern, place, 1, 0, 'i');
        exit when place = 0;
        if cardinality(words) > 1 or quoted then
            return place;
        end if;
        word := regexp_substr(content, pattern, place, 1, 'i');
        if recall.is_form_of(word, words[1]) then
            return place;
        end if;
        place := place + length(word);
    end loop;
    return regexp_instr(content, recall.loose_pattern(words), 1, 1, 0, 'i');
end
$$;

-- One line with the terms marked: phrases and word forms, or else the parts of words.
create function recall.mark_terms(line text, terms recall.query_term[]) returns text
language plpgsql immutable as $$
declare
    patterns text[];
    marked text;
begin
    select array_agg(recall.term_pattern(t.words, true)) into patterns
    from unnest(terms) t where cardinality(t.words) > 1;
    patterns := patterns || array(
        select distinct recall.term_pattern(array[w], true)
        from regexp_split_to_table(line, '[^[:alnum:]]+') w
        where w <> '' and exists (
            select from unnest(terms) t
            where cardinality(t.words) = 1 and case when t.quoted
                then lower(w) = lower(t.words[1]) else recall.is_form_of(w, t.words[1]) end
        )
    );
    marked := regexp_replace(
        line, '(' || array_to_string(patterns, '|') || ')', '<mark>\1</mark>', 'gi'
    );
    if patterns <> '{}' and marked <> line then
        return marked;
    end if;
    return regexp_replace(
        line,
        '(' || (select string_agg(recall.loose_pattern(t.words), '|') from unnest(terms) t) || ')',
        '<mark>\1</mark>', 'gi'
    );
end
$$;

-- About 240 characters of a text: where all terms stand in a row, or else around the first place
-- of one of the first terms that has most of the others near it.
create function recall.text_snippet(content text, terms recall.query_term[]) returns text
language plpgsql immutable as $$
declare
    body constant text := content || '';  -- decompressed once
    together constant text[] := array(
        select w.word
        from unnest(terms) t
        cross join lateral unnest(t.words) with ordinality w (word, place)
        order by t.alternative, w.place
    );
    places integer[];
    start integer := 0;
begin
    if cardinality(terms) > 1 then
        start := regexp_instr(body, recall.term_pattern(together, true), 1, 1, 0, 'i');
    end if;
    if start = 0 then
        places := array(
            select recall.find_term(body, t.words, t.quoted) from unnest(terms[:6]) t
        );
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
