"""Labelled queries, runs over them, and reports; and the set that is shipped."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from recall.cli.evaluate_report import below_minimum, report_lines
from recall.errors import NotFoundError, SourceError, StoreUnavailableError, UsageError
from recall_api.evaluation.queries import NONE_CLASS, Query, message_key, read_queries
from recall_api.evaluation.report import Report, build_report
from recall_api.evaluation.run import (
    ModeUnavailableError,
    Outcome,
    missing_sessions,
    require_mode,
    run_mode,
)
from recall_api.evaluation.scores import judge

ROOT = Path(__file__).resolve().parents[2]


def line(**changes: Any) -> str:
    value = {
        "id": "fix-01",
        "class": "fix",
        "query": "how did we fix it",
        "relevant": {"claude-code:0b7f2c9e#12.0": 3},
    } | changes
    return json.dumps({name: item for name, item in value.items() if item is not ...})


def test_message_key_is_the_same_on_every_machine() -> None:
    assert message_key("codex:laptop:a/b:c", 7, 1) == "codex:a/b:c#7.1"
    assert message_key("codex:server:a/b:c", 7, None) == "codex:a/b:c#7"


def test_queries_are_read_with_filters_and_split(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    none = line(id="none-01", **{"class": NONE_CLASS}, relevant={})
    path.write_text(line(filters={"role": ["user"]}, split="tune") + "\n\n" + none + "\n")
    fix, nothing = read_queries(path)
    assert fix.filters == {"role": ["user"]}
    assert fix.split == "tune"
    assert fix.sessions() == {"claude-code:0b7f2c9e"}
    assert fix.is_answerable
    assert not nothing.is_answerable


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        (line(kind="x"), "unknown field `kind`"),
        (line(query=...), "`query` is missing"),
        (line(query=" "), "`query` has to be a text that is not empty"),
        (line(id=7), "`id` has to be a text"),
        (line(relevant=[]), "`relevant` has to be an object"),
        (line(relevant={}), "`relevant` is empty; only the class `none-of-these`"),
        (line(**{"class": NONE_CLASS}), "has no relevant messages"),
        (line(relevant={"12.0": 3}), "`12.0` is not a message key"),
        (line(relevant={"codex:a#1.x": 3}), "is not a message key"),
        (line(relevant={"codex:a#1": 4}), "the grade of `codex:a#1` has to be 1, 2 or 3"),
        (line(relevant={"codex:a#1": True}), "the grade of `codex:a#1` has to be 1, 2 or 3"),
        (line(relevant={"codex:a#1": 1}), "so none is an answer"),
        (line(split="test"), "`split` has to be one of tune, report"),
        (line(filters=["role"]), "`filters` has to be an object"),
        (line(filters={"limit": 3}), "no such filter: `limit`"),
        (line(filters={"role": ["robot"]}), "`role`"),
        ('{"id": "a", "id": "b"}', "`id` is given twice"),
    ],
)
def test_wrong_line_is_named_with_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(f"{line()}\n\n{text}\n")
    with pytest.raises(UsageError) as caught:
        read_queries(path)
    assert caught.value.message.startswith(f"`{path}` line 3: ")
    assert message in caught.value.message


def test_id_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(f"{line()}\n{line()}\n")
    with pytest.raises(UsageError, match="line 2: the id `fix-01` is that of line 1"):
        read_queries(path)


def test_file_that_is_empty_or_absent_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    with pytest.raises(SourceError, match="cannot be read"):
        read_queries(path)
    path.write_text("\n")
    with pytest.raises(UsageError, match="has no queries"):
        read_queries(path)


def query(name: str, relevant: dict[str, int], kind: str = "fix") -> Query:
    return Query(name, kind, f"text of {name}", {}, relevant, None)


def hit(place: str, *, kind: str = "text", score: float | None = 1.0, copies: str = "") -> Any:
    ordinal, _, part = place.partition(".")
    session = None if kind == "ledger" else "codex:laptop:s"
    return {
        "kind": kind,
        "session_key": session,
        "ordinal": int(ordinal),
        "part": int(part),
        "score": score,
        "occurrences": [
            {"session_key": "codex:server:copy", "ordinal": int(copy), "part": 0}
            for copy in copies.split()
        ],
    }


def answer(*hits: Any, mode: str = "text", degraded: bool = False, reason: str = "") -> Any:
    return {
        "mode_used": mode,
        "degraded": degraded,
        "reasons": [reason] if reason else [],
        "hits": list(hits),
    }


def test_run_names_hits_by_message_record_and_copies() -> None:
    asked = []

    def search(params: Any) -> Any:
        asked.append(dict(params))
        return answer(hit("3.1"), hit("9.0", copies="4"), hit("3.0", kind="prompt"))

    wanted = {"codex:s#3": 2, "codex:copy#4.0": 3, "codex:s#3.0": 3}
    (outcome,) = run_mode(search, [query("one", wanted)], "text", 7)
    assert asked == [{"q": "text of one", "mode": "text", "limit": 7}]
    assert outcome.judged.grades == (2, 3, 0), "a prompt is no message of the session"
    assert outcome.keys == ("codex:s#3.1", "codex:s#9.0", "")


def test_mode_that_the_store_refuses_is_unavailable() -> None:
    def search(params: Any) -> Any:
        raise UsageError("no such mode: `semantic`")

    with pytest.raises(ModeUnavailableError, match="`semantic` is not available: no such mode"):
        require_mode(search, "semantic")


def test_fallback_to_another_mode_is_unavailable_and_not_zero() -> None:
    def search(params: Any) -> Any:
        return answer(mode="text", degraded=True, reason="no vectors yet")

    with pytest.raises(ModeUnavailableError, match="came from `text` \\(no vectors yet\\)"):
        require_mode(search, "hybrid")
    with pytest.raises(ModeUnavailableError):
        run_mode(search, [query("one", {"codex:s#1": 3})], "hybrid", 10)
    require_mode(search, "auto")


def test_sessions_that_are_not_stored_are_missing_and_ambiguous_ones_are_not() -> None:
    def session(name: str) -> None:
        if name == "gone":
            raise NotFoundError("gone")
        if name == "twice":
            raise UsageError("two sessions")
        if name == "broken":
            raise StoreUnavailableError("down")

    labels = {"codex:gone#1": 3, "codex:twice#1": 3, "codex:here#1": 3}
    assert missing_sessions(session, [query("one", labels)]) == {"codex:gone"}
    with pytest.raises(StoreUnavailableError):
        missing_sessions(session, [query("one", {"codex:broken#1": 3})])


def outcome(
    name: str, grades: str, score: float | None, kind: str = "fix", *, weak: bool = False
) -> Outcome:
    relevant = {} if kind == NONE_CLASS else {"a": 3}
    keys = tuple("a" if grade == "3" else "x" for grade in grades)
    judged = judge([[key] for key in keys], relevant)
    return Outcome(query(name, relevant, kind), judged, keys, score, False, weak)


@pytest.fixture
def report() -> Report:
    """Two modes; `exact` finds nothing for the second query and refuses what has no answer."""
    text = [
        outcome("1", "3", 0.9),
        outcome("2", "03", 0.6, "topic"),
        outcome("3", "0", 0.7, NONE_CLASS),
    ]
    exact = [
        outcome("1", "3", None),
        outcome("2", "", None, "topic"),
        outcome("3", "", None, NONE_CLASS),
    ]
    unavailable = {"semantic": "no such mode"}
    return build_report(
        {"text": text, "exact": exact}, 10, thresholds={"text": 0.8}, unavailable=unavailable
    )


def test_report_leaves_queries_without_answer_out_of_the_means(report: Report) -> None:
    overall = report.modes["text"].overall
    assert overall["mrr"].count == 2
    assert overall["mrr"].mean == pytest.approx(0.75)
    assert set(report.modes["text"].classes) == {"fix", "topic"}


def test_report_shows_the_price_of_a_threshold(report: Report) -> None:
    text, exact = report.modes["text"].refusal, report.modes["exact"].refusal
    assert text.refused is not None
    assert text.wrongly_refused is not None
    assert (text.refused.mean, text.wrongly_refused.mean) == (1.0, 0.5)
    assert text.separation == 0.5
    assert exact.refused is not None
    assert exact.wrongly_refused is not None
    assert (exact.refused.mean, exact.wrongly_refused.mean) == (1.0, 0.5)
    assert exact.separation is None


def test_report_counts_weak_answers_as_nothing_and_tells_whether_an_answer_was_there() -> None:
    outcomes = [
        outcome("1", "3", 0.9, weak=True),
        outcome("2", "3", 0.9),
        outcome("3", "0", 0.9, weak=True),
        outcome("4", "0", 0.9, NONE_CLASS, weak=True),
        outcome("5", "0", 0.9, NONE_CLASS),
    ]
    report = build_report({"text": outcomes}, 10, thresholds={}, unavailable={})
    told = report.modes["text"].refusal
    assert told.refused is not None
    assert told.wrongly_refused is not None
    assert told.found_refused is not None
    assert told.refused.mean == 0.5
    assert told.wrongly_refused.mean == pytest.approx(2 / 3)
    assert told.found_refused.mean == 0.5, "the third has no answer among its hits"
    (line,) = [line for line in report_lines(report, by_class=False) if "| weak |" in line]
    assert "| 0.500 [" in line
    assert report.as_json()["modes"]["text"]["queries"][0]["weak"] is True


def test_run_takes_what_the_answer_says_of_itself() -> None:
    wanted = query("one", {"codex:s#3": 3})
    told = answer(hit("3.0"))
    assert run_mode(lambda _: told, [wanted], "text", 5)[0].weak is False, "an older server"
    for said, expected in ((True, True), (False, False), (None, False)):
        told["weak"] = said
        assert run_mode(lambda _: told, [wanted], "text", 5)[0].weak is expected


def test_report_compares_modes_on_the_same_queries(report: Report) -> None:
    (pair,) = report.differences
    assert pair == ("text", "exact")
    assert report.differences[pair].mean == pytest.approx(1 / math.log2(3) / 2)


def test_report_has_a_column_for_a_mode_that_is_missing(report: Report) -> None:
    lines = list(report_lines(report, by_class=True))
    assert any(row.startswith("| semantic | -") for row in lines)
    head = next(row for row in lines if row.startswith("| nDCG@10 by class"))
    assert [cell.strip() for cell in head.strip("|").split("|")][1:] == [
        "queries", "text", "exact", "semantic",
    ]  # fmt: skip
    assert report.as_json()["unavailable"] == {"semantic": "no such mode"}
    json.dumps(report.as_json(), allow_nan=False)


def test_gate_names_each_mode_below_a_minimum(report: Report) -> None:
    assert below_minimum(report, {"mrr": 0.75, "ndcg": None}) == [
        "below the minimum: MRR@10 of exact is 0.500 < 0.75"
    ]
    assert below_minimum(report, {"mrr": 0.5}) == []


def test_shipped_queries_are_valid_and_balanced() -> None:
    queries = read_queries(ROOT / "ops" / "eval" / "queries.jsonl")
    by_class: dict[str, list[Query]] = {}
    for item in queries:
        by_class.setdefault(item.kind, []).append(item)
    assert len(queries) >= 120
    assert len(by_class) == 8
    for items in by_class.values():
        assert len(items) >= 15
        tuned = sum(item.split == "tune" for item in items)
        assert abs(2 * tuned - len(items)) <= 1, "half of each class is for tuning"


def test_shipped_sessions_are_small_enough() -> None:
    files = list((ROOT / "ops" / "eval" / "sessions").rglob("*.jsonl"))
    assert len(files) >= 40
    assert sum(path.stat().st_size for path in files) < 3_000_000


def test_shipped_set_is_what_its_material_says() -> None:
    from ops.eval.build import HERE, build

    files = build()
    there = {*(HERE / "sessions").rglob("*.jsonl"), HERE / "queries.jsonl"}
    assert there == files.keys()
    differing = [path.name for path, text in files.items() if path.read_text("utf-8") != text]
    assert not differing, "run `python ops/eval/build.py`"
