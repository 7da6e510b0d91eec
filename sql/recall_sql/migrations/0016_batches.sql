-- Storing a batch. Whoever ingests, by a driver or over HTTP, calls the functions here,
-- so that a batch becomes the same rows whatever door it came through. What a batch has few of is given
-- as JSON: rows of the tables that rows sent over HTTP wait in (`incoming_session` and so on), in which
-- `n` is the place in the batch: among rows of one key the first counts, or the last where rows are
-- upserted.

-- Keys and hashes of a batch's messages, and which rows are new or differ, in the session that stores the
-- batch. The tables live as long as the connection; a migration that changes one gives it another name,
-- because connections outlive migrations.
create function recall.stage_batch() returns void language plpgsql as $$
begin
    if to_regclass('pg_temp.stage_changed') is not null then
        return;
    end if;
    create temp table stage_key (
        n integer not null,
        piece integer not null,
        session_key text not null,
        ordinal bigint not null,
        part integer not null,
        id bigint not null,
        role text not null,
        kind text not null,
        ts timestamptz,
        content_hash bytea not null,
        copy_key bigint,
        project text,
        tool text,
        is_error boolean not null,
        on_active_branch boolean not null
    ) on commit delete rows;
    create temp table stage_changed (
        id bigint primary key,
        piece integer not null,
        ordinal bigint not null,
        old_id bigint,
        rewritten boolean not null
    ) on commit delete rows;
end
$$;

-- A part of a file in a batch, and where its checkpoint moves (recall_ingester/sinks/piece_objects.py).
-- `counts` has the lines whose fate was known before; of the `row_lines` that gave rows, those that brought
-- something new count as stored. Pieces of one file share a `file_number` and what was counted `before`.
-- `goes_on_from` is the number of lines that the reader was told are stored of the generation.
create type recall.piece as (
    number integer,
    path text,
    source text,
    generation integer,
    session_key text,
    has_retire boolean,
    retire_first bigint,
    retire_last bigint,
    raw_from bigint,
    supersedes_raw boolean,
    counted boolean,
    row_lines bigint,
    counts jsonb,
    file_number integer,
    before jsonb,
    checkpoint jsonb,
    goes_on_from bigint
);

create function recall.pieces(given json) returns setof recall.piece language sql immutable
return json_populate_recordset(null::recall.piece, given);

-- Statements that join staged rows with the store stand in `execute` where they have no parameter: they
-- would be planned once in the life of a connection, perhaps over an empty store.

-- Which staged rows are new or differ. Hashes are compared before any text is sent and any search
-- vector is made: making it first costs four times as much on a pass over known rows.
create function recall.find_changed(prompt_keys json, note_keys json) returns void
language plpgsql as $$
begin
    execute $sql$
        insert into pg_temp.stage_changed (id, piece, ordinal, old_id, rewritten)
        select distinct on (s.id)
            s.id, s.piece, s.ordinal, known.id,
            coalesce(known.content_hash <> s.content_hash, false)
        from pg_temp.stage_key s
        -- lateral with limit: one index probe a row, whatever the planner believes about temporary
        -- tables
        left join lateral (
            select m.id, m.content_hash, m.role, m.kind, m.ts, m.tool, m.copy_key, m.project,
                m.is_error, m.on_active_branch
            from recall.message m
            where m.session_key = s.session_key and m.ordinal = s.ordinal and m.part = s.part
            limit 1
        ) known on true
        where known.id is null
            or (known.content_hash, known.role, known.kind, known.ts, known.tool, known.copy_key,
                known.project, known.is_error, known.on_active_branch)
            is distinct from (s.content_hash, s.role, s.kind, s.ts, s.tool, s.copy_key, s.project,
                s.is_error, s.on_active_branch)
        order by s.id, s.n
    $sql$;
    -- The id of a prompt comes from its content, so a known one is the same.
    execute $sql$
        insert into pg_temp.stage_changed (id, piece, ordinal, old_id, rewritten)
        select distinct on (s.id) s.id, s.piece, s.ordinal, null, false
        from json_populate_recordset(null::recall.incoming_prompt_key, $1) s
        where not exists (select from recall.prompt p where p.id = s.id)
        order by s.id, s.n
    $sql$ using prompt_keys;
    -- Versions of notes that are new, or current again.
    execute $sql$
        insert into pg_temp.stage_changed (id, piece, ordinal, old_id, rewritten)
        select distinct on (s.id) s.id, s.piece, s.ordinal, null, false
        from json_populate_recordset(null::recall.incoming_note_key, $1) s
        where not exists (select from recall.note n where n.id = s.id and n.is_current)
        order by s.id, s.n
        on conflict (id) do nothing
    $sql$ using note_keys;
end
$$;

-- What a session is after another file told of it. A file that only names the session adds what nobody
-- told; which of two files came first must not matter.
create or replace function recall.merge_session() returns trigger language plpgsql as $$
declare
    other recall.session := old;
begin
    if new.path is null and old.path is not null then
        other := new;
        new.project := old.project;
        new.branch := old.branch;
        new.model := old.model;
        new.client_version := old.client_version;
    end if;
    new.first_seen := old.first_seen;
    if new.title is null or new.title_rank < old.title_rank then
        new.title := old.title;
        new.title_rank := old.title_rank;
    end if;
    new.started_at := least(old.started_at, new.started_at);
    new.ended_at := greatest(old.ended_at, new.ended_at);
    new.parent_key := coalesce(new.parent_key, old.parent_key);
    new.relation := coalesce(new.relation, old.relation);
    new.project := coalesce(new.project, other.project);
    new.branch := coalesce(new.branch, other.branch);
    new.model := coalesce(new.model, other.model);
    new.client_version := coalesce(new.client_version, other.client_version);
    new.path := coalesce(new.path, old.path);
    return new;
end
$$;

-- Sessions, one after another; the trigger recall.merge_session keeps what the store knew.
create function recall.store_sessions(this_host text, sessions json) returns void
language plpgsql as $$
declare
    s record;
begin
    for s in
        select * from json_populate_recordset(null::recall.incoming_session, sessions) t
        order by t.n
    loop
        insert into recall.session (
            session_key, source, host, external_id, parent_key, relation, title, title_rank,
            project, branch, model, client_version, started_at, ended_at, path
        ) values (
            s.session_key, s.source, this_host, s.external_id, s.parent_key, s.relation, s.title,
            s.title_rank, s.project, s.branch, s.model, s.client_version, s.started_at, s.ended_at,
            s.path
        )
        on conflict (session_key) do update set
            parent_key = excluded.parent_key, relation = excluded.relation,
            title = excluded.title, title_rank = excluded.title_rank, project = excluded.project,
            branch = excluded.branch, model = excluded.model,
            client_version = excluded.client_version, started_at = excluded.started_at,
            ended_at = excluded.ended_at, path = excluded.path;
    end loop;
end
$$;

-- Earlier versions of the notes that came, and notes in a range that was read again whole and that did
-- not come: they are kept, and current no more.
create function recall.replace_notes(this_host text, pieces json, note_keys json) returns void
language plpgsql as $$
declare
    piece record;
    gone text[];
begin
    for piece in
        select
            -- Notes of an import stand under its source, whatever file they came in.
            coalesce(k.path, p.path) as path, coalesce(k.ids, '{}') as ids,
            coalesce(k.entry_keys, '{}') as entry_keys, p.has_retire, p.retire_first, p.retire_last
        from recall.pieces(pieces) p
        left join (
            select s.piece, (array_agg(s.path order by s.n))[1] as path, array_agg(s.id) as ids,
                array_agg(s.entry_key) as entry_keys
            from json_populate_recordset(null::recall.incoming_note_key, note_keys) s
            group by s.piece
        ) k on k.piece = p.number
        where k.piece is not null or p.has_retire and p.session_key is null
        order by p.number
    loop
        with replaced as (
            update recall.note n set is_current = false, replaced_at = now()
            where n.host = this_host and n.path = piece.path and n.is_current
                and n.id <> all(piece.ids)
                and (
                    n.entry_key = any(piece.entry_keys)
                    or piece.has_retire and n.ordinal >= piece.retire_first
                        and (piece.retire_last is null or n.ordinal < piece.retire_last)
                )
            returning n.id
        ), hidden as (
            update recall.message_text t set retracted = true from replaced r where t.id = r.id
            returning t.id
        )
        select array_agg(distinct 'note:' || h.id) into gone from hidden h;
        if gone is not null then
            perform recall.mark_dirty(
                gone, array_fill(0::bigint, array[cardinality(gone)]),
                array_fill(1::bigint, array[cardinality(gone)]),
                array_fill(null::timestamptz, array[cardinality(gone)])
            );
        end if;
    end loop;
end
$$;

-- Keep the texts that are about to be written over with their rows of the index, and take away the rows
-- of messages that are about to be written again.
-- One that was taken back before says when it was again: whether the state of a document that it stood in
-- is kept depends on it.
create function recall.make_room(pieces json) returns void language plpgsql as $$
begin
    execute $sql$
        insert into recall.message_retracted (
            session_key, ordinal, part, id, message_id, generation, role, kind, ts, ts_origin,
            content, content_hash, copy_key, project, branch, tool, call_id, native_id, model,
            is_error, is_damaged, redactions, on_active_branch, stored_at
        )
        select
            m.session_key, m.ordinal, m.part, recall.retracted_id(m.id, m.content_hash), m.id,
            p.generation, m.role, m.kind, m.ts, m.ts_origin, m.content, m.content_hash, m.copy_key,
            m.project, m.branch, m.tool, m.call_id, m.native_id, m.model, m.is_error, m.is_damaged,
            m.redactions, m.on_active_branch, m.stored_at
        from pg_temp.stage_changed c
        join recall.pieces($1) p on p.number = c.piece
        join recall.message m on m.id = c.old_id
        where c.rewritten
        on conflict (id) do update set
            generation = excluded.generation, retracted_at = excluded.retracted_at
    $sql$ using pieces;
    execute $sql$
        insert into recall.message_text (
            id, chunk, ts, source, host, project, role, kind, tool, session_key, retracted, tsv
        )
        select
            recall.retracted_id(t.id, m.content_hash), t.chunk, t.ts, t.source, t.host, t.project,
            t.role, t.kind, t.tool, t.session_key, true, t.tsv
        from pg_temp.stage_changed c
        join recall.message m on m.id = c.old_id
        join recall.message_text t on t.id = c.old_id
        where c.rewritten
        on conflict (id, chunk) do nothing
    $sql$;
    execute $sql$
        with text as (
            delete from recall.message_text t using pg_temp.stage_changed c where t.id = c.old_id
        )
        delete from recall.message m using pg_temp.stage_changed c where m.id = c.old_id
    $sql$;
end
$$;

-- The beginning of a batch whose keys are staged: its sessions are stored, what it replaces makes room.
-- The answer is what is to be written, and whether it takes the place of something.
create function recall.begin_batch(
    this_host text, pieces json, sessions json, prompt_keys json, note_keys json
) returns table (id bigint, replaces boolean) language plpgsql as $$
begin
    perform recall.require_continuity(this_host, pieces);
    perform recall.store_sessions(this_host, sessions);
    perform recall.find_changed(prompt_keys, note_keys);
    perform recall.replace_notes(this_host, pieces, note_keys);
    if exists (select from pg_temp.stage_changed c where c.old_id is not null) then
        perform recall.make_room(pieces);
    end if;
    return query select c.id, c.old_id is not null from pg_temp.stage_changed c;
end
$$;

-- Those of some prompts that are to be written. One that somebody else has just stored is the same.
create function recall.store_prompts(this_host text, prompts json) returns void language plpgsql as $$
begin
    insert into recall.prompt (
        id, source, host, ordinal, session_key, project, ts, content, content_hash
    )
    select distinct on (p.id)
        p.id, p.source, this_host, p.ordinal, p.session_key, p.project, p.ts, p.content,
        p.content_hash
    from json_populate_recordset(null::recall.incoming_prompt, prompts) p
    join pg_temp.stage_changed c on c.id = p.id
    order by p.id, p.n
    on conflict (id) do nothing;
end
$$;

-- Those of some versions of notes that are to be written. One that comes again is the current one again,
-- if it is this host's.
create function recall.store_notes(this_host text, notes json) returns void language plpgsql as $$
begin
    insert into recall.note as o (
        id, shelf, source, host, path, entry_key, ordinal, session_id, project, title, ts, content,
        content_hash, fields
    )
    select distinct on (n.id)
        n.id, n.shelf, n.source, this_host, n.path, n.entry_key, n.ordinal, n.session_id, n.project,
        n.title, n.ts, n.content, n.content_hash, n.fields
    from json_populate_recordset(null::recall.incoming_note, notes) n
    join pg_temp.stage_changed c on c.id = n.id
    order by n.id, n.n
    on conflict (id) do update set
        ordinal = excluded.ordinal, session_id = excluded.session_id, project = excluded.project,
        title = excluded.title, ts = excluded.ts, fields = excluded.fields, is_current = true,
        replaced_at = null
    where o.host = excluded.host;
end
$$;

-- The search vectors of documents, in their order.
create function recall.index_documents(documents text[]) returns tsvector[]
language sql immutable parallel safe as $$
    select array(select recall.index_document(d.document) from unnest(documents) d (document))
$$;

-- Put search vectors of written messages into the text index; ids of another kind are passed over, by the
-- next two functions too.
create function recall.index_messages(ids bigint[], chunks smallint[], vectors tsvector[])
returns void language plpgsql as $$
begin
    insert into recall.message_text (
        id, chunk, ts, source, host, project, role, kind, tool, session_key, tsv
    )
    select
        s.id, d.chunk, s.ts, split_part(s.session_key, ':', 1), split_part(s.session_key, ':', 2),
        s.project, s.role, s.kind, s.tool, s.session_key, d.vector
    from unnest(ids, chunks, vectors) d (id, chunk, vector)
    join (select distinct on (k.id) k.* from pg_temp.stage_key k order by k.id, k.n) s
        on s.id = d.id;
end
$$;

create function recall.index_prompts(
    this_host text, ids bigint[], chunks smallint[], vectors tsvector[]
) returns void language sql as $$
    insert into recall.message_text (
        id, chunk, ts, source, host, project, role, kind, tool, session_key, tsv
    )
    select
        p.id, d.chunk, p.ts, p.source, p.host, p.project, 'user', 'prompt', null, p.session_key,
        d.vector
    from unnest(ids, chunks, vectors) d (id, chunk, vector)
    join recall.prompt p on p.id = d.id and p.host = this_host
    on conflict (id, chunk) do nothing
$$;

create function recall.index_notes(
    this_host text, ids bigint[], chunks smallint[], vectors tsvector[]
) returns void language sql as $$
    insert into recall.message_text (
        id, chunk, ts, source, host, project, role, kind, tool, session_key, retracted, tsv
    )
    select
        n.id, d.chunk, n.ts, n.source, n.host, n.project, 'assistant', n.shelf, null, null, false,
        d.vector
    from unnest(ids, chunks, vectors) d (id, chunk, vector)
    join recall.note n on n.id = d.id and n.host = this_host
    on conflict (id, chunk) do update set
        retracted = false, ts = excluded.ts, project = excluded.project, tsv = excluded.tsv
$$;

-- Say that the passages of what was written are to be made again.
create function recall.mark_written(this_host text) returns void language plpgsql as $$
begin
    execute $sql$
        select recall.mark_dirty(
            array_agg(c.key), array_agg(c.ordinal), array_agg(c.entries), array_agg(c.ts)
        )
        from (
            select s.session_key as key, min(s.ordinal) as ordinal, count(*) as entries,
                max(s.ts) as ts
            from pg_temp.stage_changed w
            join pg_temp.stage_key s on s.id = w.id
            group by s.session_key
            union all
            select 'note:' || n.id, 0, 1, null
            from pg_temp.stage_changed w
            join recall.note n on n.id = w.id and n.host = $1
        ) c
        having count(*) > 0
    $sql$ using this_host;
end
$$;

-- A text that only grew was not taken back: what was kept of it stands at the start of the new one.
create function recall.drop_outgrown() returns void language plpgsql as $$
begin
    execute $sql$
        with outgrown as (
            delete from recall.message_retracted r
            using recall.message m, pg_temp.stage_changed c
            where m.id = c.id and r.session_key = m.session_key and r.ordinal = m.ordinal
                and r.part = m.part and r.role = m.role and r.kind = m.kind
                and starts_with(m.content, r.content)
            returning r.id
        )
        delete from recall.message_text t using outgrown o where t.id = o.id
    $sql$;
end
$$;

-- Messages in ranges that were read again and that did not come again: the client took them back. One
-- that stands in its session under another number now was not. How many were taken back.
create function recall.retire(pieces json) returns bigint language plpgsql as $$
declare
    piece record;
    ended text[] := '{}';
    moved bigint;
    retired bigint := 0;
begin
    for piece in
        select p.session_key, p.generation, p.retire_first, p.retire_last
        from recall.pieces(pieces) p
        where p.has_retire and p.session_key is not null
        order by p.number
    loop
        with gone as (
            delete from recall.message m
            where m.session_key = piece.session_key and m.ordinal >= piece.retire_first
                and (piece.retire_last is null or m.ordinal < piece.retire_last)
                and not exists (
                    select from pg_temp.stage_key s
                    where s.session_key = m.session_key and s.ordinal = m.ordinal
                        and s.part = m.part
                )
            returning m.*
        ), kept as (
            insert into recall.message_retracted (
                session_key, ordinal, part, id, message_id, generation, role, kind, ts, ts_origin,
                content, content_hash, copy_key, project, branch, tool, call_id, native_id, model,
                is_error, is_damaged, redactions, on_active_branch, stored_at
            )
            select
                g.session_key, g.ordinal, g.part, recall.retracted_id(g.id, g.content_hash), g.id,
                piece.generation, g.role, g.kind, g.ts, g.ts_origin, g.content, g.content_hash,
                g.copy_key, g.project, g.branch, g.tool, g.call_id, g.native_id, g.model,
                g.is_error, g.is_damaged, g.redactions, g.on_active_branch, g.stored_at
            from gone g
            on conflict (id) do update set
                generation = excluded.generation, retracted_at = excluded.retracted_at
        )
        select count(*) into moved
        from gone g
        cross join lateral recall.move_index(g.id, recall.retracted_id(g.id, g.content_hash));
        if moved > 0 then
            perform recall.mark_dirty(
                array[piece.session_key], array[greatest(piece.retire_first, 0)],
                array[1::bigint], array[null::timestamptz]
            );
            retired := retired + moved;
        end if;
        if piece.retire_last is null then
            ended := ended || piece.session_key;
        end if;
    end loop;
    if ended <> '{}' then
        with elsewhere as (
            delete from recall.message_retracted r
            using recall.message m
            where r.session_key = any(ended) and m.session_key = r.session_key
                and m.content_hash = r.content_hash and m.role = r.role and m.kind = r.kind
                and m.native_id = r.native_id and m.ts is not distinct from r.ts
            returning r.id
        )
        delete from recall.message_text t using elsewhere e where t.id = e.id;
    end if;
    return retired;
end
$$;

-- Spans that could not be read; the same span of the same generation is one entry.
create function recall.store_quarantine(this_host text, quarantine json) returns void
language sql as $$
    insert into recall.quarantine (
        host, path, generation, byte_offset, byte_length, ordinal, source, session_key, reason,
        sha256, raw, salvaged
    )
    select distinct on (s.path, s.generation, s.byte_offset)
        this_host, s.path, s.generation, s.byte_offset, s.byte_length, s.ordinal, s.source,
        s.session_key, s.reason, s.sha256, s.raw, s.salvaged
    from json_populate_recordset(null::recall.incoming_quarantine, quarantine) s
    order by s.path, s.generation, s.byte_offset, s.n desc
    on conflict (host, path, generation, byte_offset) do update set
        byte_length = excluded.byte_length, reason = excluded.reason, sha256 = excluded.sha256,
        raw = excluded.raw, salvaged = excluded.salvaged
$$;

-- Those of some original bytes that are in the store. They stay there until the transaction ends.
create function recall.known_blobs(hashes bytea[]) returns setof bytea language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared(7883960468427862124);
    return query select b.hash from recall.raw_blob b where b.hash = any(hashes);
end
$$;

-- Keep original bytes; how many of them were new, as stored.
create function recall.store_blobs(
    hashes bytea[], lengths integer[], codecs text[], data bytea[]
) returns bigint language sql as $$
    with stored as (
        insert into recall.raw_blob (hash, byte_length, codec, data)
        select b.hash, b.byte_length, b.codec, b.data
        from unnest(hashes, lengths, codecs, data) b (hash, byte_length, codec, data)
        order by b.hash
        on conflict (hash) do nothing
        returning octet_length(raw_blob.data) as bytes
    )
    select coalesce(sum(s.bytes), 0)::bigint from stored s
$$;

-- What follows when the rows of a batch and their documents are stored: everything but what a file
-- itself says was taken back, and the checkpoints.
create function recall.finish_rows(
    this_host text, pieces json, quarantine json, spans json,
    out retired bigint, out replaced_raw bytea[]
) language plpgsql as $$
begin
    perform recall.mark_written(this_host);
    if exists (select from pg_temp.stage_changed c where c.old_id is not null) then
        perform recall.drop_outgrown();
    end if;
    retired := recall.retire(pieces);
    perform recall.store_quarantine(this_host, quarantine);
    replaced_raw := recall.store_spans(this_host, pieces, spans);
end
$$;

-- Keep those of the staged messages that a file says were taken back which are not live and not kept
-- yet; which are new, by the id that they are kept under and by what they are. One generation for the
-- batch: these rows are told apart by their text.
create function recall.keep_taken_back(pieces json, taken_back json)
returns table (id bigint, message_id bigint, content_hash bytea) language plpgsql as $$
#variable_conflict use_column
declare
    newest constant integer := (select max(p.generation) from recall.pieces(pieces) p);
begin
    return query
        insert into recall.message_retracted as r (
            session_key, ordinal, part, id, message_id, generation, role, kind, ts, ts_origin,
            content, content_hash, copy_key, project, branch, tool, call_id, native_id, model,
            is_error, is_damaged, redactions, on_active_branch
        )
        select distinct on (recall.retracted_id(s.id, s.content_hash))
            s.session_key, s.ordinal, s.part, recall.retracted_id(s.id, s.content_hash), s.id,
            newest, s.role, s.kind, s.ts, s.ts_origin, s.content, s.content_hash, s.copy_key,
            s.project, s.branch, s.tool, s.call_id, s.native_id, s.model, s.is_error,
            s.is_damaged, s.redactions, s.on_active_branch
        from json_populate_recordset(null::recall.incoming_taken_back, taken_back) s
        where not exists (
            select from recall.message m
            where m.session_key = s.session_key and m.content_hash = s.content_hash
                and m.role = s.role and m.kind = s.kind
                and (m.ordinal = s.ordinal and m.part = s.part
                    or m.native_id = s.native_id and m.ts is not distinct from s.ts)
        )
        order by recall.retracted_id(s.id, s.content_hash), s.n desc
        on conflict (id) do nothing
        returning r.id, r.message_id, r.content_hash;
end
$$;

-- Put search vectors of what was taken back into the text index.
create function recall.index_taken_back(ids bigint[], chunks smallint[], vectors tsvector[])
returns void language sql as $$
    insert into recall.message_text (
        id, chunk, ts, source, host, project, role, kind, tool, session_key, retracted, tsv
    )
    select
        r.id, d.chunk, r.ts, split_part(r.session_key, ':', 1), split_part(r.session_key, ':', 2),
        r.project, r.role, r.kind, r.tool, r.session_key, true, d.vector
    from unnest(ids, chunks, vectors) d (id, chunk, vector)
    join recall.message_retracted r on r.id = d.id
    on conflict (id, chunk) do nothing
$$;

-- Counts of lines, added up; `skip_reasons` has how many for each reason.
create function recall.sum_counts(
    given jsonb[], out seen bigint, out stored bigint, out merged bigint, out quarantined bigint,
    out skipped bigint, out skip_reasons jsonb
) language sql immutable as $$
    select
        sum((g.c ->> 'seen')::bigint), sum((g.c ->> 'stored')::bigint),
        sum((g.c ->> 'merged')::bigint), sum((g.c ->> 'quarantined')::bigint),
        sum((g.c ->> 'skipped')::bigint),
        (
            select coalesce(jsonb_object_agg(r.reason, r.lines), '{}')
            from (
                select e.key as reason, sum(e.value::bigint) as lines
                from unnest(given) a (c)
                cross join lateral jsonb_each_text(a.c -> 'skip_reasons') e
                group by e.key
            ) r
        )
    from unnest(given) g (c)
$$;

-- The end of a batch: what became of the lines of each piece, how many rows were written, and the
-- checkpoints, each with what all pieces of its file up to it counted.
create function recall.end_batch(
    this_host text, pieces json, out counts json, out messages bigint
) language plpgsql as $$
declare
    settled recall.piece[] := array(
        select row(
            p.number, p.path, p.source, p.generation, p.session_key, p.has_retire, p.retire_first,
            p.retire_last, p.raw_from, p.supersedes_raw, p.counted, p.row_lines,
            case when p.counted then p.counts || jsonb_build_object(
                'stored', (p.counts ->> 'stored')::bigint + coalesce(w.lines, 0),
                'merged', (p.counts ->> 'merged')::bigint + p.row_lines - coalesce(w.lines, 0)
            ) else p.counts end,
            p.file_number, p.before, p.checkpoint, p.goes_on_from
        )::recall.piece
        from recall.pieces(pieces) p
        left join (
            select c.piece, count(distinct c.ordinal) as lines
            from pg_temp.stage_changed c
            group by c.piece
        ) w on w.piece = p.number
    );
begin
    counts := (select coalesce(json_agg(p.counts order by p.number), '[]') from unnest(settled) p);
    messages := (select count(*) from pg_temp.stage_changed);
    insert into recall.ingest_state (
        host, path, source, session_key, size, mtime_ns, ctime_ns, inode, byte_offset, lines,
        head_hash, tail_hash, generation, rereading, parser_state, lines_seen, lines_stored,
        lines_merged, lines_quarantined, lines_skipped, skip_reasons, source_missing_at, unreadable,
        described, container, raw_bytes, unfinished_length, unfinished_hash
    )
    select
        this_host, s.path, s.source, s.session_key, s.size, s.mtime_ns, s.ctime_ns, s.inode,
        s.byte_offset, s.lines, s.head_hash, s.tail_hash, s.generation, s.rereading,
        s.parser_state, t.seen, t.stored, t.merged, t.quarantined, t.skipped, t.skip_reasons, null,
        s.unreadable, s.described, s.container, s.raw_bytes, s.unfinished_length,
        s.unfinished_hash
    from (
        select distinct on (p.checkpoint ->> 'path') p.number, p.file_number, p.before, p.checkpoint
        from unnest(settled) p
        where p.checkpoint is not null
        order by p.checkpoint ->> 'path', p.number desc
    ) p
    cross join lateral jsonb_populate_record(null::recall.ingest_state, p.checkpoint) s
    cross join lateral recall.sum_counts(array(
        select p.before
        union all
        select o.counts from unnest(settled) o
        where o.file_number = p.file_number and o.number <= p.number
    )) t
    on conflict (host, path) do update set
        source = excluded.source, session_key = excluded.session_key, size = excluded.size,
        mtime_ns = excluded.mtime_ns, ctime_ns = excluded.ctime_ns, inode = excluded.inode,
        byte_offset = excluded.byte_offset, lines = excluded.lines,
        head_hash = excluded.head_hash, tail_hash = excluded.tail_hash,
        generation = excluded.generation, rereading = excluded.rereading,
        parser_state = excluded.parser_state, lines_seen = excluded.lines_seen,
        lines_stored = excluded.lines_stored, lines_merged = excluded.lines_merged,
        lines_quarantined = excluded.lines_quarantined, lines_skipped = excluded.lines_skipped,
        skip_reasons = excluded.skip_reasons, source_missing_at = null,
        unreadable = excluded.unreadable, described = excluded.described,
        container = excluded.container, raw_bytes = excluded.raw_bytes,
        unfinished_length = excluded.unfinished_length,
        unfinished_hash = excluded.unfinished_hash, read_at = now();
end
$$;

-- Files that are gone (what was read from them stays), and by path the source and the reason of what
-- could not be read this time (everything known about it stays). How many were noted.
create function recall.mark_files(this_host text, missing text[], unreadable jsonb) returns bigint
language plpgsql as $$
declare
    gone bigint;
    refused bigint;
begin
    update recall.ingest_state f set source_missing_at = now()
    where f.host = this_host and f.path = any(missing) and f.source_missing_at is null;
    get diagnostics gone = row_count;
    insert into recall.ingest_state (
        host, path, source, size, mtime_ns, ctime_ns, inode, byte_offset, lines, head_hash,
        tail_hash, generation, rereading, lines_seen, lines_stored, lines_merged,
        lines_quarantined, lines_skipped, skip_reasons, unreadable
    )
    select
        this_host, u.key, u.value ->> 0, 0, 0, 0, 0, 0, 0, '', '', 1, false, 0, 0, 0, 0, 0, '{}',
        u.value ->> 1
    from jsonb_each(unreadable) u
    order by u.key
    on conflict (host, path) do update set unreadable = excluded.unreadable, read_at = now();
    get diagnostics refused = row_count;
    return gone + refused;
end
$$;

-- Files that were gone and are there again, unchanged, and folders that can be read again: those have
-- no row of their own. How many were noted.
create function recall.mark_files_present(this_host text, paths text[], readable text[])
returns bigint language plpgsql as $$
declare
    back bigint;
    cleared bigint;
begin
    update recall.ingest_state f set source_missing_at = null
    where f.host = this_host and f.path = any(paths) and f.source_missing_at is not null;
    get diagnostics back = row_count;
    delete from recall.ingest_state f
    where f.host = this_host and f.path = any(readable) and f.size = 0 and f.lines_seen = 0
        and f.session_key is null;
    get diagnostics cleared = row_count;
    return back + cleared;
end
$$;

-- What is kept of the original bytes of a path.
create function recall.kept_spans(this_host text, path text, generation integer)
returns table (byte_offset bigint, byte_length integer, hash bytea) language sql stable as $$
    select s.byte_offset, s.byte_length, s.hash
    from recall.raw_segment s
    where s.host = this_host and s.path = kept_spans.path and s.generation = kept_spans.generation
    order by s.byte_offset
$$;

-- A machine, once; the installation that the name belongs to.
create function recall.register_host(this_host text, this_install uuid) returns uuid
language sql as $$
    insert into recall.host as h (host, install_id) values (this_host, this_install)
    on conflict (host) do update set host = excluded.host
    returning h.install_id
$$;

-- Merge the pending list of the text index, so that searches do not read it. Where the index is not
-- there, a first large pass is under way, which makes it at its end.
create function recall.clean_text_index() returns void language plpgsql as $$
begin
    perform gin_clean_pending_list(to_regclass('recall.message_text_tsv'));
end
$$;

-- The ingester of a host is alive, and what its last pass did.
create function recall.beat(this_host text, this_process integer, this_detail jsonb) returns void
language sql as $$
    insert into recall.worker_heartbeat as w (component, instance, host, pid, detail)
    values ('ingester', this_host, this_host, this_process, this_detail)
    on conflict (component, instance) do update set
        host = excluded.host, beat_at = now(), detail = excluded.detail,
        started_at = case when w.pid = excluded.pid then w.started_at else now() end,
        pid = excluded.pid
$$;
-- Until now one process was expected.
update recall.worker_heartbeat w set instance = w.host where w.component = 'ingester';
