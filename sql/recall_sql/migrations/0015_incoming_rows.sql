-- Rows on their way into the store over HTTP, and the tables that they wait in.

-- Whether whoever reads JSON of a host can do so: deep nesting and endless numbers are errors to many.
create function recall.is_readable(given jsonb) returns boolean language sql immutable
return not jsonb_path_exists(given, '$.**{200}') and not jsonb_path_exists(
    given, '$.** ? (@.type() == "number" && (@ > 1e300 || @ < -1e300))'
);

-- Rows that came over HTTP wait here for the call that stores their batch. What is lost in a crash is
-- sent again, so nothing is logged. `batch` names one attempt to send a batch, `n` the row in it; what
-- has the same key is written over, so a request whose answer was lost is sent again unchanged.
create unlogged table recall.incoming_session (like recall.session including constraints);
alter table recall.incoming_session drop column first_seen;
create unlogged table recall.incoming_key (
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
);
create unlogged table recall.incoming_message (like recall.message including constraints);
alter table recall.incoming_message drop column stored_at;
create unlogged table recall.incoming_taken_back (like recall.incoming_message including constraints);
create unlogged table recall.incoming_prompt_key (
    piece integer not null,
    id bigint not null,
    ordinal bigint not null
);
create unlogged table recall.incoming_prompt (like recall.prompt including constraints);
alter table recall.incoming_prompt drop column stored_at;
create unlogged table recall.incoming_note_key (
    piece integer not null,
    id bigint not null,
    ordinal bigint not null,
    path text not null,
    entry_key text not null
);
create unlogged table recall.incoming_note (like recall.note including constraints);
alter table recall.incoming_note
    drop column is_current, drop column stored_at, drop column replaced_at,
    add check (octet_length(path) + octet_length(entry_key) <= 2400),
    add check (recall.is_readable(fields));
-- The vector is made here, so that a document that cannot be indexed is refused by itself.
create unlogged table recall.incoming_document (
    id bigint not null,
    chunk smallint not null,
    taken_back boolean not null,
    content_hash bytea,
    document text not null,
    vector tsvector generated always as (recall.index_document(document)) stored,
    check (taken_back = (content_hash is not null))
);
-- Trying to compress what stays a moment, or cannot be compressed, costs more than it saves.
alter table recall.incoming_document
    alter column document set storage external, alter column vector set storage external;
create unlogged table recall.incoming_quarantine (like recall.quarantine including constraints);
alter table recall.incoming_quarantine drop column created_at;
create unlogged table recall.incoming_span (
    path text not null,
    generation integer not null,
    byte_offset bigint not null,
    byte_length integer not null,
    hash bytea not null,
    unfinished boolean not null
);
create unlogged table recall.incoming_blob (
    hash bytea not null check (octet_length(hash) = 32),
    byte_length integer not null,
    codec text not null check (codec in ('zstd', 'none')),
    data_base64 text not null check (octet_length(decode(data_base64, 'base64')) > 0)
);
alter table recall.incoming_blob alter column data_base64 set storage external;

create function recall.incoming_kinds() returns text[] language sql immutable return array[
    'session', 'key', 'message', 'taken_back', 'prompt_key', 'prompt', 'note_key', 'note',
    'document', 'quarantine', 'span', 'blob'
];

-- Whether a row is of the host whose token this request has: so is its session then.
create function recall.is_own(row_host text, row_session text) returns boolean language sql stable
return row_host = recall.claimed_host()
    and (row_session is null or split_part(row_session, ':', 2) = row_host);

do $$
declare
    kind text;
    has_session boolean;
    bounded text;
begin
    foreach kind in array recall.incoming_kinds() loop
        execute format(
            'alter table recall.incoming_%1$s
                add column if not exists host text not null,
                alter column host set default recall.claimed_host(),
                add column batch uuid not null,
                add column n integer not null check (n >= 0),
                add column sent_at timestamptz not null default now(),
                add primary key (host, batch, n),
                enable row level security',
            kind
        );
        -- Values that an index of the store has to hold.
        for bounded in
            select a.attname from pg_attribute a
            where a.attrelid = format('recall.incoming_%s', kind)::regclass and a.attnum > 0
                and a.attname in ('session_key', 'project', 'external_id', 'parent_key', 'session_id')
        loop
            execute format(
                'alter table recall.incoming_%1$s add check (octet_length(%2$I) <= 2400)',
                kind, bounded
            );
        end loop;
        -- Times that whoever reads them has years for.
        for bounded in
            select a.attname from pg_attribute a
            where a.attrelid = format('recall.incoming_%s', kind)::regclass and a.attnum > 0
                and not a.attisdropped and a.atttypid = 'timestamptz'::regtype
                and a.attname <> 'sent_at'
        loop
            execute format(
                'alter table recall.incoming_%1$s
                    add check (%2$I >= ''0001-01-01 00:00Z'' and %2$I < ''10000-01-01 00:00Z'')',
                kind, bounded
            );
        end loop;
        has_session := exists (
            select from pg_attribute a
            where a.attrelid = format('recall.incoming_%s', kind)::regclass
                and a.attname = 'session_key'
        );
        execute format(
            'create policy own_rows on recall.incoming_%1$s
                using (host = (select recall.claimed_host()))
                with check (recall.is_own(host, %2$s) and recall.is_own(host, %3$s))',
            kind, case when has_session then 'session_key' else 'null' end,
            case when kind = 'session' then 'parent_key' else 'null' end
        );
        execute format(
            'create view api.incoming_%1$s with (security_invoker = true) as select %2$s
                from recall.incoming_%1$s',
            kind, (
                select string_agg(quote_ident(a.attname), ', ' order by
                    a.attname <> 'host', a.attname <> 'batch', a.attname <> 'n', a.attnum)
                from pg_attribute a
                where a.attrelid = format('recall.incoming_%s', kind)::regclass
                    and a.attnum > 0 and not a.attisdropped
                    and a.attname not in ('sent_at', 'vector')
            )
        );
        call recall.allow('recall_writer', format(
            'select, insert, update, delete on recall.incoming_%1$s, api.incoming_%1$s', kind
        ));
    end loop;
end
$$;
