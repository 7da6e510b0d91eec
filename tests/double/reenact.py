"""Groups of the recording in which something happens to the database or the server."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg

from tests.double.fixtures import Served
from tests.double.recorded import Recorded, send, sessions, token
from tests.double.stage import Background, Stage, until

Names = Mapping[str, Recorded]
_GOOD = "valid ingest_writer token"
#: Of the tokens that are good for a moment yet, one is for one second, and others for longer.
_MOMENT_SECONDS = 0.9
_LONGEST_WAIT_SECONDS = 90.0


def timeouts(stage: Stage, names: Names) -> None:
    """Time limits, locks, and connections that are ended from outside."""
    stage.sql("alter role ingest_writer set statement_timeout = '1s'")
    stage.restart_main()
    stage.play(names["statement_timeout_role_setting"])
    stage.sql("alter role ingest_writer reset statement_timeout")
    stage.sql("alter role authenticator set statement_timeout = '1s'")
    stage.restart_main()
    stage.play(names["statement_timeout_authenticator"])
    stage.sql("alter role authenticator reset statement_timeout")
    stage.sql("alter role ingest_writer set lock_timeout = '300ms'")
    stage.restart_main()
    with row_locked(stage, "s1"):
        stage.play(names["lock_timeout"])
    stage.sql("alter role ingest_writer reset lock_timeout")
    stage.restart_main()
    for name, function in {
        "backend_terminated_in_flight": "pg_terminate_backend",
        "backend_cancelled_in_flight": "pg_cancel_backend",
    }.items():
        with stage.slow_calls_running():
            running = stage.play_in_background(names[name])
            stage.until_running()
            stage.sql(
                f"select {function}(pid) from pg_stat_activity"
                " where usename = 'authenticator' and query ilike '%slow%' and state = 'active'"
            )
            running.join()
        if name == "backend_terminated_in_flight":
            stage.play(names["next_request_after_terminate"])
    stage.sql("alter database contract set default_transaction_read_only = on")
    stage.restart_main()
    stage.play(names["read_only_database"])
    stage.sql("alter database contract reset default_transaction_read_only")
    stage.restart_main()


def schema_cache(stage: Stage, names: Names) -> None:
    """What changes in the database is seen after a reload."""
    stage.start_main()
    stage.sql("create table api.newtab (a integer); grant select on api.newtab to ingest_writer")
    stage.sql("alter table api.sessions add column extra text")
    for name in (
        "new_table_before_reload", "new_column_insert_before_reload",
        "new_column_read_before_reload", "new_column_merge_columns_before_reload",
    ):  # fmt: skip
        stage.play(names[name])
    stage.sql("notify pgrst, 'reload schema'")
    until(lambda: stage.play(names["new_table_after_notify"]).status == 200)
    stage.check("reload_latency", holds=True)
    stage.play(names["new_column_insert_after_notify"])
    stage.sql("alter table api.sessions drop column extra")
    stage.play(names["dropped_column_before_reload"])
    stage.play(names["dropped_column_select_star_before_reload"])
    stage.main.reload()
    until(lambda: b"PGRST204" in stage.play(names["dropped_column_after_sigusr1"]).body)
    stage.sql("drop table api.newtab")
    stage.play(names["dropped_table_before_reload"])
    stage.main.reload()
    until(lambda: b"PGRST205" in stage.play(names["dropped_table_after_reload"]).body)


def postgres_down(stage: Stage, names: Names) -> None:
    """The database stops under a running request, and comes back."""
    with stage.slow_calls_running():
        running = stage.play_in_background(names["in_flight_when_postgres_stops_fast"])
        stage.until_running()
        stage.server.stop("fast")
        running.join()
    until(lambda: stage.play(names["down_ready"]).status == 503)
    for name in names:
        if name.startswith("down_") and "immediate" not in name:
            stage.play(names[name])
    stage.server.start()
    recovered = names["after_recovery_write"]
    until(lambda: stage.play(recovered).status == 200)
    until(lambda: _is_ready(stage.main))
    stage.check("recovery_time", holds=True)
    stage.server.stop("immediate")
    # the connections of the pool only learn that they are dead when they are used
    until(lambda: b"PGRST000" in stage.play(names["down_after_immediate_write"]).body)
    until(lambda: stage.play(names["down_after_immediate_ready"]).status == 503)
    stage.server.start()
    stage.restart_main()


def starting_without_database(stage: Stage, names: Names) -> None:
    """The server is started first, and the database later."""
    stage.restart_main()
    stage.server.stop("fast")
    with stage.serving(wait=False) as served:
        for name in ("startup_no_db_write", "startup_no_db_ready", "startup_no_db_live"):
            stage.play(names[name], served)
        stage.server.start()
        until(lambda: _is_ready(served))
        stage.check("startup_recovery", holds=True)
        stage.play(names["startup_recovered_write"], served)


def outages(stage: Stage, names: Names) -> None:
    """What is answered, again and again, while the database is away."""
    stage.restart_main()
    url = "/sessions?limit=1"
    head = [("Authorization", f"Bearer {token(_GOOD)}")]
    with stage.serving() as served:
        send(served.url, "GET", url, head)
        stage.server.stop("fast")
        told = [send(served.url, "GET", url, head) for _ in range(4)]
        codes = [one.headers["Proxy-Status"].rpartition("=")[2] for one in told]
        again = all(one.status == 503 and one.headers["Retry-After"] == "0" for one in told)
        stage.check("outage_while_running", again and codes == ["57P01", *["PGRST000"] * 3], codes)
    with stage.serving(wait=False) as served:
        told = [send(served.url, "GET", url, head) for _ in range(3)]
        codes = [one.headers["Proxy-Status"].rpartition("=")[2] for one in told]
        again = all(one.status == 503 and one.headers["Retry-After"] == "0" for one in told)
        stage.check("outage_at_startup", again and codes == ["PGRST002"] * 3, codes)
    stage.server.start()


def graceful_shutdown(stage: Stage, names: Names) -> None:
    """A server that is told to stop takes nothing new, and finishes what runs."""
    with stage.serving() as served:
        with stage.slow_calls_running():
            running = stage.play_in_background(names["sigterm_in_flight"], served)
            stage.until_running()
            stopping = Background(served.stop)
            until(lambda: _refuses(served.url))
            stage.check("new_request_after_sigterm", holds=True)
        running.join()
        stopping.join()


def pool_exhaustion(stage: Stage, names: Names) -> None:
    """Four long calls for two connections."""
    slow = [names[f"slow_{n}_of_4"] for n in (0, 1)]
    waiting = [names[f"slow_{n}_of_4"] for n in (2, 3)]
    with stage.serving(pool_size=2, pool_acquisition_timeout=2) as served:
        with stage.slow_calls_running():
            running = [stage.play_in_background(one, served) for one in slow]
            stage.until_running(2)
            refused = [stage.play_in_background(one, served) for one in waiting]
            stage.play(names["ready_while_pool_exhausted"], served)
            stage.play(names["write_while_pool_exhausted"], served)
            for one in refused:
                one.join()
        for one in running:
            one.join()
        stage.play(names["write_after_pool_freed"], served)


def too_many_connections(stage: Stage, names: Names) -> None:
    """The login role may open no more connections; one of them is for announcements."""
    with stage.serving() as served:
        stage.sql("alter role authenticator connection limit 3")
        running = []
        with stage.slow_calls_running():
            for n in (0, 1):
                running.append(stage.play_in_background(names[f"connlimit_slow_{n}_of_4"], served))
                stage.until_running(n + 1)
            for n in (2, 3):
                stage.play(names[f"connlimit_slow_{n}_of_4"], served)
        for one in running:
            one.join()
        stage.sql("alter role authenticator connection limit -1")
        stage.play(names["after_connlimit_lifted"], served)


def config_variants(stage: Stage, names: Names) -> None:
    """Each with the one setting that it is about."""
    variants: list[tuple[str, dict[str, Any]]] = [
        ("no_anon_", {"anon_role": None}),
        ("tx_rollback_allowed", {"tx_end": "commit-allow-override"}),
        ("db_max_rows_", {"max_rows": 3}),
        ("client_error_verbosity_minimal", {"client_error_verbosity": "minimal"}),
        ("openapi_disabled_", {"openapi_mode": "disabled"}),
        ("aud_", {"jwt_aud": "session-ingest"}),
    ]
    for beginning, settings in variants:
        with stage.serving(**settings) as served:
            for name, recorded in names.items():
                if name.startswith(beginning):
                    stage.play(recorded, served)


def clock_skew(stage: Stage, names: Names) -> None:
    """Tokens around the half minute that is allowed, and one that lapses meanwhile."""
    lapsing = "exp such that it lapses (with skew) in 4 s"
    for recorded in names.values():
        if lapsing not in str(recorded.request["headers"]):
            _in_a_moment(lambda recorded=recorded: stage.play(recorded))  # type: ignore[misc]
    # one token for both: it lapses between them
    head: list[tuple[str, str]] = []
    inside, lapsed = names["jwt_still_inside_skew"], names["same_jwt_after_skew_lapsed"]
    path = inside.request["path"]

    def is_inside() -> None:
        head[:] = [("Authorization", f"Bearer {token('exp_28s_ago')}")]
        stage.compare(inside, send(stage.main.url, "GET", path, head))

    _in_a_moment(is_inside)

    def has_lapsed() -> bool:
        outcome = send(stage.main.url, "GET", path, head)
        stage.compare(lapsed, outcome)
        return outcome.status == 401

    until(has_lapsed)


def deadlock(stage: Stage, names: Names) -> None:
    """Two batches of the same rows from both ends, held in the middle until both are there."""
    stage.play(names["deadlock_setup"])
    recorded = names["deadlock_opposite_order"]
    head = [
        ("Authorization", f"Bearer {token(_GOOD)}"),
        ("Prefer", "resolution=merge-duplicates,return=minimal"),
        ("Content-Type", "application/json"),
    ]
    outcomes = []

    def write(*, descending: bool) -> None:
        body = sessions(10_000, 3000, descending=descending)
        outcomes.append(send(stage.main.url, "POST", "/sessions", head, body))

    with row_locked(stage, "s11500"):
        both = [Background(lambda: write(descending=False))]
        both.append(Background(lambda: write(descending=True)))
        stage.until_waiting(2)
    for one in both:
        one.join()
    outcomes.sort(key=lambda one: one.status)
    assert [one.status for one in outcomes] == [200, 500]
    stage.compare(recorded, outcomes[1])


def frozen_database(stage: Stage, names: Names) -> None:
    """A database that stands still is waited for without end."""
    stage.start_main()
    with _stopped_processes(stage):
        with suppress(TimeoutError):
            stage.play(names["frozen_write_client_timeout_6s"], timeout=0.5)
            stage.check("frozen_write_client_timeout_6s", holds=False, told="it was answered")
        stage.found.setdefault("frozen_write_client_timeout_6s", [])
        stage.play(names["frozen_ready"])
    until(lambda: stage.play(names["thawed_write"]).status == 200)


@contextmanager
def row_locked(stage: Stage, key: str) -> Iterator[None]:
    """Somebody else has a session locked."""
    with psycopg.connect(stage.server.url_for("contract")) as connection:
        connection.execute("select from api.sessions where session_key = %s for update", (key,))
        yield
        connection.rollback()


@contextmanager
def _stopped_processes(stage: Stage) -> Iterator[None]:
    """No process of the database server runs."""
    main = stage.server.process_id()
    assert main is not None
    os.kill(main, signal.SIGSTOP)  # first: from now on, none of its children begins or is gone
    children = Path(f"/proc/{main}/task/{main}/children").read_text(encoding="ascii").split()
    stopped = [main, *map(int, children)]
    try:
        for number in stopped:
            os.kill(number, signal.SIGSTOP)
        yield
    finally:
        for number in stopped:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGCONT)


def _in_a_moment(act: Callable[[], object]) -> None:
    """Do what is about this second; what took longer is not about it, and is done again."""
    limit = time.monotonic() + _LONGEST_WAIT_SECONDS
    while True:
        started = time.monotonic()
        act()
        if time.monotonic() - started < _MOMENT_SECONDS:
            return
        assert started < limit, "no second is long enough"


def _is_ready(served: Served) -> bool:
    url = f"{served.admin_url}/ready"
    return httpx.get(url, timeout=_LONGEST_WAIT_SECONDS, trust_env=False).status_code == 200


def _refuses(url: str) -> bool:
    parts = urlsplit(url)
    address = (parts.hostname, parts.port)
    try:
        with socket.create_connection(address, timeout=_LONGEST_WAIT_SECONDS):
            return False
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # the moment in which the socket closes
        return False
