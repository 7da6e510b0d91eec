-- The state of the database and its backups, for the metrics.

-- name: activity
-- Connections by what they do, and the oldest open transactions.
select * from recall.database_activity()

-- name: tables
-- Live and dead rows of each table, and when it was vacuumed.
select * from recall.table_activity()

-- name: bloat
-- Size of the larger btree indexes, and what a new one would take.
select * from recall.index_bloat()

-- name: pending
-- Pages of the text index that searches read one by one.
select recall.text_index_pending_pages() as pages

-- name: backups
-- How old the newest backup is, and the newest proof that one can be restored.
select * from recall.backup_state()

-- name: relations
-- The size of each table with its out-of-line values, and of each index.
select
    c.relname as name, case c.relkind when 'i' then 'index' else 'table' end as kind,
    case c.relkind when 'i' then pg_relation_size(c.oid) else pg_table_size(c.oid) end as size_bytes
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'recall' and c.relkind in ('r', 'i', 'm')
order by c.relname
