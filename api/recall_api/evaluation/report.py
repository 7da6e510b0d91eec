"""What the outcomes of a run say: means with intervals, by mode and by class of query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from recall_api.evaluation.run import Outcome
from recall_api.evaluation.scores import (
    MEASURES,
    Interval,
    difference,
    hit_rate,
    interval,
    is_refused,
    separation,
)

Scores = Mapping[str, Interval]


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a mode tells queries that have no answer from those that have one.

    ``refused`` is right, ``wrongly_refused`` is the price of it, and ``found_refused`` that price
    over the queries whose answer is among the first hits. ``separation`` depends neither on a
    threshold nor on what answers say of themselves, and is ``None`` for a mode without scores.
    """

    threshold: float | None
    refused: Interval | None
    wrongly_refused: Interval | None
    found_refused: Interval | None
    separation: float | None


@dataclass(frozen=True, slots=True)
class ModeReport:
    """One mode. ``overall`` and ``classes`` leave out the queries that have no answer."""

    overall: Scores
    classes: Mapping[str, Scores]
    refusal: Refusal
    degraded: int
    outcomes: Sequence[Outcome]


@dataclass(frozen=True, slots=True)
class Report:
    """A run. ``differences`` compares nDCG of two modes on the same queries."""

    k: int
    modes: Mapping[str, ModeReport]
    unavailable: Mapping[str, str]
    differences: Mapping[tuple[str, str], Interval]
    skipped: Sequence[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Everything, with the outcome of each query."""
        return {
            "k": self.k,
            "modes": {mode: self._mode_json(report) for mode, report in self.modes.items()},
            "unavailable": dict(self.unavailable),
            "differences": [
                {"better": one, "than": other, "ndcg": asdict(value)}
                for (one, other), value in self.differences.items()
            ],
            "skipped": list(self.skipped),
        }

    def _mode_json(self, report: ModeReport) -> dict[str, Any]:
        return {
            "overall": _scores_json(report.overall),
            "classes": {name: _scores_json(scores) for name, scores in report.classes.items()},
            "no_answer": asdict(report.refusal),
            "degraded": report.degraded,
            "queries": [_outcome_json(outcome, self.k) for outcome in report.outcomes],
        }


def build_report(
    outcomes: Mapping[str, Sequence[Outcome]],
    k: int,
    *,
    thresholds: Mapping[str, float],
    unavailable: Mapping[str, str],
    skipped: Sequence[str] = (),
) -> Report:
    """Score the outcomes of each mode and compare the modes with each other."""
    modes = {mode: _mode_report(found, k, thresholds.get(mode)) for mode, found in outcomes.items()}
    ndcg = {
        mode: [MEASURES["ndcg"](outcome.judged, k) for outcome in _answerable(found)]
        for mode, found in outcomes.items()
    }
    differences = {}
    for one, other in combinations(ndcg, 2):
        better, worse = (one, other) if sum(ndcg[one]) >= sum(ndcg[other]) else (other, one)
        if value := difference(ndcg[better], ndcg[worse]):
            differences[better, worse] = value
    return Report(k, modes, unavailable, differences, skipped)


def _mode_report(outcomes: Sequence[Outcome], k: int, threshold: float | None) -> ModeReport:
    answerable = _answerable(outcomes)
    by_class: dict[str, list[Outcome]] = {}
    for outcome in answerable:
        by_class.setdefault(outcome.query.kind, []).append(outcome)
    return ModeReport(
        _scores(answerable, k),
        {name: _scores(found, k) for name, found in by_class.items()},
        _refusal(outcomes, k, threshold),
        sum(outcome.degraded for outcome in outcomes),
        outcomes,
    )


def _answerable(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.query.is_answerable]


def _scores(outcomes: Sequence[Outcome], k: int) -> dict[str, Interval]:
    scores = {}
    for name, measure in MEASURES.items():
        if value := interval([measure(outcome.judged, k) for outcome in outcomes]):
            scores[name] = value
    return scores


def _refusal(outcomes: Sequence[Outcome], k: int, threshold: float | None) -> Refusal:
    refused: dict[bool, list[float]] = {True: [], False: []}
    found: list[float] = []
    best: dict[bool, list[float]] = {True: [], False: []}
    has_scores = any(outcome.best_score is not None for outcome in outcomes)
    for outcome in outcomes:
        kind = outcome.query.is_answerable
        score = outcome.best_score
        said = float(is_refused(len(outcome.keys), outcome.weak, score, threshold))
        refused[kind].append(said)
        if hit_rate(outcome.judged, k):
            found.append(said)
        # No hit is the surest way to say "nothing".
        best[kind].append(float("-inf") if score is None else score)
    return Refusal(
        threshold,
        interval(refused[False]),
        interval(refused[True]),
        interval(found),
        separation(best[True], best[False]) if has_scores else None,
    )


def _scores_json(scores: Scores) -> dict[str, Any]:
    return {name: asdict(value) for name, value in scores.items()}


def _outcome_json(outcome: Outcome, k: int) -> dict[str, Any]:
    value: dict[str, Any] = {
        "id": outcome.query.id,
        "class": outcome.query.kind,
        "hits": list(outcome.keys),
        "grades": list(outcome.judged.grades),
        "best_score": outcome.best_score,
        "degraded": outcome.degraded,
        "weak": outcome.weak,
    }
    if outcome.query.is_answerable:
        value["scores"] = {name: measure(outcome.judged, k) for name, measure in MEASURES.items()}
    return value
