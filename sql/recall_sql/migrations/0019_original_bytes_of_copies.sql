-- Two copies of one home (a cloned machine, a restored backup that goes on beside the original, a synced
-- folder) write under one host name and know the same paths. What one of them stored, the other one
-- neither writes over nor drops.

-- A batch holds its files from its beginning to its commit, in one order, so that what it found of them
-- stays true. One of very many files holds all files of the host instead: locks take room.
create function recall.hold_files(this_host text, paths text[]) returns void language plpgsql as $$
declare
    host_lock constant integer := hashtext('recall files of ' || this_host);
    file_lock integer;
begin
    if cardinality(paths) > 1000 then
        perform pg_advisory_xact_lock(host_lock, 0);
        return;
    end if;
    perform pg_advisory_xact_lock_shared(host_lock, 0);
    for file_lock in
        select distinct hashtext(this_host || ' ' || p) from unnest(paths) p order by 1
    loop
        perform pg_advisory_xact_lock(file_lock, 1);
    end loop;
end
$$;

-- What identifies how far a file was read, whoever read it: equal to two readers that saw the same bytes.
create type recall.reading as (
    generation integer,
    byte_offset bigint,
    lines bigint,
    raw_bytes bigint,
    unfinished_length bigint,
    head_hash bytea,
    tail_hash bytea,
    unfinished_hash bytea
);

-- Whether nothing of a file was read.
create function recall.is_unread(r recall.reading) returns boolean language sql immutable
return r.byte_offset = 0 and r.lines = 0 and r.raw_bytes = 0 and r.unfinished_length = 0
    and r.generation = 1;

-- Refuse a batch that builds on another state of a file than the one that is stored: another ingester
-- read the file meanwhile, or the store was set back. `builds_on` of a piece is the stored state that
-- its reader saw; a reader of before this migration tells only how many lines it goes on from. A batch
-- that comes again finds the state that it made itself. The detail names files, the first ones.
create function recall.require_continuity(this_host text, pieces json) returns void
language plpgsql as $$
declare
    overtaken json;
begin
    -- Only what is needed of the pieces: to make rows of all of it costs more than all the rest.
    perform recall.hold_files(
        this_host, array(select distinct p.path from json_to_recordset(pieces) p (path text))
    );
    select json_agg(o.path) into overtaken
    from (
        select first.path
        from (
            select distinct on (p.path)
                p.path, p.generation, p.goes_on_from, p.builds_on,
                p.builds_on is not null as is_told
            from json_to_recordset(pieces) p (
                number integer, path text, generation integer, goes_on_from bigint,
                builds_on recall.reading
            )
            order by p.path, p.number
        ) first
        left join lateral (
            select
                row(
                    s.generation, s.byte_offset, s.lines, s.raw_bytes, s.unfinished_length,
                    s.head_hash, s.tail_hash, s.unfinished_hash
                )::recall.reading as reading,
                s.generation, s.lines
            from recall.ingest_state s
            where s.host = this_host and s.path = first.path
            offset 0
        ) stored on true
        where case
            when not first.is_told then
                first.goes_on_from > 0
                and (stored.generation = first.generation and stored.lines = first.goes_on_from)
                    is not true
            when first.builds_on is not distinct from stored.reading then false
            when recall.is_unread(first.builds_on)
                and (stored.generation is null or recall.is_unread(stored.reading)) then false
            else stored.reading is distinct from (
                select p.checkpoint
                from json_to_recordset(pieces) p (
                    number integer, path text, checkpoint recall.reading
                )
                where p.path = first.path and p.checkpoint is distinct from null
                order by p.number desc
                limit 1
            )
        end
        limit 50
    ) o;
    if overtaken is not null then
        raise sqlstate 'PT409' using
            message = 'another reader was faster',
            detail = overtaken::text,
            hint = 'read these files again, from where they are stored now';
    end if;
end
$$;

-- Keep a state of a file whose place in the numbers others take: as an earlier generation below zero.
-- Nothing is to be done if all of it stands in another generation.
create function recall.set_aside(this_host text, this_path text, this_generation integer)
returns void language plpgsql as $$
declare
    free constant integer := least(0, (
        select min(s.generation) from recall.raw_segment s
        where s.host = this_host and s.path = this_path
    )) - 1;
begin
    if exists (
        select from (
            select distinct s.generation from recall.raw_segment s
            where s.host = this_host and s.path = this_path and s.generation <> this_generation
        ) other
        where recall.stands_in(this_host, this_path, this_generation, other.generation)
    ) then
        return;
    end if;
    insert into recall.raw_segment (
        host, path, generation, byte_offset, source, byte_length, hash, unfinished, stored_at
    )
    select s.host, s.path, free, s.byte_offset, s.source, s.byte_length, s.hash, s.unfinished,
        s.stored_at
    from recall.raw_segment s
    where s.host = this_host and s.path = this_path and s.generation = this_generation;
end
$$;

-- Keep rows of a session in a database that make room for other ones, from a place on, each whole and
-- once, behind one another in one generation below zero. Those that only moved do not go. A span of
-- 256 KiB is not the last one of its row (`_places` in recall_ingester/read_document.py).
create function recall.set_rows_aside(
    this_host text, this_path text, this_generation integer, place bigint, coming bytea[]
) returns void language plpgsql as $$
begin
    insert into recall.raw_segment (
        host, path, generation, byte_offset, source, byte_length, hash, unfinished
    )
    with standing as materialized (
        select u.hash from unnest(coming) u (hash)
        union
        select a.hash from recall.raw_segment a
        where a.host = this_host and a.path = this_path and a.generation = -1
    ), span as materialized (
        select s.byte_offset, s.source, s.byte_length, s.hash,
            s.byte_offset >= place and s.hash not in (select k.hash from standing k) as goes,
            count(*) filter (where s.byte_length <> 262144) over (
                order by s.byte_offset rows between unbounded preceding and 1 preceding
            ) as of_row
        from recall.raw_segment s
        where s.host = this_host and s.path = this_path and s.generation = this_generation
    ), going as materialized (
        select s.*, bool_or(s.goes) over (partition by s.of_row) as is_going from span s
    )
    select this_host, this_path, -1,
        coalesce((
            select max(a.byte_offset + a.byte_length) from recall.raw_segment a
            where a.host = this_host and a.path = this_path and a.generation = -1
        ), 0) + sum(g.byte_length) over (order by g.byte_offset) - g.byte_length,
        g.source, g.byte_length, g.hash, false
    from going g
    where g.is_going;
end
$$;

-- Whether all bytes of one generation of a file stand in another one at the same places. Lateral with
-- limit, here and below: one index probe a row, whatever the planner believes.
create function recall.stands_in(this_host text, this_path text, one integer, other integer)
returns boolean language sql stable as $$
    select coalesce(bool_and(n.found is not null), true)
    from recall.raw_segment s
    left join lateral (
        select true as found from recall.raw_segment o
        where o.host = this_host and o.path = this_path and o.generation = other
            and o.byte_offset = s.byte_offset and o.byte_length = s.byte_length and o.hash = s.hash
        limit 1
    ) n on true
    where s.host = this_host and s.path = this_path and s.generation = one
$$;

-- The segments that are in the way of bytes which come, by file and generation: those from `raw_from`
-- on and those that the bytes overlap, but for those that come again as they are. They may go without
-- being kept elsewhere if they are the unfinished end that the reader found to stand still
-- (`continues`), or the former rows of a document or session of which nothing was taken back. A reader of
-- before this migration looks at the end too, and does not say so: that it goes on behind what is stored,
-- in the same file, has to do. Else each line that it found torn would leave a whole state behind.
create function recall.segments_in_the_way(this_host text, pieces json, spans json)
returns table (path text, generation integer, offsets bigint[], hashes bytea[], may_go boolean)
language plpgsql as $$
#variable_conflict use_column
begin
    return query
        with coming as materialized (
            select s.path, s.generation, s.byte_offset, s.byte_length, s.hash
            from json_populate_recordset(null::recall.incoming_span, spans) s
        ), piece as materialized (
            select * from json_to_recordset(pieces) p (
                path text, generation integer, raw_from bigint, supersedes_raw boolean,
                has_retire boolean, retire_last bigint, session_key text, goes_on_from bigint,
                continues boolean, checkpoint json
            )
        ), file as materialized (
            select p.path, p.generation, min(p.raw_from) as raw_from,
                bool_or(coalesce(p.continues, exists (
                    select from recall.ingest_state s
                    where s.host = this_host and s.path = p.path and s.generation = p.generation
                        and s.lines = p.goes_on_from and s.raw_bytes = p.raw_from
                        and s.inode = (p.checkpoint ->> 'inode')::numeric
                        and s.size < (p.checkpoint ->> 'byte_offset')::bigint
                            + (p.checkpoint ->> 'unfinished_length')::bigint
                ))) as continues,
                bool_or(p.supersedes_raw and p.has_retire and p.retire_last is null) as is_whole,
                max(p.session_key) as session_key
            from piece p
            group by p.path, p.generation
        ), reach as materialized (
            select f.*, (
                select min(c.byte_offset) from coming c
                where c.path = f.path and c.generation = f.generation
            ) as first
            from file f
        )
        select
            r.path, r.generation, array_agg(w.byte_offset), array_agg(w.hash),
            bool_and(w.unfinished and w.is_end) or r.is_whole and not exists (
                select from recall.message_retracted m
                where m.session_key = r.session_key and m.generation = r.generation
                    and m.retracted_at = now()
            )
        from reach r
        cross join lateral (
            select o.byte_offset, o.hash, o.unfinished, r.continues and exists (
                select from recall.ingest_state s
                where s.host = this_host and s.path = r.path and s.generation = r.generation
                    and o.byte_offset >= s.byte_offset
                    and o.byte_offset + o.byte_length <= s.byte_offset + s.unfinished_length
            ) as is_end
            from recall.raw_segment o
            where o.host = this_host and o.path = r.path and o.generation = r.generation
                and o.byte_offset >= coalesce((
                    select max(b.byte_offset) from recall.raw_segment b
                    where b.host = this_host and b.path = r.path and b.generation = r.generation
                        and b.byte_offset < least(r.raw_from, r.first)
                ), 0)
                and (
                    o.byte_offset + o.byte_length > r.raw_from
                    or exists (
                        select from coming c
                        where c.path = r.path and c.generation = r.generation
                            and c.byte_offset < o.byte_offset + o.byte_length
                            and o.byte_offset < c.byte_offset + c.byte_length
                    )
                )
                -- `not in`: a hash table of them, whatever the planner believes
                and (r.path, r.generation, o.byte_offset, o.byte_length, o.hash) not in (
                    select c.path, c.generation, c.byte_offset, c.byte_length, c.hash from coming c
                )
            offset 0
        ) w
        where least(r.raw_from, r.first) is not null
        group by r.path, r.generation, r.is_whole, r.session_key;
end
$$;

-- Where the original bytes of the batch stand; the hashes of those that made room. What is in the way
-- and may not go is set aside. The generation before of a document goes if the whole of the new one was
-- read and all that stood in the old one stands in it.
create function recall.store_spans(this_host text, pieces json, spans json)
returns bytea[] language plpgsql as $$
declare
    file record;
    gone bytea[];
    replaced bytea[] := '{}';
begin
    for file in
        select * from recall.segments_in_the_way(this_host, pieces, spans) w
        order by w.path, w.generation
    loop
        if not file.may_go and exists (
            select from recall.ingest_state s
            where s.host = this_host and s.path = file.path and s.container is not null
                and s.described ->> 'shape' = 'container'
        ) then
            perform recall.set_rows_aside(
                this_host, file.path, file.generation,
                (select min(o.at) from unnest(file.offsets) o (at)),
                array(
                    select c.hash from json_populate_recordset(null::recall.incoming_span, spans) c
                    where c.path = file.path and c.generation = file.generation
                )
            );
        elsif not file.may_go then
            perform recall.set_aside(this_host, file.path, file.generation);
        end if;
        delete from recall.raw_segment s
        where s.host = this_host and s.path = file.path and s.generation = file.generation
            and s.byte_offset = any(file.offsets);
        replaced := replaced || file.hashes;
    end loop;
    for file in
        select p.path, p.generation, p.session_key
        from json_to_recordset(pieces) p (
            number integer, path text, generation integer, session_key text,
            supersedes_raw boolean, has_retire boolean, retire_last bigint
        )
        where p.supersedes_raw and p.generation > 1 and p.session_key is not null
            and p.has_retire and p.retire_last is null
        order by p.number
    loop
        with dropped as (
            delete from recall.raw_segment s
            where s.host = this_host and s.path = file.path
                and s.generation = file.generation - 1
                and not exists (
                    select from recall.message_retracted r
                    where r.session_key = file.session_key and r.generation = file.generation
                )
                and not exists (
                    select from recall.quarantine q
                    where q.host = s.host and q.path = s.path and q.generation = s.generation
                )
            returning s.hash
        )
        select array_agg(d.hash) into gone from dropped d;
        replaced := replaced || gone;
    end loop;
    insert into recall.raw_segment (
        host, path, source, generation, byte_offset, byte_length, hash, unfinished
    )
    select distinct on (s.path, s.generation, s.byte_offset)
        this_host, s.path, f.source, s.generation, s.byte_offset, s.byte_length, s.hash,
        s.unfinished
    from json_populate_recordset(null::recall.incoming_span, spans) s
    join (
        select distinct on (p.path) p.path, p.source
        from json_to_recordset(pieces) p (number integer, path text, source text)
        order by p.path, p.number desc
    ) f on f.path = s.path
    order by s.path, s.generation, s.byte_offset, s.n desc
    on conflict (host, path, generation, byte_offset) do update set
        unfinished = excluded.unfinished, stored_at = now();
    -- Of a long line spans were sent before it was known that it does not end.
    for file in
        select p.path, p.generation, (p.checkpoint ->> 'raw_bytes')::bigint as finished
        from json_to_recordset(pieces) p (path text, generation integer, checkpoint json)
        where (p.checkpoint ->> 'unfinished_length')::bigint > 0 and p.checkpoint ->> 'path' = p.path
    loop
        update recall.raw_segment s set unfinished = true
        where s.host = this_host and s.path = file.path and s.generation = file.generation
            and s.byte_offset >= file.finished and not s.unfinished;
    end loop;
    replaced := replaced || recall.drop_repeated(this_host, pieces);
    return array(
        select r.hash from unnest(replaced) r (hash)
        where not exists (
            select from json_populate_recordset(null::recall.incoming_span, spans) s
            where s.hash = r.hash
        )
    );
end
$$;

-- Earlier states of a file that stand in it as it was read to its end now: what was set aside and came
-- again, and states of a file that was read again from its beginning, such as two that take turns.
-- `contains` names those that the reader found in what it read, wherever its spans end. The hashes of
-- what is dropped.
create function recall.drop_repeated(this_host text, pieces json) returns bytea[]
language plpgsql as $$
declare
    file record;
    repeated integer[];
    gone bytea[];
    dropped bytea[] := '{}';
begin
    for file in
        select f.*
        from (
            select
                p.path, p.generation, array_agg(n.generation) as contains,
                case when bool_or(p.has_retire and p.retire_last is null) then p.generation else 0 end
                    as below
            from json_to_recordset(pieces) p (
                path text, generation integer, has_retire boolean, retire_last bigint,
                contains integer[], checkpoint json
            )
            left join lateral unnest(p.contains) n (generation) on p.has_retire
            where (p.checkpoint ->> 'size')::bigint >= 0 and p.checkpoint ->> 'path' = p.path
            group by p.path, p.generation
        ) f
        cross join lateral (
            select from recall.raw_segment o
            where o.host = this_host and o.path = f.path and o.generation < f.below
            limit 1
        ) has_earlier
    loop
        repeated := array(
            select o.generation
            from recall.raw_segment o
            left join lateral (
                select true as found from recall.raw_segment n
                where n.host = this_host and n.path = file.path and n.generation = file.generation
                    and n.byte_offset = o.byte_offset and n.byte_length = o.byte_length
                    and n.hash = o.hash
                limit 1
            ) n on true
            where o.host = this_host and o.path = file.path
                and o.generation < file.below
            group by o.generation
            having bool_and(n.found is not null) or o.generation = any(file.contains)
        );
        continue when repeated = '{}';
        with went as (
            delete from recall.raw_segment s
            where s.host = this_host and s.path = file.path and s.generation = any(repeated)
            returning s.hash
        )
        select array_agg(w.hash) into gone from went w;
        dropped := dropped || gone;
    end loop;
    return dropped;
end
$$;

-- A text as lists show it. Clients write titles of any length; all of it is stored and searched.
create function recall.shown(given text) returns text language sql immutable parallel safe
return case when length(left(given, 501)) > 500 then left(given, 499) || '…' else given end;

-- As in 0008, but for titles of any length.
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
        'title', recall.shown(coalesce(s.title, n.title)),
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

create or replace function recall.note_lines(
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
        'title', recall.shown(n.title),
        'score', round(h.score::numeric, 4),
        'snippet', coalesce(h.snippet, recall.plain_line(left(n.content, 240))
            || case when length(n.content) > 240 then '…' else '' end),
        'length', length(n.content),
        'truncated', length(n.content) > max_chars,
        'content', left(n.content, max_chars),
        'session_id', n.session_id,
        'session_key', s.session_key,
        'session_title', recall.shown(s.title),
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
                o.id::text as id, o.ts, recall.shown(o.title) as title, o.stored_at, o.replaced_at,
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

create or replace view api.sessions with (security_invoker = true) as
select
    s.session_key, s.source, s.host, s.external_id, recall.shown(s.title) as title, s.project,
    s.branch, s.model, s.client_version, s.parent_key, s.relation, s.started_at, s.ended_at
from recall.session s
order by s.started_at desc nulls last, s.session_key;

-- What answers give as it is stored: the ingester cuts it to 500 characters, a machine that joined has to.
do $$
declare
    bounded record;
begin
    for bounded in
        select a.attrelid::regclass as of_table, a.attname as name
        from pg_attribute a
        where a.attrelid in (
                select to_regclass(format('recall.incoming_%s', k))
                from unnest(recall.incoming_kinds()) k
            )
            and a.attnum > 0 and not a.attisdropped
            and a.attname in (
                'branch', 'model', 'client_version', 'tool', 'call_id', 'native_id', 'kind',
                'ts_origin'
            )
    loop
        execute format(
            'alter table %s add check (octet_length(%I) <= 2400) not valid',
            bounded.of_table, bounded.name
        );
    end loop;
end
$$;
