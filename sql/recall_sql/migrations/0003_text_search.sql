-- Text search: terms of a query, candidates by the text index, and their order.

create type recall.query_term as (
    words text[],
    quoted boolean,
    negative boolean,
    alternative integer,
    query tsquery
);

-- What a term finds: its words as a phrase, as written or by their stems; a word of several parts
-- (camelCase, E0382) also as its parts; what may be the beginning of a commit hash also as a
-- beginning; a version also with or without its v. Quoted text is found as written only.
create function recall.term_query(body text, words text[], quoted boolean) returns tsquery
language plpgsql immutable as $$
declare
    plain constant text := array_to_string(words, ' ');
    written constant tsquery := phraseto_tsquery('pg_catalog.simple', plain);
    stems constant tsquery := phraseto_tsquery('pg_catalog.english', plain);
    found tsquery := written;
begin
    if numnode(written) = 0 then
        return null;
    end if;
    if quoted then
        return written;
    end if;
    -- A phrase that lost its stop words would find much more than was asked for.
    if numnode(stems) = numnode(written) and stems <> written then
        found := found || stems;
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
        found := found || phraseto_tsquery('pg_catalog.simple', regexp_replace(
            plain,
            '(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])'
                '|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])',
            ' ', 'g'
        ));
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
        select x.place, array_to_string(x.words, ' ') as plain, x.quoted
        from unnest(terms) with ordinality
            x (words, quoted, negative, alternative, query, place)
    ), form as (
        select t.place, to_tsvector('pg_catalog.simple', t.plain) as lexemes from term t
        union all
        select t.place, to_tsvector('pg_catalog.english', t.plain) from term t where not t.quoted
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
        return next (must, least_rows <= 5 * recall.few_rows(), null);
    end if;
    for place in 1 .. cardinality(wanted) loop
        continue when must is null and not only_common
            and recall.is_common(rows_of[place] / total, total);
        return next (
            coalesce(must && wanted[place], wanted[place]),
            least(rows_of[place], case when must is not null then least_rows end)
                <= recall.few_rows(),
            null
        );
        continue when cardinality(wanted) = 1 or must is null and only_common;
        return next (
            coalesce(must && wanted[place], wanted[place])
                && recall.any_of(array_remove(wanted, wanted[place])),
            rows_of[place] <= 5 * recall.few_rows(), null
        );
    end loop;
    if cardinality(wanted) > 1 then
        return next (
            coalesce(must && recall.all_of(wanted), recall.all_of(wanted)),
            least_rows <= 5 * recall.few_rows(), null
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
