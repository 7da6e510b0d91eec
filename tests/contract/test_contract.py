"""What holds for every source: one set of tests that each case of each client passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from recall_ingester.exports import SOURCES
from recall_ingester.sources import all_sources
from recall_ingester.sources.declared import Declared
from recall_ingester.summary import Summary
from tests.contract.cases import CASES, OVER_HTTP, THROUGH_DOORS, Door
from tests.contract.script import DAY, Case
from tests.contract.store import Store

pytestmark = pytest.mark.timeout(600)

each_case = pytest.mark.parametrize(("case", "door"), THROUGH_DOORS, indirect=["door"])

_ORDER = """
    select session_key, ordinal, part, id, ts, content from recall.message
    where ts_origin = 'record' order by session_key, ordinal, part
"""
_IDS = """
    select id, content from recall.message
    union all select id, content from recall.prompt
    union all select id, content from recall.note where is_current
    order by 1
"""
_TIMES = """
    select ts from recall.message union all select ts from recall.message_retracted
    union all select ts from recall.prompt union all select ts from recall.note
    union all select started_at from recall.session union all select ended_at from recall.session
"""


@dataclass(frozen=True)
class Outcome:
    """What a store holds after it read a case."""

    live: dict[str, Any]
    texts: list[tuple[str, datetime | None, bool]]
    beside: list[str]
    order: list[tuple[Any, ...]]
    ids: list[tuple[Any, ...]]
    times: list[datetime]
    #: By word of the case: hits of a search, and of one that includes what was taken back.
    hits: dict[str, tuple[int, int]]
    accounts: list[tuple[Any, ...]]
    summary: Summary


@dataclass(frozen=True)
class Outcomes:
    """After passes over each state, after one over the last, and after the same once more."""

    stepwise: Outcome
    at_once: Outcome
    once_more: Outcome


@pytest.fixture(scope="session")
def known() -> dict[tuple[str, Door], Outcomes]:
    """Outcomes of cases that were read already."""
    return {}


@pytest.fixture
def outcomes(
    known: dict[tuple[str, Door], Outcomes],
    stores: tuple[Store, Store],
    case: Case,
    door: Door,
    folder_of: Callable[[Case], Path],
) -> Outcomes:
    """What comes of a case; each is read once for all tests."""
    if (case.name, door) not in known:
        folder, (first, second) = folder_of(case), stores
        for state in case.states:
            state(folder)
            summary = first.read(case, folder)
        stepwise = _outcome(case, first, summary)
        at_once = _outcome(case, second, second.read(case, folder))
        first.clear()
        once_more = _outcome(case, first, first.read(case, folder))
        known[case.name, door] = Outcomes(stepwise, at_once, once_more)
    return known[case.name, door]


def _outcome(case: Case, store: Store, summary: Summary) -> Outcome:
    words = (*case.words.live, *case.words.gone)
    return Outcome(
        live=store.live(),
        texts=store.texts(),
        beside=store.beside(),
        order=store.query(_ORDER),
        ids=store.query(_IDS),
        times=[ts for (ts,) in store.query(_TIMES) if ts is not None],
        hits={word: (store.hits(word), store.hits(word, include_retracted=True)) for word in words},
        accounts=store.accounts(),
        summary=summary,
    )


@each_case
def test_second_pass_changes_no_row_and_opens_no_file(
    case: Case, folder_of: Callable[[Case], Path], store: Store
) -> None:
    folder = folder_of(case)
    for state in case.states:
        state(folder)
        store.read(case, folder)
        before = _without_checks(case, store.all_rows())
        again = store.read(case, folder)
        if case.way == "pass" and not _is_always_looked_at(case):
            assert (again.files_opened, again.bytes_read) == (0, 0)
        assert (again.messages, again.retired, again.stored) == (0, 0, 0)
        after = _without_checks(case, store.all_rows())
        for table, rows in before.items():
            assert after[table] == rows, table


@each_case
def test_passes_over_each_state_leave_what_one_over_the_last_leaves(
    case: Case, outcomes: Outcomes
) -> None:
    after_all, fresh = outcomes.stepwise.live, outcomes.at_once.live
    for name in fresh.keys() - {"bytes"}:
        assert after_all[name] == fresh[name], name
    for path, data in fresh["bytes"].items():
        assert after_all["bytes"][path] == data, path


@each_case
def test_original_bytes_are_those_of_the_last_state(
    case: Case, folder_of: Callable[[Case], Path], store: Store
) -> None:
    folder = folder_of(case)
    for state in case.states:
        state(folder)
        store.read(case, folder)
    for path, data in store.live()["bytes"].items():
        if Path(path).is_file() and "#" not in path and not case.statements:
            assert data == Path(path).read_bytes(), path


@each_case
def test_text_that_vanished_is_kept_out_of_search(case: Case, outcomes: Outcomes) -> None:
    found = outcomes.stepwise
    for word in case.words.gone:
        states = [live for text, _, live in found.texts if word in text]
        assert states, f"{word} is nowhere"
        assert not any(states), f"{word} is still live"
        plain, with_retracted = found.hits[word]
        assert (plain, with_retracted > 0) == (0, True), word


@each_case
def test_every_word_is_stored_and_found(case: Case, outcomes: Outcomes) -> None:
    for found in (outcomes.stepwise, outcomes.at_once):
        live = " ".join(text for text, _, is_live in found.texts if is_live)
        beside = " ".join(found.beside)
        assert [word for word in case.words.live if word not in live + beside] == []
        said = [word for word in case.words.live if word in live]
        assert [word for word in said if found.hits[word][0] == 0] == []


@each_case
def test_every_time_is_the_instant_that_the_client_wrote(case: Case, outcomes: Outcomes) -> None:
    stated = {word: at for word, at in {**case.words.live, **case.words.gone}.items() if at}
    for found in (outcomes.stepwise, outcomes.at_once):
        wrong = [
            (word, at, ts)
            for word, at in stated.items()
            for text, ts, _ in found.texts
            if word in text and ts != at
        ]
        assert wrong == []
        assert all(ts.tzinfo is not None for ts in found.times)
        assert all(DAY <= ts <= DAY + timedelta(hours=1) for ts in found.times)


@each_case
def test_ordinals_rise_in_the_order_of_the_conversation(case: Case, outcomes: Outcomes) -> None:
    for found in (outcomes.stepwise, outcomes.at_once):
        for before, after in zip(found.order, found.order[1:], strict=False):
            if before[0] == after[0]:
                assert before[4] <= after[4], (before, after)


@each_case
def test_reading_twice_gives_the_same_ids(case: Case, outcomes: Outcomes) -> None:
    assert outcomes.at_once.ids
    assert outcomes.once_more.ids == outcomes.at_once.ids
    assert outcomes.once_more.live == outcomes.at_once.live


@each_case
def test_every_line_is_accounted_for(case: Case, outcomes: Outcomes) -> None:
    found, summary = outcomes.at_once, outcomes.at_once.summary
    for path, seen, stored, merged, quarantined, skipped, *_ in found.accounts:
        assert seen == stored + merged + quarantined + skipped, path
    totals = [sum(row[place] for row in found.accounts) for place in range(1, 6)]
    assert totals == [
        summary.lines_seen, summary.stored, summary.merged, summary.quarantined, summary.skipped,
    ]  # fmt: skip
    assert summary.lines_seen > 0
    assert (summary.quarantined, summary.unreadable) == (0, {})


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in OVER_HTTP], ids=lambda case: case.name
)
def test_both_doors_leave_the_same_rows(
    case: Case,
    folder_of: Callable[[Case], Path],
    _stores_by_sql: tuple[Store, Store],
    _stores_over_http: tuple[Store, Store],
) -> None:
    straight, over_http = _stores_by_sql[0], _stores_over_http[0]
    straight.clear()
    over_http.clear()
    folder = folder_of(case)
    for state in case.states:
        state(folder)
        straight.read(case, folder)
        over_http.read(case, folder)
        wanted, found = straight.rows_without_clock(), over_http.rows_without_clock()
        for table, rows in wanted.items():
            assert found[table] == rows, table
    assert sum(map(len, wanted.values())) > 0


def test_every_source_has_a_case() -> None:
    covered = {case.source for case in CASES}
    assert set(all_sources()) <= covered
    assert {source.name for source in SOURCES} <= covered
    assert {case.way for case in CASES} == {"pass", "export", "recall-jsonl"}
    made = [case.make(Path("/x")) for case in CASES if case.make]
    assert any(isinstance(source, Declared) for source in made)


def test_every_shape_of_every_source_has_a_case(tmp_path: Path) -> None:
    shapes: dict[str, set[str]] = {}
    for case in CASES:
        if case.way != "pass":
            continue
        folder = tmp_path / case.name / case.folder
        folder.mkdir(parents=True)
        for state in case.states:
            state(folder)
            source = case.open_source(folder)
            found = {file.shape for file in source.discover(folder / case.root)}
            shapes.setdefault(source.name, set()).update(found)
    for name, known in all_sources().items():
        missing = {line.shape for line in known.reads} - shapes[name]
        assert missing == set(), name


def _is_always_looked_at(case: Case) -> bool:
    """A folder of small files shows no change by its own size and time."""
    return case.source == "opencode"


def _without_checks(
    case: Case, found: dict[str, list[tuple[Any, ...]]]
) -> dict[str, list[tuple[Any, ...]]]:
    """Without the checkpoints, where the second reading looks at the content again."""
    if case.way == "pass" and not _is_always_looked_at(case):
        return found
    return {table: rows for table, rows in found.items() if table != "ingest_state"}
