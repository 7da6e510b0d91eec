"""Scores of ranked answers against labels. Nothing here knows of a store or of a query.

An answer is a list of hits, best first; a label is a key with a grade: 3 answers the question, 2
helps to answer it, 1 is only about it. nDCG weighs all grades. The other measures know only yes and
no, and there :data:`ANSWERS` is the least grade that means yes.

All measures look at the first ``k`` hits. An answer that has fewer hits than ``k`` is measured as
if the missing ones were not relevant, so a mode gains nothing by answering little.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

#: The least grade that counts as found.
ANSWERS = 2
#: How often the queries are drawn again for an interval, and from which seed.
RESAMPLES = 2_000
SEED = 20_260_301
_TAIL = 0.025


@dataclass(frozen=True, slots=True)
class Judged:
    """An answer with its labels.

    ``grades`` has one number a hit: its grade, or 0 where it has none or repeats what an earlier
    hit gave. ``found`` counts the labels from :data:`ANSWERS` on that each hit was the first to
    give; it is more than 1 where one hit stands for several labelled copies. ``ideal`` has all
    grades, best first.
    """

    grades: tuple[int, ...]
    found: tuple[int, ...]
    ideal: tuple[int, ...]


def judge(hits: Sequence[Collection[str]], relevant: Mapping[str, int]) -> Judged:
    """Give each hit its grade. A hit has several keys, because a label may name it in several ways.

    A label counts once: a second hit with the same key, or another part of a message that is
    labelled as a whole, takes up a place in the answer and gains nothing.
    """
    seen: set[str] = set()
    grades, found = [], []
    for keys in hits:
        new = {key for key in keys if key in relevant} - seen
        seen |= new
        grades.append(max((relevant[key] for key in new), default=0))
        found.append(sum(relevant[key] >= ANSWERS for key in new))
    return Judged(tuple(grades), tuple(found), tuple(sorted(relevant.values(), reverse=True)))


def hit_rate(judged: Judged, k: int) -> float:
    """1 if any of the first ``k`` hits answers, else 0."""
    return float(any(judged.found[:k]))


def precision(judged: Judged, k: int) -> float:
    """The share of ``k`` places whose hit answers and is new."""
    return sum(found > 0 for found in judged.found[:k]) / k


def recall(judged: Judged, k: int) -> float:
    """The share of the labels that answer which the first ``k`` hits give."""
    answers = sum(grade >= ANSWERS for grade in judged.ideal)
    if not answers:
        raise ValueError("a query without an answer has no recall")
    return sum(judged.found[:k]) / answers


def reciprocal_rank(judged: Judged, k: int) -> float:
    """One over the place of the first hit that answers, 0 if none of the first ``k`` does."""
    for place, found in enumerate(judged.found[:k], 1):
        if found:
            return 1 / place
    return 0.0


def ndcg(judged: Judged, k: int) -> float:
    """Discounted gain of the first ``k`` hits over that of the best possible answer.

    The gain of a grade is ``2**grade - 1`` and the discount ``log2(place + 1)``.
    """
    if not judged.ideal:
        raise ValueError("a query without labels has no ideal answer")
    return _discounted(judged.grades[:k]) / _discounted(judged.ideal[:k])


def _discounted(grades: Sequence[int]) -> float:
    return math.fsum(
        (math.pow(2, grade) - 1) / math.log2(place + 1) for place, grade in enumerate(grades, 1)
    )


#: The measures of an answer to a query that has an answer, in the order of reports.
MEASURES: dict[str, Callable[[Judged, int], float]] = {
    "hit": hit_rate,
    "precision": precision,
    "recall": recall,
    "mrr": reciprocal_rank,
    "ndcg": ndcg,
}


def is_refused(hits: int, weak: bool, best_score: float | None, threshold: float | None) -> bool:
    """Whether an answer says "nothing": no hit at all, or only weak ones.

    With a threshold, a best score below it says so instead of ``weak``. A hit without a score is
    never below a threshold.
    """
    if hits == 0:
        return True
    if threshold is None:
        return weak
    return best_score is not None and best_score < threshold


def separation(answerable: Sequence[float], unanswerable: Sequence[float]) -> float | None:
    """The chance that a query with an answer has a better best score than one without; ties half.

    It needs no threshold: 1 means that some threshold tells the two kinds apart without error, 0.5
    that the score says nothing about it. ``None`` where one kind is missing.
    """
    if not answerable or not unanswerable:
        return None
    won = sum(
        1.0 if one > other else 0.5 if one == other else 0.0
        for one in answerable
        for other in unanswerable
    )
    return won / (len(answerable) * len(unanswerable))


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over queries with its 95 % interval."""

    mean: float
    low: float
    high: float
    count: int


def interval(
    values: Sequence[float], *, resamples: int = RESAMPLES, seed: int = SEED
) -> Interval | None:
    """The mean and the middle 95 % of the means of samples drawn with replacement.

    The seed is fixed, so equal values give equal intervals. ``None`` without values.
    """
    if not values:
        return None
    chance = random.Random(seed)  # noqa: S311 - statistics, not secrets
    count = len(values)
    means = sorted(math.fsum(chance.choices(values, k=count)) / count for _ in range(resamples))
    tail = math.floor(resamples * _TAIL)
    return Interval(math.fsum(values) / count, means[tail], means[-1 - tail], count)


def difference(
    first: Sequence[float], second: Sequence[float], *, resamples: int = RESAMPLES, seed: int = SEED
) -> Interval | None:
    """By how much the first beats the second on the same queries, query by query.

    Two modes answer the same queries, so their own intervals overlap long before they are equally
    good; the interval of the difference excludes 0 where one of them is better.
    """
    paired = [one - other for one, other in zip(first, second, strict=True)]
    return interval(paired, resamples=resamples, seed=seed)
