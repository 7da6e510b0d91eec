-- Hosts that join, and their tokens.

-- name: token_refusal
-- Why a token does not count, or null; notes that it was used.
select recall.token_refusal(%(jti)s, %(host)s, %(install_id)s)

-- name: insert_code
-- A code for one host; codes that nobody can use any more go.
with gone as (
    delete from recall.join_code where expires_at < now() - interval '1 day'
)
insert into recall.join_code (code_hash, host, expires_at, replaces)
values (%(code_hash)s, %(host)s, now() + make_interval(mins => %(minutes)s), %(replaces)s)
returning expires_at

-- name: use_code
-- A code is used once: of two requests at the same time, the second finds it used.
update recall.join_code set used_at = now()
where code_hash = %(code_hash)s and used_at is null and expires_at > now()
returning code_hash, host, replaces

-- name: other_host_of_installation
-- The name that an installation already has.
select host from recall.host where install_id = %(install_id)s and host <> %(host)s limit 1

-- name: take_host
-- A name that is free becomes that of the installation.
insert into recall.host (host, install_id) values (%(host)s, %(install_id)s)
on conflict (host) do nothing

-- name: lock_host
-- Whose name it is, until the end of the transaction.
select install_id::text from recall.host where host = %(host)s for update

-- name: move_host
-- Another installation takes over a name.
update recall.host set install_id = %(install_id)s where host = %(host)s

-- name: revoke_tokens_of_host
-- No token of a host counts any more.
update recall.token set revoked_at = now()
where host = %(host)s and revoked_at is null
returning host, jti::text

-- name: revoke_token
-- One token does not count any more.
update recall.token set revoked_at = now()
where jti = %(jti)s and revoked_at is null
returning host, jti::text

-- name: withdraw_codes
-- No code of a host counts any more.
delete from recall.join_code
where host = %(host)s and used_at is null and expires_at > now()

-- name: insert_token
-- A token that was given out.
insert into recall.token (jti, host, install_id)
values (%(jti)s, %(host)s, %(install_id)s)

-- name: list_tokens
-- Every token that was given out, those that count in front.
select
    t.jti::text, t.host, t.issued_at, t.last_seen_at, t.revoked_at,
    t.install_id::text = h.install_id::text and t.revoked_at is null as counts
from recall.token t
join recall.host h using (host)
order by t.revoked_at is not null, t.host, t.issued_at desc

-- name: list_codes
-- Codes that can still be used, without the codes.
select c.host, c.expires_at, c.replaces
from recall.join_code c
where c.used_at is null and c.expires_at > now()
order by c.expires_at

-- name: installation_of_host
-- Which installation has a name.
select install_id::text from recall.host where host = %(host)s
