-- Exact strings and regular expressions: the content itself decides, newest first, and the text
-- index only tells where it need not be read. What a search may cover.

create type recall.whole_words as (query tsquery, words text[], prefix text);

-- Words that stand in the index row of every text that contains `q`: those with a non-alphanumeric
-- on both sides inside `q`, and the last one as a beginning. The first one may be the rest of a
-- longer word. A long text is indexed in chunks that overlap by 400 characters, so the words are
-- taken from a stretch of 300. Letters and separators are of the kinds that no version of Unicode
-- and no locale sees otherwise; null if there are none.
create function recall.whole_words(q text) returns recall.whole_words
language plpgsql immutable as $$
declare
    unspaced constant text := '\u0e01-\u0e30\u3041-\u3096\u30a1-\u30fa\u3400-\u4db5\u4e00-\u9fd5';
    edge constant text := '[\u0001-\u002f\u003a-\u0040\u005b-\u0060\u007b-\u00a9\u00ab-\u00b1'
        '\u2000-\u206f\u2190-\u245f\u2500-\u2775\U0001f300-\U0001f9ff' || unspaced || ']';
    found recall.whole_words;
    stretch text;
begin
    for start in 1 .. length(q) by 150 loop
        stretch := substr(q, start, 300);
        found.words := array(
            select m[1] from regexp_matches(
                stretch, '(?<=' || edge || ')([0-9A-Za-z]{1,255})(?=' || edge || ')', 'g'
            ) m
            union
            select m[1] from regexp_matches(stretch, '([' || unspaced || '])', 'g') m
        );
        found.prefix := substring(stretch from '(?<=' || edge || ')([0-9A-Za-z]{1,255})$');
        found.query := plainto_tsquery(
            'pg_catalog.simple', array_to_string(found.words, ' ')
        );
        if found.prefix is not null then
            found.query := found.query && to_tsquery('pg_catalog.simple', found.prefix || ':*');
        end if;
        if numnode(found.query) > 0 then
            return found;
        end if;
    end loop;
    return null;
end
$$;

-- Whether so many rows hold the words that the newest rows are read first without the index.
create function recall.are_common(whole recall.whole_words) returns boolean
language sql stable as $$
    select case when cardinality(whole.words) = 0 and length(whole.prefix) <= 3 then true
        else coalesce((recall.term_frequencies(array[row(
            case when cardinality(whole.words) = 0 then array[whole.prefix] else whole.words end,
            true, false, 0, null
        )::recall.query_term]))[1] > 0.05, false)
    end
$$;

-- The condition that `c.content` matches.
create function recall.content_match(form text, q text, ignore_case boolean) returns text
language sql immutable as $$
    select case
        when form = 'regex' then format(
            'regexp_like(c.content, %L, %L)', q, case when ignore_case then 'ni' else 'n' end
        )
        when ignore_case then format(
            'strpos(lower(c.content collate pg_catalog.pg_c_utf8), %L) > 0',
            lower(q collate pg_catalog.pg_c_utf8)
        )
        else format('strpos(c.content, %L) > 0', q)
    end
$$;

-- Rows behind a place in the order of a scan; rows without a time come last. A null id is the start
-- of the rows that `undated` says.
create function recall.behind(undated boolean, ts timestamptz, id bigint) returns text
language sql stable as $$
    select concat_ws(
        ' and ',
        case when undated then 't.ts is null' else 't.ts is not null' end,
        case
            when id is null then null
            when undated then format('t.id < %L::bigint', id)
            else format('(t.ts, t.id) < (%L::timestamptz, %L::bigint)', ts, id)
        end
    )
$$;

-- Rows to read, newest first, each with the id of the hit that it is: its own, that of the copy
-- that is shown instead, or null. `rows` is a statement that gives id, ts and kind in order.
create function recall.read_rows(rows text, matches text, f recall.search_filter) returns text
language sql stable as $$
    select format(
        'select p.id, p.ts, case when %s and %s then coalesce(%s, p.id) end as hit
        from (%s) p
        cross join lateral (
            select coalesce(
                (select m.content from recall.message m where m.id = p.id),
                (select h.content from recall.prompt h where h.id = p.id),
                (select r.content from recall.message_retracted r where r.id = p.id)
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

-- Read rows newest first until one hit more than `most` is found, the end is reached or the time is
-- over. With `whole` the text index gives the rows; where its words are common the newest rows are
-- read first, because they are likely to be enough.
create function recall.scan(
    matches text, whole recall.whole_words, f recall.search_filter, most integer,
    before_ts timestamptz, before_id bigint, budget interval,
    out ids bigint[], out more boolean, out cut boolean, out ts timestamptz, out id bigint,
    out scanned_to timestamptz
) language plpgsql stable as $$
declare
    deadline constant timestamptz := clock_timestamp() + budget;
    page constant integer := 5000;
    condition constant text := recall.filter_condition(f, 't');
    walk boolean := whole.query is null or recall.are_common(whole);
    undated boolean := before_ts is null and before_id is not null;
    read integer;
    found record;
begin
    ids := '{}';
    more := false;
    cut := false;
    scanned_to := before_ts;
    loop
        read := 0;
        for found in execute recall.read_rows(
            case when walk then recall.walked_rows(
                condition, recall.behind(undated, before_ts, before_id), page
            ) else recall.indexed_rows(
                whole.query, condition, recall.behind(undated, before_ts, before_id), undated
            ) end,
            matches, f
        ) loop
            if found.hit = found.id and cardinality(ids) = most then
                more := true;
                return;
            end if;
            read := read + 1;
            before_ts := found.ts;
            before_id := found.id;
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
        if walk and read = page then
            walk := whole.query is null;
        elsif walk and not undated then
            undated := true;
            before_id := null;
        else
            return;
        end if;
    end loop;
end
$$;

create function recall.walked_rows(condition text, place text, page integer) returns text
language sql immutable as $$
    select format(
        'select t.id, t.ts, t.kind from recall.message_text t
        where t.chunk = 0 and %s and %s
        order by t.ts desc nulls last, t.id desc limit %s',
        condition, place, page
    )
$$;

create function recall.indexed_rows(
    query tsquery, condition text, place text, undated boolean
) returns text language sql immutable as $$
    select format(
        'with m as materialized (
            select distinct t.id, t.ts, t.kind from recall.message_text t
            where t.tsv @@ %L::tsquery and %s and %s
        )
        select m.id, m.ts, m.kind from m order by m.ts desc nulls last, m.id desc offset 0',
        query, condition,
        case when undated then place else format('(%s or t.ts is null)', place) end
    )
$$;

-- The answer of a scan. `more`: there is another page, behind `next_ts` and `next_id`. `complete`:
-- everything was read. `reason` is `budget` where the time was over first; the search then goes on
-- behind the same place, and `scanned_to` is the time of the oldest row that was read.
create function recall.scan_answer(found record, snippets text[]) returns jsonb
language plpgsql stable as $$
begin
    return jsonb_build_object(
        'hits', recall.hits(found.ids, null, snippets),
        'more', found.more or found.cut,
        'complete', not found.more and not found.cut,
        'scanned_to', found.scanned_to,
        'next_ts', case when found.more or found.cut then found.ts end,
        'next_id', case when found.more or found.cut then found.id::text end,
        'reason', case when found.cut then 'budget' end
    );
end
$$;

-- Search for a string, newest first; every message that contains it is found.
create function api.search_exact(
    q text, ignore_case boolean default false, max_hits integer default 20,
    sources text[] default null, hosts text[] default null, projects text[] default null,
    roles text[] default null, kinds text[] default null, tools text[] default null,
    sessions text[] default null, since timestamptz default null, until timestamptz default null,
    exclude_sessions text[] default null, include_retracted boolean default false,
    before_ts timestamptz default null, before_id bigint default null,
    budget interval default '10 seconds'
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
    found record;
begin
    found := recall.scan(
        recall.content_match('exact', q, ignore_case), recall.whole_words(q), filter,
        least(greatest(max_hits, 1), 200), before_ts, before_id, budget
    );
    return recall.scan_answer(found, array(
        select recall.excerpt(
            e.content,
            case when ignore_case then strpos(
                lower(e.content collate pg_catalog.pg_c_utf8),
                lower(q collate pg_catalog.pg_c_utf8)
            ) else strpos(e.content, q) end,
            length(q)
        )
        from unnest(found.ids) with ordinality f (id, place)
        join recall.entry e on e.id = f.id
        order by f.place
    ));
end
$$;

-- Search by a regular expression of PostgreSQL, newest first, in which `.` and `[^x]` do not cross
-- lines and `^` and `$` are the ends of a line. An expression that is not valid is error 2201B.
create function api.search_regex(
    q text, ignore_case boolean default false, max_hits integer default 20,
    sources text[] default null, hosts text[] default null, projects text[] default null,
    roles text[] default null, kinds text[] default null, tools text[] default null,
    sessions text[] default null, since timestamptz default null, until timestamptz default null,
    exclude_sessions text[] default null, include_retracted boolean default false,
    before_ts timestamptz default null, before_id bigint default null,
    budget interval default '10 seconds'
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
    flags constant text := case when ignore_case then 'ni' else 'n' end;
    found record;
begin
    perform regexp_like('', q, flags);
    found := recall.scan(
        recall.content_match('regex', q, ignore_case), null, filter,
        least(greatest(max_hits, 1), 200), before_ts, before_id, budget
    );
    return recall.scan_answer(found, array(
        select recall.excerpt(
            e.content,
            regexp_instr(e.content, q, 1, 1, 0, flags),
            regexp_instr(e.content, q, 1, 1, 1, flags) - regexp_instr(e.content, q, 1, 1, 0, flags)
        )
        from unnest(found.ids) with ordinality f (id, place)
        join recall.entry e on e.id = f.id
        order by f.place
    ));
end
$$;

-- What a search can see, cheaply: sessions are counted, messages are the lines of the files that
-- gave any, and a large table is estimated.
create function api.search_coverage() returns jsonb language sql stable
set search_path = pg_catalog
set timezone = 'UTC'
as $$
    with session as (
        select s.source, s.host, count(*) as sessions, max(s.ended_at) as newest
        from recall.session s
        group by s.source, s.host
    ), file as (
        select
            f.source, f.host, sum(f.lines_stored + f.lines_merged) as messages,
            max(f.read_at) as last_read,
            count(*) filter (where f.unreadable is not null) as unreadable
        from recall.ingest_state f
        group by f.source, f.host
    ), place as (
        select
            source, host, coalesce(s.sessions, 0) as sessions, coalesce(f.messages, 0) as messages,
            s.newest, f.last_read, f.unreadable
        from session s
        full join file f using (source, host)
    )
    select jsonb_build_object(
        'sources', coalesce((
            select jsonb_agg(to_jsonb(p) - 'unreadable' order by p.source, p.host) from place p
        ), '[]'::jsonb),
        'searched', jsonb_build_object(
            'messages', case
                when pg_relation_size('recall.message') < 16777216
                    then (select count(*) from recall.message)
                else recall.estimated_rows('recall.message')::bigint
            end,
            'prompts', case
                when pg_relation_size('recall.prompt') < 16777216
                    then (select count(*) from recall.prompt)
                else recall.estimated_rows('recall.prompt')::bigint
            end
        ),
        'hidden', jsonb_build_object('retracted', case
            when pg_relation_size('recall.message_retracted') < 16777216
                then (select count(*) from recall.message_retracted)
            else recall.estimated_rows('recall.message_retracted')::bigint
        end),
        'unreadable', coalesce((select sum(p.unreadable) from place p), 0),
        'quarantined', (select count(*) from recall.quarantine)
    )
$$;
