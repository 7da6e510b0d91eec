-- Statements of `recall backup` and `recall restore-backup`.

-- name: hold_snapshot
-- Make the transaction a view of the store that `pg_dump` can share, for as long as that takes. Rows
-- that this role may not see are an error and not missing; the form of a row as text is fixed.
set transaction isolation level repeatable read read only;
set local row_security = off;
set local statement_timeout = 0;
set local lock_timeout = '60s';
set local transaction_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local timezone = 'UTC';
set local datestyle = 'ISO, YMD';
set local intervalstyle = 'postgres';
set local bytea_output = 'hex';
set local extra_float_digits = 1

-- name: export_snapshot
-- The name under which `pg_dump` gets the same view.
select pg_export_snapshot()

-- name: dump_facts
-- What a manifest says of the server.
select current_setting('server_version'), current_setting('server_version_num')::integer / 10000,
    pg_database_size(current_database())

-- name: dump_extensions
-- The extensions of the database.
select e.extname, e.extversion, n.nspname
from pg_extension e join pg_namespace n on n.oid = e.extnamespace
where e.extname <> 'plpgsql'
order by e.extname

-- name: dump_roles
-- Roles that the rights and policies of this database name, and our own. They belong to the server and
-- are in no dump of a database.
select r.rolname, r.rolcanlogin, r.rolinherit,
    coalesce((
        select s.setconfig from pg_db_role_setting s where s.setrole = r.oid and s.setdatabase = 0
    ), '{}') as settings,
    array(
        select g.rolname::text from pg_auth_members m join pg_roles g on g.oid = m.roleid
        where m.member = r.oid
        order by g.rolname
    ) as member_of
from pg_roles r
where not r.rolsuper and r.rolname !~ '^pg_' and r.rolname <> current_user
    and (r.rolname ~ '^recall_' or exists (
        select from pg_shdepend d
        where d.dbid = (select b.oid from pg_database b where b.datname = current_database())
            and d.refclassid = 'pg_authid'::regclass and d.refobjid = r.oid
            and d.deptype in ('a', 'r')
    ))
order by r.rolname

-- name: dump_tables
-- The tables whose rows belong into a dump, with their size, and whether they hold vectors, which can
-- be made again. What is unlogged is on its way only, and what an extension made comes with it.
select n.nspname, c.relname, pg_table_size(c.oid),
    exists (
        select from pg_attribute a join pg_type t on t.oid = a.atttypid
        where a.attrelid = c.oid and t.typname in ('halfvec', 'vector') and not a.attisdropped
    )
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and c.relpersistence = 'p'
    and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
    and not exists (
        select from pg_depend d
        where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e'
    )
order by n.nspname, c.relname

-- name: digest_table
-- How many rows a table has, and a number that a change of any row changes, in whatever order they are.
select count(*), coalesce(sum(
    ('x' || encode(substr(sha256(convert_to(whole_row::text, 'UTF8')), 1, 8), 'hex'))
        ::bit(64)::bigint
), 0)::text
from only {table} as whole_row

-- name: has_backup_table
-- Whether this schema already has the table of backups.
select to_regclass('recall.backup') is not null

-- name: record_backup
-- Tell the metrics of a backup; one that is known is left as it is.
insert into recall.backup (started_at, finished_at, bytes, file, schema_version, verified_at)
select %(started_at)s, %(finished_at)s, %(bytes)s, %(file)s, %(schema_version)s, %(verified_at)s
where not exists (select from recall.backup b where b.file = %(file)s)

-- name: record_verified
-- Tell the metrics that a backup was proven.
update recall.backup set verified_at = %(verified_at)s where file = %(file)s

-- name: forget_backups
-- Backups whose files were deleted.
delete from recall.backup where file = any(%(files)s)

-- name: database_form
-- How a database tells letters and sorts, and whether it is there at all.
select d.datcollate, d.datctype, d.datlocprovider, d.datlocale
from pg_database d
where d.datname = %(name)s

-- name: database_clients
-- Who else is connected to a database. Connections of a restore are counted for a moment after they
-- were closed.
select coalesce(nullif(a.application_name, ''), 'a client without a name'), count(*)
from pg_stat_activity a
where a.datname = %(name)s and a.backend_type = 'client backend' and a.pid <> pg_backend_pid()
    and a.application_name <> %(own)s
group by 1
order by 1

-- name: scratch_databases
-- Databases that a restore made and did not come to drop, by their mark.
select d.datname
from pg_database d
where d.datname ~ '^recall_(verify|restore)_[0-9a-f]{12}$'
    and shobj_description(d.oid, 'pg_database') = %(mark)s

-- name: database_rights
-- Settings, owner and rights of a database as statements for another one: none of it is in a dump.
with old as (
    select d.* from pg_database d where d.datname = %(old)s
)
select format(
    'alter %%s set %%I to %%s',
    case when s.setrole = 0 then format('database %%I', %(new)s::text)
        else format('role %%I in database %%I', r.rolname, %(new)s::text) end,
    split_part(one, '=', 1),
    case when split_part(one, '=', 1) = 'search_path' then substr(one, strpos(one, '=') + 1)
        else quote_literal(substr(one, strpos(one, '=') + 1)) end
)
from old
join pg_db_role_setting s on s.setdatabase = old.oid
left join pg_roles r on r.oid = s.setrole
cross join unnest(s.setconfig) one
union all
select format('revoke all on database %%I from public', %(new)s::text)
from old where old.datacl is not null
union all
select format(
    'grant %%s on database %%I to %%s', a.privilege_type, %(new)s::text,
    case when a.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end
)
from old cross join aclexplode(old.datacl) a
union all
select format('alter database %%I owner to %%I', %(new)s::text, pg_get_userbyid(old.datdba))
from old where pg_get_userbyid(old.datdba) <> current_user

-- name: foreign_tables
-- Tables in a database that are not ours.
select count(*)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and n.nspname not in ('recall', 'api', 'information_schema')
    and n.nspname !~ '^pg_'
    and not exists (
        select from pg_depend d
        where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e'
    )

-- name: mark_all_dirty
-- Let the embedder make the vectors of everything again, after a restore without them.
select recall.mark_dirty(
    array_agg(d.key), array_agg(0::bigint), array_agg(d.entries), array_agg(d.newest)
)
from (
    select s.session_key as key, coalesce(m.n, 0) as entries, s.ended_at as newest
    from recall.session s
    left join (
        select session_key, count(*) as n from recall.message group by session_key
    ) m using (session_key)
    union all
    select 'note:' || n.id, 1, n.ts from recall.note n where n.is_current
) d
having count(*) > 0

-- name: canary_entries
-- Some of the newest and of the oldest entries, to look for: those that an answer shows by themselves,
-- and not as a copy of another one.
with newest as (
    select t.id from recall.message_text t
    where t.chunk = 0 and not t.retracted and t.kind <> 'prompt' and t.ts is not null
    order by t.ts desc nulls last, t.id desc
    limit %(most)s
), oldest as (
    select t.id from recall.message_text t
    where t.chunk = 0 and not t.retracted and t.kind <> 'prompt' and t.ts is not null
    order by t.ts nulls first, t.id
    limit %(most)s
), undated as (
    select t.id from recall.message_text t
    where t.chunk = 0 and not t.retracted and t.kind <> 'prompt' and t.ts is null
    limit %(most)s
)
select e.id::text, e.ts, e.content
from (select id from newest union select id from oldest union select id from undated) t
join recall.entry e using (id)
where not exists (
    select from recall.message c where c.copy_key = e.copy_key and c.id <> e.id
)
order by e.ts desc nulls first, e.id

-- name: canary_word
-- Whether a word stands in the indexed text of an entry, and in how many the index finds it, up to a
-- limit.
select
    exists (
        select from recall.message_text t
        where t.id = %(id)s::bigint
            and t.tsv @@ plainto_tsquery('pg_catalog.simple', %(word)s)
    ),
    (
        select count(*) from (
            select from recall.message_text t
            where t.tsv @@ plainto_tsquery('pg_catalog.simple', %(word)s)
            limit %(most)s
        ) found
    )

-- name: canary_passage
-- A passage of the vectors that searches use, whose text no other one has.
select p.entry_id::text, g.model, p.v::real[]
from recall.embedding_generation g
join recall.passage p on p.generation = g.number
join recall.entry e on e.id = p.entry_id
where g.state = 'active' and p.is_representative and not p.has_copies
order by p.ts desc nulls last, p.id
limit 1

-- name: gin_indexes
-- The text indexes that can be checked.
select format('%I.%I', n.nspname, c.relname)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_am m on m.oid = c.relam
where m.amname = 'gin' and c.relkind = 'i' and n.nspname = 'recall'
    and exists (select from pg_proc p where p.proname = 'gin_index_check')
order by 1
