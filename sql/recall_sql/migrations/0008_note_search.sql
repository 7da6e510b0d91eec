-- Notes in search: as entries of every search, and listed by their shelf.

-- The text by which a note is found, and which the text index holds: the content, under its title
-- where that does not stand in it.
create function recall.note_text(title text, content text) returns text
language sql immutable parallel safe
return case
    when title is null or strpos(content, title) > 0 then content
    else title || E'\n' || content
end;

-- There are few notes among many messages, and no other index knows the kind.
create index message_text_note on recall.message_text (kind, ts desc nulls last, id desc)
    where kind in ('ledger', 'memory');

create or replace view recall.entry with (security_invoker = true) as
select
    m.id, m.session_key, m.ordinal, m.part, m.role, m.kind, m.ts, m.content, m.content_hash,
    m.copy_key, m.project, m.tool, split_part(m.session_key, ':', 1) as source,
    split_part(m.session_key, ':', 2) as host, m.model, m.branch, m.is_error, false as retracted
from recall.message m
union all
select
    r.id, r.session_key, r.ordinal, r.part, r.role, r.kind, r.ts, r.content, r.content_hash,
    r.copy_key, r.project, r.tool, split_part(r.session_key, ':', 1),
    split_part(r.session_key, ':', 2), r.model, r.branch, r.is_error, true
from recall.message_retracted r
union all
select
    p.id, p.session_key, p.ordinal, null::integer, 'user', 'prompt', p.ts, p.content,
    p.content_hash, null::bigint, p.project, null::text, p.source, p.host, null::text, null::text,
    false, false
from recall.prompt p
union all
select
    n.id, null::text, n.ordinal, null::integer, 'assistant', n.shelf, n.ts,
    recall.note_text(n.title, n.content), n.content_hash, null::bigint, n.project, null::text,
    n.source, n.host, null::text, null::text, false, not n.is_current
from recall.note n;

-- As in 0005, with notes.
create or replace function recall.read_rows(
    rows text, matches text, f recall.search_filter
) returns text language sql stable as $$
    select format(
        'select p.id, p.ts, case when %s and %s then coalesce(%s, p.id) end as hit
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

-- As in 0002; the title of a note is its own.
create or replace function recall.hits(ids bigint[], scores float8[], snippets text[]) returns jsonb
language sql stable as $$
    select coalesce(jsonb_agg(jsonb_build_object(
        'id', e.id::text,
        'session_key', e.session_key,
        'ordinal', e.ordinal,
        'part', e.part,
        'source', e.source,
        'host', e.host,
        'project', e.project,
        'role', e.role,
        'kind', e.kind,
        'tool', e.tool,
        'ts', e.ts,
        'score', round(h.score::numeric, 4),
        'snippet', h.snippet,
        'title', coalesce(s.title, n.title),
        'occurrences', coalesce(o.places, '[]'::jsonb)
    ) order by h.place), '[]'::jsonb)
    from unnest(ids, scores, snippets) with ordinality h (id, score, snippet, place)
    join recall.entry e on e.id = h.id
    left join recall.session s on s.session_key = e.session_key
    left join recall.note n on n.id = h.id
    left join lateral (
        select jsonb_agg(to_jsonb(c)) as places
        from (
            select m.id::text as id, m.session_key, m.ordinal, m.part
            from recall.message m
            where m.copy_key = e.copy_key and m.id <> e.id
            order by m.ts nulls last, m.session_key, m.ordinal, m.part
            limit 20
        ) c
    ) o on true
$$;

-- As in 0005, with notes; what a client wrote over is hidden, be it a message or a note.
create or replace function api.search_coverage() returns jsonb language sql stable
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
    ), note as (
        select
            count(*) filter (where n.is_current) as notes,
            count(*) filter (where not n.is_current) as replaced
        from recall.note n
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
            end,
            'notes', case
                when pg_relation_size('recall.note') < 16777216 then (select notes from note)
                else recall.estimated_rows('recall.note')::bigint
            end
        ),
        'hidden', jsonb_build_object('retracted', case
            when pg_relation_size('recall.message_retracted') < 16777216
                then (select count(*) from recall.message_retracted)
            else recall.estimated_rows('recall.message_retracted')::bigint
        end + case
            when pg_relation_size('recall.note') < 16777216 then (select replaced from note)
            else 0
        end),
        'unreadable', coalesce((select sum(p.unreadable) from place p), 0),
        'quarantined', (select count(*) from recall.quarantine)
    )
$$;

-- The session that a note means. Only a session of the note's own source and host is certain to be
-- that of the id, so those go first.
create function recall.note_session(session_id text, source text, host text) returns text
language sql stable as $$
    select s.session_key
    from recall.session s
    where s.external_id = note_session.session_id
    order by s.host = note_session.host desc, s.source = note_session.source desc,
        s.started_at desc nulls last, s.session_key
    limit 1
$$;

-- Whether a file is one of those that are named: by its whole path, by the end of it, or by a
-- folder that it is in.
create function recall.path_fits(path text, names text[]) returns boolean
language sql immutable parallel safe as $$
    select exists (
        select from unnest(names) g (name)
        cross join lateral (
            select replace(path_fits.path, '\', '/') as path,
                rtrim(replace(g.name, '\', '/'), '/') as name
        ) p
        where p.path = p.name
            or p.name <> '' and right(p.path, length(p.name) + 1) = '/' || p.name
            or starts_with(p.path, p.name || '/')
    )
$$;

-- Notes for an answer, in the order of the ids, with the earlier texts of each if they are wanted.
create function recall.note_lines(
    ids bigint[], scores float8[], snippets text[], max_chars integer, with_versions boolean
) returns jsonb language sql stable as $$
    select coalesce(jsonb_agg(jsonb_build_object(
        'id', n.id::text,
        'shelf', n.shelf,
        'entry_key', n.entry_key,
        'source', n.source,
        'host', n.host,
        'path', n.path,
        'ordinal', n.ordinal,
        'ts', n.ts,
        'project', n.project,
        'title', n.title,
        'score', round(h.score::numeric, 4),
        'snippet', coalesce(h.snippet, recall.plain_line(left(n.content, 240))
            || case when length(n.content) > 240 then '…' else '' end),
        'length', length(n.content),
        'truncated', length(n.content) > max_chars,
        'content', left(n.content, max_chars),
        'session_id', n.session_id,
        'session_key', s.session_key,
        'session_title', s.title,
        'stored_at', n.stored_at,
        'replaced_at', n.replaced_at,
        'is_current', n.is_current,
        'versions', coalesce(v.versions, '[]'::jsonb)
    ) order by h.place), '[]'::jsonb)
    from unnest(ids, scores, snippets) with ordinality h (id, score, snippet, place)
    join recall.note n on n.id = h.id
    left join recall.session s
        on s.session_key = recall.note_session(n.session_id, n.source, n.host)
    left join lateral (
        select jsonb_agg(to_jsonb(e)) as versions
        from (
            select
                o.id::text as id, o.ts, o.title, o.stored_at, o.replaced_at,
                length(o.content) as length, length(o.content) > max_chars as truncated,
                left(o.content, max_chars) as content
            from recall.note o
            where with_versions and o.host = n.host and o.path = n.path
                and o.entry_key = n.entry_key and o.shelf = n.shelf
                and not o.is_current and o.id <> n.id
            order by o.replaced_at desc nulls last, o.stored_at desc, o.id
            limit 20
        ) e
    ) v on true
$$;

-- Notes by words, ranked as messages are; `condition` is a further one on the alias `n`.
create function recall.found_notes(
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
        parsed.terms, parsed.frequencies,
        concat_ws(
            ' and ', recall.text_condition(f, parsed.excluded),
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

-- Entries of work ledgers: by words, best first, or all of them, newest first. The first goes on
-- behind `skip` entries, the second behind the entry `before_ts`, `before_id`. `session_ids` are the
-- ids that clients gave to the sessions that are meant. The answer has `entries`, `stored` (entries
-- that there are), `more`, `next_ts` and `next_id`, and `reason` and `left_out` of a search.
create function api.search_ledger(
    q text default null, max_hits integer default 20, skip integer default 0,
    sources text[] default null, hosts text[] default null, projects text[] default null,
    session_ids text[] default null, since timestamptz default null,
    until timestamptz default null, max_chars integer default 4000,
    before_ts timestamptz default null, before_id bigint default null
) returns jsonb language plpgsql stable
set search_path = pg_catalog
set timezone = 'UTC'
set plan_cache_mode = force_custom_plan
set client_min_messages = warning
as $$
declare
    most constant integer := least(greatest(max_hits, 1), 200);
    first constant integer := greatest(skip, 0) + 1;
    chars constant integer := least(greatest(max_chars, 1), 20000);
    named constant text[] := case
        when projects is not null then recall.project_paths(projects)
    end;
    stored constant jsonb := jsonb_build_object('stored', (
        select count(*) from recall.note n where n.shelf = 'ledger' and n.is_current
    ));
    ids bigint[];
    next_ts timestamptz;
begin
    if trim(q) <> '' then
        return stored || recall.found_notes(
            q,
            row(
                sources, hosts, projects, null, array['ledger'], null, null, since, until, null,
                false
            ),
            case when session_ids is null then 'true'
                else format('n.session_id = any(%L::text[])', session_ids) end,
            most, first, chars, false
        );
    end if;
    ids := array(
        select n.id
        from recall.note n
        where n.shelf = 'ledger' and n.is_current
            and (sources is null or n.source = any(sources))
            and (hosts is null or n.host = any(hosts))
            and (projects is null or n.project = any(named))
            and (session_ids is null or n.session_id = any(session_ids))
            and (since is null or n.ts >= since)
            and (until is null or n.ts < until)
            and (
                before_id is null
                or before_ts is null and n.ts is null and n.id < before_id
                or (n.ts, n.id) < (before_ts, before_id)
                or before_ts is not null and n.ts is null
            )
        order by n.ts desc nulls last, n.id desc
        limit most + 1
    );
    next_ts := (select n.ts from recall.note n where n.id = ids[most]);
    return stored || jsonb_build_object(
        'entries', recall.note_lines(ids[:most], null, null, chars, false),
        'more', cardinality(ids) > most,
        'next_ts', next_ts,
        'next_id', ids[most]::text,
        'left_out', 0,
        'reason', null
    );
end
$$;

-- Memories: by words, best first, or all of them in the order of their files. Either goes on behind
-- `skip` entries. With `include_replaced` earlier texts are searched too, and each entry comes with
-- its own; an entry that is gone is listed by its last text. The answer is as that of
-- api.search_ledger.
create function api.memories(
    q text default null, paths text[] default null, projects text[] default null,
    include_replaced boolean default false, max_hits integer default 20, skip integer default 0,
    sources text[] default null, hosts text[] default null, since timestamptz default null,
    until timestamptz default null, max_chars integer default 4000
) returns jsonb language plpgsql stable
set search_path = pg_catalog
set timezone = 'UTC'
set plan_cache_mode = force_custom_plan
set client_min_messages = warning
as $$
declare
    most constant integer := least(greatest(max_hits, 1), 200);
    first constant integer := greatest(skip, 0) + 1;
    chars constant integer := least(greatest(max_chars, 1), 20000);
    replaced constant boolean := coalesce(include_replaced, false);
    named constant text[] := case
        when projects is not null then recall.project_paths(projects)
    end;
    stored constant jsonb := jsonb_build_object('stored', (
        select count(*) from recall.note n where n.shelf = 'memory' and n.is_current
    ));
    ids bigint[];
begin
    if trim(q) <> '' then
        return stored || recall.found_notes(
            q,
            row(
                sources, hosts, projects, null, array['memory'], null, null, since, until, null,
                replaced
            ),
            case when paths is null then 'true'
                else format('recall.path_fits(n.path, %L::text[])', paths) end,
            most, first, chars, replaced
        );
    end if;
    ids := array(
        select n.id
        from recall.note n
        where n.shelf = 'memory'
            and (n.is_current or replaced and n.id = (
                select o.id
                from recall.note o
                where o.host = n.host and o.path = n.path and o.entry_key = n.entry_key
                    and o.shelf = 'memory'
                order by o.is_current desc, o.replaced_at desc nulls last, o.stored_at desc, o.id
                limit 1
            ))
            and (sources is null or n.source = any(sources))
            and (hosts is null or n.host = any(hosts))
            and (projects is null or n.project = any(named))
            and (paths is null or recall.path_fits(n.path, paths))
            and (since is null or n.ts >= since)
            and (until is null or n.ts < until)
        order by n.host collate "C", n.path collate "C", n.ordinal, n.is_current desc, n.id
        offset first - 1 limit most + 1
    );
    return stored || jsonb_build_object(
        'entries', recall.note_lines(ids[:most], null, null, chars, replaced),
        'more', cardinality(ids) > most,
        'left_out', 0,
        'reason', null
    );
end
$$;
