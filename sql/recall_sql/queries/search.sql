-- name: text
-- By words; the answer is one JSON object.
select api.search_text(
    q => %(q)s::text, max_hits => %(limit)s::integer, skip => %(skip)s::integer,
    sources => %(sources)s::text[], hosts => %(hosts)s::text[], projects => %(projects)s::text[],
    roles => %(roles)s::text[], kinds => %(kinds)s::text[], tools => %(tools)s::text[],
    sessions => %(sessions)s::text[], since => %(since)s::timestamptz,
    until => %(until)s::timestamptz, exclude_sessions => %(exclude_sessions)s::text[],
    include_retracted => %(include_retracted)s::boolean, brief => %(brief)s::boolean
)

-- name: exact
-- By a string that the content holds.
select api.search_exact(
    q => %(q)s::text, ignore_case => %(ignore_case)s::boolean, max_hits => %(limit)s::integer,
    sources => %(sources)s::text[], hosts => %(hosts)s::text[], projects => %(projects)s::text[],
    roles => %(roles)s::text[], kinds => %(kinds)s::text[], tools => %(tools)s::text[],
    sessions => %(sessions)s::text[], since => %(since)s::timestamptz,
    until => %(until)s::timestamptz, exclude_sessions => %(exclude_sessions)s::text[],
    include_retracted => %(include_retracted)s::boolean, before_ts => %(before_ts)s::timestamptz,
    before_id => %(before_id)s::bigint, budget => make_interval(secs => %(budget)s::float8)
)

-- name: regex
-- By a regular expression over the content.
select api.search_regex(
    q => %(q)s::text, ignore_case => %(ignore_case)s::boolean, max_hits => %(limit)s::integer,
    sources => %(sources)s::text[], hosts => %(hosts)s::text[], projects => %(projects)s::text[],
    roles => %(roles)s::text[], kinds => %(kinds)s::text[], tools => %(tools)s::text[],
    sessions => %(sessions)s::text[], since => %(since)s::timestamptz,
    until => %(until)s::timestamptz, exclude_sessions => %(exclude_sessions)s::text[],
    include_retracted => %(include_retracted)s::boolean, before_ts => %(before_ts)s::timestamptz,
    before_id => %(before_id)s::bigint, budget => make_interval(secs => %(budget)s::float8)
)

-- name: semantic
-- By meaning: near to the vector of a query, made by the model of the active generation.
select api.search_semantic(
    query_vector => %(query_vector)s::real[], model => %(model)s::text,
    max_hits => %(limit)s::integer, skip => %(skip)s::integer,
    sources => %(sources)s::text[], hosts => %(hosts)s::text[], projects => %(projects)s::text[],
    roles => %(roles)s::text[], kinds => %(kinds)s::text[], tools => %(tools)s::text[],
    sessions => %(sessions)s::text[], since => %(since)s::timestamptz,
    until => %(until)s::timestamptz, exclude_sessions => %(exclude_sessions)s::text[],
    least_similarity => %(least_similarity)s::float8, brief => %(brief)s::boolean
)

-- name: full_hits
-- What the hits of a page of both searches say in full.
select api.full_hits(
    q => %(q)s::text, by_text => %(by_text)s::bigint[], places => %(places)s::jsonb
)

-- name: vector_coverage
-- The model of the vectors and how many there are; null where there is none.
select recall.vector_coverage()

-- name: coverage
-- What a search can see.
select api.search_coverage()

-- name: limit_time
-- The time limit of the statements of this transaction, as the backstop of a search.
select set_config('statement_timeout', %(milliseconds)s::text, true)
