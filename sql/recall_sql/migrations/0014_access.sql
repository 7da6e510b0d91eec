-- Hosts, tokens, and who may do what over HTTP.
--
-- Roles belong to the whole server: another database may have made them, and the role that migrates
-- may lack the right to. A database without them works, and nothing is reachable through PostgREST.

do $$
declare
    made record;
begin
    for made in
        select * from (values ('recall_anon', '15s'), ('recall_writer', '60s')) r (name, span)
    loop
        begin
            execute format('create role %I nologin', made.name);
            execute format('alter role %I set statement_timeout = %L', made.name, made.span);
            execute format('alter role %I set lock_timeout = %L', made.name, '5s');
            execute format(
                'alter role %I set idle_in_transaction_session_timeout = %L', made.name, '15s'
            );
        exception when duplicate_object or unique_violation or insufficient_privilege then
            raise notice 'role % is left as it is', made.name;
        end;
    end loop;
    begin
        create role recall_authenticator login noinherit;
        grant recall_anon, recall_writer to recall_authenticator;
    exception
        when duplicate_object or unique_violation or insufficient_privilege or undefined_object then
            raise notice 'role recall_authenticator is left as it is';
    end;
end
$$;

-- `grant <privileges> to <role>`, where there is such a role.
create procedure recall.allow(role_name text, privileges text) language plpgsql as $$
begin
    if exists (select from pg_catalog.pg_roles r where r.rolname = role_name) then
        execute format('grant %s to %I', privileges, role_name);
    end if;
end
$$;
revoke execute on procedure recall.allow(text, text) from public;

-- By default everybody may call every function. What a migration adds to `api`, it revokes too.
revoke all on schema recall, api from public;
revoke execute on all routines in schema api from public;
call recall.allow('recall_anon', 'usage on schema api');
call recall.allow('recall_writer', 'usage on schema api');

-- One row for each token that was given out. A host has at most one that is not revoked.
create table recall.token (
    jti uuid primary key,
    host text not null references recall.host (host) on delete cascade,
    install_id uuid not null,
    issued_at timestamptz not null default now(),
    last_seen_at timestamptz,
    revoked_at timestamptz
);
create unique index token_of_host on recall.token (host) where revoked_at is null;

-- Codes with which a machine gets its token, as SHA-256. `replaces` lets another installation take
-- over a name that is taken.
create table recall.join_code (
    code_hash bytea primary key check (length(code_hash) = 32),
    host text not null check (host ~ '^[a-z0-9._-]+$'),
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    used_at timestamptz,
    replaces boolean not null default false
);

-- A claim of the token of this request; null without a token, and outside of PostgREST.
create function recall.claim(name text) returns text language sql stable
return nullif(pg_catalog.current_setting('request.jwt.claims', true), '')::json ->> name;

-- The host whose token this request has.
create function recall.claimed_host() returns text language sql stable
return recall.claim('host');

-- Why a token does not count, or null. The signature was checked before. Notes that the token was
-- used, at most once a minute, and without waiting: a batch may hold the row for as long as it runs.
create function recall.token_refusal(token_jti text, token_host text, token_install_id text)
returns text language plpgsql
set search_path = pg_catalog
as $$
declare
    found_token record;
begin
    if pg_input_is_valid(token_jti, 'uuid') is not true then
        return 'this token is not known here';
    end if;
    select t.jti, t.revoked_at, t.last_seen_at, t.host, t.install_id, h.install_id as current_id
    into found_token
    from recall.token t
    join recall.host h on h.host = t.host
    where t.jti = token_jti::uuid;
    if found_token.jti is null then
        return 'this token is not known here';
    elsif found_token.revoked_at is not null then
        return 'this token was revoked';
    elsif found_token.host is distinct from token_host
        or found_token.install_id::text is distinct from token_install_id
        or found_token.install_id <> found_token.current_id
    then
        return 'this token is of another installation of its host';
    end if;
    if not current_setting('transaction_read_only')::boolean
        and coalesce(found_token.last_seen_at < now() - interval '1 minute', true)
    then
        update recall.token t set last_seen_at = now()
        where t.jti in (
            select s.jti from recall.token s where s.jti = found_token.jti for update skip locked
        );
    end if;
    return null;
end
$$;
revoke execute on function recall.token_refusal(text, text, text) from public;

-- PostgREST calls it before each request, in the same transaction (`db-pre-request`).
create function api.check_request() returns void language plpgsql security definer
set search_path = pg_catalog
as $$
declare
    refusal text;
begin
    if recall.claim('jti') is not null or recall.claim('role') = 'recall_writer' then
        refusal := recall.token_refusal(
            recall.claim('jti'), recall.claim('host'), recall.claim('install_id')
        );
    end if;
    if refusal is not null then
        raise sqlstate 'PT401' using
            message = refusal,
            hint = '`recall token create HOST` on the server prints the line to join again with';
    end if;
end
$$;
revoke execute on function api.check_request() from public;
call recall.allow('recall_anon', 'execute on function api.check_request()');
call recall.allow('recall_writer', 'execute on function api.check_request()');
