"""The roles of the services: everything that each does, done as that role; and what it must not."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner, Result

from recall.cli import app
from recall.cli import reembed as reembed_command
from recall.cli.output import notes
from recall.config import Settings
from recall.errors import ConfigError, SchemaError, StoreError
from recall_api.app import create_app
from recall_api.query_vectors import QueryVectors
from recall_sql import authenticator
from recall_sql.authenticator import SERVICES, let_service_in
from recall_sql.connection import connect
from tests.db.embedding import SETTINGS as EMBED_SETTINGS
from tests.db.embedding import Bench, HashModel, add_note, check_store, expected, fetch, passages
from tests.db.serving import START, Store, running
from tests.double.fixtures import with_user

SECRET = "a secret of the tests that is long enough"
KEY = "claude-code:laptop:one"
TEXTS = ["the disk is full", "socket timeouts after the deploy", "nothing in particular"]
CONTENT = (
    "session", "message", "message_retracted", "message_text", "prompt", "note", "ingest_state",
    "quarantine",
)  # fmt: skip


def as_service(url: str, service: str) -> str:
    let_service_in(url, service, "a password")
    return with_user(url, SERVICES[service])


@pytest.fixture
def as_api(database: str) -> str:
    return as_service(database, "api")


@pytest.fixture
def as_embedder(database: str) -> str:
    return as_service(database, "embedder")


@pytest.fixture
def filled(database: str, as_embedder: str) -> Store:
    """Sessions, notes, prompts and problems; the role of the embedder made their vectors."""
    bench = Bench(as_embedder)
    bench.begin()
    store = Store(database)
    store.add_session("one", TEXTS, title="A day of trouble")
    store.add_prompt("why is the disk full", session=KEY)
    store.retract(KEY, 2, "something in particular")
    store.add_file("/logs/one.jsonl", key=KEY, lines=(3, 3, 0, 0, 0))
    store.add_quarantine("/logs/one.jsonl", 7)
    store.beat()
    mark(database)
    add_note(database, 7, "remember the disk")
    add_note(database, 8, "an entry of the ledger", shelf="ledger")
    bench.drain()
    bench.close()
    return store


def mark(url: str) -> None:
    with connect(url, application="tests") as connection:
        connection.execute("update recall.session set title_rank = 50")
        connection.execute(
            "select recall.mark_dirty(array[%s], array[0::bigint], array[3::bigint], array[%s])",
            (KEY, START),
        )


@pytest.fixture
def api(as_api: str, filled: Store) -> Iterator[httpx.Client]:
    """The API as the role of the API."""
    application = create_app(Settings(jwt_secret=SECRET), as_api)
    application.state.service.vectors = QueryVectors(Settings(), load=lambda _: HashModel())
    with running(application) as client:
        yield client


def get(api: httpx.Client, path: str, **query: Any) -> Any:
    answer = api.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


# What the API does


@pytest.mark.parametrize("mode", ["text", "exact", "regex", "semantic", "hybrid"])
def test_the_api_searches_in_every_mode(api: httpx.Client, mode: str) -> None:
    answer = get(api, "/search", q="socket timeouts after the deploy", mode=mode)
    assert answer["mode_used"] == mode
    assert any("socket" in hit["snippet"] for hit in answer["hits"])
    filtered = get(api, "/search", q=TEXTS[0], mode=mode, host="laptop", source="claude-code")
    assert filtered["hits"]


def test_the_api_reads_everything_that_is_answered(api: httpx.Client) -> None:
    sessions = get(api, "/sessions")["sessions"]
    assert [session["session_key"] for session in sessions] == [KEY]
    assert get(api, f"/sessions/{KEY}")["title"] == "A day of trouble"
    messages = get(api, f"/sessions/{KEY}/messages")["messages"]
    assert [message["content"] for message in messages] == TEXTS
    assert get(api, f"/messages/{messages[0]['id']}", context=1)["content"] == TEXTS[0]
    assert get(api, "/ledger")["entries"]
    assert get(api, "/memories")["entries"]


def test_the_api_tells_how_everything_is(api: httpx.Client) -> None:
    status = get(api, "/status", problems=10)
    assert status["totals"]["messages"] == len(TEXTS)
    assert status["embedding"][0]["share"] == 1.0
    assert status["problems"]["quarantined_spans"]
    assert [row["host"] for row in status["hosts"]] == ["laptop"]
    health = get(api, "/health")
    assert health["ok"]
    assert health["components"]["schema"]["ok"]


def test_no_part_of_the_metrics_is_missing(api: httpx.Client) -> None:
    told = api.get("/metrics").text
    collectors = [line for line in told.split("\n") if line.startswith("recall_collector_up{")]
    assert len(collectors) > 5
    assert [line for line in collectors if not line.endswith(" 1.0")] == []
    for name in ("recall_database_size_bytes", "recall_backup_age_seconds",
                 "recall_database_connections", "recall_relation_size_bytes"):  # fmt: skip
        assert f"\n{name}" in told


def run(url: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setenv("RECALL_DATABASE_URL", url)
    monkeypatch.setenv("RECALL_JWT_SECRET", SECRET)
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def test_machines_join_and_are_turned_away(
    api: httpx.Client, as_api: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for replace in ([], ["--replace"]):
        told = run(
            as_api, "token", "create", "desk", "--json", *replace, monkeypatch=monkeypatch
        ).stdout
        body = {"code": json.loads(told)["code"], "install_id": str(uuid.uuid4())}
        answer = api.post("/join", json=body)
        assert answer.status_code == 200, answer.text
        token = {"Authorization": f"Bearer {answer.json()['token']}"}
        assert api.get("/status", headers=token).status_code == 200
    listed = json.loads(run(as_api, "token", "list", "--json", monkeypatch=monkeypatch).stdout)
    counting = [row for row in listed["tokens"] if row["counts"]]
    assert [(row["host"], row["last_seen_at"] is not None) for row in counting] == [("desk", True)]
    run(as_api, "token", "create", "desk", monkeypatch=monkeypatch)
    run(as_api, "token", "revoke", "desk", monkeypatch=monkeypatch)
    assert api.get("/status", headers=token).status_code == 401


def test_the_commands_that_read_work_as_the_role_of_the_api(
    as_api: str, filled: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "3 messages" in run(as_api, "status", monkeypatch=monkeypatch).stdout
    told = run(as_api, "search", "--mode", "exact", "disk is full", monkeypatch=monkeypatch).stdout
    assert "disk is full" in told
    assert "message" in run(as_api, "db", "size", monkeypatch=monkeypatch).stdout


# What the API cannot do


@pytest.mark.parametrize(
    "statement",
    [
        *(f"drop table recall.{name}" for name in ("message", "token")),
        "alter table recall.message add column beside text",
        "create table recall.own ()",
        "create table public.own ()",
        "create schema own",
        "create temporary table own ()",
        "create temporary view own as select 1",
        "create domain pg_temp.text as text",
        "create role other",
        "alter role recall_api superuser",
        "set role recall_writer",
        "alter system set work_mem = '1GB'",
        "create database other",
        "select rolpassword from pg_authid",
        "select pg_read_file('/etc/hostname')",
        "copy recall.session to program 'true'",
        "select data from recall.raw_blob",
        "select from recall.raw_segment",
        "select from recall.incoming_message",
        "select from recall.stored_batch",
        "delete from recall.token",
        "delete from recall.host",
        "update recall.schema_version set version = 1",
        "insert into recall.backup (started_at, bytes, file, schema_version)"
        " values (now(), 1, 'x', 1)",
        "select api.beat('{}')",
        "select api.store_batch(gen_random_uuid(), '{}')",
        "select recall.drop_embedding_generation(1)",
        "select recall.create_embedding_generation('m', 4, 'mean', 64, 8, '{text}')",
        "call recall.allow('recall_api', 'all on recall.message')",
        "call recall.allow_services()",
        "select recall.drop_unused_blobs(null)",
    ],
)
def test_the_api_may_not(module_database: str, statement: str) -> None:
    refused(as_service(module_database, "api"), statement)


@pytest.mark.parametrize("table", CONTENT)
@pytest.mark.parametrize("service", SERVICES)
def test_no_service_writes_what_hosts_stored(
    module_database: str, service: str, table: str
) -> None:
    url = as_service(module_database, service)
    for statement in ("delete from recall.{}", "insert into recall.{} default values",
                      "truncate recall.{}"):  # fmt: skip
        refused(url, statement.format(table))


def test_what_needs_the_owner_says_so(
    as_api: str, filled: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALL_DATABASE_URL", as_api)
    done = CliRunner().invoke(app, ["purge", "--source", "claude-code", "--yes"])
    assert isinstance(done.exception, StoreError)
    assert "docker compose exec backup" in (done.exception.hint or "")
    assert fetch(filled.url, "select count(*) from recall.message") == [(len(TEXTS),)]


def refused(url: str, statement: str) -> None:
    with (
        connect(url, autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


# What the embedder does


def test_the_embedder_drains_its_queue(database: str, as_embedder: str, filled: Store) -> None:
    assert len(passages(database)) == len(TEXTS) + 3  # the title, a memory, a ledger entry
    by_message = [row for row in passages(database) if row[3] in (0, 1, 2) and row[2] == KEY]
    model = HashModel()
    assert by_message == expected(database, model)
    check_store(database)
    assert fetch(database, "select from recall.embed_queue") == []
    assert fetch(database, "select from recall.embed_dirty") == []


def test_the_embedder_notes_what_fails_and_tries_again(database: str, as_embedder: str) -> None:
    Store(database).add_session("one", TEXTS)
    bench = Bench(as_embedder, HashModel(fails=lambda text: "disk" in text))
    bench.begin()
    mark(database)
    bench.drain()
    assert len(passages(database)) == 2
    ((error,),) = fetch(database, "select error from recall.embed_queue")
    assert "the model fails" in error
    bench.close()


def test_reembed_makes_and_drops_generations(
    as_embedder: str, database: str, filled: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = HashModel(name="other-model", dimension=12)
    monkeypatch.setattr(reembed_command, "loader", lambda _settings: lambda _name: other)
    monkeypatch.setattr(reembed_command, "yield_to_others", lambda: None)
    monkeypatch.setattr(notes, "quiet", True)
    for name in ("EMBED_TOKENS", "EMBED_OVERLAP_TOKENS"):
        value = getattr(EMBED_SETTINGS, name.lower())
        monkeypatch.setenv(f"RECALL_{name}", str(value))
    run(as_embedder, "reembed", "--model", "other-model", "--drop-old", monkeypatch=monkeypatch)
    generations = fetch(database, "select number, model, state from recall.embedding_generation")
    assert generations == [(2, "other-model", "active")]
    assert len(passages(database, 2)) == len(TEXTS) + 3
    owners = fetch(
        database,
        "select distinct c.relowner = n.nspowner from pg_class c"
        " join pg_namespace n on n.oid = c.relnamespace where c.relname like 'passage%'",
    )
    assert owners == [(True,)]
    assert fetch(database, "select to_regclass('recall.passage_1')") == [(None,)]


@pytest.mark.parametrize(
    "statement",
    [
        "drop table recall.passage",
        "alter table recall.embed_queue add column beside text",
        "create table recall.own ()",
        "create temporary table own ()",
        "alter system set work_mem = '1GB'",
        "select rolpassword from pg_authid",
        "select from recall.token",
        "select from recall.join_code",
        "select from recall.raw_blob",
        "select from recall.ingest_state",
        "insert into recall.embedding_generation default values",
        "select recall.token_refusal('', '', '')",
        "select api.check_request()",
        "set role recall_writer",
        "call recall.allow_services()",
    ],
)
def test_the_embedder_may_not(module_database: str, statement: str) -> None:
    refused(as_service(module_database, "embedder"), statement)


def test_what_runs_as_the_owner_is_for_the_embedder_and_looks_nowhere_else(
    database: str, as_api: str
) -> None:
    """A table of the caller with the name of one of ours is not taken for it."""
    found = fetch(
        database,
        "select p.proname, p.proconfig::text,"
        " has_function_privilege('recall_api', p.oid, 'execute') from pg_proc p"
        " where p.pronamespace = 'recall'::regnamespace and p.prosecdef"
        " and p.proname like '%generation' order by 1",
    )
    path = '{"search_path=pg_catalog, pg_temp"}'
    assert found == [
        (f"{name}_generation", path, False)
        for name in ("activate_embedding", "create_embedding", "create_first", "drop_embedding")
    ]


def test_nothing_that_runs_as_the_owner_takes_what_a_caller_made(
    database: str, as_api: str
) -> None:
    """A temporary view calls a function as whoever reads the view."""
    with connect(database) as owner:
        name = owner.info.dbname
        owner.execute(
            sql.SQL("grant temporary on database {} to recall_api").format(sql.Identifier(name))
        )
    with connect(as_api, autocommit=True) as connection:
        connection.execute(
            "create function pg_temp.caller() returns name language plpgsql"
            " as $$ begin return current_user; end $$"
        )
        connection.execute(
            "create temporary view pg_stat_user_tables as select pg_temp.caller() as relname,"
            " 1 as n_live_tup, 0 as n_dead_tup, now() as last_vacuum, now() as last_autovacuum,"
            " 'recall' as schemaname"
        )
        found = connection.execute("select name from recall.table_activity()").fetchall()
    assert ("message",) in found
    assert len(found) > 10


def test_every_function_looks_for_temporary_objects_last(module_database: str) -> None:
    """Where a path does not name their schema, it comes first."""
    found = fetch(
        module_database,
        "select p.oid::regprocedure::text, p.prosecdef, c.path"
        " from pg_proc p left join lateral (select x as path from unnest(p.proconfig) x"
        " where x like 'search_path=%') c on true"
        " where p.pronamespace in ('recall'::regnamespace, 'api'::regnamespace)"
        " and (p.prosecdef or c.path is not null)",
    )
    assert len(found) > 20
    assert [row for row in found if row[2] != "search_path=pg_catalog, pg_temp"] == []


def test_what_runs_as_the_owner_is_not_for_everybody(module_database: str) -> None:
    found = fetch(
        module_database,
        "select p.oid::regprocedure::text from pg_proc p"
        " where p.pronamespace in ('recall'::regnamespace, 'api'::regnamespace) and p.prosecdef"
        " and has_function_privilege('public', p.oid, 'execute')",
    )
    assert found == []


def test_the_role_of_postgrest_makes_no_temporary_objects(database: str) -> None:
    """The functions that it calls fill temporary tables as the owner, who alone has any."""
    authenticator.let_in(database, "a password")
    url = with_user(database, authenticator.NAME)
    for role in ("recall_authenticator", "recall_writer", "recall_anon"):
        with (
            connect(url, autocommit=True) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege, match="temporary"),
        ):
            connection.execute(f"set role {role}".encode())
            connection.execute("create temporary table stage_changed ()")


# How they log in


def test_a_service_gets_a_verifier_and_can_get_another_one(
    home: Path, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    verifiers = set()
    for password in ("first", "second"):
        file.write_text(f"{password}\n")
        run(database, "db", "login", "api", "--password-file", str(file), monkeypatch=monkeypatch)
        ((kept, *rights),) = fetch(
            database,
            "select rolpassword, rolcanlogin, rolsuper, rolcreatedb, rolcreaterole, rolbypassrls"
            " from pg_authid where rolname = 'recall_api'",
        )
        assert kept.startswith("SCRAM-SHA-256$")
        assert rights == [True, False, False, False, False]
        verifiers.add(kept)
    assert len(verifiers) == 2


def test_a_role_made_after_the_schema_gets_its_rights(database: str, as_api: str) -> None:
    """A managed server on which the role that migrated could make no roles."""
    with connect(database) as connection:
        for kind in ("all tables in schema recall", "all routines in schema recall, api",
                     "schema recall, api"):  # fmt: skip
            connection.execute(f"revoke all on {kind} from recall_api".encode())
    refused(as_api, "select from recall.message")
    assert fetch(as_service(database, "api"), "select from recall.message") == []


def test_a_role_that_may_do_everything_is_refused(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"recall_test_{uuid.uuid4().hex[:8]}"
    monkeypatch.setattr(authenticator, "SERVICES", {"api": name})
    with pytest.raises(SchemaError, match=name):
        let_service_in(database, "api", "a password")
    with connect(database, autocommit=True) as connection:
        connection.execute(sql.SQL("create role {} createrole").format(sql.Identifier(name)))
        try:
            with pytest.raises(SchemaError, match="may do more"):
                let_service_in(database, "api", "a password")
            row = connection.execute(
                "select rolcanlogin from pg_roles where rolname = %s", (name,)
            ).fetchone()
            assert row == (False,)
        finally:
            connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def test_a_role_that_is_a_member_of_another_is_refused(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may do what that one may, whatever it says of itself."""
    name = f"recall_test_{uuid.uuid4().hex[:8]}"
    monkeypatch.setattr(authenticator, "SERVICES", {"api": name})
    role = sql.Identifier(name)
    with connect(database, autocommit=True) as connection:
        connection.execute(sql.SQL("create role {} in role pg_read_server_files").format(role))
        try:
            with pytest.raises(SchemaError, match="may do more") as caught:
                let_service_in(database, "api", "a password")
            assert "member of" in (caught.value.hint or "")
        finally:
            connection.execute(sql.SQL("drop role {}").format(role))


def test_a_password_file_that_says_nothing_is_refused(
    home: Path, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALL_DATABASE_URL", database)
    missing = str(tmp_path / "missing")
    done = CliRunner().invoke(app, ["db", "login", "embedder", "--password-file", missing])
    assert isinstance(done.exception, ConfigError)
