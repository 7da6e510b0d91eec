-- What the services of an appliance log in as. Neither role owns anything, and neither can log in before
-- `recall db login` gave it a password. Where the role that migrates may make no roles, there are none,
-- and the services use the owner's.

do $$
declare
    made text;
begin
    foreach made in array array['recall_api', 'recall_embedder'] loop
        begin
            execute format('create role %I nologin', made);
        exception when duplicate_object or unique_violation or insufficient_privilege then
            raise notice 'role % is left as it is', made;
        end;
    end loop;
end
$$;

-- Everything that these roles may do. It can be called again: `recall db login` does, after the last
-- migration, for a server on which the roles were made later than the schema.
--
-- The API reads what it answers with, checks and makes tokens, and asks how the database is. It reads no
-- original bytes and no rows on their way in, and writes none of what hosts stored: those go to
-- PostgREST, whose rights come with the token of the host.
--
-- The embedder reads what it embeds and writes passages. Making and deleting a generation makes and
-- deletes a table, and only an owner makes indexes, so these five functions, and nothing else, run as
-- their owner.
create procedure recall.allow_services() language plpgsql as $$
declare
    name text;
begin
    call recall.allow('recall_api', 'usage on schema recall, api');
    call recall.allow('recall_api', 'select on
        recall.schema_version, recall.session, recall.message, recall.message_retracted,
        recall.prompt, recall.note, recall.message_text, recall.entry, recall.ingest_state,
        recall.quarantine, recall.worker_heartbeat, recall.host, recall.token, recall.join_code,
        recall.embedding_generation, recall.embed_dirty, recall.embed_queue, recall.passage');
    call recall.allow('recall_api', 'insert, update on recall.host, recall.token');
    call recall.allow('recall_api', 'insert, update, delete on recall.join_code');
    call recall.allow('recall_api', 'execute on function recall.token_refusal');
    foreach name in array array[
        'search_text', 'search_exact', 'search_regex', 'search_semantic', 'full_hits',
        'search_ledger', 'memories', 'search_coverage'
    ] loop
        call recall.allow('recall_api', format('execute on function api.%I', name));
    end loop;
    foreach name in array array[
        'database_activity', 'table_activity', 'index_bloat', 'text_index_pending_pages',
        'backup_state'
    ] loop
        call recall.allow('recall_api', format('execute on function recall.%I', name));
    end loop;

    call recall.allow('recall_embedder', 'usage on schema recall');
    call recall.allow('recall_embedder', 'select on
        recall.schema_version, recall.session, recall.message, recall.note,
        recall.embedding_generation');
    call recall.allow('recall_embedder', 'select, update, delete on recall.embed_dirty');
    call recall.allow('recall_embedder', 'select, insert, update, delete on
        recall.embed_queue, recall.passage, recall.worker_heartbeat');
    foreach name in array array[
        'create_embedding_generation', 'create_first_generation', 'activate_embedding_generation',
        'drop_embedding_generation', 'refresh_signs'
    ] loop
        -- said here and not where they are made: `create or replace` forgets it
        execute format('alter function recall.%I security definer', name);
        execute format('alter function recall.%I set search_path = pg_catalog, pg_temp', name);
        execute format('revoke execute on function recall.%I from public', name);
        call recall.allow('recall_embedder', format('execute on function recall.%I', name));
    end loop;
end
$$;
revoke execute on procedure recall.allow_services() from public;
call recall.allow_services();

-- A search path that does not name the temporary schema has it in front, so that a view or a type of the
-- caller with the name of one of the server is taken for it, by functions that run as their owner too.
do $$
declare
    found regprocedure;
begin
    for found in
        select p.oid::regprocedure from pg_proc p
        where p.pronamespace in ('recall'::regnamespace, 'api'::regnamespace)
            and 'search_path=pg_catalog' = any(p.proconfig)
    loop
        execute format('alter routine %s set search_path = pg_catalog, pg_temp', found);
    end loop;
end
$$;

-- With logins of their own, nobody but the owner needs temporary objects, which are the only ones that
-- every role may make, also in the place of those that functions of the owner write to. `recall db login`
-- and `recall db authenticator` call this.
create procedure recall.forbid_temporary() language plpgsql as $$
declare
    owner name := (select r.rolname from pg_catalog.pg_namespace n
        join pg_catalog.pg_roles r on r.oid = n.nspowner where n.nspname = 'recall');
begin
    execute format('grant temporary on database %I to %I', current_database(), owner);
    execute format('revoke temporary on database %I from public', current_database());
exception when insufficient_privilege then
    raise notice 'the database belongs to somebody else, and everybody may make temporary tables';
end
$$;
revoke execute on procedure recall.forbid_temporary() from public;
