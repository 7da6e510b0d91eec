-- The schema of the recording, as its requests and answers show it.
create role web_anon nologin;
create role ingest_writer nologin;
create role postgres nologin;
create role authenticator login noinherit;
grant web_anon, ingest_writer to authenticator;
create schema api;
create table api.sessions (
    session_key text primary key,
    source text not null default 'unknown',
    host text,
    started_at timestamptz,
    title text,
    meta jsonb not null default '{}'
);
create table api.messages (
    session_key text not null references api.sessions,
    ordinal integer,
    role text not null,
    content text,
    ts timestamptz,
    primary key (session_key, ordinal)
);
create table api.ingest_state (
    path text primary key,
    size bigint,
    mtime_ns bigint,
    byte_offset bigint,
    line_count bigint default 0
);
create function api.search_messages(q text, lim integer default 20)
returns setof api.messages language sql stable as $$
    select * from api.messages
    where content ilike '%' || q || '%'
    order by session_key, ordinal
    limit lim
$$;
-- It takes at least so long, and as long as somebody holds the lock 1.
create function api.slow(secs double precision) returns text language plpgsql as $$
begin
    perform pg_sleep(secs), pg_advisory_xact_lock_shared(1);
    return 'done';
end
$$;
create function api.boom(code text, msg text) returns void language plpgsql as $$
begin
    raise exception using errcode = code, message = msg, detail = 'a detail', hint = 'a hint';
end
$$;
grant usage on schema api to web_anon, ingest_writer;
grant select on all tables in schema api to web_anon, ingest_writer;
grant insert, update on all tables in schema api to ingest_writer;
