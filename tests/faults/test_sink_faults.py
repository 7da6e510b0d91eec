"""Writing over HTTP while things go wrong: nothing is lost, nothing is doubled, and it ends."""

from __future__ import annotations

import gc
import logging
import threading
import tracemalloc
from typing import Any

import pytest

from recall.errors import AccessError, ClaimError, ConfigError, StoreError, StoreUnavailableError
from recall.identity import Identity
from recall_ingester.sinks import Batch, Written
from recall_ingester.sinks.postgrest import PostgrestSink
from recall_sql.connection import connect
from tests.db.ingesting import HOST, rows
from tests.db.over_http import join
from tests.faults.sink_bench import Bench, line, log

pytestmark = pytest.mark.timeout(600)

#: Every kind of request of a pass that writes.
PATHS = (
    "/rpc/checkpoints", "/incoming_session", "/incoming_key", "/incoming_span", "/rpc/changed_rows",
    "/incoming_message", "/incoming_document", "/rpc/known_blobs", "/incoming_blob",
    "/rpc/store_batch", "/rpc/finish_pass", "/rpc/beat",
)  # fmt: skip


@pytest.mark.parametrize("moment", ["before body", "before commit", "after commit"])
def test_connection_lost_at_any_request(bench: Bench, moment: Any) -> None:
    for path in PATHS:
        bench.served.switches.drop(moment, path=path)
    summary = bench.read()
    assert bench.served.switches.pending() == 0
    assert (summary.stored, summary.messages) == (24, 24)
    assert bench.member.errors.as_json() == {"connection": len(PATHS)}
    bench.check()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (500, "40P01"), (500, "57014"), (500, "55P03"), (409, "23505"), (400, "40001"),
        (503, "53300"), (500, "XX000"), (503, "PGRST001"), (504, "PGRST003"), (503, "08006"),
    ],
)  # fmt: skip
def test_errors_that_pass_are_waited_for(bench: Bench, status: int, code: str) -> None:
    for path in PATHS:
        bench.served.switches.answer(status, code=code, path=path, moment="before commit", times=2)
    bench.read()
    assert bench.served.switches.pending() == 0
    assert bench.member.errors.as_json() == {code: 2 * len(PATHS)}
    assert len(bench.member.pauses) == 2 * len(PATHS)
    bench.check()


def test_an_answer_that_a_proxy_had_no_patience_for_was_written(bench: Bench) -> None:
    bench.served.switches.answer(504, moment="after commit", path="/rpc/store_batch", code="x504")
    bench.served.switches.clear()
    bench.served.switches.answer(
        504, moment="after commit", path="/rpc/store_batch", code="PGRST003"
    )
    summary = bench.read()
    assert (summary.stored, summary.merged, summary.messages) == (24, 0, 24)
    bench.check()


def test_a_storm_of_503_ends_the_pass_and_the_next_one_goes_on(bench: Bench) -> None:
    with bench.served.switches.database_down(), pytest.raises(StoreUnavailableError):
        bench.read()
    assert len(bench.member.pauses) == 7
    assert len({round(pause, 6) for pause in bench.member.pauses}) == 7
    bench.read()
    bench.check()


def test_a_statement_that_takes_too_long_is_sent_again(bench: Bench) -> None:
    bench.read()
    with log(bench.folder).open("ab") as file:
        file.write(line("later", 9))
    with connect(bench.database, application="tests") as blocker:
        blocker.execute("lock table recall.message in access exclusive mode")
        bench.served.switches.role_setting("recall_writer", "statement_timeout", "100ms")
        with pytest.raises(StoreUnavailableError, match=r"57014|55P03"):
            bench.read()
    bench.served.switches.clear()
    bench.read()
    bench.check()


def test_rows_that_were_lost_on_the_server_are_sent_again_under_another_name(bench: Bench) -> None:
    done = threading.Event()

    def lose() -> None:
        held.wait()
        with connect(bench.database, application="tests", autocommit=True) as connection:
            connection.execute("truncate recall.incoming_message")
        held.release()
        done.set()

    with bench.served.switches.hold("before body", path="/rpc/store_batch") as held:
        thread = threading.Thread(target=lose)
        thread.start()
        bench.read()
        thread.join()
    assert done.is_set()
    # the rows of the other two threads may be lost as well
    assert bench.member.errors.as_json()["PT409"] in (1, 2, 3)
    names = {one.json()["batch"] for one in sent(bench, "/rpc/store_batch")}
    assert len(names) > 1
    bench.check()


def test_a_row_that_changed_between_two_requests_is_sent_after_all(bench: Bench) -> None:
    bench.read()
    again = [line("0 has said 0", 0), *(line(f"0 says {n}", n) for n in range(1, 10))]
    log(bench.folder).write_bytes(b"".join(again))
    lost = "delete from recall.message where content = '0 says 3'"

    def lose() -> None:
        held.wait()
        with connect(bench.database, application="tests", autocommit=True) as connection:
            connection.execute("delete from recall.message_text where id = any(select id from"
                               " recall.message where content = '0 says 3')")  # fmt: skip
            connection.execute(lost)
        held.release()

    with bench.served.switches.hold("before body", path="/rpc/store_batch") as held:
        thread = threading.Thread(target=lose)
        thread.start()
        bench.read()
        thread.join()
    assert bench.member.errors.as_json() == {"PT409": 1}
    assert rows(bench.database, "select count(*) from recall.message") == [(26,)]
    found = "select count(*) from recall.message where content = '0 says 3'"
    assert rows(bench.database, found) == [(1,)]


def test_a_store_that_is_set_back_during_a_pass_misses_no_line(bench: Bench) -> None:
    """What was stored after the backup is read again, though a pass that is under way went on."""
    bench.read()
    for number in range(3):
        with log(bench.folder, number).open("ab") as file:
            file.write(line(f"{number} says more", 9))

    def restore() -> None:
        held.wait()
        with connect(bench.database, application="tests", autocommit=True) as connection:
            connection.execute(
                "truncate recall.session, recall.message, recall.message_text, recall.raw_segment,"
                " recall.raw_blob, recall.ingest_state"
            )
        held.release()

    hold = bench.served.switches.hold
    # all of them, as one that stores while the tables are emptied may be in a deadlock with that
    with hold("before body", path="/incoming_session", times=None) as held:
        thread = threading.Thread(target=restore)
        thread.start()
        bench.read()
        thread.join()
    assert rows(bench.database, "select count(*) from recall.message") == [(27,)]
    bench.check()


def test_a_yes_that_wrote_nothing_is_noticed(bench: Bench) -> None:
    bench.served.switches.answer(200, path="/incoming_message", code="none")
    bench.read()
    assert bench.member.errors.as_json() == {"PT409": 1}
    bench.check()


def test_a_server_that_never_keeps_anything_is_given_up(bench: Bench) -> None:
    bench.served.switches.answer(200, path="/incoming_message", code="none", times=None)
    with pytest.raises(StoreUnavailableError, match="does not keep what is sent"):
        bench.read()
    assert rows(bench.database, "select count(*) from recall.ingest_state") == [(0,)]
    bench.served.switches.clear()
    bench.read()
    bench.check()


def test_another_program_that_says_yes_to_everything_is_no_server(bench: Bench) -> None:
    bench.served.switches.answer(200, code="none", times=None)
    with pytest.raises(StoreError, match="is not a Recall server"):
        bench.read()


def test_a_key_that_comes_twice_in_one_request_is_sent_in_two(bench: Bench) -> None:
    bench.served.switches.answer(500, code="21000", path="/incoming_message")
    assert bench.read().quarantined == 0
    bench.check()


def test_connections_that_the_server_closes_are_opened_again(bench: Bench) -> None:
    alone = threading.Lock()  # a request of another thread may look idle before it is read

    class Interrupted(PostgrestSink):
        def write(self, batch: Batch) -> Written:
            with alone:
                bench.served.need_double().close_idle_connections()
                return super().write(batch)

    summary = bench.read(Interrupted)
    assert summary.messages == 24
    assert max(bench.member.pauses, default=0) <= 0.1
    bench.check()


def test_a_bad_token_is_found_out_without_sending_much(bench: Bench) -> None:
    log(bench.folder).write_bytes(line("word " * 900_000))
    bench.member.token = f"{bench.member.token[:-6]}aaaaaa"
    sink = bench.member.sink()
    with pytest.raises(AccessError) as caught:
        sink.register()
    sink.close()
    assert "join again" in str(caught.value.hint)
    assert bench.member.pauses == []
    assert sum(len(one.body) for one in bench.served.switches.exchanges) < 1_000


def test_a_token_that_ends_during_a_large_body_ends_the_pass(bench: Bench) -> None:
    log(bench.folder).write_bytes(line("word " * 900_000))

    class Ended(PostgrestSink):
        def write(self, batch: Batch) -> Written:
            bench.served.switches.answer(401, code="PGRST303", times=None)
            return super().write(batch)

    with pytest.raises(AccessError):
        bench.read(Ended)
    bench.served.switches.clear()
    bench.read()
    bench.check()


def test_a_token_that_is_revoked_in_the_middle_ends_the_pass(bench: Bench) -> None:
    with bench.served.switches.hold("before body", path="/rpc/store_batch") as held:

        def revoke() -> None:
            held.wait()
            bench.member.revoke()
            held.release()

        thread = threading.Thread(target=revoke)
        thread.start()
        with pytest.raises(AccessError, match="this token was revoked") as caught:
            bench.read()
        thread.join()
    assert caught.value.exit_code == 77
    assert "recall token create" in str(caught.value.hint)
    assert rows(bench.database, "select count(*) < 24 from recall.message") == [(True,)]
    bench.member = join(bench.served, bench.database)
    bench.read()
    bench.check()


def test_the_name_of_another_installation_is_refused(bench: Bench) -> None:
    bench.member.identity = Identity(HOST, "00000000-0000-4000-8000-000000000001")
    sink = bench.member.sink()
    with pytest.raises((ClaimError, AccessError)):
        sink.register()
    sink.close()


def test_a_token_of_another_host_is_refused(bench: Bench) -> None:
    bench.member.identity = Identity("elsewhere", bench.member.identity.install_id)
    sink = bench.member.sink()
    with pytest.raises(ConfigError, match=f"`{HOST}`"):
        sink.register()
    sink.close()


def sent(bench: Bench, path: str) -> list[Any]:
    return [one for one in bench.served.switches.exchanges if one.path == path]


def _rows_of(one: Any) -> int:
    return len(one.json())


def test_known_texts_do_not_travel_again(bench: Bench) -> None:
    bench.read()
    path = log(bench.folder)
    path.write_bytes(path.read_bytes() + line("new words", 9))
    path.with_suffix(".new").write_bytes(path.read_bytes())
    path.with_suffix(".new").replace(path)  # read again whole
    bench.served.switches.exchanges.clear()
    with connect(bench.database, application="tests", autocommit=True) as connection:
        connection.execute("update recall.ingest_state set head_hash = '' where path = %s",
                           (str(path),))  # fmt: skip
    assert bench.read().messages == 1
    assert [_rows_of(one) for one in sent(bench, "/incoming_key")] == [9]
    assert [_rows_of(one) for one in sent(bench, "/incoming_message")] == [1]
    assert [_rows_of(one) for one in sent(bench, "/incoming_document")] == [1]


def test_requests_have_at_most_500_rows_and_4_mb(bench: Bench) -> None:
    log(bench.folder).write_bytes(b"".join(line(f"word {n}", n) for n in range(1_100)))
    log(bench.folder, 1).write_bytes(
        b"".join(line(f"{n} " + "word " * 60_000, n) for n in range(16))
    )
    bench.read()
    uploads = [one for one in bench.served.switches.exchanges if "incoming_" in one.path]
    assert max(_rows_of(one) for one in uploads) == 500
    assert 1_000_000 < max(len(one.body) for one in uploads) <= 4_000_000
    bench.check()


@pytest.mark.slow
def test_one_very_large_message_goes_through(bench: Bench) -> None:
    text = "ab cD1 \n" * 3_600_000  # a line of 32 MB
    log(bench.folder).write_bytes(line(text))
    assert bench.read().quarantined == 0
    stored = rows(bench.database, "select max(length(content)) from recall.message")
    assert stored == [(len(text),)]
    uploads = [one for one in bench.served.switches.exchanges if "incoming_" in one.path]
    large = [one for one in uploads if len(one.body) > 4_000_000]
    assert [(one.path, _rows_of(one)) for one in large] == [("/incoming_message", 1)]


def test_memory_stays_flat_while_the_server_is_away(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "recall_ingester")  # what is logged is kept for the report

    def fail() -> None:
        with pytest.raises(StoreUnavailableError):
            bench.read()
        bench.member.pauses.clear()
        bench.served.switches.exchanges.clear()

    with bench.served.need_double().refusing_connections():
        for _ in range(5):
            fail()
        gc.collect()
        tracemalloc.start()
        fail()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            fail()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    assert after - before < 100_000
    bench.read()
    bench.check()
