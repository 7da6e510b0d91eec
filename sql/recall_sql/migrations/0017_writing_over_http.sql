-- What a host may call over HTTP, and what anybody may read there.

-- What was answered to a batch, so that a caller whose answer was lost gets the same one.
create table recall.stored_batch (
    host text not null,
    batch uuid not null,
    answer json,
    stored_at timestamptz not null default now(),
    primary key (host, batch)
);

create function recall.require_host() returns text language plpgsql stable as $$
begin
    if recall.claimed_host() is null then
        raise sqlstate '42501' using
            message = 'this needs the token of a host',
            hint = '`recall join` gives this machine one';
    end if;
    return recall.claimed_host();
end
$$;

-- Refuse a batch of which not all rows are here that were sent: a crash empties unlogged tables.
create function recall.require_rows(this_host text, this_batch uuid, sent json) returns void
language plpgsql as $$
declare
    kind text;
    arrived bigint;
begin
    foreach kind in array recall.incoming_kinds() loop
        execute format(
            'select count(*) from recall.incoming_%s i where i.host = $1 and i.batch = $2', kind
        ) into arrived using this_host, this_batch;
        if arrived <> coalesce((sent ->> kind)::bigint, 0) then
            raise sqlstate 'PT409' using
                message = 'incomplete',
                detail = format('%s of %s rows of %s', arrived, coalesce(sent ->> kind, '0'), kind),
                hint = 'send the whole batch again under a new uuid';
        end if;
    end loop;
end
$$;

-- Refuse a batch if not all came that is to be written: the store changed since it was asked.
create function recall.require_changed(this_host text, this_batch uuid) returns void
language plpgsql as $$
begin
    if exists (
        select c.id from pg_temp.stage_changed c
        except (
            select i.id from recall.incoming_message i
            where i.host = this_host and i.batch = this_batch
            union all
            select i.id from recall.incoming_prompt i
            where i.host = this_host and i.batch = this_batch
            union all
            select i.id from recall.incoming_note i
            where i.host = this_host and i.batch = this_batch
        )
    ) or exists (
        select c.id from pg_temp.stage_changed c
        except
        select d.id from recall.incoming_document d
        where d.host = this_host and d.batch = this_batch and not d.taken_back
    ) or exists (
        select from recall.incoming_span i
        where i.host = this_host and i.batch = this_batch
            and not exists (select from recall.raw_blob b where b.hash = i.hash)
    ) then
        raise sqlstate 'PT409' using
            message = 'changed meanwhile',
            detail = 'a row, document or blob that is to be stored did not come with the batch',
            hint = 'send the whole batch again under a new uuid';
    end if;
end
$$;

-- Refuse ids of rows of other hosts: their texts in the index would be written over, and what they take
-- back could not be kept. The API refuses ids that are not those of their rows (recall_api/uploads.py).
create function recall.require_own_ids(this_host text, this_batch uuid) returns void
language plpgsql as $$
begin
    if exists (
        select from pg_temp.stage_changed c
        cross join lateral (
            select from recall.message_text t where t.id = c.id and t.host <> this_host limit 1
        ) t
    ) or exists (
        select from recall.incoming_taken_back i
        cross join lateral (
            select from recall.message_text t
            where t.id in (i.id, recall.retracted_id(i.id, i.content_hash))
                and t.host <> this_host
            limit 1
        ) t
        where i.host = this_host and i.batch = this_batch
    ) then
        raise sqlstate '42501' using message = 'an id of a row of another host';
    end if;
end
$$;

-- The keys of the messages of a batch that came over HTTP.
create function recall.stage_keys(this_host text, this_batch uuid) returns void language plpgsql as $$
begin
    insert into pg_temp.stage_key (
        n, piece, session_key, ordinal, part, id, role, kind, ts, content_hash, copy_key, project,
        tool, is_error, on_active_branch
    )
    select
        i.n, i.piece, i.session_key, i.ordinal, i.part, i.id, i.role, i.kind, i.ts, i.content_hash,
        i.copy_key, i.project, i.tool, i.is_error, i.on_active_branch
    from recall.incoming_key i
    where i.host = this_host and i.batch = this_batch;
end
$$;

-- The rows of one kind of a batch that came over HTTP, as JSON.
create function recall.incoming_rows(kind text, this_host text, this_batch uuid) returns json
language plpgsql stable as $$
declare
    found json;
begin
    execute format(
        'select json_agg(i order by i.n) from recall.incoming_%s i where i.host = $1 and i.batch = $2',
        kind
    ) into found using this_host, this_batch;
    return coalesce(found, '[]');
end
$$;

-- Store a batch whose rows are all here, by the same steps as when a driver stores it. The answer.
create function recall.store_incoming(this_host text, this_batch uuid, pieces json) returns json
language plpgsql as $$
declare
    new_bytes bigint;
    made record;
    ended record;
    kept bigint[];
    stored record;
begin
    if exists (
        select from recall.pieces(pieces) p
        where not recall.is_own(this_host, p.session_key)
            or not recall.is_own(this_host, p.checkpoint ->> 'session_key')
    ) then
        raise sqlstate '42501' using message = 'a session of another host';
    end if;
    if exists (
        select from recall.pieces(pieces) p where not recall.is_readable(to_jsonb(p))
    ) then
        raise sqlstate '22023' using message = 'a piece that nobody could read';
    end if;
    perform recall.stage_batch();
    perform recall.stage_keys(this_host, this_batch);
    perform recall.begin_batch(
        this_host, pieces, recall.incoming_rows('session', this_host, this_batch),
        recall.incoming_rows('prompt_key', this_host, this_batch),
        recall.incoming_rows('note_key', this_host, this_batch)
    );
    perform recall.require_own_ids(this_host, this_batch);
    select recall.store_blobs(
        array_agg(i.hash), array_agg(i.byte_length), array_agg(i.codec),
        array_agg(decode(i.data_base64, 'base64'))
    ) into new_bytes
    from recall.incoming_blob i
    where i.host = this_host and i.batch = this_batch;
    perform recall.require_changed(this_host, this_batch);
    insert into recall.message (
        session_key, ordinal, part, id, role, kind, ts, ts_origin, content, content_hash, copy_key,
        project, branch, tool, call_id, native_id, model, is_error, is_damaged, redactions,
        on_active_branch
    )
    -- A copy has the text of the other one; else it would take its place in what is found.
    select distinct on (i.id)
        i.session_key, i.ordinal, i.part, i.id, i.role, i.kind, i.ts, i.ts_origin, i.content,
        i.content_hash, case when not exists (
            select from recall.message m
            where m.copy_key = i.copy_key and m.content_hash <> i.content_hash
        ) then i.copy_key end, i.project, i.branch, i.tool, i.call_id, i.native_id, i.model,
        i.is_error, i.is_damaged, i.redactions, i.on_active_branch
    from recall.incoming_message i
    join pg_temp.stage_changed c on c.id = i.id
    where i.host = this_host and i.batch = this_batch
    order by i.id, i.n;
    perform recall.store_prompts(
        this_host, recall.incoming_rows('prompt', this_host, this_batch)
    );
    perform recall.store_notes(this_host, recall.incoming_rows('note', this_host, this_batch));
    select array_agg(d.id) as ids, array_agg(d.chunk) as chunks, array_agg(d.vector) as vectors
    into made
    from (
        select distinct on (i.id, i.chunk) i.id, i.chunk, i.vector
        from recall.incoming_document i
        join pg_temp.stage_changed c on c.id = i.id
        where i.host = this_host and i.batch = this_batch and not i.taken_back
        order by i.id, i.chunk, i.n
    ) d;
    perform recall.index_messages(made.ids, made.chunks, made.vectors);
    perform recall.index_prompts(this_host, made.ids, made.chunks, made.vectors);
    perform recall.index_notes(this_host, made.ids, made.chunks, made.vectors);
    select * into ended from recall.finish_rows(
        this_host, pieces, recall.incoming_rows('quarantine', this_host, this_batch),
        recall.incoming_rows('span', this_host, this_batch)
    );
    kept := array(
        select k.id from recall.keep_taken_back(
            pieces, recall.incoming_rows('taken_back', this_host, this_batch)
        ) k
    );
    perform recall.index_taken_back(array_agg(d.id), array_agg(d.chunk), array_agg(d.vector))
    from (
        select distinct on (r.id, i.chunk) r.id, i.chunk, i.vector
        from recall.message_retracted r
        join recall.incoming_document i on i.id = r.message_id and i.content_hash = r.content_hash
        where r.id = any(kept) and i.host = this_host and i.batch = this_batch and i.taken_back
        order by r.id, i.chunk, i.n desc
    ) d;
    select * into stored from recall.end_batch(this_host, pieces);
    return json_build_object(
        'counts', stored.counts,
        'messages', stored.messages,
        'retired', ended.retired + cardinality(kept),
        'raw_bytes', new_bytes,
        'replaced_raw', to_json(ended.replaced_raw)
    );
end
$$;

create function recall.forget_incoming(this_host text, this_batch uuid) returns void
language plpgsql as $$
declare
    kind text;
begin
    foreach kind in array recall.incoming_kinds() loop
        execute format('delete from recall.incoming_%s i where i.host = $1 and i.batch = $2', kind)
        using this_host, this_batch;
    end loop;
end
$$;

-- What a host may call. Each function acts for the host whose token the request has, and for no other.

-- Claim the name of this host.
create function api.register(install_id uuid) returns json language plpgsql security definer
set search_path = pg_catalog
as $$
declare
    this_host constant text := recall.require_host();
begin
    if recall.register_host(this_host, install_id) is distinct from install_id then
        raise sqlstate 'PT409' using
            message = format('the host name `%s` belongs to another installation', this_host),
            hint = '`recall token create --replace` on the server moves it to this one';
    end if;
    return json_build_object('host', this_host);
end
$$;

-- Which of the rows whose keys were sent are to be sent whole, and whether they take the place of
-- others.
create function api.changed_rows(batch uuid) returns json language plpgsql security definer
set search_path = pg_catalog
set plan_cache_mode = force_custom_plan
set jit = off
set work_mem = '64MB'
as $$
declare
    this_host constant text := recall.require_host();
begin
    perform recall.stage_batch();
    perform recall.stage_keys(this_host, batch);
    perform recall.find_changed(
        recall.incoming_rows('prompt_key', this_host, batch),
        recall.incoming_rows('note_key', this_host, batch)
    );
    return (
        select coalesce(json_agg(json_build_array(c.id, c.old_id is not null)), '[]')
        from pg_temp.stage_changed c
    );
end
$$;

-- Which of some original bytes need not be sent.
create function api.known_blobs(hashes text[]) returns json language plpgsql security definer
set search_path = pg_catalog
set plan_cache_mode = force_custom_plan
as $$
begin
    perform recall.require_host();
    return (
        select coalesce(json_agg(k.hash), '[]')
        from recall.known_blobs(array(select h::bytea from unnest(hashes) h)) k (hash)
    );
end
$$;

-- Store a batch, whole or not at all. The same batch again gets the same answer: the first call,
-- perhaps one that nobody waits for any more, is waited for.
create function api.store_batch(batch uuid, body json) returns json
language plpgsql security definer
set search_path = pg_catalog
set plan_cache_mode = force_custom_plan
set jit = off
set timezone = 'UTC'
set work_mem = '64MB'
set gin_pending_list_limit = '64MB'
as $$
declare
    this_host constant text := recall.require_host();
    told json;
begin
    insert into recall.stored_batch (host, batch)
    values (this_host, store_batch.batch)
    on conflict do nothing;
    if not found then
        return (
            select b.answer from recall.stored_batch b
            where b.host = this_host and b.batch = store_batch.batch
        );
    end if;
    perform recall.require_rows(this_host, batch, body -> 'rows');
    told := recall.store_incoming(this_host, batch, body -> 'pieces');
    perform recall.forget_incoming(this_host, batch);
    update recall.stored_batch b set answer = told
    where b.host = this_host and b.batch = store_batch.batch;
    return told;
end
$$;

-- How far every file of the host was read, by path: all of them, or `most` behind `after`.
create function api.checkpoints(after text default null, most integer default null) returns json
language plpgsql stable security definer
set search_path = pg_catalog
set plan_cache_mode = force_custom_plan
set timezone = 'UTC'
as $$
declare
    this_host constant text := recall.require_host();
begin
    return (
        select coalesce(json_agg(to_json(s) order by s.path), '[]')
        from (
            select * from recall.ingest_state f
            where f.host = this_host and (after is null or f.path > after)
            order by f.path
            limit most
        ) s
    );
end
$$;

-- Files that are gone, and by path the source and the reason of what could not be read.
create function api.mark(missing text[], unreadable json) returns json
language plpgsql security definer
set search_path = pg_catalog
set plan_cache_mode = force_custom_plan
as $$
begin
    return json_build_object(
        'marked', recall.mark_files(recall.require_host(), missing, unreadable::jsonb)
    );
end
$$;

-- Files that are back unchanged, and folders that can be listed again.
create function api.mark_present(paths text[], readable text[]) returns json
language plpgsql security definer
set search_path = pg_catalog
set plan_cache_mode = force_custom_plan
as $$
begin
    return json_build_object(
        'marked', recall.mark_files_present(recall.require_host(), paths, readable)
    );
end
$$;

-- Offset, length and hash of the original bytes that are kept of a file of the host.
create function api.raw_spans(path text, generation integer) returns json
language plpgsql stable security definer
set search_path = pg_catalog
set plan_cache_mode = force_custom_plan
as $$
declare
    this_host constant text := recall.require_host();
begin
    return (
        select coalesce(
            json_agg(json_build_array(s.byte_offset, s.byte_length, s.hash) order by s.byte_offset),
            '[]'
        )
        from recall.kept_spans(this_host, raw_spans.path, raw_spans.generation) s
    );
end
$$;

-- Those of some original bytes that nothing points to.
create function recall.unused_blobs(hashes bytea[]) returns bytea[] language sql stable as $$
    select array(
        select b.hash from recall.raw_blob b
        where b.hash = any(hashes)
            and not exists (select from recall.raw_segment s where s.hash = b.hash)
    )
$$;

-- The end of a pass that wrote so many rows, saw these sessions first and replaced these original
-- bytes. Rows of batches that were given up and old answers go. Dropping bytes comes last: it holds
-- everybody up.
create function api.finish_pass(session_keys text[], wrote bigint, replaced_raw text[])
returns json language plpgsql security definer
set search_path = pg_catalog
set plan_cache_mode = force_custom_plan
set work_mem = '64MB'
as $$
declare
    this_host constant text := recall.require_host();
    own constant text[] := array(
        select k from unnest(session_keys) k where recall.is_own(this_host, k)
    );
    old constant timestamptz := now() - interval '1 day';
    kind text;
    unused bytea[];
    dropped bigint := 0;
begin
    if own <> '{}' then
        perform recall.link_copies(own);
    end if;
    foreach kind in array recall.incoming_kinds() loop
        execute format('delete from recall.incoming_%s i where i.sent_at < $1', kind) using old;
    end loop;
    delete from recall.stored_batch b where b.stored_at < old;
    if wrote > 0 then
        perform recall.clean_text_index();
    end if;
    if wrote > 5000 then
        analyze (skip_locked) recall.message_text;
    end if;
    -- Looked for first, so that a host which only asks holds nobody up.
    unused := recall.unused_blobs(array(select h::bytea from unnest(replaced_raw) h));
    if unused <> '{}' then
        dropped := recall.drop_unused_blobs(unused);
    end if;
    return json_build_object('dropped_blobs', dropped);
end
$$;

-- The ingester of the host is alive, and what its last pass did.
create function api.beat(detail json, pid integer default 0) returns json
language plpgsql security definer
set search_path = pg_catalog
as $$
declare
    this_host constant text := recall.require_host();
begin
    -- Whoever asks for the status gets it whole.
    if octet_length(detail::text) > 65536 or not recall.is_readable(detail::jsonb) then
        raise sqlstate '22023' using message = 'nobody could read that beat';
    end if;
    perform recall.beat(this_host, pid, detail::jsonb);
    return json_build_object('host', this_host);
end
$$;

-- Sessions, those that began last first.
create view api.sessions with (security_invoker = true) as
select
    s.session_key, s.source, s.host, s.external_id, s.title, s.project, s.branch, s.model,
    s.client_version, s.parent_key, s.relation, s.started_at, s.ended_at
from recall.session s
order by s.started_at desc nulls last, s.session_key;

-- Who may do what. Reading runs with the rights of the caller, who may read what can be searched and
-- nothing else: no original bytes, no checkpoints, no quarantine, no tokens. Two functions read more
-- than that and run with the rights of their owner: one counts files and quarantined spans, the other
-- reads the partition of the active generation, which is made later than this.
alter function api.search_coverage security definer;
alter function api.search_semantic security definer;

do $$
declare
    reads constant text[] := array[
        'search_text', 'search_exact', 'search_regex', 'search_semantic', 'full_hits',
        'search_ledger', 'memories', 'search_coverage'
    ];
    writes constant text[] := array[
        'register', 'changed_rows', 'known_blobs', 'store_batch', 'checkpoints', 'mark',
        'mark_present', 'raw_spans', 'finish_pass', 'beat'
    ];
    name text;
    reader text;
begin
    foreach name in array reads || writes loop
        execute format('revoke execute on function api.%I from public', name);
        call recall.allow('recall_writer', format('execute on function api.%I', name));
    end loop;
    foreach name in array reads loop
        call recall.allow('recall_anon', format('execute on function api.%I', name));
    end loop;
    foreach reader in array array['recall_anon', 'recall_writer'] loop
        call recall.allow(reader, 'usage on schema recall');
        call recall.allow(reader, 'select on
            api.sessions, recall.session, recall.message, recall.message_retracted, recall.prompt,
            recall.note, recall.message_text, recall.entry');
    end loop;
end
$$;

-- A running PostgREST looks again at what there is.
notify pgrst, 'reload schema';
