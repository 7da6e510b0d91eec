"""Whether hits are close to the query, or only the nearest that there is.

Search by meaning always finds something, and text search finds whatever shares one word with the
query. An answer of which nothing is close is called weak. What counts as close was found with one
half of ops/eval and checked on the other (docs/quality.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: The least share of a query, by the weight of its words, that a hit by words holds if it is close.
LEAST_WORDS = 0.4
#: The same where meaning was searched as well: it finds the paraphrases, so words have to say more.
LEAST_WORDS_BESIDE_MEANING = 2 / 3
#: The least cosine similarity of a passage that is close. Cosines of one model say nothing about
#: those of another, so what is near to a model that is not here is not judged.
LEAST_SIMILARITIES: Mapping[str, float] = {
    "all-MiniLM-L6-v2-dynamic-int8": 0.4,
    "all-MiniLM-L6-v2-onnx-int8": 0.4,
}


@dataclass(frozen=True, slots=True)
class Closeness:
    """How close the best hits of a search are.

    ``words`` is the share of the query that the best hit by words holds, by the weight of its
    words, of which rare ones have more. ``meaning`` is the cosine similarity of the nearest
    passage. What was not looked for is ``None``; ``none_near`` says that a passage was looked for
    and none was as similar as the caller wanted.
    """

    words: float | None = None
    meaning: float | None = None
    none_near: bool = False

    def is_weak(self, model: str | None) -> bool | None:
        """Whether nothing is close; ``None`` where that cannot be told.

        With words and meaning, both have to say so: an error text is found by its words and a
        paraphrase by its meaning. ``model`` is the one of the similarity.
        """
        if self.meaning is None:
            least = LEAST_WORDS_BESIDE_MEANING if self.none_near else LEAST_WORDS
            return None if self.words is None else self.words < least
        if self.words is not None and self.words >= LEAST_WORDS_BESIDE_MEANING:
            return False
        nearest = LEAST_SIMILARITIES.get(model or "")
        return None if nearest is None else self.meaning < nearest

    def told(self) -> str:
        """The numbers, for a person."""
        parts = []
        if self.words is not None:
            parts.append(
                f"the best hit by words holds {self.words:.0%} of the query"
                if self.words
                else "no hit has any of its words"
            )
        if self.meaning is not None:
            parts.append(f"the nearest passage has the similarity {self.meaning:.2f}")
        return " and ".join(parts)

    def as_json(self) -> dict[str, float | None]:
        """For the answer."""
        rounded = {"words": self.words, "meaning": self.meaning}
        return {name: None if value is None else round(value, 4) for name, value in rounded.items()}
