-- name: settings
-- For a connection that ingests: a long pending list and the memory to merge it at once make a large
-- pass a third cheaper for the text index.
set gin_pending_list_limit = '64MB';
set work_mem = '64MB'

-- name: stage
-- The staging tables of this connection.
select recall.stage_batch()

-- name: copy_keys
-- Receive what identifies messages; their text follows only where it is needed.
copy pg_temp.stage_key (
    n, piece, session_key, ordinal, part, id, role, kind, ts, content_hash, copy_key, project, tool,
    is_error, on_active_branch
) from stdin

-- name: begin_batch
-- Store the sessions and make room; which rows are to be written.
select id from recall.begin_batch(
    %(host)s, %(pieces)s::json, %(sessions)s::json, %(prompt_keys)s::json, %(note_keys)s::json
)

-- name: copy_messages
-- Store messages whose keys are not in the store, or not any more.
copy recall.message (
    session_key, ordinal, part, id, role, kind, ts, ts_origin, content, content_hash, copy_key,
    project, branch, tool, call_id, native_id, model, is_error, is_damaged, redactions,
    on_active_branch
) from stdin

-- name: store_prompts
-- Store prompts.
select recall.store_prompts(%(host)s, %(prompts)s::json)

-- name: store_notes
-- Store versions of notes.
select recall.store_notes(%(host)s, %(notes)s::json)

-- name: index_messages
-- Make the search vectors of documents of stored messages.
select recall.index_messages(
    %(ids)b::bigint[], %(chunks)b::smallint[], recall.index_documents(%(documents)b::text[])
)

-- name: index_prompts
-- Make the search vectors of documents of stored prompts.
select recall.index_prompts(
    %(host)s, %(ids)b::bigint[], %(chunks)b::smallint[],
    recall.index_documents(%(documents)b::text[])
)

-- name: index_notes
-- Make the search vectors of documents of notes.
select recall.index_notes(
    %(host)s, %(ids)b::bigint[], %(chunks)b::smallint[],
    recall.index_documents(%(documents)b::text[])
)

-- name: known_blobs
-- Which original bytes are in the store, and stay there until the commit.
select * from recall.known_blobs(%(hashes)b::bytea[])

-- name: store_blobs
-- Keep original bytes that are not in the store.
select recall.store_blobs(
    %(hashes)b::bytea[], %(lengths)b::integer[], %(codecs)s::text[], %(data)b::bytea[]
)

-- name: finish_rows
-- What follows when the rows are stored: how many messages were taken back, and which original bytes
-- made room.
select retired, replaced_raw
from recall.finish_rows(%(host)s, %(pieces)s::json, %(quarantine)s::json, %(spans)s::json)

-- name: keep_taken_back
-- Keep those of what a file says was taken back that are not live and not kept yet; which are new.
select id, message_id, content_hash
from recall.keep_taken_back(%(pieces)s::json, %(taken_back)s::json)

-- name: index_taken_back
-- Make the search vectors of what was taken back.
select recall.index_taken_back(
    %(ids)b::bigint[], %(chunks)b::smallint[], recall.index_documents(%(documents)b::text[])
)

-- name: end_batch
-- Move the checkpoints; what became of the lines of each piece, and how many rows were written.
select counts, messages from recall.end_batch(%(host)s, %(pieces)s::json)

-- name: checkpoints
-- Every file of a host.
select
    path, source, session_key, size, mtime_ns, ctime_ns, inode, byte_offset, lines, head_hash,
    tail_hash, generation, rereading, parser_state, lines_seen, lines_stored, lines_merged,
    lines_quarantined, lines_skipped, skip_reasons, source_missing_at is not null, unreadable,
    described, container, raw_bytes, unfinished_length, unfinished_hash
from recall.ingest_state
where host = %(host)s

-- name: mark
-- Files that are gone, and files and folders that could not be read this time.
select recall.mark_files(%(host)s, %(missing)s::text[], %(unreadable)s::jsonb)

-- name: mark_present
-- Files that are back unchanged, and folders that can be listed again.
select recall.mark_files_present(%(host)s, %(paths)s::text[], %(readable)s::text[])

-- name: raw_spans
-- What is kept of the original bytes of a path.
select byte_offset, byte_length, hash
from recall.kept_spans(%(host)s, %(path)s, %(generation)s)

-- name: link_copies
-- Sessions that begin with another session's messages and name no parent.
select recall.link_copies(%(session_keys)s)

-- name: drop_blobs
-- Those of some original bytes that nothing points to any more.
select recall.drop_unused_blobs(%(hashes)s::bytea[])

-- name: is_empty
-- Whether nothing is stored yet.
select not exists (select from recall.message_text)

-- name: has_text_index
-- Asked first, because `create index if not exists` takes the lock of a build in any case, and a
-- vacuum of the table would have to give way to each pass.
select to_regclass('recall.message_text_tsv') is not null

-- name: drop_text_index
-- Before a first large pass: building the index once is a third of the work of keeping it.
drop index if exists recall.message_text_tsv

-- name: build_text_index
-- The text index, where it is not there: after such a pass, or after one that did not reach its end.
create index if not exists message_text_tsv on recall.message_text using gin (tsv)
    with (fastupdate = on)

-- name: clean_pending
-- Merge the pending list of the text index, so that searches do not read it.
select recall.clean_text_index()

-- name: register_host
-- This machine, once; another installation under the same name is refused by the caller.
select recall.register_host(%(host)s, %(install_id)s)::text

-- name: beat
-- The ingester is alive, and what its last pass did.
select recall.beat(%(host)s, %(pid)s, %(detail)s::jsonb)
