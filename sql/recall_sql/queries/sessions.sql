-- name: list_sessions
-- One page of sessions, newest first, and in each row how many match and how many are hidden.
with matching as materialized (
    select
        s.session_key, s.started_at,
        s.relation is not distinct from 'spill' and not %(include_spills)s::boolean as hidden
    from recall.session s
    where (%(sources)s::text[] is null or s.source = any(%(sources)s::text[]))
        and (%(hosts)s::text[] is null or s.host = any(%(hosts)s::text[]))
        and (%(projects)s::text[] is null or s.project = any(%(projects)s::text[]))
        and (%(relations)s::text[] is null
            or coalesce(s.relation, 'main') = any(%(relations)s::text[]))
        and (%(title)s::text is null or s.title ilike %(title)s::text)
        and (%(since)s::timestamptz is null
            or coalesce(s.ended_at, s.started_at) >= %(since)s::timestamptz)
        and (%(until)s::timestamptz is null or s.started_at < %(until)s::timestamptz)
), totals as (
    select
        count(*) filter (where not hidden) as total,
        count(*) filter (where hidden) as hidden_spills
    from matching
), page as (
    select m.session_key
    from matching m
    where not m.hidden
        and (
            %(after_key)s::text is null
            or m.started_at < %(after_started)s::timestamptz
            or m.started_at is not distinct from %(after_started)s::timestamptz
                and m.session_key > %(after_key)s::text
            or m.started_at is null and %(after_started)s::timestamptz is not null
        )
    order by m.started_at desc nulls last, m.session_key
    limit %(limit)s::bigint
)
select
    t.total, t.hidden_spills,
    s.session_key, s.source, s.host, s.external_id, recall.shown(s.title) as title, s.project,
    s.branch, s.model, s.parent_key, s.relation, s.started_at, s.ended_at,
    (select count(*) from recall.message m where m.session_key = s.session_key) as message_count,
    (select count(*) from recall.session c where c.parent_key = s.session_key) as children_count
from totals t
left join page p on true
left join recall.session s on s.session_key = p.session_key
order by s.started_at desc nulls last, s.session_key

-- name: find_session
-- The sessions that a key, an external id or the beginning of one names. A subagent's id begins with
-- its parent's, so what has a `/` behind the given text counts only where nothing else fits.
with named as (
    select
        s.session_key, s.source, s.host, s.title, s.started_at,
        case
            when s.session_key = %(ref)s::text then 0
            when s.external_id = %(ref)s::text then 1
            when strpos(substr(s.external_id, length(%(ref)s::text) + 1), '/') = 0 then 2
            else 3
        end as distance
    from recall.session s
    where s.session_key = %(ref)s::text
        or s.external_id = %(ref)s::text
        or length(%(ref)s::text) >= %(least)s::integer
            and starts_with(s.external_id, %(ref)s::text)
)
select n.session_key, n.source, n.host, recall.shown(n.title) as title, n.started_at,
    count(*) over () as fitting
from named n
where n.distance = (select min(distance) from named)
order by n.started_at desc nulls last, n.session_key
limit %(limit)s::bigint

-- name: get_session
-- Everything that is known about one session.
select
    s.session_key, s.source, s.host, s.external_id, recall.shown(s.title) as title, s.project,
    s.branch, s.model, s.client_version, s.parent_key, s.relation, s.started_at, s.ended_at,
    s.first_seen,
    (select count(*) from recall.message m where m.session_key = s.session_key) as message_count,
    (select count(*) from recall.message_retracted r where r.session_key = s.session_key)
        as retracted_count,
    (select count(*) from recall.prompt p where p.session_key = s.session_key) as prompt_count,
    (select count(*) from recall.session c where c.parent_key = s.session_key) as children_count
from recall.session s
where s.session_key = %(key)s::text

-- name: session_parent
-- The parent that a session names; it need not be in the store.
select
    k.key as session_key, recall.shown(p.title) as title, p.started_at,
    p.session_key is not null as stored
from (values (%(parent_key)s::text)) k (key)
left join recall.session p on p.session_key = k.key

-- name: session_children
-- The sessions that name this one as their parent.
select c.session_key, c.relation, recall.shown(c.title) as title, c.started_at
from recall.session c
where c.parent_key = %(key)s::text
order by c.started_at nulls last, c.session_key
limit %(limit)s::bigint

-- name: session_files
-- The files that a session was read from.
select f.path, f.size, f.read_at, f.source_missing_at, f.unreadable
from recall.ingest_state f
where f.session_key = %(key)s::text
order by f.path
limit %(limit)s::bigint

-- name: session_counts
-- How many messages of each role and kind a session has.
select m.role, m.kind, count(*) as messages
from recall.message m
where m.session_key = %(key)s::text
group by m.role, m.kind
order by messages desc, m.role, m.kind

-- name: messages_after
-- Messages of a session behind a place, in order.
select
    m.ordinal, m.part, m.id::text as id, m.role, m.kind, m.ts, m.ts_origin, m.tool, m.call_id,
    m.model, m.is_error, m.is_damaged, m.on_active_branch, m.redactions,
    char_length(m.content) as length,
    char_length(m.content) > %(max_chars)s::integer as truncated,
    left(m.content, %(max_chars)s::integer) as content
from recall.message m
where m.session_key = %(key)s::text
    and (m.ordinal, m.part) > (%(ordinal)s::bigint, %(part)s::integer)
    and (%(last)s::bigint is null or m.ordinal <= %(last)s::bigint)
    and (%(roles)s::text[] is null or m.role = any(%(roles)s::text[]))
    and (%(kinds)s::text[] is null or m.kind = any(%(kinds)s::text[]))
order by m.ordinal, m.part
limit %(limit)s::bigint

-- name: messages_before
-- Messages of a session before a place, nearest first.
select
    m.ordinal, m.part, m.id::text as id, m.role, m.kind, m.ts, m.ts_origin, m.tool, m.call_id,
    m.model, m.is_error, m.is_damaged, m.on_active_branch, m.redactions,
    char_length(m.content) as length,
    char_length(m.content) > %(max_chars)s::integer as truncated,
    left(m.content, %(max_chars)s::integer) as content
from recall.message m
where m.session_key = %(key)s::text
    and (m.ordinal, m.part) < (%(ordinal)s::bigint, %(part)s::integer)
    and (%(roles)s::text[] is null or m.role = any(%(roles)s::text[]))
    and (%(kinds)s::text[] is null or m.kind = any(%(kinds)s::text[]))
order by m.ordinal desc, m.part desc
limit %(limit)s::bigint

-- name: get_message
-- One message in full: what the session holds now, or what the client has taken back.
select
    m.id::text as id, m.session_key, m.ordinal, m.part, s.source, s.host, m.role, m.kind, m.ts,
    m.ts_origin, m.project, m.branch, m.tool, m.call_id, m.native_id, m.model, m.is_error,
    m.is_damaged, m.on_active_branch, m.redactions, m.stored_at, null::timestamptz as retracted_at,
    m.id::text as current_id, m.copy_key, char_length(m.content) as length, m.content
from recall.message m
join recall.session s on s.session_key = m.session_key
where m.id = %(id)s::bigint
union all
select
    r.id::text, r.session_key, r.ordinal, r.part, s.source, s.host, r.role, r.kind, r.ts,
    r.ts_origin, r.project, r.branch, r.tool, r.call_id, r.native_id, r.model, r.is_error,
    r.is_damaged, r.on_active_branch, r.redactions, r.stored_at, r.retracted_at,
    (select m.id::text from recall.message m where m.id = r.message_id),
    r.copy_key, char_length(r.content), r.content
from recall.message_retracted r
join recall.session s on s.session_key = r.session_key
where r.id = %(id)s::bigint
limit 1

-- name: get_prompt
-- One entry of a prompt history in full.
select
    p.id::text as id, p.session_key, p.ordinal, p.source, p.host, p.ts, p.project, p.stored_at,
    char_length(p.content) as length, p.content
from recall.prompt p
where p.id = %(id)s::bigint

-- name: message_copies
-- The other places where the same message stands, and in each row how many there are.
select
    m.id::text as id, m.session_key, m.ordinal, m.part, recall.shown(s.title) as title, m.ts,
    count(*) over () as places
from recall.message m
join recall.session s on s.session_key = m.session_key
where m.copy_key = %(copy_key)s::bigint and m.id <> %(id)s::bigint
order by m.ts nulls last, m.id
limit %(limit)s::bigint

-- name: message_versions
-- Earlier texts of a message, newest first.
select r.id::text as id, r.retracted_at, r.generation, char_length(r.content) as length
from recall.message_retracted r
where r.session_key = %(key)s::text and r.ordinal = %(ordinal)s::bigint
    and r.part = %(part)s::integer and r.id <> %(id)s::bigint
order by r.generation desc, r.retracted_at desc, r.id
limit %(limit)s::bigint

-- name: session_line
-- What names a session to a reader of one of its messages.
select s.session_key, recall.shown(s.title) as title, s.parent_key, s.relation, s.started_at,
    s.ended_at
from recall.session s
where s.session_key = %(key)s::text
