"""Rows that the store refuses: each is found, quarantined with its place, and costs no other."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from recall.errors import StoreError
from recall.records import MessageRow, SessionRow
from recall_ingester.pipeline import RowBuilder
from recall_ingester.sinks.postgrest import _Attempt
from tests.db.ingesting import HOST, contents, rows
from tests.faults.sink_bench import Bench, line, log

pytestmark = pytest.mark.timeout(600)

_COUNTS = """
    select lines_seen, lines_stored, lines_merged, lines_quarantined, lines_skipped
    from recall.ingest_state where path = %s
"""
_QUARANTINE = """
    select path, byte_offset, byte_length, ordinal, reason, sha256, raw, salvaged
    from recall.quarantine order by path, byte_offset
"""


@pytest.fixture
def unclean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts with NUL reach the store, as those of a version with a mistake would."""
    monkeypatch.setattr("recall_ingester.pipeline.clean", lambda text: (text, False))


@pytest.mark.usefixtures("unclean")
def test_one_bad_row_of_five_hundred_is_quarantined(bench: Bench) -> None:
    path = log(bench.folder)
    lines = [line("bad \0" if n == 333 else f"good {n}", n) for n in range(600)]
    path.write_bytes(b"".join(lines))
    summary = bench.read()
    assert (summary.stored, summary.quarantined, summary.messages) == (615, 1, 615)
    assert rows(bench.database, _COUNTS, str(path)) == [(600, 599, 0, 1, 0)]
    text = b"bad \0"
    assert rows(bench.database, _QUARANTINE) == [
        (
            str(path), len(b"".join(lines[:333])), len(lines[333]), 333,
            "refused by the store (22P05)", hashlib.sha256(text).digest(), text, False,
        )
    ]  # fmt: skip
    assert bench.member.errors.as_json()["22P05"] <= 12  # halves, not row by row
    again = bench.read()
    assert (again.files_opened, again.lines_seen) == (0, 0)


@pytest.mark.usefixtures("unclean")
def test_the_rest_of_a_line_with_a_bad_part_is_stored(bench: Bench) -> None:
    path = log(bench.folder)
    more = {"type": "text", "text": "the good half"}
    path.write_bytes(line("one", 1) + line("\0", 2, more) + line("three", 3))
    summary = bench.read()
    assert (summary.stored, summary.quarantined, summary.messages) == (18, 1, 19)
    assert rows(bench.database, _COUNTS, str(path)) == [(3, 2, 0, 1, 0)]
    assert "the good half" in contents(bench.database)
    assert [row[-1] for row in rows(bench.database, _QUARANTINE)] == [True]


@pytest.mark.usefixtures("unclean")
def test_a_file_that_grows_behind_a_bad_row_goes_on(bench: Bench) -> None:
    path = log(bench.folder)
    path.write_bytes(line("\0", 1))
    bench.read()
    with path.open("ab") as file:
        file.write(line("good", 2))
    assert bench.read().stored == 1
    assert rows(bench.database, _COUNTS, str(path)) == [(2, 1, 0, 1, 0)]
    assert len(rows(bench.database, _QUARANTINE)) == 1


def test_bad_keys_and_bad_documents_cost_their_row(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key is refused before anybody asks what changed, a document after it."""
    path = log(bench.folder)
    path.write_bytes(b"".join(line(f"word {n}", n) for n in range(40)))
    make = RowBuilder._message

    def odd(*given: Any, **named: Any) -> MessageRow:
        row = make(*given, **named)
        return replace(row, role="nobody") if row.content == "word 7" else row

    monkeypatch.setattr(RowBuilder, "_message", odd)
    monkeypatch.setattr(
        "recall_ingester.sinks.postgrest_rows.documents",
        lambda text: iter(["\0" if text == "word 9" else f"{text}\n"]),
    )
    summary = bench.read()
    assert (summary.stored, summary.quarantined) == (54, 2)
    found = [(row[3], row[4]) for row in rows(bench.database, _QUARANTINE)]
    assert found == [
        (7, "refused by the store (23514)"),
        (9, "refused by the store (22P05)"),
    ]
    assert not {"word 7", "word 9"} & set(contents(bench.database))


@pytest.mark.usefixtures("unclean")
def test_a_title_that_is_refused_costs_no_line(bench: Bench) -> None:
    """The first text is the title as well: the session is stored by its name."""
    path = log(bench.folder)
    path.write_bytes(line("bad \0", 1) + line("good", 2) + line("good as well", 3))
    summary = bench.read()
    assert (summary.stored, summary.quarantined) == (18, 1)
    assert rows(bench.database, _COUNTS, str(path)) == [(3, 2, 0, 1, 0)]
    assert {"good", "good as well"} <= set(contents(bench.database))
    assert rows(bench.database, "select count(*) from recall.session") == [(3,)]


def test_a_session_whose_name_is_refused_takes_its_lines_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = log(bench.folder)
    make = RowBuilder.session

    def odd(*given: Any, **named: Any) -> SessionRow:
        row = make(*given, **named)
        return replace(row, source="\0") if row.path == str(path) else row

    monkeypatch.setattr(RowBuilder, "session", odd)
    summary = bench.read()
    assert (summary.stored, summary.quarantined) == (16, 8)
    assert rows(bench.database, _COUNTS, str(path)) == [(8, 0, 0, 8, 0)]
    assert rows(bench.database, "select count(*) from recall.session") == [(2,)]


@pytest.mark.usefixtures("unclean")
def test_a_file_of_bad_lines_alone_does_not_stop_the_pass(bench: Bench) -> None:
    """So many bad lines look like a store that is wrong; a row that is good tells them apart."""
    for number in (1, 2):
        log(bench.folder, number).unlink()
    path = log(bench.folder)
    path.write_bytes(b"".join(line(f"{n} \0", n) for n in range(30)))
    assert bench.read().quarantined == 30
    assert rows(bench.database, _COUNTS, str(path)) == [(30, 0, 0, 30, 0)]
    assert [row[3] for row in rows(bench.database, _QUARANTINE)] == list(range(30))


@pytest.mark.parametrize(
    "kind",
    ["session", "key", "prompt_key", "note_key", "message", "prompt", "note", "taken_back",
     "document"],
)  # fmt: skip
def test_a_good_row_is_taken(bench: Bench, kind: str) -> None:
    with closing(bench.member.sink()) as sink:
        assert _Attempt(sink._wire, HOST)._takes(kind)


def test_a_store_that_refuses_everything_is_no_quarantine(bench: Bench) -> None:
    path = log(bench.folder)
    for number in (1, 2):
        log(bench.folder, number).unlink()  # a few bad rows may be bad rows
    path.write_bytes(b"".join(line(f"word {n}", n) for n in range(100)))
    bench.served.switches.answer(400, code="23514", path="/incoming_message", times=None)
    with pytest.raises(StoreError, match="refuses what it is sent"):
        bench.read()
    assert rows(bench.database, "select count(*) from recall.quarantine") == [(0,)]
    assert rows(bench.database, _COUNTS, str(path)) == []
    bench.served.switches.clear()
    bench.read()
    bench.check()
