-- The original bytes of session logs, sessions that live in a container, and branches.

-- What one sync read of a file, in spans of at most 256 KiB. A span is named by its content, so that
-- identical bytes are stored once whatever file they stand in. The newest generation of a path is the
-- file as it was read last; earlier ones are kept where the client wrote over something.
create table recall.raw_blob (
    hash bytea primary key,
    byte_length integer not null,
    codec text not null check (codec in ('zstd', 'none')),
    data bytea not null,
    stored_at timestamptz not null default now()
);
-- Compressed already.
alter table recall.raw_blob alter column data set storage external;

create table recall.raw_segment (
    host text not null,
    path text not null,
    generation integer not null,
    byte_offset bigint not null,
    source text not null,
    byte_length integer not null,
    hash bytea not null,
    -- Bytes behind the last complete line: the next read brings them again, with what follows.
    unfinished boolean not null default false,
    stored_at timestamptz not null default now(),
    primary key (host, path, generation, byte_offset)
);
create index raw_segment_hash on recall.raw_segment (hash);
create index raw_segment_source on recall.raw_segment (source);

-- A blob may be deleted only while nobody is about to point to it. Whoever stores blobs holds this
-- lock in shared mode until it commits; whoever deletes them takes it alone.
create function recall.hold_blobs() returns trigger language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared(7883960468427862124);
    return null;
end
$$;
create trigger hold_blobs before insert on recall.raw_blob
    for each statement execute function recall.hold_blobs();

-- Delete those of the given blobs (null: of all) that no segment points to; how many were deleted.
create function recall.drop_unused_blobs(hashes bytea[]) returns bigint language plpgsql as $$
declare
    dropped bigint;
begin
    perform pg_advisory_xact_lock(7883960468427862124);
    delete from recall.raw_blob b
    where (hashes is null or b.hash = any(hashes))
        and not exists (select from recall.raw_segment s where s.hash = b.hash);
    get diagnostics dropped = row_count;
    return dropped;
end
$$;

-- `described` is what the source said of the file (label, shape), so that the kept bytes can be parsed
-- when the file is gone. `container` is the path of the database or folder that holds the session; `path` is then that path,
-- `#`, and the session's id. `raw_bytes` is the length of the beginning of the file whose original
-- bytes are kept; the unfinished bytes behind `byte_offset` are known by length and hash.
alter table recall.ingest_state
    add column described jsonb,
    add column container text,
    add column raw_bytes bigint not null default 0,
    add column unfinished_length bigint not null default 0,
    add column unfinished_hash bytea not null default '';
create index ingest_state_container on recall.ingest_state (host, container)
    where container is not null;

-- False for a message on a branch that the conversation left: a regenerated answer, an edited question.
alter table recall.message add column on_active_branch boolean not null default true;
alter table recall.message_retracted add column on_active_branch boolean not null default true;
