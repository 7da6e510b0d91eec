-- What a user typed, as terms: what each of them finds, and how a text shows it.

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
