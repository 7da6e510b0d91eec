-- Notes: entries of a work ledger and of agents' memories. An entry whose text changes gets a new
-- version; the earlier ones are kept, and found only by a search that includes what was taken back.

create table recall.note (
    id bigint primary key,
    shelf text not null check (shelf in ('ledger', 'memory')),
    source text not null,
    host text not null,
    path text not null,
    entry_key text not null,
    ordinal bigint not null,
    -- The client's own id; a ledger does not say which client's session it means.
    session_id text,
    project text,
    title text,
    ts timestamptz,
    content text not null,
    content_hash bytea not null,
    fields jsonb not null default '{}',
    is_current boolean not null default true,
    stored_at timestamptz not null default now(),
    replaced_at timestamptz
);
create index note_place on recall.note (host, path, entry_key);
create index note_shelf on recall.note (shelf, ts desc nulls last, id desc);
create index note_session on recall.note (session_id) where session_id is not null;
create index session_external on recall.session (external_id);
