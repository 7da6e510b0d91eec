-- Tables behind views, as our own schema has them: what the sink relies on in small.
do $$
declare
    made text;
begin
    foreach made in array array['double_anon', 'double_reader', 'double_writer', 'double_login'] loop
        begin
            execute format('create role %I noinherit', made);
        exception when duplicate_object then null;
        end;
    end loop;
    alter role double_login login;
    grant double_anon, double_reader, double_writer to double_login;
end
$$;
create schema store;
create schema api;
create function store.claim(name text) returns text language sql stable as $$
    select current_setting('request.jwt.claims', true)::json ->> name
$$;
create table store.incoming (
    host text not null default store.claim('host'),
    batch uuid,
    n integer,
    content text not null,
    level integer check (level >= 0),
    at timestamptz,
    hash bytea,
    primary key (host, batch, n)
);
alter table store.incoming enable row level security;
create policy own on store.incoming using (host = store.claim('host'));
create view api.incoming with (security_invoker = true) as select * from store.incoming;
create view api.outgoing with (security_invoker = true) as
    select i.n, i.batch, i.host, i.content from api.incoming i;
create function api.check_request() returns void language plpgsql as $$
begin
    if store.claim('jti') = 'revoked' then
        raise sqlstate 'PT401' using message = 'this token was revoked', hint = 'join again';
    end if;
end
$$;
create function api.fail(code text) returns json language plpgsql as $$
begin
    raise exception using errcode = code, message = 'as asked';
end
$$;
create function api.store_batch(batch uuid, body json) returns json language plpgsql as $$
begin
    insert into store.incoming (batch, n, content) values (batch, 0, body ->> 'content')
    on conflict do nothing;
    return json_build_object('stored', body -> 'content', 'host', store.claim('host'));
end
$$;
create function api.names(wanted text[]) returns setof text language sql stable as $$
    select unnest(wanted)
$$;
create function api.forget() returns void language sql as 'select';
create function api.wait(seconds double precision) returns text language sql volatile as $$
    select 'done' from pg_sleep(seconds)
$$;
grant usage on schema api, store to double_anon, double_reader, double_writer;
grant select, insert, update on api.incoming, api.outgoing, store.incoming to double_writer;
revoke execute on all functions in schema api from public;
grant execute on function api.check_request() to public;
grant execute on all functions in schema api to double_writer;
