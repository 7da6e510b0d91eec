"""Connections: session settings, pools that outlive a restart, and errors without content."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from recall.errors import ConfigError, StoreError, StoreUnavailableError
from recall_sql.connection import connect, open_pool, translate_errors


def test_session_settings_hold_for_a_connection(database: str) -> None:
    with connect(database, statement_timeout_seconds=1.5, lock_timeout_seconds=0.25) as conn:
        names = (
            "search_path",
            "plan_cache_mode",
            "jit",
            "idle_in_transaction_session_timeout",
            "client_connection_check_interval",
            "statement_timeout",
            "lock_timeout",
        )
        values = [conn.execute(f"show {name}".encode()).fetchone() for name in names]
    assert [value[0] for value in values if value] == [
        "pg_catalog",
        "force_custom_plan",
        "off",
        "1min",
        "500ms",
        "1500ms",
        "250ms",
    ]


def test_options_of_the_url_win(database: str) -> None:
    with connect(f"{database}&options=-c%20jit%3Don&application_name=mine") as conn:
        shown = conn.execute(
            "select current_setting('jit'), current_setting('application_name')"
        ).fetchone()
    assert shown == ("on", "mine")


def test_statement_is_never_prepared(database: str) -> None:
    with connect(database) as conn:
        for number in range(8):
            conn.execute("select %s::integer", (number,))
        assert conn.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)


def test_server_that_is_not_there_is_unavailable() -> None:
    url = "postgresql:///recall?host=/no-such-folder&password=secret"
    with pytest.raises(StoreUnavailableError, match="No such file or directory") as caught:
        connect(url)
    assert caught.value.retryable
    assert "secret" not in caught.value.message


def test_url_that_is_no_url_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        connect("postgresql://user:secret%zz@localhost/recall")
    assert "secret" not in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("insert into public.t values ('canary')", "23505 (unique violation) at `t`, `t_pkey`"),
        ("select 'canary'::integer", "22P02 (invalid text representation)"),
        ("canary", "42601 (syntax error)"),
    ],
)
def test_message_names_the_condition_and_no_content(
    empty_database: str, statement: str, told: str
) -> None:
    with connect(empty_database, autocommit=True) as conn:
        conn.execute("create table public.t (word text primary key)")
        conn.execute("insert into public.t values ('canary')")
        with pytest.raises(StoreError) as caught, translate_errors():
            conn.execute(statement.encode())
    assert caught.value.message == f"database error {told}"
    assert not caught.value.retryable
    assert caught.value.__suppress_context__


def test_parameter_that_the_driver_refuses_is_not_repeated(database: str) -> None:
    with connect(database) as conn, pytest.raises(StoreError) as caught, translate_errors():
        conn.execute("select %s::text", ("canary\x00",))
    assert "canary" not in caught.value.message


@pytest.mark.parametrize("state", ["53100", "53300", "57P01", "40P01", "40001", "55P03", "08006"])
def test_condition_that_passes_is_retryable(state: str) -> None:
    with pytest.raises(StoreUnavailableError, match=state), translate_errors():
        raise psycopg.errors.lookup(state)


@pytest.mark.parametrize("state", ["23505", "42501", "22P05", "42P01", "25006"])
def test_condition_that_stays_is_not_retryable(state: str) -> None:
    with pytest.raises(StoreError, match=state) as caught, translate_errors():
        raise psycopg.errors.lookup(state)
    assert not caught.value.retryable


def test_statement_that_takes_too_long_is_retryable(database: str) -> None:
    with (
        connect(database, statement_timeout_seconds=0.01) as conn,
        pytest.raises(StoreUnavailableError, match="57014"),
        translate_errors(),
    ):
        conn.execute("select pg_sleep(60)")


def test_ended_connection_is_unavailable(database: str) -> None:
    with connect(database) as conn, connect(database, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s, 60000)", (conn.info.backend_pid,))
        with pytest.raises(StoreUnavailableError), translate_errors():
            conn.execute("select 1")
        with pytest.raises(StoreUnavailableError, match="was lost"), translate_errors():
            conn.execute("select 1")


def test_pool_hands_out_live_connections_after_the_server_ended_them(database: str) -> None:
    with open_pool(database, max_size=3, application="pooled") as pool:
        with pool.connection(60) as one, pool.connection(60) as two:
            pids = [one.info.backend_pid, two.info.backend_pid]
            assert one.execute("show plan_cache_mode").fetchone() == ("force_custom_plan",)
        with connect(database, autocommit=True) as other:
            other.execute("select pg_terminate_backend(pid, 60000) from unnest(%s) pid", (pids,))
        for _ in range(6):
            with pool.connection(60) as conn:
                assert conn.execute("select 1").fetchone() == (1,)


def test_pool_without_a_server_is_unavailable(tmp_path: Path) -> None:
    url = f"postgresql:///recall?host={quote(str(tmp_path), safe='')}"
    with (
        open_pool(url, max_size=1, application="pooled") as pool,
        pytest.raises(StoreUnavailableError),
        translate_errors(),
        pool.connection(timeout=0.1),
    ):
        pytest.fail("there was a connection")
