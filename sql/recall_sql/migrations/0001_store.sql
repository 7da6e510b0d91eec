-- The store: sessions, messages, prompts, what the text index sees, and how far each file was read.
-- Every key and reference stays within one session, so that the tables can be distributed by
-- session_key unchanged.

create table recall.host (
    host text primary key,
    install_id uuid not null,
    first_seen timestamptz not null default now()
);

create table recall.session (
    session_key text primary key,
    source text not null,
    host text not null,
    external_id text not null,
    parent_key text,
    relation text check (relation in ('subagent', 'fork', 'resume', 'spill')),
    title text,
    title_rank smallint not null default 0,
    project text,
    branch text,
    model text,
    client_version text,
    started_at timestamptz,
    ended_at timestamptz,
    path text,
    first_seen timestamptz not null default now()
);
create index session_started on recall.session (started_at desc nulls last, session_key);
create index session_parent on recall.session (parent_key) where parent_key is not null;

-- A session arrives in pieces: from several reads of its file, from a sidecar, from a title index,
-- by COPY or by an upsert over HTTP. The merge therefore stands here and not in a statement.
create function recall.merge_session() returns trigger language plpgsql as $$
begin
    new.first_seen := old.first_seen;
    if new.title is null or new.title_rank < old.title_rank then
        new.title := old.title;
        new.title_rank := old.title_rank;
    end if;
    new.started_at := least(old.started_at, new.started_at);
    new.ended_at := greatest(old.ended_at, new.ended_at);
    new.parent_key := coalesce(new.parent_key, old.parent_key);
    new.relation := coalesce(new.relation, old.relation);
    new.project := coalesce(new.project, old.project);
    new.branch := coalesce(new.branch, old.branch);
    new.model := coalesce(new.model, old.model);
    new.client_version := coalesce(new.client_version, old.client_version);
    new.path := coalesce(new.path, old.path);
    return new;
end
$$;
create trigger merge before update on recall.session
    for each row execute function recall.merge_session();

create table recall.message (
    session_key text not null,
    ordinal bigint not null,
    part integer not null,
    id bigint not null,
    role text not null check (role in ('user', 'assistant', 'tool', 'system')),
    kind text not null,
    ts timestamptz,
    ts_origin text,
    content text not null,
    content_hash bytea not null,
    copy_key bigint,
    project text,
    branch text,
    tool text,
    call_id text,
    native_id text,
    model text,
    is_error boolean not null default false,
    is_damaged boolean not null default false,
    redactions integer not null default 0,
    stored_at timestamptz not null default now(),
    primary key (session_key, ordinal, part)
);
create unique index message_id on recall.message (id) include (copy_key);
create index message_copy on recall.message (copy_key) where copy_key is not null;
-- Tells whether a prompt of a history file is stored as a message too.
create index message_user_text on recall.message (session_key, content_hash) where role = 'user';

-- What a client took back or wrote over. The store may hold the only copy, so it is kept.
create table recall.message_retracted (
    like recall.message including defaults,
    message_id bigint not null,
    generation integer not null,
    retracted_at timestamptz not null default now(),
    primary key (id)
);
create index message_retracted_session on recall.message_retracted (session_key, ordinal, part);

-- The id under which an old text of a message is kept: from the message and the text, so that taking
-- the same text back twice keeps it once.
create function recall.retracted_id(message_id bigint, content_hash bytea) returns bigint
language sql immutable parallel safe strict as $$
    select ('x' || substr(md5('retracted/' || message_id || '/' || encode(content_hash, 'hex')), 1, 16))
        ::bit(64)::bigint & 9223372036854775807
$$;

create table recall.prompt (
    id bigint primary key,
    source text not null,
    host text not null,
    ordinal bigint not null,
    session_key text,
    project text,
    ts timestamptz,
    content text not null,
    content_hash bytea not null,
    stored_at timestamptz not null default now()
);
create index prompt_session on recall.prompt (session_key) where session_key is not null;

-- The text index: narrow rows with the filter columns beside the vector, in chunks for long texts.
-- Storing or embedding a message never rewrites them, and a filtered search needs no join.
create table recall.message_text (
    id bigint not null,
    chunk smallint not null default 0,
    ts timestamptz,
    source text not null,
    host text not null,
    project text,
    role text not null,
    kind text not null,
    tool text,
    session_key text,
    retracted boolean not null default false,
    tsv tsvector not null,
    primary key (id, chunk)
);
alter table recall.message_text alter column tsv set statistics 1000;
-- Search vectors hardly compress; trying costs a tenth of the ingest and every ranking.
alter table recall.message_text alter column tsv set storage external;
-- The pending list is cleaned at the end of each sync; between, gin_pending_list_limit bounds it: the
-- server's 4 MB, or what the ingester sets for its own connections.
create index message_text_tsv on recall.message_text using gin (tsv) with (fastupdate = on);
create index message_text_ts on recall.message_text (ts desc nulls last, id desc);
create index message_text_source on recall.message_text (source, ts desc nulls last);
create index message_text_project on recall.message_text (project, ts desc nulls last);
create index message_text_role on recall.message_text (role, ts desc nulls last);
create index message_text_session on recall.message_text (session_key, ts desc nulls last);
-- The few messages that take several rows.
create index message_text_long on recall.message_text (ts desc nulls last, id desc) where chunk > 0;

-- Both lines of a document of recall/document.py: simple keeps every word as written (stop words,
-- identifiers, prefixes) and in order; english adds the stems, without places, because the second
-- line has each word once and not where it stands.
create function recall.index_document(document text) returns tsvector
language sql immutable parallel safe strict as $$
    select to_tsvector('pg_catalog.simple', split_part(document, E'\n', 1))
        || strip(to_tsvector('pg_catalog.english', split_part(document, E'\n', 2)))
$$;

create function recall.move_index(old_id bigint, new_id bigint) returns void language sql as $$
    update recall.message_text t set id = new_id, retracted = true
    where t.id = old_id
        and not exists (select from recall.message_text o where o.id = new_id and o.chunk = t.chunk);
    delete from recall.message_text where id = old_id
$$;

-- A resumed or forked session may copy its parent's messages without naming it. The parent is the
-- largest session all of whose messages stand in the copy; if two of that size fit, or none does,
-- nothing is linked.
create function recall.link_copies(session_keys text[]) returns void language sql as $$
    with young as (
        select s.session_key from recall.session s
        where s.session_key = any(session_keys) and s.parent_key is null
    ), shared as (
        select y.session_key as child, other.session_key as parent,
            count(distinct mine.copy_key) as messages
        from young y
        join recall.message mine on mine.session_key = y.session_key and mine.copy_key is not null
        join recall.message other
            on other.copy_key = mine.copy_key and other.session_key <> y.session_key
        group by 1, 2
    ), sized as (
        select s.*,
            (select count(distinct m.copy_key) from recall.message m
                where m.session_key = s.parent) as parent_messages,
            (select count(distinct m.copy_key) from recall.message m
                where m.session_key = s.child) as child_messages
        from shared s
    ), ranked as (
        select child, parent, messages,
            rank() over (partition by child order by messages desc) as place,
            count(*) over (partition by child, messages) as equals
        from sized
        where messages = parent_messages and messages < child_messages
    )
    update recall.session s
    set parent_key = r.parent, relation = coalesce(s.relation, 'resume')
    from ranked r
    where s.session_key = r.child and r.place = 1 and r.equals = 1
$$;

create table recall.ingest_state (
    host text not null,
    path text not null,
    source text not null,
    session_key text,
    size bigint not null,
    mtime_ns bigint not null,
    ctime_ns bigint not null,
    inode bigint not null,
    byte_offset bigint not null,
    lines bigint not null,
    head_hash bytea not null,
    tail_hash bytea not null,
    generation integer not null,
    rereading boolean not null,
    parser_state jsonb,
    lines_seen bigint not null,
    lines_stored bigint not null,
    lines_merged bigint not null,
    lines_quarantined bigint not null,
    lines_skipped bigint not null,
    skip_reasons jsonb not null,
    source_missing_at timestamptz,
    unreadable text,
    read_at timestamptz not null default now(),
    primary key (host, path),
    check (lines_seen = lines_stored + lines_merged + lines_quarantined + lines_skipped)
);
create index ingest_state_session on recall.ingest_state (session_key);

create table recall.quarantine (
    host text not null,
    path text not null,
    generation integer not null,
    byte_offset bigint not null,
    byte_length bigint not null,
    ordinal bigint not null,
    source text not null,
    session_key text,
    reason text not null,
    sha256 bytea not null,
    raw bytea,
    salvaged boolean not null,
    created_at timestamptz not null default now(),
    primary key (host, path, generation, byte_offset)
);

create table recall.worker_heartbeat (
    component text primary key,
    host text not null,
    pid integer not null,
    started_at timestamptz not null default now(),
    beat_at timestamptz not null default now(),
    detail jsonb not null default '{}'
);
